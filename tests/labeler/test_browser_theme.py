"""The theme across pages in a real browser: the cookie alone says which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from labeler.app import create_app
from storage.engine.database import Database
from storage.tables.people import tokens
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import serving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding

RESEARCH = {"light": "rgb(246, 246, 244)", "dark": "rgb(18, 21, 28)"}
"""``--ks-page`` of research.css, and ``--paper`` of account.css."""
DESK = {"light": "rgb(245, 245, 242)", "dark": "rgb(17, 20, 27)"}
"""``--paper`` of the desk's page.css."""
OTHER = {"light": "dark", "dark": "light"}
WATCH = """
window.seen = new Set();
(function look() {
  for (const each of [document.body, document.querySelector(".desk")]) {
    const color = each && getComputedStyle(each).backgroundColor;
    const shown = each && getComputedStyle(each).visibility === "visible";
    if (shown && color !== "rgba(0, 0, 0, 0)") seen.add(color);
  }
  requestAnimationFrame(look);
})();
"""


@dataclass(frozen=True)
class Site:
    browser: Browser
    server: Any
    db: Database

    @property
    def cookie(self) -> tuple[str, str, str]:
        secret = tokens.issue(self.db, "researcher", "session", lifetime=None)
        return (self.server.url, self.server.app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    find_chromium()
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        Seeding(db).history(finished=1, labels=30)
        app = in_a_loop(
            lambda: create_app(
                db, loop=RecordingLoop(db=db), admin=lambda *_: None, admin_token="t",
                accounts_required=False,
            )
        )  # fmt: skip
        with serving(app) as server, chromium() as browser:
            yield Site(browser, server, db)


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def cookies(page: Page) -> list[dict]:
    return [each for each in page.context.cookies() if each["name"] == "kitestring_theme"]


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_choice_on_one_page_is_the_theme_of_all(site, system):
    chosen = OTHER[system]
    with new_page(site.browser, cookie=site.cookie, scheme=system) as page:
        for path in ("/adjudicate", "/label/password", "/nothing"):
            page.goto(site.server.url + path)
            assert background(page) == RESEARCH[system]
        page.goto(f"{site.server.url}/research/")
        page.get_by_role("button", name="Theme: system").click()
        (kept,) = cookies(page)
        assert (kept["value"], kept["path"], kept["sameSite"]) == (chosen, "/", "Lax")
        assert 364 < (kept["expires"] - page.evaluate("Date.now() / 1000")) / 86400 <= 365
        for path in ("/adjudicate", "/label/password", "/nothing"):
            page.goto(site.server.url + path)
            assert background(page) == RESEARCH[chosen]
            scheme = "getComputedStyle(document.documentElement).colorScheme"
            assert page.evaluate(scheme) == chosen
        # The other way: the desk's switch, and then the research page and the system's theme.
        page.goto(f"{site.server.url}/label/")
        page.wait_for_selector(".desk:not([data-state=loading])")
        page.get_by_role("button", name="Switch between light and dark").click()
        expect(page.locator(".desk")).to_have_attribute("data-theme", system)
        assert cookies(page)[0]["value"] == system
        page.goto(f"{site.server.url}/adjudicate")
        assert page.locator("html").get_attribute("data-theme") == system
        page.goto(f"{site.server.url}/research/")
        for _ in range(3):
            if page.get_by_role("button", name="Theme: system").is_visible():
                break
            page.locator("[data-theme-switch]:visible").click()
            page.wait_for_timeout(100)
        assert cookies(page) == []
        page.goto(f"{site.server.url}/adjudicate")
        assert page.locator("html").get_attribute("data-theme") is None


@pytest.mark.parametrize("chosen", ["light", "dark"])
def test_no_page_shows_the_other_theme_while_it_loads(site, chosen):
    with new_page(site.browser, cookie=site.cookie, scheme=OTHER[chosen]) as page:
        page.context.add_cookies(
            [{"url": site.server.url, "name": "kitestring_theme", "value": chosen}]
        )
        page.add_init_script(WATCH)
        for path, ready, colors in (
            ("/research/", "#train, #retry", RESEARCH),
            ("/label/", ".desk:not([data-state=loading])", DESK),
            ("/adjudicate", "main", RESEARCH),
        ):
            page.goto(site.server.url + path)
            page.wait_for_selector(ready)
            page.wait_for_timeout(300)
            assert page.evaluate("[...seen]") == [colors[chosen]], path


def test_what_earlier_versions_kept_moves_to_the_cookie_once(site):
    with new_page(site.browser, cookie=site.cookie) as page:
        page.goto(f"{site.server.url}/adjudicate")
        page.evaluate("localStorage.setItem('kitestring.theme', 'dark')")
        page.goto(f"{site.server.url}/label/")
        expect(page.locator(".desk")).to_have_attribute("data-theme", "dark")
        assert cookies(page)[0]["value"] == "dark"
        assert page.evaluate("localStorage.getItem('kitestring.theme')") is None
        # A cookie wins over what an old page stored again, and a wrong value is the system's theme.
        for kept, shown in (("light", "light"), ("evil", "light")):
            page.evaluate("localStorage.setItem('kitestring.theme', 'dark')")
            page.evaluate(f"document.cookie = 'kitestring_theme={kept}; path=/'")
            page.goto(f"{site.server.url}/research/")
            page.wait_for_selector("#train, #retry")
            assert background(page) == RESEARCH[shown]
            assert page.evaluate("localStorage.getItem('kitestring.theme')") is None


def test_another_tab_follows(site):
    with new_page(site.browser, cookie=site.cookie) as page:
        page.goto(f"{site.server.url}/research/")
        page.wait_for_selector("#train, #retry")
        other = page.context.new_page()
        other.goto(f"{site.server.url}/label/")
        other.wait_for_selector(".desk:not([data-state=loading])")
        other.get_by_role("button", name="Switch between light and dark").click()
        expect(page.locator("body")).to_have_css("background-color", RESEARCH["dark"])
        page.get_by_role("button", name="Theme: dark").click()
        expect(other.locator(".desk")).to_have_attribute("data-theme", "light")
