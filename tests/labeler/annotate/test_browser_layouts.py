"""The keyboard shortcuts of the annotator's page: every layout, and keys of one's own."""

from __future__ import annotations

import uuid

import pytest
from playwright.sync_api import expect

from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import (
    cookie_of,
    desk_page,
    judgments_of,
    shown,
    sign_in_as,
    status,
    wait_for_other,
)
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
    [("г", "KeyU", "1"), ("ш", "KeyI", "2"), ("خ", "KeyO", "3"), ("u", "KeyF", "1")],
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
        ("l", "KeyO", 0),  # BÉPO: the key cap says L, which is no shortcut
        ("ı", "KeyI", 0),  # Turkish: a Latin letter of its own
        ("'", "KeyU", 0),  # a sign
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


def change(page, action: str, *presses: str) -> str:
    """Open the help, ask for another key, press these; what the help says in the end."""
    page.keyboard.press("?")
    page.locator(f".help [data-action='{action}']").click()
    for key in presses:
        page.keyboard.press(key)
    return page.locator(".help .said").inner_text()


def skips_of(db, who) -> int:
    return len(db.read("SELECT id FROM skips WHERE annotator = $who", who=who.id))


@pytest.fixture
def fresh(browser, world, server):
    """A page of somebody new, and that person."""
    ann = add_person(world[0], f"Ann {uuid.uuid4().hex[:6]}")
    with desk_page(browser, world, server, ann) as opened:
        yield opened, ann


def test_buttons_and_help_show_the_same_keys(fresh):
    page, _ = fresh
    hints = page.eval_on_selector_all(
        ".desk [data-key]:not([hidden])",
        """all => all.map((n) => [n.dataset.key, n.getAttribute("aria-keyshortcuts"),
                                  n.querySelector("kbd")?.textContent])""",
    )
    page.keyboard.press("?")
    listed = dict(
        page.eval_on_selector_all(
            ".help .changer", "all => all.map((n) => [n.dataset.action, n.innerText.trim()])"
        )
    )
    assert len({id for id, *_ in hints}) >= 13
    for id, shortcut, hint in hints:
        assert listed[id] == shortcut.upper()
        assert hint in (None, listed[id])
    assert listed["a"] == "1"
    assert listed["much"] == "O"


def test_a_key_of_ones_own_works_is_shown_and_stays(fresh, world, server):
    page, ann = fresh
    db, _ = world
    assert "is now N" in change(page, "skip", "n")
    focused = page.evaluate("document.activeElement.dataset.action")
    assert focused == "skip"
    page.keyboard.press("Escape")
    expect(page.locator("dialog.help")).to_be_hidden()
    skip = page.get_by_role("button", name="Skip")
    expect(skip.locator("kbd")).to_have_text("N")
    expect(skip).to_have_attribute("aria-keyshortcuts", "n")
    page.reload()
    wait_for_pair(page)
    before = shown(page)
    page.keyboard.press("s")
    page.wait_for_timeout(300)
    assert shown(page) == before
    page.keyboard.press("n")
    wait_for_other(page, before)
    status(page, "saved")
    assert skips_of(db, ann) == 1

    other = add_person(db, f"Ben {uuid.uuid4().hex[:6]}")
    sign_in_as(page, cookie_of(world, server.url, other))
    page.reload()
    wait_for_pair(page)
    expect(skip.locator("kbd")).to_have_text("S")  # a shared browser: keys belong to a person


def test_a_key_that_is_taken_is_refused_and_defaults_come_back(fresh, world):
    page, ann = fresh
    said = change(page, "skip", "z")
    assert said == "“Z” is the key for “Undo the last action”. Press another key."
    page.keyboard.press("Enter")
    assert "cannot be a shortcut" in page.locator(".help .said").inner_text()
    page.keyboard.press("Escape")  # keeps the key, and the list stays open
    assert page.locator(".help .said").inner_text() == "The key is unchanged."
    expect(page.locator("dialog.help")).to_be_visible()
    restore = page.get_by_role("button", name="Restore defaults")
    expect(restore).to_be_hidden()
    page.locator(".help [data-action='skip']").click()
    strike(page, "т", "KeyN")  # Cyrillic: the key is N for everybody
    assert "is now N" in page.locator(".help .said").inner_text()
    page.locator(".help [data-action='undo']").click()
    page.keyboard.press("s")  # free since Skip moved
    assert "is now S" in page.locator(".help .said").inner_text()
    restore.click()
    page.keyboard.press("Escape")
    hints = page.locator("[data-do=skip] kbd, [data-do=undo] kbd").all_inner_texts()
    assert sorted(hints) == ["S", "Z"]
    assert skips_of(world[0], ann) == 0  # keys pressed in the list did nothing else


@pytest.mark.parametrize("kept", ['{"skip": "z"}', '{"skip": "1", "a": "s"}', "null", "nonsense"])
def test_keys_that_the_browser_kept_never_do_two_things(fresh, kept):
    page, ann = fresh
    page.evaluate(
        "([who, kept]) => localStorage.setItem(`kitestring.shortcuts.${who}`, kept)", [ann.id, kept]
    )
    page.reload()
    wait_for_pair(page)
    page.keyboard.press("?")
    caps = page.locator(".help .changer kbd").all_inner_texts()
    assert len(caps) == len(set(caps))
    swapped = kept.startswith('{"skip": "1"')
    skip = page.locator(".help [data-action='skip']").inner_text()
    assert skip.strip() == ("1" if swapped else "S")


def test_without_shortcuts_no_button_announces_one(fresh):
    page, _ = fresh
    assert page.locator("[aria-keyshortcuts]").count() >= 13
    page.keyboard.press("?")
    page.get_by_role("button", name="Turn off shortcuts").click()
    assert page.locator("[aria-keyshortcuts]").count() == 0


def test_ctrl_enter_in_the_comment_asks_for_a_choice_and_keys_work_at_once(fresh, world):
    page, ann = fresh
    before = shown(page)
    page.keyboard.press("c")
    page.keyboard.type("short and right")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".told")).to_have_text("Choose A or B first.")
    expect(page.locator(".announcer")).to_have_text("Choose A or B first.")
    assert judgments_of(world[0], ann) == []
    page.keyboard.press("1")
    wait_for_other(page, before)
    status(page, "saved")
    [row] = judgments_of(world[0], ann)
    assert row["comment"] == "short and right"


def test_escape_closes_one_thing_at_a_time(fresh):
    page, _ = fresh
    page.keyboard.press("g")
    expect(page.locator(".guidelines")).to_be_visible()
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    expect(page.locator("dialog.help")).to_be_hidden()
    expect(page.locator(".guidelines")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".guidelines")).to_be_hidden()
