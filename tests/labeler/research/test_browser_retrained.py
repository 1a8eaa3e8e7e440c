"""A reward model without some judgments, on the Studies page: its numbers, its plot, and the form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from labeler.app import create_app
from pipeline.studies.retrain.report import Figure, RetrainReport
from storage.engine.database import Database
from storage.reports import StudyOffer
from storage.tables.people import tokens
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import serving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding
from tests.helpers.retrained_study import OFFER, store_retrained


class World:
    def __init__(self, report: RetrainReport, loop: RecordingLoop, server: Any) -> None:
        self.report, self.loop, self.server = report, loop, server
        self.cookie: tuple[str, str, str] = ("", "", "")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    find_chromium()
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        Seeding(db).history(finished=1, labels=30)
        loop = RecordingLoop(db=db)
        loop.studies.offered = StudyOffer(
            reason="There is no policy run to repeat yet.", methods=("sft", "ppo"), retrain=OFFER
        )
        app = in_a_loop(
            lambda: create_app(
                db, loop=loop, admin=lambda *_: None, admin_token="t", accounts_required=False
            )
        )
        with serving(app) as server:
            made = World(store_retrained(db), loop, server)
            secret = tokens.issue(db, "researcher", "session", lifetime=None)
            made.cookie = (server.url, server.app.state.auth.cookie, secret)
            yield made


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[Browser]:
    assert world.server.url
    with chromium() as running:
        yield running


def shown(figure: Figure | None, digits: int) -> str:
    """A shift as the page writes it: in points with one digit, otherwise with three."""
    assert figure is not None
    assert figure.chance is not None
    scale = 100 if digits == 1 else 1
    ends = (figure.shift, figure.low, figure.high, figure.chance.low, figure.chance.high)
    shift, low, high, least, most = (
        f"{scale * (each or 0):+z.{digits}f}".replace("-", "−") for each in ends
    )
    verdict = "beyond" if figure.chance.beyond else "within"
    return f"{shift} ({low} to {high})\n{verdict} chance: {least} to {most}"


def test_its_runs_are_reward_models_among_the_runs(browser: Browser, world: World):
    with new_page(browser, cookie=world.cookie, width=1280) as page:
        page.goto(f"{world.server.url}/research/?tab=runs&section=compare")
        group = page.locator('#compare tr[data-study="retrain-without Carl"]')
        page.locator("#compare select[aria-label=Stage]").select_option("reward")
        expect(group).to_contain_text("Reward model without some judgments")
        page.locator("#compare select[aria-label=Stage]").select_option("policy")
        expect(group).to_have_count(0)


def check_plot(page: Page, url: str, scheme: str) -> None:
    """The study's stored figure is drawn, dark on a dark page, and wide enough to read."""
    plot = page.locator('[data-study="retrain-without Carl"] img.st-plot')
    expect(plot).to_have_attribute("src", "/research/api/studies/retrain-without%20Carl/plot")
    page.wait_for_function("document.querySelector('.st-plot').naturalWidth > 0")
    stored = page.request.get(f"{url}{plot.get_attribute('src')}").text()
    assert "<svg" in stored
    dark = "invert(0.89) hue-rotate(180deg)"
    expect(plot).to_have_css("filter", dark if scheme == "dark" else "none")
    assert (plot.bounding_box() or {})["width"] >= 440


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_page_shows_the_numbers_of_the_report(
    browser: Browser, world: World, width: int, scheme: str
):
    report = world.report
    with new_page(browser, cookie=world.cookie, width=width, scheme=scheme) as page:
        page.goto(f"{world.server.url}/research/?tab=runs&section=studies")
        card = page.locator('[data-study="retrain-without Carl"]')
        expect(card.locator(".st-plan")).to_have_text("reward-2: without Careless Carl; 3 controls")
        listed = card.locator(".st-findings li")
        assert listed.all_inner_texts() == list(report.findings)
        shifts = [
            *(shown(f, digits) for each in report.held_out for f, digits in ((each.accuracy, 1), (each.log_loss, 3))),
            *(shown(f, digits) for each in report.policies for f, digits in ((each.win_rate, 1), (each.gain, 3))),
            *(shown(each.shift, 1) for each in report.gate),
        ]  # fmt: skip
        assert any("beyond chance" in each for each in shifts)
        assert any("within chance" in each for each in shifts)
        assert card.locator(".st-shift").all_inner_texts() == shifts
        verdicts = card.locator("td[data-label=Verdict]").all_inner_texts()
        wanted = [
            each.before if each.before == each.after else f"{each.before} → {each.after}"
            for each in report.gate
        ]
        assert [" ".join(text.split()) for text in verdicts] == wanted
        card.locator(".st-counts summary").click()
        total = card.locator(".st-counts tbody tr").first
        assert total.locator("td").all_inner_texts() == ["All", "400", "100", "300"]
        check_plot(page, world.server.url, scheme)
        assert page.locator("img[src='x']").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_form_offers_what_the_judgments_have(browser: Browser, world: World):
    with new_page(browser, cookie=world.cookie) as page:
        page.goto(f"{world.server.url}/research/?tab=runs&section=studies")
        page.locator(".st-new").click()
        drawer = page.locator("#study-drawer")
        expect(page.locator(".st-offer")).to_have_text(
            "A new study can train reward-2 again without some judgments. For other kinds: There is no "
            "policy run to repeat yet."
        )
        # Nothing can repeat a policy run, so the kind is chosen.
        expect(drawer.locator("[name=kind][value=sweep]")).to_be_disabled()
        expect(drawer.locator("[name=kind][value=retrain]")).to_be_checked()
        expect(drawer.locator(".st-repeats")).to_contain_text(
            "Trains reward-2 of iteration 2 again"
        )
        expect(drawer.locator(".st-changed")).to_be_hidden()
        expect(drawer.locator(".st-only")).to_be_hidden()  # all judgments are by people
        expect(drawer.locator("[name=controls]")).to_have_value("3")
        expect(drawer.locator(".st-cost")).to_contain_text("about 2 min")
        names = drawer.locator(".st-people bdi").all_inner_texts()
        assert names == [each.value for each in OFFER.annotators]
        drawer.get_by_label("Careless Carl (100)").check()
        drawer.locator("[name=guidelines]").select_option("0" * 16)
        drawer.locator("[name=before]").fill("2026-03-05")
        drawer.locator("[name=controls]").fill("x")
        drawer.get_by_role("button", name="Start study").click()
        expect(drawer.locator(".st-field.ks-wrong")).to_contain_text("a whole number from 0 to 20")
        assert world.loop.asked == []
        drawer.locator("[name=controls]").fill("2")
        drawer.get_by_role("button", name="Start study").click()
        expect(drawer.locator(".ks-answer-slot")).to_contain_text("Can't start the study.")
        plan = {
            "without": ["Careless Carl"], "only": [], "guidelines": ["0" * 16],
            "before": "2026-03-05", "iteration": None, "controls": 2,
        }  # fmt: skip
        assert world.loop.asked == [("study", ("retrain", "retrain-1", plan, {}, "researcher"))]
        world.loop.asked.clear()
