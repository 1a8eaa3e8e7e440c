"""What can go wrong on the annotator's page: slips of hands, late answers, shared and odd browsers."""

from __future__ import annotations

import re
import uuid
from contextlib import suppress

import pytest
from playwright.sync_api import Error, expect

from storage.labeling import queue
from tests.helpers.browser import new_page, wait_for_pair
from tests.helpers.desk_browser import (
    cookie_of,
    desk_page,
    judgments_of,
    preferred,
    press,
    shown,
    sign_in_as,
    status,
    wait_for_other,
    wait_for_shown,
)
from tests.helpers.desk_world import add_person, serving


@pytest.fixture
def few_in_hand(monkeypatch):
    """The page holds four pairs."""
    monkeypatch.setattr(queue, "MAX_SHARE", 4)


def standing(db, who):
    """The annotator's judgments that were not undone."""
    undone = {row["replaces"] for row in db.read("SELECT replaces FROM withdrawals")}
    return [row for row in judgments_of(db, who) if row["id"] not in undone]


def comment(page):
    return page.locator(".comment textarea").input_value()


def write(page, text):
    page.keyboard.press("c")
    page.keyboard.type(text)
    page.keyboard.press("Escape")


def test_a_page_never_shows_the_pairs_of_whoever_signed_in_since(browser, world, server, who):
    db, _ = world
    other = add_person(db, f"Ben {uuid.uuid4().hex[:6]}")
    with desk_page(browser, world, server, who) as page:
        press(page, "1")
        status(page, "saved")
        page.wait_for_load_state("networkidle")
        sign_in_as(page, cookie_of(world, server.url, other))
        page.keyboard.press("1")
        expect(page.locator(".empty h1")).to_have_text("Someone else has signed in")
        page.keyboard.press("z")
        expect(page.locator(".announcer")).to_have_text("There is nothing to undo.")
        assert judgments_of(db, other) == []
        sign_in_as(page, cookie_of(world, server.url, who))
        wait_for_pair(page)
        status(page, "saved")
        seen = press(page, "1", "1", "1")
        status(page, "saved")
    rows = judgments_of(db, who)
    assert len(rows) == 5
    assert [preferred(row) for row in rows[-3:]] == [pair[1] for pair in seen]


@pytest.mark.usefixtures("few_in_hand")
def test_an_answer_that_is_not_ours_saves_nothing_and_stops_nothing(browser, world, server, who):
    def portal(route):
        route.fulfill(status=200, content_type="text/html", body="<h1>Welcome to our network</h1>")

    with new_page(browser, cookie=cookie_of(world, server.url, who)) as page:
        page.route("**/label/api/**", portal)
        page.goto(f"{server.url}/label/")
        expect(page.locator(".empty h1")).to_have_text("No connection")
        page.unroute("**/label/api/**")
        wait_for_pair(page)
        page.route("**/label/api/**", portal)
        press(page, "1", "1", "1")
        page.keyboard.press("1")
        status(page, "waiting")
        expect(page.locator(".empty h1")).to_have_text("No connection")
        assert judgments_of(world[0], who) == []
        page.unroute("**/label/api/**")
        status(page, "saved")
        wait_for_pair(page)
    assert len(judgments_of(world[0], who)) == 4


@pytest.mark.usefixtures("few_in_hand")
def test_nobody_is_told_that_all_is_done_while_pairs_are_on_their_way(browser, world, server, who):
    held = []
    with desk_page(browser, world, server, who) as page:
        page.wait_for_load_state("networkidle")
        page.route("**/label/api/next?*", lambda route: held.append(route))
        press(page, "1", "1", "1")
        page.keyboard.press("1")
        status(page, "saved")
        expect(page.locator(".desk")).to_have_attribute("data-state", "loading")
        expect(page.locator(".empty h1")).not_to_have_text("All caught up")
        assert held
        page.unroute("**/label/api/next?*")  # lets them go
        wait_for_pair(page)
    assert len(judgments_of(world[0], who)) == 4


def test_undo_after_a_reload_takes_back_one_act_and_never_a_later_one(browser, world, server, who):
    db, _ = world
    with desk_page(browser, world, server, who) as page:
        seen = press(page, "1", "2")
        status(page, "saved")
        page.reload()
        wait_for_pair(page)
        page.context.set_offline(True)
        for _ in range(3):
            page.keyboard.press("z")
        status(page, "waiting")
        with desk_page(browser, world, server, who) as phone:
            later = press(phone, "1")
            status(phone, "saved")
        page.context.set_offline(False)
        status(page, "saved")
        wait_for_shown(page, seen[1])
        assert [preferred(row) for row in standing(db, who)] == [seen[0][1], later[0][1]]
        page.keyboard.press("z")  # step by step to where nothing is left
        status(page, "saved")
        page.wait_for_timeout(600)
        page.keyboard.press("z")
        page.wait_for_timeout(600)
        page.keyboard.press("z")
        expect(page.locator(".announcer")).to_have_text("There is nothing to undo.")
        status(page, "saved")
    assert standing(db, who) == []


