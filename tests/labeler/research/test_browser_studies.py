"""Studies in a real browser: the form, the list, the result, and their runs among the compared ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from labeler.app import create_app
from pipeline.studies.sweep import WeightCurve, summary, write_report
from storage.engine.database import Database
from storage.records import Metric, Study, StudyRun
from storage.reports import StudyOffer
from storage.tables.people import tokens
from storage.tables.runs import runs, studies
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import add_person, serving
from tests.helpers.recording_loop import HOSTILE, RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding

UPDATES = 12
CURVES = {0.05: (0.2, 0.3), 0.5: (0.1, 0.05)}
"""Rise of reward and KL in an update, by β."""
OFFER = StudyOffer(
    run="run-9", method="PPO", iteration=2, kl_weight=0.05,
    methods=("sft", "best_of_n", "ppo", "grpo", "dpo", "rloo"),
)  # fmt: skip


def store_sweep(db: Database) -> None:
    """A finished sweep with its report, a failed comparison and a running one."""
    repeated = runs.listing(db)[-1]
    made = []
    for kl_weight, (reward, kl) in CURVES.items():
        run = StudyRun(
            id=f"sweep-first/kl_weight={kl_weight}", study="sweep-first", title=f"β = {kl_weight}",
            method="PPO", status="succeeded", directory=f"sweeps/first/kl_weight={kl_weight}",
            ingested_seq=UPDATES,
        )  # fmt: skip
        studies.save(db, run)
        values = {"reward/mean": reward, "kl/reference": kl}
        metrics = [
            Metric(run=run.id, seq=i, step=i, name=name, value=slope * i)
            for i in range(1, UPDATES + 1)
            for name, slope in values.items()
        ]
        studies.ingest(db, run, metrics, [])
        made.append(
            WeightCurve(
                kl_weight=kl_weight,
                reward=[reward * i for i in range(1, UPDATES + 1)],
                kl=[kl * i for i in range(1, UPDATES + 1)],
                std=[0.5] * UPDATES,
                responses=64,
                samples=[],
            )
        )
    folder = db.workspace / "sweeps" / "first"
    folder.mkdir(parents=True)
    write_report(folder, made, summary(made, 2))
    common: dict[str, Any] = {"repeats": repeated.id, "iteration": repeated.iteration}
    studies.save(
        db,
        Study(
            id="sweep-first", kind="sweep", name="first", status="succeeded", progress=1.0,
            plan={"kl_weight": [*CURVES], "kl_budget": 2.0}, settings={"ppo.lr": HOSTILE}, **common,
        ),
        Study(
            id="compare-second", kind="compare", name="second", status="failed", reason=HOSTILE,
            plan={"methods": ["ppo"], "kl": 2.0, "snapshots": 5, "gold": None}, **common,
        ),
    )  # fmt: skip


class World:
    def __init__(self, db: Database, loop: RecordingLoop, server: Any) -> None:
        self.db, self.loop, self.server = db, loop, server

    def cookie(self, person: str = "researcher") -> tuple[str, str, str]:
        secret = tokens.issue(self.db, person, "session", lifetime=None)
        return (self.server.url, self.server.app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    find_chromium()
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        Seeding(db).history(finished=1, labels=30)
        store_sweep(db)
        loop = RecordingLoop(db=db)
        loop.studies.offered = OFFER
        app = in_a_loop(
            lambda: create_app(
                db, loop=loop, admin=lambda *_: None, admin_token="t", accounts_required=False
            )
        )
        with serving(app) as server:
            yield World(db, loop, server)


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[Browser]:
    assert world.server.url
    with chromium() as running:
        yield running


def open_studies(page: Page, url: str, more: str = "") -> None:
    page.goto(f"{url}/research/?tab=runs&section=studies{more}")
    expect(page.locator(".st-new, .st-offer").first).to_be_visible()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_finished_study_shows_the_numbers_of_its_report(
    browser: Browser, world: World, width: int
):
    report = json.loads((world.db.workspace / "sweeps/first/sweep.json").read_text())
    assert report["best"] == 0.05  # by hand: 1.2 at a KL of 1.8 (updates 4–8), against 1.0 at 0.5
    with new_page(browser, cookie=world.cookie(), width=width) as page:
        open_studies(page, world.server.url)
        expect(page.locator(".st-offer")).to_have_text(
            "A new study repeats run-9 (PPO, iteration 2) outside the loop."
        )
        first = page.locator("[data-study=sweep-first]")
        expect(first.locator(".ks-note")).to_contain_text("Recommended within 2 nats: β = 0.05")
        lead = report["lead"]
        expect(first.locator(".ks-note")).to_contain_text(
            f"Its reward is {lead['by']:.3f} ± {1.96 * lead['error']:.3f} above that of β = 0.5"
        )
        rows = first.locator("tbody tr")
        for i, row in enumerate(report["runs"]):
            expect(rows.nth(i)).to_contain_text(f"{row['reward']:.3f}")
            expect(rows.nth(i)).to_contain_text(f"{row['reward_within_budget']:.3f}")
        expect(first.locator(".st-result")).to_contain_text(
            "the table of runs shows the last update"
        )
        drawn = (
            "[...document.querySelectorAll('.st-plot')].every((e) => e.complete && e.naturalWidth)"
        )
        page.wait_for_function(drawn)
        expect(page.locator("[data-study=compare-second]")).to_contain_text("The study failed.")
        assert page.locator("img[src='x']").count() == 0
        assert page.title() == "Studies · Runs · Kitestring"
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_form_names_wrong_values_and_sends_what_was_typed(browser: Browser, world: World):
    """By keyboard alone."""
    with new_page(browser, cookie=world.cookie()) as page:
        open_studies(page, world.server.url)
        page.locator(".st-new").focus()
        page.keyboard.press("Enter")
        drawer = page.locator("#study-drawer")
        expect(drawer).to_be_visible()
        expect(drawer.locator("[name=name]")).to_be_focused()
        page.keyboard.type("lr high")
        page.keyboard.press("Tab")
        expect(drawer.locator("[name=kl_weight]")).to_have_value("0, 0.025, 0.05, 0.1, 0.2")
        page.keyboard.type("0, x")
        page.keyboard.press("Enter")
        expect(drawer.locator("[name=kl_weight]")).to_be_focused()
        expect(drawer.locator(".st-field.ks-wrong")).to_contain_text("Enter numbers from 0 on")
        assert world.loop.asked == []
        page.keyboard.press("Control+A")
        page.keyboard.type("0, 0.1")
        page.keyboard.press("Tab")
        page.keyboard.type("3")
        page.keyboard.press("Tab")
        page.keyboard.type("KL weight")  # not offered: the sweep sets it
        assert drawer.locator("option", has_text="ppo.kl_weight").count() == 0
        drawer.locator(".st-changed select").select_option("ppo.updates")
        page.keyboard.press("Control+A")
        page.keyboard.type("50")
        page.keyboard.press("Enter")
        expect(drawer.locator(".ks-answer-slot")).to_contain_text("Can't start the study.")
        plan = {"kl_weight": [0.0, 0.1], "kl_budget": 3.0}
        assert world.loop.asked == [
            ("study", ("sweep", "lr high", plan, {"ppo.updates": "50"}, "researcher"))
        ]
        world.loop.asked.clear()
        page.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        page.locator(".st-new").click()
        drawer.get_by_text("Method comparison").click()
        expect(drawer.locator("[name=name]")).to_have_value("methods-1")
        drawer.get_by_label("RLOO").uncheck()
        drawer.locator("[name=kl]").fill("1.5")
        drawer.get_by_role("button", name="Start study").click()
        expect(drawer.locator(".ks-answer-slot")).to_contain_text("Can't start the study.")
        (asked,) = world.loop.asked
        compared = {"methods": ["sft", "best_of_n", "ppo", "dpo"], "kl": 1.5, "snapshots": 5}
        assert asked == ("study", ("compare", "methods-1", compared, {}, "researcher"))
        world.loop.asked.clear()


def test_buttons_act_on_their_study_and_viewers_have_none(browser: Browser, world: World):
    with new_page(browser, cookie=world.cookie()) as page:
        open_studies(page, world.server.url)
        page.locator("[data-study=compare-second]").get_by_role("button", name="Continue").click()
        expect(page.locator(".st-said")).to_contain_text("The study does not exist.")
        assert world.loop.asked == [("continue study", "compare-second")]
        world.loop.asked.clear()
    viewer = add_person(world.db, "Vera", "viewer")
    with new_page(browser, cookie=world.cookie(viewer.id)) as page:
        open_studies(page, world.server.url)
        expect(page.locator("[data-study=sweep-first]")).to_be_visible()
        expect(page.locator("[data-study=sweep-first] .st-plot")).to_be_visible()
        expect(page.locator(".st-new")).to_be_hidden()
        assert page.locator("#studies button:visible").count() == 0
    world.loop.studies.offered = StudyOffer(reason="Already training: PPO.")
    with new_page(browser, cookie=world.cookie()) as page:
        open_studies(page, world.server.url)
        expect(page.locator(".st-offer")).to_have_text("Already training: PPO.")
        expect(page.locator(".st-new")).to_be_disabled()
        expect(page.locator("[data-act=continue]")).to_be_disabled()
    world.loop.studies.offered = OFFER


def test_the_runs_of_a_study_are_a_group_and_their_curves_are_overlaid(
    browser: Browser, world: World
):
    with new_page(browser, cookie=world.cookie(), width=1440) as page:
        page.goto(f"{world.server.url}/research/?tab=runs&section=compare")
        group = page.locator('#compare tr[data-study="sweep-first"]')
        expect(group).to_contain_text("KL-weight sweep · 2 of 2 runs")
        expect(group).to_contain_text("succeeded")
        # The newest policy runs of the loop are chosen first, and none of a study.
        assert page.locator("#compare .ks-member input:checked").count() == 0
        members = page.locator("#compare .ks-member")
        expect(members).to_have_count(2)
        expect(members.nth(1)).to_contain_text("β = 0.5")
        expect(members.nth(1).locator("[data-label=KL]")).to_have_text("0.6")  # 12 · 0.05
        expect(members.nth(1).locator("[data-label=Reward]")).to_have_text("1.2")
        group.locator("input").focus()
        page.keyboard.press("Space")
        expect(page.locator("#compare .ks-member input:checked")).to_have_count(2)
        expect(page.locator("#compare .ks-chart").first).to_contain_text("first: β = 0.05")
        expect(page.locator("#compare .ks-chart").first).to_contain_text("first: β = 0.5")
        expect(group.locator("input")).to_be_focused()
        assert "sweep-first" in page.url
        members.nth(0).locator("input").uncheck()
        expect(group.locator("input")).to_have_js_property("indeterminate", True)
        page.reload()  # the choice is in the address
        expect(page.locator("#compare .ks-member input:checked")).to_have_count(1)
        page.locator("#compare input[type=search]").fill("first 0.5")
        expect(members).to_have_count(1)
        page.locator('#compare tr[data-study="sweep-first"] a').click()
        expect(page.locator("[data-study=sweep-first] .st-plot")).to_be_visible()
