"""A whole visit by the accessibility tree alone: roles, names, descriptions, the focus and announcements."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import TimeoutError, expect

from labeler.security.passwords import hash_password
from storage.tables.people import annotators, tokens
from tests.helpers.browser import chromium, new_page
from tests.helpers.desk_world import add_person, make_app, plain_pairs, serving, workspace
from tests.helpers.scripted_generation import Scripted

PASSWORD = "correct horse battery"
# What a screen reader says by itself: texts that appear in live regions.
LISTEN = """
window.heard = [];
new MutationObserver((records) => {
  const regions = records.map(({ target }) => (target.closest ? target : target.parentElement)?.closest("[aria-live], [role=status], [role=alert]"));
  for (const region of new Set(regions)) {
    const text = region?.textContent.trim();
    if (text && region.ariaLive !== "off" && region.checkVisibility()) window.heard.push(text);
  }
}).observe(document, { subtree: true, childList: true, characterData: true });
"""

HEARS = """
(sentence) => {
  const found = window.heard.findIndex((text) => text.replaceAll("\\u00a0", "") === sentence);
  if (found >= 0) window.heard.splice(0, found + 1);
  return found >= 0;
}
"""


class Reader:
    """What somebody with a screen reader and a keyboard does and learns."""

    def __init__(self, page):
        self.page = page

    def find(self, role, name, within=None, **more):
        """The only such thing in the tree."""
        return (within or self.page).get_by_role(role, name=name, exact=True, **more)

    def hears(self, sentence):
        """Wait for an announcement, and forget it and what was said before it."""
        try:
            self.page.wait_for_function(HEARS, arg=sentence)
        except TimeoutError:
            heard = self.page.evaluate("window.heard")
            raise AssertionError(f"not {sentence!r}, but {heard}") from None

    def is_at(self, role, name, **more):
        expect(self.find(role, name, **more)).to_be_focused()

    def goes_to(self, role, name, within=None):
        self.tabs_to(self.find(role, name, within))

    def tabs_to(self, goal):
        """With Tab, from where the focus is."""
        for _ in range(80):
            if goal.evaluate("n => n === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {goal}")

    def presses(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def reads(self, name):
        """The text of a region, without its heading."""
        return self.find("region", name).inner_text().strip().split("\n")[-1].strip()


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    script = Scripted(texts=["One more.", "Two more."])
    with workspace(tmp_path_factory.mktemp("blind"), plain_pairs(12)) as db:
        person = add_person(db, "Ann")
        invite = tokens.issue(db, person.id, "invite", lifetime=None)
        annotators.accept_invite(db, invite, password_hash=hash_password(PASSWORD))
        with serving(make_app(db, generation=script)) as server, chromium() as browser:
            yield browser, server


@pytest.fixture
def reader(studio):
    browser, server = studio
    with new_page(browser) as page:
        page.add_init_script(LISTEN)
        page.goto(f"{server.url}/label/")
        yield Reader(page)


def test_a_visit_from_sign_in_to_sign_out(reader):
    signs_in(reader)
    judges_and_undoes(reader)
    edits(reader)
    flags(reader)
    talks(reader)
    corrects(reader)
    signs_out(reader)


def signs_in(reader):
    page = reader.page
    expect(reader.find("heading", "Sign in", level=1)).to_be_visible()
    reader.is_at("textbox", "Name")
    page.keyboard.type("Ann")
    reader.presses("Tab")
    page.keyboard.type("wrong")
    reader.presses("Enter")
    expect(page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
    page.keyboard.type(PASSWORD)  # the focus is on the password
    reader.presses("Enter")
    expect(page).to_have_title(re.compile("Kitestring"))
    reader.hears("New pair.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare two responses")


def judges_and_undoes(reader):
    page = reader.page
    expect(page.get_by_role("main")).to_match_aria_snapshot(
        """
        - region "Pair to judge":
          - heading "Compare two responses" [level=1]
          - region "Conversation":
            - heading "Conversation" [level=2]
            - heading "User" [level=3]
            - paragraph: /Question number/
          - group "Responses":
            - region "Response A":
              - heading "Response A" [level=2]
              - paragraph: /answer/
            - region "Response B":
              - heading "Response B" [level=2]
              - paragraph: /answer/
        - region "Your judgment":
          - group "Which response is better?":
            - button "A is better"
            - button "B is better"
            - button "Both bad"
            - button "Tie"
        """
    )
    first = reader.reads("Conversation"), reader.reads("Response A"), reader.reads("Response B")
    page.wait_for_timeout(300)  # until then, a key is a slip
    reader.presses("i")
    reader.hears("How much better: clearly.")
    reader.presses("1")
    reader.hears("A is clearly better. New pair.")
    reader.hears("Saved")
    reader.goes_to("button", "Undo")
    reader.presses("Enter")
    reader.hears("Undone. The pair is back.")
    assert first == (
        reader.reads("Conversation"),
        reader.reads("Response A"),
        reader.reads("Response B"),
    )
    expect(reader.find("button", "clearly", pressed=True)).to_have_count(1)
    page.wait_for_timeout(300)
    reader.goes_to("button", "B is better")
    reader.presses("Enter")
    reader.hears("B is clearly better. The pair that was here before.")
    reader.is_at("button", "B is better")


def edits(reader):
    page = reader.page
    page.wait_for_timeout(300)
    reader.presses("e")
    dialog = reader.find("dialog", "Edit the better response")
    expect(dialog).to_be_visible()
    group = reader.find("group", "Which response is better?", dialog)
    reader.is_at("radio", "A", within=group)
    reader.presses("ArrowDown")
    expect(reader.find("radio", "B", group)).to_be_checked()
    reader.goes_to("textbox", "Your version", dialog)
    reader.presses("Control+End")
    page.keyboard.type(" indeed")
    reader.goes_to("button", "Save", dialog)
    reader.presses("Enter")
    expect(dialog).to_be_hidden()
    reader.hears("B is better, edited. New pair.")


def flags(reader):
    page = reader.page
    page.wait_for_timeout(300)
    reader.presses("f")
    dialog = reader.find("dialog", "Flag this pair")
    expect(dialog).to_have_accessible_description(
        "Annotators will not see the pair until a researcher clears the flag."
    )
    reader.is_at("textbox", "What is wrong?", within=dialog)
    page.keyboard.type("It is rude.")
    reader.goes_to("button", "Flag", dialog)
    reader.presses("Enter")
    reader.hears("Flagged. New pair.")


def talks(reader):
    page = reader.page
    reader.presses("l")
    reader.hears("Live conversation. Turn 1 of 3.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Live conversation")
    reader.is_at("textbox", "Your message")
    field = reader.find("textbox", "Your message")
    expect(field).to_have_accessible_description("Turn 1 of 3")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    page.keyboard.type("How long?")
    reader.goes_to("button", "Send")
    reader.presses("Enter")
    reader.hears("Both replies are complete. Turn 1 of 3.")
    reader.is_at("group", "Responses")
    assert {reader.reads("Response A"), reader.reads("Response B")} == {"One more.", "Two more."}
    page.wait_for_timeout(300)
    reader.presses("2")
    reader.hears("B is better. Turn 2 of 3.")
    reader.is_at("textbox", "Your message")
    talk = reader.find("region", "Conversation so far")
    expect(talk.get_by_role("heading", level=3)).to_have_text(["User", "Assistant"])
    reader.goes_to("button", "Back to the queue")
    reader.presses("Enter")
    reader.hears("The pair that was here before.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare two responses")


def corrects(reader):
    page = reader.page
    reader.presses("m")
    dialog = reader.find("dialog", "My judgments")
    expect(dialog).to_be_visible()
    reader.is_at("searchbox", "Search prompts and responses", within=dialog)
    reader.hears("Newest first.")
    rows = dialog.get_by_role("list").get_by_role("button")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_have_accessible_name(
        re.compile(r"^How long\? B is better Live conversation .* Reopen$")
    )
    expect(rows.nth(1)).to_have_accessible_name(re.compile("B is better, edited .* Reopen$"))
    page.keyboard.type("How long")
    expect(rows).to_have_count(1)
    reader.presses("Tab")
    expect(rows).to_be_focused()
    reader.presses("Enter")
    reader.hears("An earlier pair: B is better.")
    earlier = reader.find("button", "B is better")
    expect(earlier).to_have_accessible_description("your earlier judgment")
    page.wait_for_timeout(300)
    reader.presses("1")
    reader.hears("A is better (changed). The pair that was here before.")
    reader.hears("Saved")


def signs_out(reader):
    page = reader.page
    reader.tabs_to(page.locator("summary", has_text="Account"))  # a disclosure has no ARIA role
    reader.presses("Enter")
    reader.goes_to("button", "Sign out")
    reader.presses("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
