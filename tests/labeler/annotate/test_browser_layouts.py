"""The keyboard shortcuts of the annotator's page on keyboards of other countries."""

from __future__ import annotations

import pytest

from tests.helpers.desk_browser import desk_page, judgments_of, shown, status, wait_for_other
from tests.helpers.desk_world import add_person

SHIFT = 8
"""The bit of the Shift key in a key event of the DevTools protocol."""


@pytest.fixture(scope="module")
def who(world):
    return add_person(world[0], "Ann")


@pytest.fixture(scope="module")
def page(browser, world, server, who):
    with desk_page(browser, world, server, who) as opened:
        yield opened


def strike(page, key: str, code: str, modifiers: int = 0) -> None:
    """A key event as a keyboard of that layout makes it."""
    devtools = page.context.new_cdp_session(page)
    for kind in ("keyDown", "keyUp"):
        event = {"type": kind, "key": key, "code": code, "modifiers": modifiers}
        devtools.send("Input.dispatchKeyEvent", event)
    devtools.detach()


def newest(world, who) -> str:
    return judgments_of(world[0], who)[-1]["outcome"]


@pytest.mark.parametrize(
    ("key", "code", "modifiers", "outcome"),
    [
        ("à", "Digit0", 0, "tie"),  # AZERTY
        ("ç", "Digit9", 0, "both_bad"),
        ("0", "Digit0", SHIFT, "tie"),  # AZERTY with Shift
        ("é", "Digit0", 0, "tie"),  # Czech
        ("٩", "Digit9", 0, "both_bad"),  # Arabic
        ("9", "Numpad9", 0, "both_bad"),
    ],
)  # fmt: skip
def test_a_digit_key_judges_on_every_layout(page, world, who, key, code, modifiers, outcome):
    before, count = shown(page), len(judgments_of(world[0], who))
    strike(page, key, code, modifiers)
    wait_for_other(page, before)
    status(page, "saved")
    assert len(judgments_of(world[0], who)) == count + 1
    assert newest(world, who) == outcome


@pytest.mark.parametrize(
    ("key", "code", "strength"),
    [("й", "KeyQ", "1"), ("ц", "KeyW", "2"), ("ث", "KeyE", "3"), ("q", "KeyA", "1")],
)
def test_a_letter_key_works_in_every_script(page, key, code, strength):
    button = page.locator(f"[data-strength='{strength}']")
    assert button.get_attribute("aria-pressed") == "false"
    strike(page, key, code)
    assert button.get_attribute("aria-pressed") == "true"
    strike(page, key, code)
    assert button.get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize(
    ("key", "code", "modifiers"),
    [
        ("a", "KeyQ", 0),  # AZERTY: the key cap says A, which is no shortcut
        ("é", "KeyE", 0),  # a Latin letter of its own
        ("'", "KeyQ", 0),  # Dvorak
        ("ö", "Digit0", 0),  # Hungarian: 0 is another key
        (")", "Digit0", SHIFT),  # US: not the digit
        ("º", "Backquote", 0),
    ],
)  # fmt: skip
def test_a_key_whose_cap_says_something_else_does_nothing(page, world, who, key, code, modifiers):
    before, count = shown(page), len(judgments_of(world[0], who))
    strike(page, key, code, modifiers)
    page.wait_for_timeout(400)
    assert shown(page) == before
    assert len(judgments_of(world[0], who)) == count
    assert page.locator("[data-strength][aria-pressed=true]").count() == 0


def test_the_arabic_question_mark_opens_the_help(page):
    strike(page, "؟", "Slash", SHIFT)
    assert page.locator("dialog.help").is_visible()
    page.keyboard.press("Escape")
