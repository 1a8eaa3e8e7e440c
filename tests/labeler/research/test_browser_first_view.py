"""The first view in Chromium: shown before Gradio's scripts come, and replaced without a jump."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from labeler.app import create_app
from labeler.research.first_view import document
from storage.engine.database import Database
from storage.tables.people import tokens
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import serving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding

OPEN_ROOTS = """
const attach = Element.prototype.attachShadow;
Element.prototype.attachShadow = function (options) { return attach.call(this, { ...options, mode: "open" }); };
"""
"""Playwright looks into open roots only; the page's own scripts must not."""
# Of what is in the first two screens.
PLACES = """root => Object.fromEntries([...root.querySelectorAll(".block[id]")]
  .map((part) => [part.id, part.getBoundingClientRect()])
  .filter(([, place]) => place.height > 0 && place.top < 2 * innerHeight)
  .map(([id, { x, y }]) => [id, [x, y]]))"""
JUMP = 8
"""Pixels by which a part may move when Gradio's page replaces the first view."""


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[str, tuple[str, str, str]]]:
    find_chromium()
    with Database.open(tmp_path_factory.mktemp("workspace") / "study") as db:
        seeding = Seeding(db)
        seeding.history(labels=40)
        seeding.judge_policies(1, wins=0.7, judgments=5)
        loop = RecordingLoop(db=db)
        app = in_a_loop(
            lambda: create_app(
                db, loop=loop, admin=lambda *_: None, admin_token="t", accounts_required=False
            )
        )
        secret = tokens.issue(db, "researcher", "session", lifetime=None)
        with serving(app) as server:
            yield server.url, (server.url, app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def browser(served) -> Iterator[Browser]:
    assert served
    with chromium() as running:
        yield running


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    monkeypatch.setattr(document, "PATIENCE", 60)


@contextmanager
def held(page: Page, address: str) -> Iterator[None]:
    """The page without Gradio's scripts, which come after the block."""
    waiting: list[Route] = []
    released = False

    def hold(route: Route) -> None:
        if released:
            route.continue_()
        else:
            waiting.append(route)

    page.route("**/assets/index-*.js", hold)
    page.add_init_script(OPEN_ROOTS)
    page.goto(address, wait_until="commit")
    expect(page.locator("html[data-first-view]")).to_be_visible()
    yield
    released = True
    waiting[-1].continue_()  # of the address that is open now


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize(
    ("query", "text"),
    [("", "Last iterations"), ("?tab=data", "1 is better"), ("?tab=team", "Björn")],
)
def test_the_section_can_be_read_before_gradio_starts_and_stays_where_it_is(
    browser, served, query, text, width
) -> None:
    url, cookie = served
    with new_page(browser, cookie=cookie, width=width) as page:
        with held(page, f"{url}/research/{query}"):
            first = page.locator("#first-view")
            expect(first.get_by_text(text).first).to_be_visible()
            expect(first.get_by_role("link", name="Models")).to_be_visible()
            expect(page.locator("#sections")).to_have_count(0)
            before = page.evaluate(f"({PLACES})(document.querySelector('#first-view').shadowRoot)")
            fits = "document.documentElement.scrollWidth <= innerWidth"
            assert page.evaluate(fits)
        expect(first).to_have_count(0)
        expect(page.get_by_text(text).first).to_be_visible()
        expect(page.locator("#top")).to_contain_text("Kitestring")
        after = page.evaluate(f"({PLACES})(document.querySelector('#sections'))")
        assert len(before) >= 2
        moved = {
            part: (place, after.get(part))
            for part, place in before.items()
            if part not in after
            or any(abs(a - b) > JUMP for a, b in zip(place, after[part], strict=True))
        }
        assert moved == {}


def test_links_of_the_first_view_open_their_section_and_its_buttons_wait(browser, served) -> None:
    url, cookie = served
    with new_page(browser, cookie=cookie) as page:
        with held(page, f"{url}/research/"):
            first = page.locator("#first-view")
            inert = first.locator("#train").evaluate("button => !!button.closest('[inert]')")
            assert inert
            first.get_by_role("link", name="Data", exact=True).click()
            expect(page.locator("#first-view [aria-current]").first).to_have_text("Data")
        expect(page.locator("#judgments-total")).to_contain_text("judgments")
        assert page.url.endswith("?tab=data")


def test_scripts_of_the_page_do_not_find_it(browser, served) -> None:
    url, cookie = served
    with new_page(browser, cookie=cookie) as page:
        page.route("**/assets/index-*.js", lambda _: None)
        page.goto(f"{url}/research/", wait_until="commit")
        expect(page.locator("html[data-first-view]")).to_be_visible()
        assert page.evaluate("document.getElementById('first-view').shadowRoot") is None
        assert page.evaluate("document.querySelector('#loop-next')") is None


@pytest.mark.parametrize(
    ("query", "name", "text"),
    [
        ("?tab=runs&section=compare", "compare", "run-2-policy"),
        ("?tab=runs&section=studies", "studies", "No studies yet"),
        ("?tab=overview&section=settings", "settings", "Changed only"),
    ],
)
def test_a_section_with_a_script_of_its_own_is_filled_once_and_handed_over(
    browser, served, query, name, text
) -> None:
    url, cookie = served
    with new_page(browser, cookie=cookie) as page:
        with held(page, f"{url}/research/{query}"):
            early = page.locator(f"#first-view #{name}")
            expect(early.get_by_text(text).first).to_be_visible()
            early.get_by_text(text).first.evaluate("part => { part.marked = true }")
        expect(page.locator("#first-view")).to_have_count(0)
        section = page.locator(f"#{name}")
        expect(section.get_by_text(text).first).to_be_visible()
        assert section.evaluate(
            "part => [...part.querySelectorAll('*')].some((each) => each.marked)"
        )


def test_runs_are_chosen_in_a_section_that_was_handed_over(browser, served) -> None:
    url, cookie = served
    with new_page(browser, cookie=cookie) as page:
        page.goto(f"{url}/research/?tab=runs&section=compare&runs=run-1-policy")
        expect(page.locator("#first-view")).to_have_count(0)
        page.get_by_role("checkbox", name="run-2-policy").check()
        expect(page).to_have_url(re.compile("runs=run-1-policy(,|%2C)run-2-policy"))
        expect(page.locator("#compare canvas").first).to_be_visible()
        page.get_by_role("link", name="Studies").click()
        page.get_by_role("link", name="Compare").click()
        expect(page.get_by_role("checkbox", name="run-2-policy")).to_be_checked()
