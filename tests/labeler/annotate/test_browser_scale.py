"""The scale of the annotator's page: two steps or one press, and strengths that are required."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from storage.tables import settings
from tests.helpers.desk_browser import (
    desk_page,
    judgments_of,
    preferred,
    press,
    shown,
    status,
    wait_for_other,
    wait_for_shown,
)

TWO, REQUIRED, ONE = (
    settings.JudgmentForm("two-step", "optional"),
    settings.JudgmentForm("two-step", "required"),
    settings.JudgmentForm("one-press", "required"),
)


@pytest.fixture(autouse=True)
def form(world, request):
    """The form that the test is marked with, in force for the whole test."""
    settings.choose_judgment_form(world[0], getattr(request, "param", TWO))


def judged(db, who):
    """What each judgment says: which text won, or the outcome, and how much."""
    return [(preferred(row) or row["outcome"], row["strength"]) for row in judgments_of(db, who)]


def boxes(page, selector):
    return [each.bounding_box() for each in page.locator(f"{selector}:visible").all()]


@pytest.mark.parametrize("form", [ONE], indirect=True)
def test_one_press_says_side_and_strength_by_place_on_the_screen(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        places = boxes(page, ".choice:not([data-outcome=both_bad])")
        assert [box["x"] for box in places] == sorted(box["x"] for box in places)
        assert len({box["y"] for box in places}) == 1
        keys = page.locator(".choice kbd").all_inner_texts()
        assert keys == ["1", "2", "3", "4", "5", "6", "7", "9"]
        assert page.locator("[data-strength]:visible").count() == 0
        seen = press(page, *"123456790")
        status(page, "saved")
    expected = [
        (seen[0][1], 3), (seen[1][1], 2), (seen[2][1], 1), ("tie", None), (seen[4][2], 1),
        (seen[5][2], 2), (seen[6][2], 3), ("both_bad", None), ("tie", None),
    ]  # fmt: skip
    assert judged(world[0], who) == expected


@pytest.mark.parametrize("form", [ONE], indirect=True)
def test_one_press_by_mouse_with_names_and_a_trace(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.get_by_role("button", name="B clearly better", exact=True).click()
        wait_for_other(page, before)
        expect(page.locator(".trace")).to_have_text("B, clearly")
        expect(page.locator(".announcer")).to_have_text("B is clearly better. New pair.")
        page.keyboard.press("z")
        wait_for_shown(page, before)
        page.get_by_role("button", name="Same").click()
        wait_for_other(page, before)
        status(page, "saved")
        page.keyboard.press("?")
        listed = page.locator(".help dt").all_inner_texts()
        assert "A is slightly better" in listed
        assert not [label for label in listed if "press before" in label]
    assert judged(world[0], who) == [(before[2], 2), ("tie", None)]


@pytest.mark.parametrize("form", [ONE], indirect=True)
@pytest.mark.parametrize("width", [1440, 1024, 390, 360, 320])
def test_seven_steps_fit_every_window(browser, world, server, who, width):
    with desk_page(browser, world, server, who, width=width, height=844) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = page.eval_on_selector_all(
            ".choice", "all => all.filter((n) => n.scrollWidth > n.clientWidth).length"
        )
        assert cut == 0
        cards, steps = boxes(page, ".response"), boxes(page, ".choice:is(.a, .b)")
        edges = [
            (min(each["x"] for each in all), max(each["x"] + each["width"] for each in all))
            for all in (cards, steps)
        ]
        assert edges[0] == pytest.approx(edges[1], abs=0.5)
        assert all(box["height"] >= 40 for box in boxes(page, ".choice"))
        rows = sorted({box["y"] for box in steps})
        assert len(rows) == (1 if width >= 390 else 2)


@pytest.mark.parametrize("form", [REQUIRED], indirect=True)
def test_a_required_strength_is_asked_for_before_anything_is_sent(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before, told = shown(page), page.locator(".told")
        page.keyboard.press("1")
        page.locator(".choice.b").click()
        sentence = "First choose how much better the response is: slightly, clearly or much."
        expect(told).to_have_text(sentence)
        expect(page.locator(".announcer")).to_have_text(sentence)
        assert shown(page) == before
        page.keyboard.press("o")
        expect(told).to_be_empty()
        page.keyboard.press("1")
        wait_for_other(page, before)
        press(page, "0", "9")  # a tie needs none
        status(page, "saved")
    assert judged(world[0], who) == [(before[1], 3), ("tie", None), ("both_bad", None)]


def test_a_tie_says_that_it_has_no_strength_and_undo_keeps_it(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.keyboard.press("o")
        page.keyboard.press("0")
        wait_for_other(page, before)
        expect(page.locator(".trace")).to_have_text("Tie, no strength")
        heard = "Tie, without the strength “much”. New pair."
        expect(page.locator(".announcer")).to_have_text(heard)
        page.keyboard.press("z")
        wait_for_shown(page, before)
        expect(page.locator("[data-strength='3']")).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("2")
        wait_for_other(page, before)
        press(page, "0")
        expect(page.locator(".trace")).to_have_text("Tie")
        status(page, "saved")
    assert judged(world[0], who) == [("tie", None), (before[2], 3), ("tie", None)]


def test_the_keys_of_two_steps_go_from_left_to_right_in_each_row(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        choices = page.locator(".choice").all()
        read = sorted(choices, key=lambda n: (n.bounding_box()["y"], n.bounding_box()["x"]))
        keys = [each.locator("kbd").inner_text() for each in read]
        assert keys == ["1", "2", "9", "0"]  # as on the keyboard
        assert page.locator("[data-strength] kbd").all_inner_texts() == ["U", "I", "O"]


def test_another_form_comes_with_the_next_pair(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = press(page, "0")[0]
        status(page, "saved")
        settings.choose_judgment_form(world[0], ONE)
        with page.expect_response("**/label/api/progress?*"):  # the page asks after an undo
            page.keyboard.press("z")
        wait_for_shown(page, before)
        page.wait_for_timeout(300)
        assert page.locator(".choice").count() == 4  # not under the finger
        press(page, "0")
        assert page.locator(".choice").count() == 8
        seen = press(page, "1")[0]
        status(page, "saved")
    assert judged(world[0], who) == [("tie", None), ("tie", None), (seen[1], 3)]


@pytest.mark.parametrize("form", [ONE], indirect=True)
def test_ctrl_enter_without_a_choice_names_what_is_missing(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        page.keyboard.press("c")
        page.keyboard.type("because")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".told")).to_have_text("Choose a step of the scale first.")
    assert judgments_of(world[0], who) == []
