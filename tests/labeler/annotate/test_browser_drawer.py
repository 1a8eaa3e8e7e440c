"""My judgments: the list, a pair that is opened again, its revision, and the way back."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from playwright.sync_api import expect

from storage.labeling import judgments
from storage.tables import settings
from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import (
    desk_page,
    judgments_of,
    preferred,
    press,
    shown,
    status,
    wait_for_shown,
)


def current(db, who):
    """The judgments that count, in the order in which their pairs were first judged."""
    rows = db.read("SELECT * FROM current_judgments WHERE annotator = $who", who=who.id)
    first = [row["comparison"] for row in judgments_of(db, who)]
    return sorted(rows, key=lambda row: first.index(row["comparison"]))


def open_drawer(page):
    page.keyboard.press("m")
    expect(page.locator(".drawer")).to_be_visible()
    return page.locator(".drawer .given")


def reopen(page, pair):
    """The pair of the judgment whose prompt this is."""
    open_drawer(page).filter(has_text=re.compile(re.escape(pair[0]))).click()
    expect(page.locator(".drawer")).to_be_hidden()
    wait_for_shown(page, pair)


@pytest.fixture
def judged(browser, world, server, who):
    """A page on its fourth pair, after A (clearly, with a reason), tie, and B; and those pairs."""
    with desk_page(browser, world, server, who) as page:
        page.keyboard.press("i")
        page.keyboard.press("c")
        page.keyboard.type("well put")
        page.keyboard.press("Escape")
        page.locator("[data-criterion=clear][data-side=b]").click()
        seen = press(page, "1", "0", "2")
        status(page, "saved")
        yield page, seen


def test_the_list_has_ones_own_judgments_in_words_the_newest_first(judged):
    page, seen = judged
    rows = open_drawer(page)
    expect(rows).to_have_count(3)
    for row, pair, words in zip(
        rows.all(), seen[::-1], ["B is better", "Tie", "A is clearly better"], strict=True
    ):
        expect(row.locator("q")).to_have_text(pair[0])
        expect(row).to_contain_text(words)
        assert re.match(r"\d+:\d\d", row.locator("time").inner_text())  # today: no date
    page.locator(".drawer input").fill(f"  {seen[1][1].upper()} ")
    expect(rows).to_have_count(1)
    expect(rows.locator("q")).to_have_text(seen[1][0])
    page.locator(".drawer input").fill("nobody wrote this")
    expect(page.locator(".drawer [role=status]")).to_have_text(
        "No judged pair contains “nobody wrote this”."
    )
    page.keyboard.press("Escape")
    expect(page.locator(".drawer")).to_be_hidden()
    expect(open_drawer(page)).to_have_count(3)  # the search is over
    expect(page.locator(".drawer input")).to_have_value("")
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    assert page.locator(".desk[data-state=judging]").count() == 1


def test_a_revision_is_a_new_record_and_the_page_returns_to_its_pair(judged, world, who):
    page, seen = judged
    db, now = world[0], shown(page)
    page.keyboard.press("o")  # about the pair on the screen
    reopen(page, seen[0])
    marked = page.locator(".choice.earlier")
    expect(marked).to_have_attribute("data-outcome", "a")
    expect(marked).to_have_attribute("aria-description", "your earlier judgment")
    expect(page.locator(".revising")).to_contain_text("A is clearly better.")
    expect(page.locator(".announcer")).to_have_text("An earlier pair: A is clearly better.")
    assert page.locator(".comment textarea").input_value() == "well put"
    expect(page.locator("[data-strength='2']")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-criterion=clear][data-side=b]")).to_have_attribute(
        "aria-pressed", "true"
    )
    page.keyboard.press("u")
    page.keyboard.press("2")
    wait_for_shown(page, now)
    expect(page.locator("[data-strength='3']")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".revising")).to_be_hidden()
    expect(page.locator(".trace")).to_have_text("B, slightly (changed)")
    status(page, "saved")
    rows = judgments_of(db, who)
    assert rows[3]["replaces"] == rows[0]["id"]
    assert preferred(rows[3]) == seen[0][2]
    assert (rows[3]["strength"], rows[3]["comment"]) == (1, "well put")
    assert [row["id"] for row in current(db, who)] == [rows[i]["id"] for i in (3, 1, 2)]
    expect(page.locator("[data-count=done]")).to_have_text("3")  # changed, not one more


def test_the_key_of_the_earlier_strength_keeps_it(judged):
    page, seen = judged
    reopen(page, seen[0])
    page.keyboard.press("i")  # clearly, as before
    page.keyboard.press("2")
    expect(page.locator(".trace")).to_have_text("B, clearly (changed)")
    status(page, "saved")  # a list that is read before has the earlier judgment
    reopen(page, seen[0])
    page.keyboard.press("i")
    page.keyboard.press("i")  # no strength after all
    page.keyboard.press("1")
    expect(page.locator(".trace")).to_have_text("A (changed)")


def test_a_reload_goes_on_with_the_revision_and_its_draft(judged, world, who):
    page, seen = judged
    now = shown(page)
    reopen(page, seen[1])
    page.keyboard.press("c")
    page.keyboard.type("not equal at all")
    page.reload()
    wait_for_shown(page, seen[1])
    expect(page.locator(".revising")).to_contain_text("Tie.")
    expect(page.locator(".comment textarea")).to_have_value("not equal at all")
    page.keyboard.press("1")
    wait_for_shown(page, now)
    status(page, "saved")
    assert judgments_of(world[0], who)[-1]["comment"] == "not equal at all"
    page.reload()
    wait_for_shown(page, now)
    expect(page.locator(".revising")).to_be_hidden()
    reopen(page, seen[2])
    page.keyboard.press("c")
    page.keyboard.type("never mind")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")  # keeps the judgment
    wait_for_shown(page, now)
    reopen(page, seen[2])
    expect(page.locator(".comment textarea")).to_have_value("")


def test_an_earlier_list_is_not_offered_while_the_list_loads(judged):
    page, _ = judged
    expect(open_drawer(page)).to_have_count(3)
    page.keyboard.press("Escape")
    held = []
    page.route("**/label/api/judgments?*", lambda route: held.append(route))
    rows = open_drawer(page)
    expect(page.locator(".drawer [role=status]")).to_have_text("Loading …")
    expect(rows).to_have_count(0)
    held[0].continue_()
    expect(rows).to_have_count(3)


def test_the_list_is_current_when_a_revision_is_saved_while_it_is_open(judged):
    page, seen = judged
    reopen(page, seen[2])
    held = []
    page.route("**/label/api/judgments", lambda route: held.append(route))
    page.keyboard.press("1")
    expect(page.locator(".trace")).to_have_text("A (changed)")
    rows = open_drawer(page)
    expect(rows.first).to_contain_text("B is better")
    rows.first.focus()
    held[0].continue_()
    expect(rows.first).to_contain_text("A is better")
    expect(rows).to_have_count(3)
    expect(rows.first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".drawer")).to_be_hidden()
    wait_for_shown(page, seen[2])


def test_a_judgment_that_another_tab_revised_is_shown_as_it_is_now(judged, world, who):
    page, seen = judged
    expect(open_drawer(page)).to_have_count(3)
    latest = current(world[0], who)[2]["comparison"]
    judgments.judge(
        world[0], id=str(uuid.uuid4()), comparison=latest, annotator=who.id, outcome="tie"
    )
    rows = page.locator(".drawer .given")
    expect(rows.first).to_contain_text("B is better")
    rows.first.click()
    expect(page.locator(".drawer [role=status]")).to_contain_text("was changed or undone")
    expect(rows.first).to_contain_text("Tie")
    rows.first.click()
    wait_for_shown(page, seen[2])


def test_undo_after_a_revision_restores_the_earlier_judgment(judged, world, who):
    page, seen = judged
    db, now = world[0], shown(page)
    reopen(page, seen[0])
    page.keyboard.press("0")
    wait_for_shown(page, now)
    page.keyboard.press("z")
    expect(page.locator(".announcer")).to_have_text(
        "Undone. The earlier judgment counts again: A is clearly better."
    )
    assert shown(page) == now
    status(page, "saved")
    original, *others, restored = judgments_of(db, who)
    assert len(others) == 3
    same = ("outcome", "strength", "comment", "milliseconds", "comparison", "guidelines")
    assert [restored[name] for name in same] == [original[name] for name in same]
    assert json.loads(restored["criteria"]) == json.loads(original["criteria"])
    assert restored["id"] in {row["id"] for row in current(db, who)}
    page.keyboard.press("z")  # the act before: the judgment of the third pair
    wait_for_shown(page, seen[2])
    status(page, "saved")
    assert len(current(db, who)) == 2


def test_after_a_reload_undo_does_not_withdraw_what_it_restored(judged, world, who):
    page, seen = judged
    page.reload()
    wait_for_pair(page)
    now = shown(page)
    reopen(page, seen[0])
    page.keyboard.press("2")
    wait_for_shown(page, now)
    page.keyboard.press("z")
    status(page, "saved")
    page.keyboard.press("z")
    expect(page.locator(".announcer")).to_have_text("There is nothing to undo.")
    assert len(current(world[0], who)) == 3


@pytest.mark.parametrize("way", ["Escape", "z", "button"])
def test_a_pair_that_was_only_looked_at_stays_as_it_was(judged, world, who, way):
    page, seen = judged
    now = shown(page)
    reopen(page, seen[1])
    page.keyboard.press("s")
    expect(page.locator(".told")).to_contain_text("You have already judged this pair.")
    assert page.get_by_role("button", name="Skip").count() == 0
    page.keyboard.press("u")
    if way == "button":
        page.locator(".revising button").click()
    else:
        page.keyboard.press(way)
    wait_for_shown(page, now)
    expect(page.locator(".choice.earlier")).to_have_count(0)
    expect(page.get_by_role("button", name="Skip")).to_be_visible()
    assert page.locator("[data-strength][aria-pressed=true]").count() == 0
    reopen(page, seen[1])  # nothing is left of the look
    assert page.locator("[data-strength][aria-pressed=true]").count() == 0
    assert len(judgments_of(world[0], who)) == 3


def test_revisions_wait_for_a_connection_like_every_act(judged, world, who):
    page, seen = judged
    db, now = world[0], shown(page)
    reopen(page, seen[1])
    page.context.set_offline(True)
    page.keyboard.press("1")
    wait_for_shown(page, now)
    status(page, "waiting")
    rows = open_drawer(page)
    expect(page.locator(".drawer [role=status]")).to_contain_text("No connection")
    expect(rows).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("z")  # also undone before it is sent
    expect(page.locator(".trace")).to_have_text("Restored")
    page.context.set_offline(False)
    status(page, "saved")
    assert [row["outcome"] for row in current(db, who)][1] == "tie"
    assert len(judgments_of(db, who)) == 5


def test_ctrl_enter_sends_another_comment_with_the_same_verdict(judged, world, who):
    page, seen = judged
    now = shown(page)
    reopen(page, seen[0])
    page.keyboard.press("c")
    page.keyboard.press("End")
    page.keyboard.type(" and short")
    page.keyboard.press("Control+Enter")
    wait_for_shown(page, now)
    status(page, "saved")
    first = current(world[0], who)[0]
    assert (first["strength"], first["comment"]) == (2, "well put and short")
    assert preferred(judgments_of(world[0], who)[3]) == seen[0][1]


def test_a_judgment_that_changed_elsewhere_is_not_overwritten(judged, world, who):
    page, seen = judged
    db, now = world[0], shown(page)
    reopen(page, seen[1])
    elsewhere = current(db, who)[1]
    judgments.judge(
        db, id=str(uuid.uuid4()), comparison=elsewhere["comparison"], annotator=who.id, outcome="a"
    )
    page.keyboard.press("9")
    wait_for_shown(page, now)
    status(page, "refused")
    expect(page.locator(".tray article")).to_contain_text("Not saved: Both bad (changed).")
    page.keyboard.press("z")  # opens the pair again with what was chosen
    wait_for_shown(page, seen[1])
    expect(page.locator(".revising")).to_be_visible()
    expect(page.locator(".tray article")).to_have_count(0)


def test_one_press_marks_the_step(judged, world):
    page, seen = judged
    settings.choose_judgment_form(world[0], settings.JudgmentForm("one-press"))
    try:
        page.reload()
        wait_for_pair(page)
        reopen(page, seen[0])
        expect(page.locator(".choice.earlier")).to_have_attribute("data-key", "a-clearly")
    finally:
        settings.choose_judgment_form(world[0], settings.JudgmentForm())


def test_older_judgments_come_on_request(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        press(page, *"0" * 5)
        status(page, "saved")
        rows = page.locator(".drawer .given")
        held = []

        def in_pages(route):
            answer = route.fetch()
            data = answer.json()
            held.append(route.request.url)
            half = data["judgments"][:3] if "before" not in route.request.url else data["judgments"]
            more = "before" not in route.request.url
            route.fulfill(response=answer, json={"judgments": half, "more": more})

        page.route("**/label/api/judgments?*", in_pages)
        open_drawer(page)
        expect(rows).to_have_count(3)
        page.get_by_role("button", name="Show older judgments").click()
        expect(rows).to_have_count(5)
        expect(page.get_by_role("button", name="Show older judgments")).to_be_hidden()
        assert page.evaluate("document.activeElement.closest('li').previousElementSibling !== null")
        assert len(set(rows.locator("q").all_inner_texts())) == 5


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844), (320, 640)])
def test_the_drawer_stands_at_the_end_or_fills_a_phone(browser, world, server, who, width, height):
    with desk_page(browser, world, server, who, width=width, height=height) as page:
        press(page, "1")
        status(page, "saved")
        page.locator(".menu summary").click()
        page.get_by_role("button", name="My judgments").first.click()
        expect(page.locator(".drawer .given")).to_have_count(1)
        box = page.locator(".drawer").bounding_box()
        assert (box["y"], box["height"]) == (0, height)
        assert box["x"] + box["width"] == width
        assert box["width"] == min(width, 460)
        assert page.evaluate("document.activeElement.type") == "search"
        assert page.locator(".drawer").evaluate("n => n.scrollWidth <= n.clientWidth")


def test_the_last_pairs_can_be_revised_when_none_is_left(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        first = press(page, "1")[0]
        page.wait_for_load_state("networkidle")
        page.route("**/label/api/next?*", lambda route: route.abort())
        while page.locator(".desk[data-state=judging]").count():
            page.wait_for_timeout(300)
            page.keyboard.press("0")
        status(page, "saved")
        rows = open_drawer(page)
        page.locator(".drawer input").fill(first[0])  # the list may not reach so far back
        expect(rows).to_have_count(1)
        rows.click()
        wait_for_shown(page, first)
        page.keyboard.press("2")
        expect(page.locator(".desk")).not_to_have_attribute("data-state", "judging")
        status(page, "saved")
        expect(page.locator(".revising")).to_be_hidden()
    assert preferred(judgments_of(world[0], who)[-1]) == first[2]
