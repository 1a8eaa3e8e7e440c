"""Settings in a real browser: the page that saves config.toml, and the drawer that starts training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from labeler.app import create_app
from labeler.research.overview.tab import OverviewTab
from pipeline.config.sections import CONFIGS
from pipeline.loop.loop import Loop
from pipeline.loop.workspace_config import load_settings
from storage.engine.database import Database
from storage.records import Annotator
from storage.tables import audit, iterations
from storage.tables.people import annotators, tokens
from storage.tables.runs import runs
from tests.helpers.browser import SLOW, chromium, find_chromium, new_page
from tests.helpers.desk_world import Server, serving
from tests.helpers.recording_loop import in_a_loop
from tests.helpers.research_seed import Seeding

expect.set_options(timeout=SLOW)
MINE = "# Our study.\n" + (CONFIGS / "demo.toml").read_text().replace(
    "lr = 2e-4\n", "lr = 2e-5  # half of what diverged\n"
)
"""The preset with one change and a comment."""


@dataclass(frozen=True)
class World:
    """A served workspace with its own config.toml and the real loop."""

    db: Database
    server: Server
    loop: Loop

    def reset(self) -> None:
        """Write config.toml as it was, and run with it."""
        self.file.write_text(MINE)
        self.loop.save_settings({}, self.loop.workspace_settings().version)

    @property
    def file(self) -> Path:
        return self.db.workspace / "config.toml"

    def cookie(self, who: str = "researcher") -> tuple[str, str, str]:
        secret = tokens.issue(self.db, who, "session", lifetime=None)
        return (self.server.url, self.server.app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    find_chromium()  # skips before anything is served
    with Database.open(tmp_path_factory.mktemp("workspace") / "study") as db:
        (db.workspace / "config.toml").write_text(MINE)
        Seeding(db).history(finished=2, labels=60)
        annotators.add(db, Annotator(id="vic", name="Vic", role="viewer"))
        config = load_settings(db.workspace, [], ["ppo.lr=5e-5", "ppo.clip=0.3"]).to_dict()
        last = [run for run in runs.listing(db) if run.stage == "policy"][-1]
        runs.save(db, replace(last, config=config))
        loop = Loop(db, load_settings(db.workspace, [], []))
        app = in_a_loop(
            lambda: create_app(
                db, loop=loop, admin=lambda *_: None, admin_token="t", accounts_required=False
            )
        )
        try:
            with serving(app) as server:
                yield World(db, server, loop)
        finally:
            loop.shut_down()


@pytest.fixture(scope="module")
def calm(world: World) -> Iterator[World]:
    """The same workspace on a server whose overview is not refreshed by a timer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OverviewTab, "every", 600)
        app = in_a_loop(
            lambda: create_app(
                world.db, loop=world.loop, admin=lambda *_: None, admin_token="t",
                accounts_required=False,
            )
        )  # fmt: skip
    with serving(app) as server:
        yield replace(world, server=server)


@pytest.fixture(scope="module")
def browser(world: World, calm: World) -> Iterator[Browser]:
    assert world.server.url != calm.server.url  # both run before Playwright's loop
    with chromium() as running:
        yield running


@contextmanager
def settings_page(browser: Browser, world: World, **settings) -> Iterator[Page]:
    settings = {"cookie": world.cookie()} | settings
    world.reset()
    with new_page(browser, **settings) as page:
        page.goto(f"{world.server.url}/research/?tab=overview&section=settings")
        expect(page.locator("[data-group=PPO]")).to_be_visible()
        yield page


def shown(page: Page) -> list[str]:
    """The settings on the screen."""
    rows = page.locator("#settings .ks-setting:visible")
    return [row.get_attribute("data-setting") or "" for row in rows.all()]


