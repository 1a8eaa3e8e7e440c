"""What the annotator's page marks and covers, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import desk_page
from tests.helpers.desk_world import add_person

MARKS = """() => [...document.querySelectorAll(".choice")].filter(
    (n) => n.matches(":focus") || getComputedStyle(n).filter !== "none").length"""


@pytest.fixture(scope="module")
def page(browser, world, server):
    with desk_page(browser, world, server, add_person(world[0], "Ann"), height=800) as opened:
        yield opened


def judged(page: Page, count: int) -> None:
    expect(page.locator("[data-count=done]")).to_have_text(str(count))
    wait_for_pair(page)


def marked(page: Page, count: int) -> None:
    """Wait until so many choices bear a mark; marks fade."""
    page.wait_for_function(f"(count) => ({MARKS})() === count", arg=count, timeout=10_000)


def test_a_choice_made_by_mouse_is_not_marked_once_keys_are_used(page):
    page.locator(".choice.a").click()
    judged(page, 1)
    marked(page, 1)  # the pointer is over it
    page.keyboard.press("2")
    judged(page, 2)
    marked(page, 0)
    page.keyboard.press("z")
    judged(page, 1)
    marked(page, 0)


def test_a_choice_made_by_tab_and_enter_keeps_its_focus(page):
    page.locator(".choice.b").focus()
    page.keyboard.press("Enter")
    judged(page, 2)
    assert page.evaluate("document.activeElement.classList.contains('b')")


def test_the_guidelines_stand_beside_pair_and_judgment_which_share_their_edges(page):
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.locator(".details")).to_be_visible()
    cards, buttons = (
        [page.locator(f"{kind}.{side}").bounding_box() for side in "ab"]
        for kind in (".response", ".choice")
    )
    assert cards[0]["x"] == buttons[0]["x"]
    ends = [box["x"] + box["width"] for box in (cards[1], buttons[1])]
    assert ends[0] == ends[1]
    page.locator(".guidelines .text").evaluate(
        "n => { n.innerHTML = '<p>A paragraph.</p>'.repeat(60) + '<p id=last>The last.</p>' }"
    )
    panel = page.locator(".guidelines > div")
    panel.evaluate("n => { n.scrollTop = n.scrollHeight }")
    last, verdict = (page.locator(each).bounding_box() for each in ("#last", ".verdict"))
    assert last["y"] + last["height"] <= 800
    assert verdict["x"] + verdict["width"] <= last["x"]
