"""Every state at 200% and 400% zoom of a window of 1280 px, and with forced colors."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Page, expect

from labeler.translation import LANGUAGES
from tests.helpers import desk_states
from tests.helpers.browser import new_page
from tests.helpers.desk_browser import cookie_of
from tests.helpers.desk_world import serving

ZOOMED = ((640, 430), (320, 430), (320, 215))
CONTROLS = "button, a[href], input, textarea, select, summary"
# What is wider than the window or its own box, and controls that something covers once they are
# scrolled into view.
PROBLEMS = """
([controls, reach]) => {
  const found = [];
  const shown = (n) => n.checkVisibility({ checkVisibilityCSS: true }) && !n.closest(".unseen, .skip");
  const name = (n) => n.outerHTML.slice(0, 90);
  const scrolls = (n) => n && ((/auto|scroll/.test(getComputedStyle(n).overflowX) && n.scrollWidth > n.clientWidth) || scrolls(n.parentElement));
  if (document.documentElement.scrollWidth > innerWidth) found.push(["page", document.documentElement.scrollWidth]);
  const root = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document;
  for (const node of root.querySelectorAll(`${controls}, h1, h2, h3, label, legend, p`)) {
    if (!shown(node)) continue;
    const { left, right } = node.getBoundingClientRect();
    if ((left < -1 || right > innerWidth + 1) && !scrolls(node.parentElement)) found.push(["outside", name(node)]);
    if (node.matches("button, a, summary") && node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 1) found.push(["cut", name(node)]);
  }
  const covers = matchMedia("(max-width: 800px)").matches && root.querySelector(".guidelines:not([hidden])");
  for (const node of reach ? (covers || root).querySelectorAll(controls) : []) {
    if (!shown(node) || node.disabled) continue;
    node.scrollIntoView({ block: "nearest" });
    const [{ left, top, width, height }] = node.getClientRects(); // of a link in two lines, the first
    const there = document.elementFromPoint(left + width / 2, top + Math.min(height, innerHeight) / 2);
    if (!(node.contains(there) || there?.closest("label")?.contains(node))) found.push(["covered", name(node), there?.outerHTML.slice(0, 60)]);
  }
  scrollTo(0, 0);
  return found;
}
"""
# Buttons that forced colors leave without an edge.
FLAT = """
() => [...document.querySelectorAll("main form button, main .button")]
  .filter((n) => n.checkVisibility() && !parseFloat(getComputedStyle(n).borderTopWidth))
  .map((n) => n.outerHTML.slice(0, 90))
"""


@dataclass
class Fit:
    page: Page
    found: list[tuple] = field(default_factory=list)

    def state(self, name: str, part: str = "html", page: Page | None = None) -> None:
        page = page or self.page
        for width, height in ZOOMED:
            page.set_viewport_size({"width": width, "height": height})
            problems = page.evaluate(PROBLEMS, [CONTROLS, part == "html"])
            self.found += [(name, width, height, *each) for each in problems]
        page.set_viewport_size({"width": 1280, "height": 860})


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoom")
    with (
        desk_states.studio(folder, list(LANGUAGES), desk_states.SEEN) as world,
        serving(world.app) as server,
    ):
        yield world, server


def check_all(browser, studio, language):
    world, server = studio
    person = world.people[language]
    cookie = cookie_of((world.db, world.app), server.url, person)
    with new_page(browser, locale=language, cookie=cookie) as page:
        fit = Fit(page)
        desk_states.go_through(fit, world, server.url, person)
    assert fit.found == []


def test_nothing_is_cut_or_covered_in_a_zoomed_window(browser, studio):
    check_all(browser, studio, "en")


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", [each for each in LANGUAGES if each != "en"])
def test_nothing_is_cut_or_covered_in_any_language(browser, studio, language):
    check_all(browser, studio, language)


def test_the_focus_does_not_go_below_the_guidelines_of_a_narrow_window(browser, studio):
    world, server = studio
    cookie = cookie_of((world.db, world.app), server.url, world.people["en"])
    with new_page(browser, width=640, height=430, cookie=cookie) as page:
        page.goto(f"{server.url}/label/")
        expect(page.locator(".pair")).to_be_visible()
        page.keyboard.press("g")
        expect(page.locator(".guidelines > div")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Close the guidelines")).to_be_focused()
        expect(page.locator(".guidelines")).to_be_visible()
        page.keyboard.press("Tab")  # out of the page
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the responses")).to_be_focused()
        expect(page.locator(".guidelines")).to_be_hidden()


@pytest.mark.parametrize("path", ["/sign-in", "/label/password", "/nowhere"])
def test_buttons_of_the_account_pages_keep_an_edge_in_forced_colors(browser, studio, path):
    world, server = studio
    person = world.people["en"]
    with new_page(browser, cookie=cookie_of((world.db, world.app), server.url, person)) as page:
        page.emulate_media(forced_colors="active")
        page.goto(f"{server.url}{path}")
        assert page.locator("main :is(button, .button)").count()
        assert page.evaluate(FLAT) == []
