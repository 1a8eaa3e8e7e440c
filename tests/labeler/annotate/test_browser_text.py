"""Responses on the screen: formulas, code, links, and that both sides are shown alike."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from storage.engine.database import Database
from storage.tables import settings
from tests.helpers.browser import chromium
from tests.helpers.desk_browser import desk_page
from tests.helpers.desk_world import add_pairs, add_person, make_app, serving

GOOD = r"so $x^2$ and $$\boxed{y} = \begin{aligned} a &= b \\ c &= d \end{aligned}$$"
PAIRS = {
    "typeset": (GOOD, r"so \(\ce{H2O}\)"),
    "one of two": (GOOD, r"so $\unknown{x}$ and $z$"),
    "hostile": (
        "$$\\rule{999em}{999em}$$\n\n$$x\\hspace{9em}\\mathllap{y}$$\n\n$$\\raisebox{9em}{x}$$",
        "$$\\text{<img src='https://evil.example/x.png'>}$$\n\n$$\\cancelto{a}{b}$$",
    ),
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A workspace of a pair for each name of `PAIRS`; the prompt is its name."""
    with Database.open(tmp_path_factory.mktemp("text")) as db:
        add_pairs(db, [(f"{name}: $p^2$", *both) for name, both in PAIRS.items()], wanted=99)
        yield db, make_app(db)


@pytest.fixture(scope="module")
def server(world):
    with serving(world[1]) as running:
        yield running


@pytest.fixture
def open_pair(browser, world, server, request):
    """Opens the page at a pair, as a new annotator; fails if the page asks another server."""

    def opened(name, **settings):
        who = add_person(world[0], f"{request.node.name} {name}"[:60])
        context = desk_page(browser, world, server, who, **settings)
        page = context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        asked = []
        page.on("request", lambda sent: asked.append(sent.url))
        for _ in PAIRS:
            if page.locator(".turn.last .text").inner_text().startswith(f"{name}:"):
                break
            page.evaluate(
                "name => document.querySelector('.turn.last .text').dataset.old = name", name
            )
            page.keyboard.press("s")
            page.wait_for_function("!document.querySelector('.turn.last .text').dataset.old")
            page.wait_for_timeout(300)
        assert page.locator(".turn.last .text").inner_text().startswith(f"{name}:")
        request.addfinalizer(lambda: _none_elsewhere(asked, server.url))
        return page

    return opened


def _none_elsewhere(asked, url):
    assert [each for each in asked if not each.startswith((url, "data:"))] == []


def test_formulas_are_typeset_with_a_maths_font(open_pair):
    page = open_pair("typeset")

    expect(page.locator(".response .math > math")).to_have_count(3)
    expect(page.locator(".prompt .math > math")).to_have_count(1)
    expect(page.locator(".response code")).to_have_count(0)
    expect(page.locator(".notice")).to_be_hidden()
    page.wait_for_function("document.fonts.check('16px \"STIX Two Math\"')")
    # The letters a and c stand above each other, and so do the equals signs.
    lefts = page.evaluate(
        "[...document.querySelectorAll('.response mtr')].map((row) => row.querySelector('mo').getBoundingClientRect().left)"
    )
    assert len(lefts) == 2
    assert lefts[0] == pytest.approx(lefts[1], abs=1)


def test_both_responses_show_source_if_one_formula_cannot_be_typeset(open_pair):
    page = open_pair("one of two")

    expect(page.locator(".response math")).to_have_count(0)
    expect(page.locator(".response .math > code")).to_have_count(4)
    expect(page.locator(".notice")).to_contain_text("shown as LaTeX")
    expect(page.locator(".prompt .math > math")).to_have_count(1)  # both responses have this prompt
    page.keyboard.press("r")
    expect(page.locator(".notice")).to_be_hidden()
    page.keyboard.press("r")
    expect(page.locator(".notice")).to_be_visible()


def test_no_formula_leaves_its_box(open_pair):
    page = open_pair("hostile")
    expect(page.locator(".response .math > math")).to_have_count(5)

    outside = page.evaluate("""() => {
      const boxes = [...document.querySelectorAll(".response .text")].map((box) => box.getBoundingClientRect());
      const inside = (x, y) => boxes.some((box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom);
      const found = [];
      for (let x = 1; x < innerWidth; x += 7) for (let y = 1; y < innerHeight; y += 7) {
        if (!inside(x, y) && document.elementFromPoint(x, y)?.closest(".response .text")) found.push([x, y]);
      }
      return found;
    }""")
    assert outside == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_formulas_of_the_guidelines_are_typeset(open_pair, world):
    settings.put(world[0], "guidelines", r"Prefer $x^2$ to $\unknown$.")
    page = open_pair("typeset", width=1440)

    expect(page.locator(".guidelines .math > math")).to_have_count(1)
    expect(page.locator(".guidelines .math > code")).to_have_text([r"\unknown"])
