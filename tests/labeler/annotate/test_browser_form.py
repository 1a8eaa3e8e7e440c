"""The parts of the judgment form on the page: reason tags, safety labels, rationale, criteria."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from storage.tables import settings
from tests.helpers.desk_browser import (
    desk_page,
    judgments_of,
    press,
    shown,
    status,
    wait_for_other,
    wait_for_shown,
)

ALL = settings.JudgmentForm(
    criteria=("truthful",), reasons=("too long", "wrong"), rationale="required", safety="required"
)
BARE = settings.JudgmentForm(criteria=(), rationale="off")


@pytest.fixture(autouse=True)
def form(world, request):
    settings.choose_judgment_form(world[0], request.param)
    yield
    settings.choose_judgment_form(world[0], settings.JudgmentForm())


def parts(row) -> dict:
    """The stored criteria, tags and labels, with the sides of the screen."""
    side = {"first": "ab"[row["shown_swapped"]], "second": "ba"[row["shown_swapped"]], "tie": "tie"}
    on_screen = {
        name: {side[key]: value for key, value in json.loads(row[name]).items()}
        for name in ("reasons", "safety")
    }
    return on_screen | {
        "criteria": {k: side[v] for k, v in json.loads(row["criteria"]).items()},
        "comment": row["comment"],
    }


@pytest.mark.parametrize("form", [ALL], indirect=True)
def test_every_part_is_reached_by_its_key_and_stored(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.keyboard.press("y")
        hints = page.locator(".details kbd").all_inner_texts()
        assert sorted(hints) == ["C", "K", "T", "Y"]
        for key in ("ArrowRight", "Space", "ArrowDown", "Space"):  # A borderline, B safe
            page.keyboard.press(key)
        page.keyboard.press("t")
        for key in ("Space", "ArrowRight", "Space", "ArrowDown", "ArrowRight", "Space"):
            page.keyboard.press(key)  # A too long and wrong, B wrong
        page.keyboard.press("k")
        for key in ("ArrowRight", "ArrowRight", "Space"):
            page.keyboard.press(key)
        page.keyboard.press("c")
        page.keyboard.type("B is right")
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        wait_for_other(page, before)
        status(page, "saved")
        assert page.locator(".details [aria-pressed=true]").count() == 0  # of the next pair
        page.keyboard.press("z")
        wait_for_shown(page, before)
        pressed = page.locator(".details [aria-pressed=true]").all_inner_texts()
        assert pressed == ["B", "Borderline", "Safe", "too long", "wrong", "wrong"]
        page.keyboard.press("1")
        wait_for_other(page, before)
        status(page, "saved")
    given = {
        "criteria": {"truthful": "b"},
        "reasons": {"a": ["too long", "wrong"], "b": ["wrong"]},
        "safety": {"a": "borderline", "b": "safe"},
        "comment": "B is right",
    }
    rows = judgments_of(world[0], who)
    assert [parts(row) for row in rows] == [given, given]


@pytest.mark.parametrize("form", [ALL], indirect=True)
def test_a_missing_part_is_asked_for_and_ctrl_enter_goes_on(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before, told = shown(page), page.locator(".told")
        page.keyboard.press("0")  # also of a tie
        expect(told).to_have_text("First label both responses: safe, borderline or unsafe.")
        assert page.evaluate("document.activeElement.dataset.safety") == "safe"
        page.locator("[data-safety=safe][data-side=a]").click()
        page.locator("[data-safety=unsafe][data-side=b]").click()
        page.keyboard.press("1")
        expect(told).to_contain_text("First write why you decide this way.")
        page.keyboard.type("A helps")
        assert shown(page) == before
        page.keyboard.press("Control+Enter")
        wait_for_other(page, before)
        status(page, "saved")
    (row,) = judgments_of(world[0], who)
    assert parts(row)["safety"] == {"a": "safe", "b": "unsafe"}
    assert row["comment"] == "A helps"
    assert row["outcome"] == ("second" if row["shown_swapped"] else "first")


@pytest.mark.parametrize("form", [ALL], indirect=True)
def test_a_draft_with_tags_survives_a_reload(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.locator("[data-reason='wrong'][data-side=b]").click()
        page.locator("[data-safety=unsafe][data-side=a]").click()
        page.reload()
        wait_for_shown(page, before)
        pressed = page.locator(".details [aria-pressed=true]")
        assert pressed.all_inner_texts() == ["Unsafe", "wrong"]


@pytest.mark.parametrize("form", [BARE], indirect=True)
def test_a_form_without_parts_has_no_details(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        expect(page.locator("[data-do=details]")).to_be_hidden()
        for key in ("k", "t", "y", "c"):
            page.keyboard.press(key)
        expect(page.locator(".details")).to_be_hidden()
        press(page, "1")
        status(page, "saved")
        page.keyboard.press("?")
        listed = {n.get_attribute("data-action") for n in page.locator(".help .changer").all()}
        assert not listed & {"details", "criteria", "reasons", "safety", "comment"}
