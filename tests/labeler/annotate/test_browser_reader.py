"""The annotator's page as a screen reader has it: headings, names, announcements and the focus."""

from __future__ import annotations

import asyncio

import pytest
from playwright.sync_api import expect

from tests.helpers.browser import chromium, wait_for_pair
from tests.helpers.desk_browser import desk_page, press
from tests.helpers.desk_world import add_person, make_app, serving, workspace
from tests.helpers.scripted_generation import Scripted

HEADINGS = "# Part\n\n### Deep\n\n## Next\n\ntext"
TEXTS = [("A question?", HEADINGS, "```python\nx = 1\n```")]
TEXTS += [(f"Question {n}?", f"first {n}", f"second {n}") for n in range(20)]


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    script = Scripted()
    with workspace(tmp_path_factory.mktemp("reader"), TEXTS) as db:
        app = make_app(db, generation=script)
        with serving(app) as server, chromium() as browser:
            yield browser, (db, app), server, script


@pytest.fixture
def page(studio, request):
    browser, world, server, script = studio
    script.reset()
    person = add_person(world[0], request.node.name)
    with desk_page(browser, world, server, person, width=1024) as page:
        expect(page.locator("nav [data-do=live]")).to_be_visible()
        yield page


def heard(page, sentence):
    expect(page.locator(".announcer")).to_have_text(sentence)


def test_headings_of_a_response_are_below_its_own_without_gaps(page):
    while "Part" not in page.locator(".pair").inner_text():
        press(page, "s")
    levels = (
        page.locator(".pair")
        .get_by_role("heading")
        .evaluate_all(
            """all => all.map((n) => [n.textContent.trim().split(" ").at(-1),
            Number(n.getAttribute("aria-level") ?? n.tagName[1])])"""
        )
    )
    found = dict(levels)
    assert [found[name] for name in ("Part", "Deep", "Next")] == [3, 4, 4]
    assert page.get_by_role("group", name="python").get_by_role("button", name="Copy").count() == 1


def test_what_a_key_changes_is_announced(page):
    for key, sentence in {
        "d": "The details are open.",
        "r": "The texts are shown without formatting.",
        "g": "The guidelines are open.",
        "i": "How much better: clearly.",
    }.items():
        page.keyboard.press(key)
        heard(page, sentence)
    page.keyboard.press("i")
    heard(page, "No strength is chosen.")


def test_a_live_conversation_says_what_happens_and_keeps_the_focus(page, studio):
    script = studio[3]
    script.texts = ["One more.", "Two more."]
    script.pause = asyncio.Event()
    page.keyboard.press("l")
    expect(page.locator(".live textarea")).to_be_focused()
    heard(page, "Live conversation. Turn 1 of 3.")
    expect(page.locator(".live .heard")).to_have_text("")
    page.keyboard.type("How long?")
    page.keyboard.press("Control+Enter")
    heard(page, "Sent. Both replies are being written.")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    script.pause.set()
    wait_for_pair(page)
    heard(page, "Both replies are complete. Turn 1 of 3.")
    expect(page.get_by_role("group", name="Responses")).to_be_focused()
    page.keyboard.press("1")
    heard(page, "A is better. Turn 2 of 3.")
    expect(page.locator(".live textarea")).to_be_focused()
