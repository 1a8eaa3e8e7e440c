"""Live conversations in a browser, by keyboard alone."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from storage.generation_records import GenerationRefused
from tests.helpers.browser import chromium, wait_for_pair
from tests.helpers.desk_browser import desk_page, press, shown
from tests.helpers.desk_world import add_person, make_app, plain_pairs, serving, workspace
from tests.helpers.scripted_generation import Scripted


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    script = Scripted()
    with workspace(tmp_path_factory.mktemp("live-page"), plain_pairs(600)) as db:
        app = make_app(db, generation=script)
        with serving(app) as server, chromium() as browser:
            yield browser, (db, app), server, script


@pytest.fixture
def script(studio):
    studio[3].reset()
    return studio[3]


@pytest.fixture
def page(studio, script, request):  # noqa: ARG001 (a page of the new script)
    browser, world, server, _ = studio
    with desk_page(browser, world, server, add_person(world[0], request.node.name)) as page:
        expect(page.locator("nav [data-do=live]")).to_be_visible()
        yield page


def enter(page):
    """Open the live conversation and wait until a message can be written."""
    page.keyboard.press("l")
    expect(page.locator(".live textarea")).to_be_focused()
    expect(page.locator(".live .heard")).to_have_text("")


def say(page, text):
    """Write a message and wait for both replies."""
    page.keyboard.type(text)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".turn.last .text").first).to_have_text(text)
    wait_for_pair(page)


def test_a_conversation_by_keyboard_alone(page, script):
    script.texts = ["Eight minutes.", "Ask a cook.", "Yes.", "No."]
    enter(page)
    expect(page.locator(".live-head .turns")).to_have_text("Turn 1 of 3")
    say(page, "How long?")
    _, a, b = shown(page)
    assert {a, b} == {"Eight minutes.", "Ask a cook."}
    page.keyboard.press("2")
    expect(page.locator(".live-head .turns")).to_have_text("Turn 2 of 3")
    talk = page.locator(".live .talk .turn")
    expect(talk).to_have_count(2)
    expect(talk.last).to_contain_text(b)
    sizes = talk.locator(".text").evaluate_all(
        "all => all.map((e) => getComputedStyle(e).fontSize)"
    )
    assert len(set(sizes)) == 1
    expect(page.locator(".live textarea")).to_be_focused()
    say(page, "And then?")
    assert shown(page)[0] == "And then?"
    assert [r.messages[-2].content for r in script.asked[-2:]] == [b + " "] * 2
    page.keyboard.press("1")
    expect(page.locator(".live-head .turns")).to_have_text("Turn 3 of 3")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    wait_for_pair(page)
    assert shown(page)[0].startswith("Question number")


def test_replies_stream_and_keys_answer_no_hidden_pair(studio, page, script):
    db = studio[1][0]
    script.texts = ["One more.", "Two more."]
    script.pause = asyncio.Event()
    enter(page)
    page.keyboard.type("How long?")
    page.keyboard.press("Control+Enter")
    streams = page.locator(".live .streams .text p")
    expect(streams.first).to_have_text(re.compile("One|Two"))
    expect(streams.last).to_have_text(re.compile("One|Two"))
    problems = []
    page.on("pageerror", lambda problem: problems.append(problem))
    for key in "129sefhdw":  # the queue's pair is not on the screen
        page.keyboard.press(key)
    assert problems == []
    expect(page.locator("dialog[open]")).to_have_count(0)
    expect(page.locator("[data-do=differences]")).to_have_attribute("aria-pressed", "false")
    script.pause.set()
    wait_for_pair(page)
    assert {*shown(page)[1:]} == {"One more.", "Two more."}
    expect(page.locator(".status")).to_have_attribute("data-status", "ready")
    assert page.locator(".trace").inner_text() == ""
    assert db.read("SELECT 1 FROM skips") == []


def test_a_failed_turn_keeps_the_message(page, script):
    script.texts = ["A word and " + "more " * 5, GenerationRefused("It stopped.")]
    enter(page)
    page.keyboard.type("How long?")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".live .heard")).to_have_text("It stopped.")
    # The message is kept, so that it can be sent again.
    expect(page.locator(".live textarea")).to_have_value("How long?")
    expect(page.locator(".live .talk .turn")).to_have_count(0)
    script.texts = ["One.", "Two."]
    page.keyboard.press("Control+Enter")
    wait_for_pair(page)
    assert {*shown(page)[1:]} == {"One.", "Two."}


def test_undo_brings_the_turn_back(page, script):
    script.texts = ["One.", "Two."]
    enter(page)
    say(page, "How long?")
    before = shown(page)
    page.keyboard.press("1")
    expect(page.locator(".live textarea")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("z")
    wait_for_pair(page)
    assert shown(page) == before
    page.keyboard.press("9")
    expect(page.locator(".live .heard")).to_contain_text("Both bad")
    expect(page.locator(".live textarea")).to_be_hidden()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".live textarea")).to_be_focused()
    expect(page.locator(".live-head .turns")).to_have_text("Turn 1 of 3")


def test_the_key_leads_back_to_the_queue_and_to_the_turn_again(page, script):
    script.texts = ["One.", "Two."]
    enter(page)
    say(page, "How long?")
    before = shown(page)
    page.keyboard.press("l")
    expect(page.locator(".turn.last .text").first).to_contain_text("Question number")
    page.keyboard.press("l")
    expect(page.locator(".turn.last .text").first).to_have_text("How long?")
    wait_for_pair(page)
    assert shown(page) == before


def test_a_new_conversation_stays_new(page, script):
    script.texts = ["One.", "Two."]
    enter(page)
    say(page, "How long?")
    page.keyboard.press("1")
    expect(page.locator(".live-head .turns")).to_have_text("Turn 2 of 3")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".live-head .turns")).to_have_text("Turn 1 of 3")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    wait_for_pair(page)
    page.keyboard.press("l")
    expect(page.locator(".live .heard")).to_have_text("")
    expect(page.locator(".live-head .turns")).to_have_text("Turn 1 of 3")
    expect(page.locator(".live .talk .turn")).to_have_count(0)


def test_without_a_connection_the_way_back_stays(page):
    page.route("**/label/api/live", lambda route: route.abort())
    page.keyboard.press("l")
    expect(page.locator(".live .heard")).to_contain_text("Kitestring cannot be reached.")
    page.get_by_role("button", name="Back to the queue").click()
    wait_for_pair(page)


def test_a_reload_continues_the_conversation(page, script):
    script.texts = ["One.", "Two."]
    enter(page)
    say(page, "How long?")
    before = shown(page)
    page.reload()
    expect(page.locator(".turn.last .text").first).to_have_text("How long?")
    wait_for_pair(page)
    assert shown(page) == before
    page.keyboard.press("1")
    expect(page.locator(".live textarea")).to_be_focused()
    page.keyboard.type("And th")
    page.reload()
    expect(page.locator(".live textarea")).to_have_value("And th")
    expect(page.locator(".live-head .turns")).to_have_text("Turn 2 of 3")
    expect(page.locator(".live textarea")).to_be_focused()  # before, Escape leaves no field
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    wait_for_pair(page)
    page.reload()  # from the queue, to the queue
    wait_for_pair(page)
    assert shown(page)[0].startswith("Question number")


def test_the_replies_stay_in_place_and_in_the_window(page, script):
    page.set_viewport_size({"width": 1280, "height": 640})
    script.texts = ["One.", "Two."] * 3
    enter(page)
    for message in ("How long?", "A longer question. " * 20):
        say(page, message.strip())
        page.keyboard.press("1")
        expect(page.locator(".live textarea")).to_be_focused()
    script.pause = asyncio.Event()
    page.keyboard.type("And then?")
    page.keyboard.press("Control+Enter")
    streams = page.locator(".live .streams .response.a")
    expect(streams).to_contain_text(re.compile("One|Two"))
    before = streams.bounding_box()
    script.pause.set()
    wait_for_pair(page)
    after = page.locator(".pair .response.a").bounding_box()
    bar = page.locator(".verdict").bounding_box()
    assert before["x"] == after["x"]
    assert 0 < after["y"] <= before["y"]
    assert after["y"] + after["height"] <= bar["y"] + 1
    expect(page.locator(".live-head .turns")).to_have_text("Turn 3 of 3")


def test_the_end_offers_a_new_conversation_to_the_keyboard(page, script):
    script.texts = ["One.", "Two."]
    enter(page)
    say(page, "How long?")
    page.keyboard.press("9")
    again = page.get_by_role("button", name="New conversation")
    expect(again).to_be_focused()
    expect(page.locator(".live-head .turns")).to_have_text("")
    page.keyboard.press("Enter")
    expect(page.locator(".live textarea")).to_be_focused()


def test_a_live_turn_does_not_count_in_the_round(page, script):
    script.texts = ["One.", "Two."]
    enter(page)
    say(page, "How long?")
    page.keyboard.press("1")
    expect(page.locator(".status")).to_have_text("Saved")
    expect(page.locator("[data-count=done]")).to_have_text("0")
    expect(page.locator(".ring")).to_have_attribute("title", re.compile("^1 today, 1 in total"))


def test_training_offers_the_queue(page, script):
    script.stage = "PPO"
    page.keyboard.press("l")
    said = page.locator(".live .heard")
    expect(said).to_have_text(re.compile("The model is being trained.*the queue has pairs"))
    page.get_by_role("button", name="Back to the queue").click()
    wait_for_pair(page)
    assert shown(page)[0].startswith("Question number")


def test_the_page_notices_that_training_has_ended(page, script):
    script.stage = "PPO"
    page.clock.install()
    page.keyboard.press("l")
    expect(page.locator(".live .heard")).to_contain_text("The model is being trained.")
    script.stage = None
    page.clock.run_for(11_000)
    expect(page.locator(".live .heard")).to_have_text("")


def test_a_suggestion_becomes_the_message(page):
    enter(page)
    offered = page.locator(".live .suggested button")
    expect(offered).to_have_count(3)
    text = offered.first.inner_text()
    offered.first.click()
    expect(page.locator(".live textarea")).to_have_value(text)


def test_without_the_setting_there_is_no_trace_of_it(studio, script):
    browser, world, server, _ = studio
    script.live = replace(script.live, replies="off")
    with desk_page(browser, world, server, add_person(world[0], "quiet")) as page:
        page.wait_for_load_state("networkidle")
        expect(page.locator("nav [data-do=live]")).to_be_hidden()
        page.keyboard.press("l")
        assert shown(page)[0].startswith("Question number")
        page.keyboard.press("?")
        expect(page.locator(".help dl")).not_to_contain_text("Live conversation")


def test_undo_is_offered_only_for_turns_of_the_conversation(page, script):
    script.texts = ["One.", "Two."]
    press(page, "1")
    undo = page.get_by_role("button", name="Undo")
    expect(undo).to_be_visible()
    enter(page)
    expect(undo).to_be_hidden()
    page.keyboard.press("Escape")
    page.keyboard.press("z")
    expect(page.locator(".announcer")).to_contain_text("There is nothing to undo.")
    page.locator(".live textarea").focus()
    say(page, "How long?")
    expect(undo).to_be_hidden()
    page.keyboard.press("1")
    expect(page.locator(".live textarea")).to_be_focused()
    expect(undo).to_be_visible()
    expect(page.locator(".status")).to_have_attribute("data-status", "saved")
    page.reload()
    expect(page.locator(".live textarea")).to_be_focused()
    expect(undo).to_be_visible()
    page.get_by_role("button", name="New conversation").click()
    expect(undo).to_be_hidden()
    page.keyboard.press("Escape")
    page.keyboard.press("m")
    rows = page.locator(".drawer .given")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("Live conversation")
    expect(rows.last).not_to_contain_text("Live conversation")
    page.keyboard.press("Escape")
    expect(page.locator("body")).to_be_focused()
    page.keyboard.press("l")
    expect(undo).to_be_visible()
