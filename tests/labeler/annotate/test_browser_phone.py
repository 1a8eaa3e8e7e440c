"""Long responses on a phone: one at a time, each with its own scroll position."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.helpers.desk_browser import desk_page, press
from tests.helpers.desk_world import add_person

LONG = "A line of a long response, with words. " * 4 + "\n\n"
CODE = "```\n" + "x" * 400 + "\n```\n\n"

TEXTS = [
    ("Long?", "one\n\n" + CODE + LONG * 120, "two\n\n" + CODE + LONG * 120),
    ("Short?", "yes", "no"),
]


@pytest.fixture
def page(browser, world, server, request):
    person = add_person(world[0], request.node.name)
    with desk_page(browser, world, server, person, width=390, height=844) as opened:
        yield opened


def test_long_responses_are_behind_tabs_that_keep_their_place(page):
    a, b = page.get_by_role("tab", name="Response A"), page.get_by_role("tab", name="Response B")
    expect(a).to_have_attribute("aria-selected", "true")
    expect(page.locator(".response:visible")).to_have_count(1)
    page.evaluate("scrollTo(0, 2000)")
    b.click()
    expect(page.locator(".response.b")).to_be_visible()
    expect(page.locator(".response.a")).to_be_hidden()
    top = page.locator(".response.b").bounding_box()["y"]
    assert 0 <= top - page.locator(".sides").bounding_box()["height"] < 20  # from its beginning
    page.evaluate("scrollTo(0, 3000)")
    a.click()
    page.wait_for_function("scrollY === 2000")
    b.click()
    page.wait_for_function("scrollY === 3000")


def test_the_tabs_stay_on_the_screen_and_say_what_was_not_read(page):
    tab = page.locator("[role=tab][data-side=b]")
    assert "unread" in tab.get_attribute("class")
    page.evaluate("scrollTo(0, 2000)")
    assert page.locator(".sides").bounding_box()["y"] == 0
    tab.click()
    assert "unread" not in tab.get_attribute("class")


def test_arrow_keys_and_a_shortcut_switch(page):
    page.locator("[role=tab][data-side=a]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("[role=tab][data-side=b]")).to_be_focused()
    expect(page.locator(".response.b")).to_be_visible()
    page.keyboard.press("Home")
    expect(page.locator(".response.a")).to_be_visible()
    page.keyboard.press("x")
    expect(page.locator(".response.b")).to_be_visible()


def swipe(page, selector, across, down=0):
    page.locator(selector).first.evaluate(
        """(node, [across, down]) => {
            const touch = (x, y) => new Touch({ identifier: 1, target: node, clientX: x, clientY: y });
            const send = (kind, at) => node.dispatchEvent(new TouchEvent(kind,
                { bubbles: true, touches: kind === "touchend" ? [] : [at], changedTouches: [at] }));
            send("touchstart", touch(200, 200));
            send("touchend", touch(200 + across, 200 + down));
        }""",
        [across, down],
    )


def test_a_swipe_switches_unless_it_scrolls_the_page_or_code(page):
    swipe(page, ".response.a p", -40)
    swipe(page, ".response.a p", -120, down=100)
    swipe(page, ".response.a pre code", -120)
    expect(page.locator(".response.a")).to_be_visible()
    swipe(page, ".response.a p", -120)
    expect(page.locator(".response.b")).to_be_visible()
    swipe(page, ".response.b p", 120)
    expect(page.locator(".response.a")).to_be_visible()


def test_short_responses_are_on_the_screen_together_and_the_next_pair_starts_with_a(page):
    page.locator("[role=tab][data-side=b]").click()
    press(page, "1")
    expect(page.locator(".response:visible")).to_have_count(2)
    expect(page.get_by_role("tablist")).to_have_count(0)
    page.keyboard.press("z")
    expect(page.locator(".response.a")).to_be_visible()
    expect(page.locator(".response.b")).to_be_hidden()


def test_a_wide_window_shows_both(page):
    page.set_viewport_size({"width": 1280, "height": 860})
    expect(page.locator(".response:visible")).to_have_count(2)
    expect(page.get_by_role("tablist")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator(".response:visible")).to_have_count(1)


def test_the_choices_are_in_the_same_place_below_long_and_short_pairs(page):
    place = page.locator(".choice.a").bounding_box()
    press(page, "s")
    expect(page.locator(".response:visible")).to_have_count(2)  # the short pair
    assert page.locator(".choice.a").bounding_box() == place
