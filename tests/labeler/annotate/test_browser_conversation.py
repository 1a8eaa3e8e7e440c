"""Long conversations on the annotator's page, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from storage.records import Message
from tests.helpers.desk_browser import desk_page, press
from tests.helpers.desk_world import add_person

LINE = "A sentence of fifty characters for a conversation.\n\n"


def conversation(turns: int, *, system: str = "", last: str = "And in winter?") -> list[Message]:
    """`turns` earlier messages of 100 characters, from user and assistant in turn, and a last one."""
    earlier = [
        Message(role="assistant" if index % 2 else "user", content=f"{index} " + "x" * 98)
        for index in range(turns)
    ]
    first = [Message(role="system", content=system)] if system else []
    return [*first, *earlier, Message(role="user", content=last)]


PROMPTS = [
    conversation(30, system="You are a gardener."),
    conversation(2, last="And in spring?"),
    conversation(0, system="s" * 700, last="Hi."),
    conversation(8, last="And in summer?"),
    conversation(0, last=LINE * 60),
    conversation(0, last=LINE * 21 + "End."),
]

TEXTS = [(prompt, f"first {n}", f"second {n}") for n, prompt in enumerate(PROMPTS)]


@pytest.fixture
def page(browser, world, server, request):
    person = add_person(world[0], request.node.name)
    with desk_page(browser, world, server, person) as opened:
        yield opened


def show(page, index):
    """Skip to the pair of `PROMPTS[index]`."""
    while page.locator(".response.a .text").inner_text().split()[-1] != str(index):
        press(page, "s")


def test_older_turns_are_collapsed_and_the_responses_are_on_the_first_screen(page):
    show(page, 0)
    summary = page.locator(".history summary")
    expect(summary).to_have_text("System prompt and 30 earlier messages")
    expect(page.locator(".turn:visible")).to_have_count(1)
    expect(page.locator(".turn.last")).to_contain_text("And in winter?")
    assert page.locator(".response.a").bounding_box()["y"] < 400
    summary.click()
    expect(page.locator(".turn:visible")).to_have_count(32)
    assert page.locator(".response.a").bounding_box()["y"] > 1500


def test_what_was_expanded_stays_so_after_an_undo(page):
    show(page, 0)
    page.locator(".history summary").click()
    press(page, "1")
    page.keyboard.press("z")
    page.locator(".history[open]").wait_for()
    press(page, "1")
    expect(page.locator(".history[open]")).to_have_count(0)


def test_a_key_jumps_to_the_responses_and_back(page):
    show(page, 0)
    page.locator(".history summary").click()
    page.keyboard.press("j")
    page.wait_for_function("scrollY > 1000")
    box = page.locator(".response.a").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] < 860
    page.keyboard.press("j")
    page.wait_for_function("scrollY === 0")


def test_a_link_before_everything_else_skips_to_the_responses(page):
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".responses")).to_be_focused()
    assert "#" not in page.url


@pytest.mark.parametrize(
    ("index", "summary"),
    [(1, None), (2, "System prompt"), (3, "8 earlier messages")],
)
def test_a_short_history_is_not_collapsed(page, index, summary):
    show(page, index)
    found = page.locator(".history summary")
    assert found.all_inner_texts() == ([] if summary is None else [summary])


def test_a_long_last_turn_is_cut_off_until_it_is_wanted(page):
    show(page, 4)
    text = page.locator(".turn.last .text")
    assert text.bounding_box()["height"] <= 0.4 * 860 + 1
    button = page.get_by_role("button", name="Show the whole message")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.click()
    assert text.bounding_box()["height"] > 2000
    page.get_by_role("button", name="Show less").click()
    assert text.bounding_box()["height"] <= 0.4 * 860 + 1


def test_a_turn_that_fits_has_no_button(page):
    page.set_viewport_size({"width": 1280, "height": 3000})
    show(page, 5)
    expect(page.locator(".turn .more")).to_have_count(0)
    expect(page.locator(".turn.last .text")).to_contain_text("End.")
