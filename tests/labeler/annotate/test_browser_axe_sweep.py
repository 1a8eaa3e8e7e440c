"""axe in every state that the annotator's page has, in every language, wide and light, narrow and dark."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from labeler.translation import LANGUAGES
from tests.helpers import desk_states
from tests.helpers.browser import new_page
from tests.helpers.desk_browser import cookie_of
from tests.helpers.desk_world import serving
from tests.labeler.annotate.test_browser_axe import RULES, TEXTS

VIEWS = ((1280, "light"), (390, "dark"))
APPEARANCE = ["color-contrast", "target-size", "scrollable-region-focusable"]
"""The rules that may find something else in the second view."""


@dataclass
class Sweep:
    """What axe finds in the states of one language."""

    page: Page
    language: str = "en"
    states: list[str] = field(default_factory=list)
    found: list[tuple[str, ...]] = field(default_factory=list)

    def state(self, name: str, part: str = "html", page: Page | None = None) -> None:
        """Run axe in both views; `part` if something covers the rest of the page."""
        page = page or self.page
        self.states.append(name)
        expect(page.locator("html")).to_have_attribute("lang", self.language)
        for width, scheme in VIEWS:
            only = {"runOnly": APPEARANCE} if (width, scheme) != VIEWS[0] else {}
            page.set_viewport_size({"width": width, "height": 860})
            page.emulate_media(color_scheme=scheme)
            # A bar that covers half of a button makes it a small target, until the page is scrolled.
            page.evaluate(
                "document.querySelectorAll('.verdict').forEach((n) => { n.style.position = 'static' })"
            )
            if not page.evaluate("Boolean(window.axe)"):
                page.evaluate(Axe().axe_script)
            options = {"rules": RULES, "resultTypes": ["violations"], **only}
            for each in page.evaluate("([part, how]) => axe.run(part, how)", [part, options])[
                "violations"
            ]:
                self.found += [
                    (name, f"{width} {scheme}", each["id"], node["html"][:150])
                    for node in each["nodes"]
                ]
        page.set_viewport_size({"width": VIEWS[0][0], "height": 860})


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    folder, texts = tmp_path_factory.mktemp("sweep"), [*TEXTS, *desk_states.SEEN]
    with (
        desk_states.studio(folder, list(LANGUAGES), texts) as world,
        serving(world.app) as server,
    ):
        yield world, server


def check_all(browser, studio, language):
    world, server = studio
    person = world.people[language]
    cookie = cookie_of((world.db, world.app), server.url, person)
    with new_page(browser, locale=language, cookie=cookie) as page:
        sweep = Sweep(page, language)
        desk_states.go_through(sweep, world, server.url, person)
    assert len(sweep.states) == 50
    assert sweep.found == []


def test_no_state_violates_a_rule(browser, studio):
    check_all(browser, studio, "en")


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", [each for each in LANGUAGES if each != "en"])
def test_no_state_violates_a_rule_in_any_language(browser, studio, language):
    check_all(browser, studio, language)


def test_both_views_are_checked(browser):
    with new_page(browser) as page:
        page.set_content(
            "<html lang=en><title>x</title><style>@media (max-width: 800px) { p { color: #aaa } }</style>"
            "<main><h1>x</h1><p>pale</p><button></button></main>"
        )
        sweep = Sweep(page)
        sweep.state("control")
    assert [each[1:3] for each in sweep.found] == [
        ("1280 light", "button-name"),
        ("390 dark", "color-contrast"),
    ]