def test_an_undo_that_comes_late_leaves_the_pair_that_is_written_about(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        undone = press(page, "1")[0]
        status(page, "saved")
        page.reload()
        wait_for_pair(page)
        held = []
        page.route("**/label/api/undo", lambda route: held.append(route))
        page.keyboard.press("z")
        current = shown(page)
        page.keyboard.press("c")
        page.keyboard.type("A is rude and ")
        assert len(held) == 1
        held[0].continue_()
        expect(page.locator(".announcer")).to_have_text("Undone. The pair comes next.")
        page.keyboard.type("B is wrong")
        page.keyboard.press("Escape")
        assert shown(page) == current
        page.keyboard.press("2")
        wait_for_other(page, current)
        assert shown(page) == undone
        assert comment(page) == ""
        status(page, "saved")
    [row] = standing(world[0], who)
    assert (row["comment"], preferred(row)) == ("A is rude and B is wrong", current[2])


def test_drafts_stay_with_their_pairs_through_reload_and_undo(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        judged = press(page, "1", "1")[1]
        current = shown(page)
        page.keyboard.press("i")
        write(page, "half a thought")
        status(page, "saved")
        page.reload()
        wait_for_pair(page)
        assert shown(page) == current  # not whichever was fetched last
        assert comment(page) == "half a thought"
        page.keyboard.press("z")
        wait_for_shown(page, judged)
        assert comment(page) == ""
        page.keyboard.press("2")
        wait_for_other(page, judged)
        assert shown(page) == current
        assert comment(page) == "half a thought"
        page.keyboard.press("1")
        wait_for_other(page, current)
        status(page, "saved")
        kept = page.evaluate("Object.keys(localStorage).filter(key => key.includes('draft'))")
        assert kept == []
    assert [row["comment"] for row in standing(world[0], who)] == ["", "", "half a thought"]


def test_what_another_program_left_in_the_browser_stops_nothing(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        current = shown(page)
        page.context.set_offline(True)
        press(page, "1")
        status(page, "waiting")
        page.evaluate(
            "who => { localStorage.setItem(`kitestring.outbox.${who}.torn`, '{\"id\": ');"
            "for (const key of Object.keys(localStorage))"
            "  if (key.includes('shown')) localStorage.setItem("
            "    `kitestring.draft.${who}.${localStorage.getItem(key)}`, 'null and void') }",
            who.id,
        )
        page.goto("about:blank")  # so that the next page sends it, not this one on its way out
        page.context.set_offline(False)
        # Without this, a label that another page had sent would leave nothing to be "saved" here.
        with page.expect_response("**/label/api/judgments"):
            page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        status(page, "refused")  # sent, and only the torn one is left
        tray = page.locator(".tray article")
        expect(tray).to_contain_text("The copy in this browser cannot be read.")
        expect(tray.get_by_role("button")).to_have_text(["Discard"])
        expect(page.locator("[data-count=done]")).to_have_text("1")
        tray.get_by_role("button").click()
        status(page, "saved")
    assert [preferred(row) for row in judgments_of(world[0], who)] == [current[1]]


def lose_replies(page, path):
    """From now on, the server stores what is posted there, and the page never hears of it."""
    reached = []

    def lose(route):
        reached.append(route.fetch().status)
        with suppress(Error):  # the page may be gone, and the request with it
            route.abort()

    page.route(path, lose)
    return reached


def test_a_label_that_is_sent_again_after_a_reload_counts_once(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        press(page, "1")
        status(page, "saved")
        reached = lose_replies(page, "**/label/api/judgments")
        press(page, "1")
        status(page, "waiting")
        assert reached == [200]
        page.goto("about:blank")
        page.unroute("**/label/api/judgments")
        page.goto(f"{server.url}/label/")
        # Only after the server's answer: "saved", and a moment later "ready".
        expect(page.locator(".status")).to_have_attribute("data-status", re.compile("saved|ready"))
        page.wait_for_load_state("networkidle")
        expect(page.locator("[data-count=done]")).to_have_text("2")
        press(page, "1")  # the page's own acts count at once
        status(page, "saved")
        expect(page.locator("[data-count=done]")).to_have_text("3")
    assert len(judgments_of(world[0], who)) == 3


def test_an_undo_that_is_sent_again_after_a_reload_counts_once(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        press(page, "1", "1")
        status(page, "saved")
        reached = lose_replies(page, "**/label/api/undo")
        page.keyboard.press("z")
        status(page, "waiting")
        assert reached == [200]
        page.goto("about:blank")
        page.unroute("**/label/api/undo")
        page.goto(f"{server.url}/label/")
        # Only after the server's answer: "saved", and a moment later "ready".
        expect(page.locator(".status")).to_have_attribute("data-status", re.compile("saved|ready"))
        page.wait_for_load_state("networkidle")
        expect(page.locator("[data-count=done]")).to_have_text("1")
        page.keyboard.press("z")  # the act before it
        status(page, "saved")
        expect(page.locator("[data-count=done]")).to_have_text("0")
    assert standing(world[0], who) == []


def test_counts_that_were_taken_before_the_latest_label_are_not_shown(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        page.wait_for_load_state("networkidle")
        held = []

        def hold_the_first(route):
            if held:
                route.continue_()
            else:
                held.append((route, route.fetch()))

        page.route("**/label/api/progress?*", hold_the_first)
        press(page, "1")
        page.keyboard.press("z")  # the page asks for the counts
        status(page, "saved")
        wait_for_pair(page)
        page.wait_for_timeout(500)
        [(route, early)] = held
        assert early.json()["judged"] == 0
        press(page, "1")
        status(page, "saved")
        with page.expect_response("**/label/api/progress?*"):
            route.fulfill(response=early)
        page.wait_for_timeout(500)
        assert page.locator("[data-count=done]").inner_text() == "1"


def test_a_held_enter_and_a_double_click_on_skip_act_once(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.locator(".choice.a").focus()
        for _ in range(8):
            page.keyboard.down("Enter")  # the browser reports the further ones as repeats
            page.wait_for_timeout(150)
        page.keyboard.up("Enter")
        wait_for_other(page, before)
        before = shown(page)
        page.locator("[data-do=skip]").dblclick()
        wait_for_other(page, before)
        status(page, "saved")
    db = world[0]
    assert len(judgments_of(db, who)) == 1
    assert len(db.read("SELECT id FROM skips WHERE annotator = $who", who=who.id)) == 1


def test_a_browser_that_keeps_nothing_is_not_sent_away_with_labels_unsent(browser, world, who):
    db, app = world
    with serving(app) as server:
        cookie = cookie_of(world, server.url, who)
        with new_page(browser, cookie=cookie) as page:
            page.add_init_script(
                "Storage.prototype.setItem = () => { throw new DOMException('full') }"
            )
            page.goto(f"{server.url}/label/")
            wait_for_pair(page)
            page.wait_for_load_state("networkidle")
            page.context.clear_cookies()
            press(page, "1", "1", "1")
            page.keyboard.press("1")
            expect(page.locator(".status")).to_contain_text("Signed out: sign in to save 4 labels")
            page.wait_for_timeout(500)
            assert page.url.endswith("/label/")
            # The same person signs in again in another tab.
            sign_in_as(page, cookie)
            status(page, "saved")
    assert len(judgments_of(db, who)) == 4


def test_guidelines_that_cover_the_pair_hold_the_keys_back(browser, world, server, who):
    with desk_page(browser, world, server, who, width=390, height=844) as page:
        page.keyboard.press("g")
        expect(page.locator(".guidelines")).to_contain_text("because it is longer")
        for key in "12s":
            page.keyboard.press(key)
        page.keyboard.press("g")
        press(page, "1")
        status(page, "saved")
    assert len(judgments_of(world[0], who)) == 1


def test_guidelines_that_could_not_be_fetched_are_fetched_when_opened(browser, world, server, who):
    with new_page(browser, cookie=cookie_of(world, server.url, who)) as page:
        page.route("**/label/api/guidelines", lambda route: route.abort())
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        page.unroute("**/label/api/guidelines")
        page.keyboard.press("g")
        expect(page.locator(".guidelines")).to_contain_text("because it is longer")


def test_a_discarded_label_is_not_undone_and_shortcuts_can_be_off(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        page.evaluate("document.querySelector('.comment textarea').value = 'x'.repeat(5001)")
        press(page, "1")
        status(page, "refused")
        page.get_by_role("button", name="Discard").click()
        expect(page.locator(".tray article")).to_have_count(0)
        page.keyboard.press("z")
        expect(page.locator(".announcer")).to_have_text("There is nothing to undo.")
        expect(page.locator(".tray article")).to_have_count(0)
        page.keyboard.press("?")
        page.get_by_role("button", name="Turn off shortcuts").click()
        page.keyboard.press("Escape")
        page.keyboard.press("1")
        page.reload()  # it is remembered
        wait_for_pair(page)
        page.keyboard.press("1")
        page.wait_for_timeout(300)
        assert judgments_of(world[0], who) == []
        page.get_by_label("Keyboard shortcuts").first.click()
        page.get_by_role("button", name="Turn on shortcuts").click()
        page.keyboard.press("Escape")
        press(page, "1")
        status(page, "saved")
    assert len(judgments_of(world[0], who)) == 1