def test_a_value_is_edited_saved_and_in_the_file_with_its_comments(browser, world):
    with settings_page(browser, world) as page:
        page.locator("[data-group=PPO] summary").click()
        row = page.locator("[data-setting='ppo.lr']")
        expect(row).to_contain_text("Policy learning rate")
        expect(row).to_contain_text("Peak learning rate of AdamW")
        expect(row).to_contain_text("Preset 2e-4")
        expect(row).to_contain_text("Applies from the next policy stage")
        expect(page.locator(".ks-save")).to_be_hidden()
        page.locator("#config-ppo-lr").fill("3e-6")
        page.locator("[data-group=Labeling] summary").click()
        page.locator("#config-labeling-marks").check()
        expect(page.locator(".ks-dirty")).to_have_text("2 unsaved")
        page.locator(".ks-save").click()
        expect(page.locator("#settings .ks-note")).to_contain_text(
            "Saved 2 settings to config.toml"
        )
        expect(page.locator("#settings .ks-note")).to_contain_text("Applies now")
        text = world.file.read_text()
        assert "lr = 3e-6  # half of what diverged\n" in text
        assert text.replace("3e-6", "2e-5").replace("\nmarks = true", "") == MINE
        page.reload()
        page.locator("[data-group=PPO] summary").click()
        expect(page.locator("#config-ppo-lr")).to_have_value("3e-6")
    entry = audit.listing(world.db, action="settings.saved")[0]
    assert entry.actor == "Rosa"
    assert entry.entry.details["settings"] == {
        "ppo.lr": "2e-05 → 3e-06", "labeling.marks": "false → true",
    }  # fmt: skip


def test_search_and_changed_only(browser, world):
    with settings_page(browser, world) as page:
        assert shown(page) == []  # the groups are closed
        search = page.get_by_label("Search settings")
        search.fill("threshold tie")  # of the help of one, and the label of others
        assert shown(page) == ["reward.tie_model", "reward.theta_lr"]
        search.fill("ppo.clip_high")
        assert shown(page) == ["ppo.clip_high"]
        search.fill("no such setting")
        expect(page.locator("#settings [role=status]")).to_have_text("No setting matches.")
        search.fill("")
        assert shown(page) == []
        page.get_by_label("Changed only").check()
        assert shown(page) == ["ppo.lr"]
        page.locator("[data-setting='ppo.lr']").get_by_role("button", name="Reset").click()
        expect(page.locator("#config-ppo-lr")).to_have_value("2e-4")
        expect(page.locator(".ks-dirty")).to_have_text("1 unsaved")
        page.locator(".ks-discard").click()
        expect(page.locator("#config-ppo-lr")).to_have_value("2e-5")


def test_both_of_two_wrong_values_are_named_at_their_fields(browser, world):
    with settings_page(browser, world) as page:
        page.get_by_label("Search settings").fill("ppo.")
        page.locator("#config-ppo-kl_weight").fill("-1")
        page.locator("#config-ppo-rollouts").fill("70")
        page.locator("#config-ppo-epochs").fill("3")
        page.locator(".ks-save").click()
        expect(page.locator("#settings .ks-note")).to_contain_text("Not saved: 2 values are wrong.")
        problems = page.locator(".ks-problem:visible")
        expect(problems).to_have_text(
            ["ppo.minibatch=8 must divide ppo.rollouts=70.", "Must be in [0, 10000.0]."],
            use_inner_text=True,
        )
        expect(page.locator("#config-ppo-kl_weight")).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#config-ppo-epochs")).not_to_have_attribute("aria-invalid", "true")
        assert world.file.read_text() == MINE
        page.locator("#config-ppo-kl_weight").fill("0.2")
        expect(problems).to_have_count(1)


def test_a_file_that_changed_meanwhile_is_kept_and_so_is_what_was_typed(browser, world):
    with settings_page(browser, world) as page:
        page.get_by_label("Search settings").fill("ppo.")
        page.locator("#config-ppo-epochs").fill("3")
        world.file.write_text(MINE.replace("\nupdates = 60", "\nupdates = 90"))
        page.locator(".ks-save").click()
        note = page.locator("#settings .ks-note")
        expect(note).to_contain_text("Not saved: config.toml changed on disk.")
        note.get_by_role("button").click()
        expect(page.locator("#config-ppo-updates")).to_have_value("90")
        expect(page.locator("#config-ppo-epochs")).to_have_value("3")
        page.locator(".ks-save").click()
        expect(note).to_contain_text("Saved 1 setting to config.toml.")
        assert "\nupdates = 90" in world.file.read_text()
        assert "epochs = 3" in world.file.read_text()


def test_a_viewer_reads_the_settings_and_cannot_change_them(browser, world):
    with settings_page(browser, world, cookie=world.cookie("vic")) as page:
        page.locator("[data-group=PPO] summary").click()
        expect(page.locator("#config-ppo-lr")).to_have_value("2e-5")
        expect(page.locator("#config-ppo-lr")).to_be_disabled()
        expect(page.locator("[data-setting='ppo.lr'] .ks-reset")).to_be_hidden()


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_the_page_is_not_wider_than_the_screen(browser, world, width):
    with settings_page(browser, world, width=width) as page:
        page.get_by_label("Search settings").fill("e")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        bar = page.locator(".ks-settings-bar")
        page.mouse.wheel(0, 3000)
        expect(bar).to_be_in_viewport()


