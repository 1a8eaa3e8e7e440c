"""The theme, the command palette and the keys of the researcher's page in a real browser."""

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

DARK, LIGHT = "rgb(18, 21, 28)", "rgb(246, 246, 244)"
"""``--ks-page`` of research.css."""


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
        Seeding(db).failed_ppo(2)
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


def chart_colors(page: Page) -> list[int]:
    """The red, green and blue of the line on the first chart's canvas."""
    return page.evaluate(
        """() => {
          const canvas = document.querySelector(".uplot canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const counts = {};
          for (let i = 0; i < data.length; i += 4) {
            const [r, g, b, a] = data.slice(i, i + 4);
            // The line is the only saturated color; the axes are grey.
            if (a === 255 && b - Math.min(r, g) > 90) counts[[r, g, b]] = (counts[[r, g, b]] ?? 0) + 1;
          }
          return Object.entries(counts).sort((x, y) => y[1] - x[1])[0][0].split(",").map(Number);
        }"""
    )


def test_the_theme_is_switched_with_the_charts_kept_and_shared_with_the_desk(site):
    with new_page(site.browser, cookie=site.cookie) as page:
        page.goto(f"{site.server.url}/research/?tab=runs")
        page.wait_for_selector(".uplot")
        assert background(page) == LIGHT
        assert chart_colors(page) == [79, 70, 229]  # --ks-s0, #4f46e5
        page.get_by_role("button", name="Theme: system").click()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert background(page) == DARK
        assert chart_colors(page) == [147, 141, 250]  # --ks-s0 of the dark theme, #938dfa
        page.reload()
        page.wait_for_selector(".uplot")
        assert background(page) == DARK
        for scheme in ("dark", "light"):  # Gradio follows the system; the choice stays
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(300)
            assert background(page) == DARK
        page.goto(f"{site.server.url}/label/")
        expect(page.locator(".desk")).to_have_attribute("data-theme", "dark")
        page.wait_for_selector(".desk:not([data-state=loading])")
        page.get_by_role("button", name="Switch between light and dark").click()
        expect(page.locator(".desk")).to_have_attribute("data-theme", "light")
        page.goto(f"{site.server.url}/research/")
        page.get_by_role("button", name="Theme: light").click()
        expect(page.get_by_role("button", name="Theme: system")).to_be_visible()
        assert page.evaluate("localStorage.getItem('kitestring.theme')") is None
        page.emulate_media(color_scheme="dark")
        expect(page.locator("body")).to_have_css("background-color", DARK)


@pytest.mark.parametrize(
    ("system", "chosen", "color"), [("light", "dark", DARK), ("dark", "light", LIGHT)]
)
def test_no_other_theme_is_shown_while_the_page_loads(site, system, chosen, color):
    with new_page(site.browser, cookie=site.cookie, scheme=system) as page:
        page.add_init_script(
            f"""localStorage.setItem("kitestring.theme", "{chosen}");
            window.seen = new Set();
            (function look() {{
              if (document.body) seen.add(getComputedStyle(document.body).backgroundColor);
              requestAnimationFrame(look);
            }})();"""
        )
        page.goto(f"{site.server.url}/research/")
        page.wait_for_selector("#train, #retry")
        assert page.evaluate("[...seen]") == [color]


def options(page: Page) -> list[str]:
    return page.get_by_role("option").locator(".ks-name").all_inner_texts()


def test_the_palette_finds_sections_runs_and_possible_actions(site):
    with new_page(site.browser, cookie=site.cookie) as page:
        page.goto(f"{site.server.url}/research/")
        page.wait_for_selector("#train:enabled")
        page.get_by_role("link", name="Team").focus()
        page.keyboard.press("Control+k")
        field = page.get_by_role("combobox", name="Search pages, runs and actions")
        expect(field).to_be_focused()
        expect(page.get_by_role("option", name="run-2-policy")).to_be_visible()
        shown = options(page)
        links = page.locator("nav[aria-label='Sections of Models'] a").all_text_contents()
        assert [name for name in shown if name.startswith("Models: ")] == [
            f"Models: {name}" for name in links
        ]
        # Nothing has stopped, so training is the only action.
        assert shown[0] == "Train …"
        assert not {"Resume", "Label more", "Retry with changes …"} & set(shown)
        page.keyboard.type("?")  # in a field, a letter like any other
        expect(field).to_have_value("?")
        expect(page.get_by_text("Nothing matches.")).to_be_visible()
        field.fill("mdlin")  # Models: Lineage
        assert options(page)[0] == "Models: Lineage"
        field.fill("models")
        selected = page.get_by_role("option", selected=True)
        expect(selected.locator(".ks-name")).to_have_text("Models")
        page.keyboard.press("ArrowUp")  # around the end
        expect(selected.locator(".ks-name")).to_have_text(options(page)[-1])
        for _ in range(2):
            page.keyboard.press("ArrowDown")
        expect(selected.locator(".ks-name")).to_have_text("Models: Verdicts")
        assert field.get_attribute("aria-activedescendant") == selected.get_attribute("id")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("link", name="Team")).to_be_focused()
        page.keyboard.press("Control+k")
        field.fill("lineage")
        page.keyboard.press("Enter")
        expect(page).to_have_title("Lineage · Models · Kitestring")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("Control+k")
        field.fill("train")
        expect(page.get_by_role("option").first).to_contain_text("Train …")
        page.keyboard.press("Enter")  # from another page
        expect(page.get_by_role("dialog").get_by_role("heading").first).to_be_visible()
        assert page.evaluate(
            "document.querySelector('dialog[open]').contains(document.activeElement)"
        )
        page.keyboard.press("Control+k")  # not over another dialog
        expect(field).to_have_count(0)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Search").click()
        field.fill("run-1-reward")
        expect(page.get_by_role("option").first).to_contain_text("run-1-reward")
        page.keyboard.press("Enter")
        page.wait_for_url("**/research/?tab=runs&run=run-1-reward")


def test_the_question_mark_shows_the_keys_unless_a_field_has_the_focus(site):
    with new_page(site.browser, cookie=site.cookie) as page:
        page.goto(f"{site.server.url}/research/?tab=runs&section=compare")
        search = page.get_by_role("searchbox", name="Search runs and settings")
        search.press("?")
        expect(search).to_have_value("?")
        page.get_by_role("link", name="Data", exact=True).focus()
        for modifier in ("Control", "Meta", "Alt"):
            page.keyboard.press(f"{modifier}+?")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keyboard shortcuts")
        expect(keys).to_contain_text("Search pages, runs and actions")
        page.keyboard.press("Escape")
        expect(keys).to_have_count(0)
        expect(page.get_by_role("link", name="Data", exact=True)).to_be_focused()
