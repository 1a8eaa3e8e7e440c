"""The newer parts of the annotator's page by keyboard alone, on three keyboard layouts."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from storage.tables.people import tokens
from tests.helpers import desk_states
from tests.helpers.browser import new_page, wait_for_pair
from tests.helpers.desk_browser import judgments_of, shown, status, wait_for_other
from tests.helpers.desk_world import serving

SHIFT, CONTROL = 8, 2
"""Bits of a key event of the DevTools protocol."""
LETTERS = {
    "qwerty": "abcdefghijklmnopqrstuvwxyz",
    "azerty": "abcdefghijklmnopqrstuvwxyz",
    "cyrillic": "фисвуапршолдьтщзйкыегмцчня",  # on the US keys a to z
}
DIGITS = {"qwerty": "0123456789", "azerty": "à&é\"'(-è_ç", "cyrillic": "0123456789"}
MOVED = {"a": "KeyQ", "q": "KeyA", "z": "KeyW", "w": "KeyZ", "m": "Semicolon"}
"""The keys of an AZERTY keyboard that are elsewhere on a US one."""


class Typist:
    """Presses the key that does something on a layout."""

    def __init__(self, page, layout):
        self.page, self.layout = page, layout
        self.devtools = page.context.new_cdp_session(page)

    def hit(self, key):
        if key.isdigit():
            said, code = DIGITS[self.layout][int(key)], f"Digit{key}"
        else:
            said = LETTERS[self.layout]["abcdefghijklmnopqrstuvwxyz".index(key)]
            code = f"Key{key.upper()}"
            if self.layout == "azerty":
                code = MOVED.get(key, code)
        for kind in ("keyDown", "keyUp"):
            self.devtools.send(
                "Input.dispatchKeyEvent", {"type": kind, "key": said, "code": code, "modifiers": 0}
            )

    def tab_to(self, locator):
        for _ in range(60):
            if locator.evaluate("n => n === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"{locator} is not reached by Tab")

    def write(self, text):
        self.page.keyboard.insert_text(text)


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    pairs = [(f"Question {n}?", f"first {n}", f"second {n}") for n in range(8)]
    with (
        desk_states.studio(tmp_path_factory.mktemp("keyboard"), list(LETTERS), pairs) as world,
        serving(world.app) as server,
    ):
        yield world, server


@pytest.mark.parametrize("layout", LETTERS)
def test_the_newer_parts_need_no_mouse(browser, studio, layout):
    world, server = studio
    person = world.people[layout]
    world.script.reset()
    with new_page(browser) as page:
        keyboard = Typist(page, layout)
        token = tokens.issue(world.db, person.id, "invite", lifetime=None)
        page.goto(f"{server.url}/invite?token={token}")
        expect(page.locator("#password")).to_be_focused()
        for _ in range(2):
            keyboard.write(desk_states.PASSWORD)
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        wait_for_pair(page)
        practice(page, keyboard)
        mark_and_edit(page, keyboard)
        [edited] = [row for row in judgments_of(world.db, person) if row["edit"]]
        assert edited["edit"] == "improved"
        assert '"bad"' in edited["marks"]
        live(page, keyboard, world.script)
        my_judgments(page, keyboard)
        flag(page, keyboard)
        changes_and_answers(page, keyboard)
        change_password(page, keyboard)


def practice(page, keyboard):
    for _ in range(2):
        wait_for_pair(page)
        keyboard.hit("1")
        expect(page.locator("dialog.practice")).to_be_visible()
        page.keyboard.press("Enter")
        expect(page.locator("dialog.practice")).to_be_hidden()
    wait_for_pair(page)


def mark_and_edit(page, keyboard):
    before = shown(page)
    keyboard.hit("h")
    expect(page.get_by_role("textbox", name="Text of response A")).to_be_focused()
    for key in (*["Shift+ArrowRight"] * 4, "Enter", "ArrowRight", "Enter", "Escape"):
        page.keyboard.press(key)
    expect(page.locator(".response.a .marks li")).to_have_count(1)
    keyboard.hit("e")
    expect(page.locator(".editor")).to_be_visible()
    page.keyboard.press("Space")
    keyboard.tab_to(page.locator(".editor textarea"))
    page.keyboard.press("Control+a")
    keyboard.write("improved")
    page.keyboard.press("Control+Enter")
    wait_for_other(page, before)
    status(page, "saved")


def live(page, keyboard, script):
    script.texts = ["One.", "Two."]
    keyboard.hit("l")
    expect(page.locator(".live textarea")).to_be_focused()
    expect(page.locator(".live .heard")).to_have_text("")
    keyboard.write("How long?")
    page.keyboard.press("Control+Enter")
    wait_for_pair(page)
    keyboard.hit("9")
    expect(page.get_by_role("button", name="New conversation")).to_be_focused()
    keyboard.hit("z")
    wait_for_pair(page)
    keyboard.hit("2")
    expect(page.locator(".live textarea")).to_be_focused()
    page.keyboard.press("Escape")
    keyboard.hit("l")
    wait_for_pair(page)


def my_judgments(page, keyboard):
    keyboard.hit("m")
    drawer = page.locator(".drawer")
    expect(drawer.get_by_role("searchbox")).to_be_focused()
    keyboard.write("How long")
    expect(drawer.locator(".given")).to_have_count(1)
    keyboard.tab_to(drawer.locator(".given"))
    page.keyboard.press("Enter")
    expect(page.locator(".revising")).to_be_visible()
    wait_for_pair(page)
    keyboard.hit("1")
    expect(page.locator(".revising")).to_be_hidden()
    status(page, "saved")
    wait_for_pair(page)


def flag(page, keyboard):
    before = shown(page)
    keyboard.hit("f")
    expect(page.locator(".flagging textarea")).to_be_focused()
    keyboard.write("Rude.")
    page.keyboard.press("Control+Enter")
    wait_for_other(page, before)
    status(page, "saved")
    keyboard.hit("z")
    expect(page.locator(".turn.last .text")).to_have_text(before[0])
    status(page, "saved")


def changes_and_answers(page, keyboard):
    with of_the_menu(page, keyboard, "What did my labels do?", ".changes") as changes:
        expect(changes.locator("li").first).to_be_visible()
    with of_the_menu(page, keyboard, "My judgments", ".drawer") as drawer:
        expect(drawer.locator(".list li").first).to_be_visible()
        # Read when the drawer was opened before: folded as soon as the list of this time is there.
        expect(drawer.locator(".answers")).not_to_have_attribute("open", "")
        keyboard.tab_to(drawer.locator(".answers summary"))
        page.keyboard.press("Enter")
        expect(drawer.locator(".answers li").first).to_be_visible()


@contextmanager
def of_the_menu(page, keyboard, name, dialog):
    menu = page.locator(".menu summary")
    keyboard.tab_to(menu)
    page.keyboard.press("Enter")
    keyboard.tab_to(page.locator(".menu").get_by_role("button", name=name))
    page.keyboard.press("Enter")
    yield page.locator(dialog)
    page.keyboard.press("Escape")
    expect(page.locator(dialog)).to_be_hidden()
    expect(menu).to_be_focused()


def change_password(page, keyboard):
    page.keyboard.press("Enter")
    keyboard.tab_to(page.get_by_role("link", name="Change password"))
    page.keyboard.press("Enter")
    expect(page.locator("#old")).to_be_focused()
    for text in (desk_states.PASSWORD, "another good one", "another good one"):
        keyboard.write(text)
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_for_pair(page)