@contextmanager
def train_drawer(browser: Browser, world: World, **settings) -> Iterator[Page]:
    world.reset()
    with new_page(browser, cookie=world.cookie(), **settings) as page:
        page.goto(f"{world.server.url}/research/")
        page.locator("#train").click()
        expect(page.locator("#train-drawer")).to_be_visible()
        yield page


def fields(page: Page) -> list[str]:
    return page.locator("#train-drawer .ks-setting label").all_inner_texts()


def test_the_drawer_has_six_fields_of_the_method_under_human_names(browser, world):
    with train_drawer(browser, world) as page:
        assert fields(page) == [
            "Method", "Start from", "Policy updates", "KL weight (β)", "Policy learning rate",
            "Reward model epochs",
        ]  # fmt: skip
        page.locator("#setting-optimize-method").select_option("dpo")
        assert fields(page) == [
            "Method", "Start from", "DPO epochs", "DPO β", "DPO learning rate", "Reward model epochs",
        ]  # fmt: skip
        page.keyboard.press("Escape")
        expect(page.locator("#train-drawer")).to_be_hidden()


def test_the_drawer_lists_what_differs_from_the_last_run(browser, world):
    with train_drawer(browser, world) as page:
        since = page.locator(".ks-since")
        expect(since).to_contain_text("2 changed from the last run (PPO, iteration 2)")
        page.locator("#setting-ppo-kl_weight").fill("0.2")
        since.locator("summary").click()
        assert since.locator("li").all_inner_texts() == [
            "Policy learning rate\n5e-5 → 2e-5", "Clip range\n0.3 → 0.2", "KL weight (β)\n0.1 → 0.2",
        ]  # fmt: skip
        page.locator(".ks-preset select").select_option("last")
        expect(since).to_contain_text("No change from the last run")
        assert fields(page)[-1] == "Clip range"  # what the preset changes is in sight
        expect(page.locator("#setting-ppo-clip")).to_have_value("0.3")
        page.locator(".ks-preset select").select_option("preset")
        expect(page.locator("#setting-ppo-lr")).to_have_value("2e-4")
        assert "Clip range" not in fields(page)


def test_the_search_of_the_drawer_adds_any_other_setting(browser, world):
    with train_drawer(browser, world) as page:
        page.locator("#train-search").fill("annotators' samples")
        fixed = page.locator("#train-found [aria-disabled]").first
        expect(fixed).to_contain_text("Applies from the next iteration")
        page.locator("#train-search").fill("clip range")
        options = page.locator("#train-found b").all_inner_texts()
        assert options == ["Clip range", "Upper clip range", "Value clip range"]
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator("#setting-ppo-clip_high")).to_be_focused()
        assert fields(page)[-1] == "Upper clip range"
        page.locator("#setting-ppo-clip_high").fill("-1")
        page.locator("#setting-ppo-lr").fill("0")
        page.locator("#train-start").click()
        note = page.locator("#train-drawer .ks-note:visible")
        expect(note).to_contain_text("2 values are wrong")
        expect(page.locator("#train-drawer .ks-problem:visible")).to_have_count(2)
        assert iterations.latest(world.db).phase == "labeling"  # type: ignore[union-attr]


def test_no_field_of_the_site_shows_a_dotted_name_as_its_label(browser, world):
    with settings_page(browser, world) as page:
        labels = page.locator("#settings .ks-setting label").all_text_contents()
        assert (
            len(labels)
            == len(load_settings(world.db.workspace, [], []).to_dict()["ppo"])
            + sum(
                len(section)
                for name, section in load_settings(world.db.workspace, [], []).to_dict().items()
                if isinstance(section, dict) and name != "ppo"
            )
            + 1
        )
        assert [label for label in labels if "." in label or "_" in label] == []


def test_what_the_page_said_before_training_goes_when_training_starts(browser, calm):
    with new_page(browser, cookie=calm.cookie()) as page:
        page.goto(f"{calm.server.url}/research/")
        expect(page.locator("#loop-next")).to_contain_text("to go")
        page.locator("#train").click()
        page.locator("#train-start").click()
        expect(page.locator("#train-answer")).to_contain_text("Training has started")
        expect(page.locator("#loop-next")).to_contain_text("The reward stage is running.")
