"""The annotator's page in a real browser, against a real server and a real workspace."""

from __future__ import annotations

import os
import re
import threading
import uuid

import pytest
from playwright.sync_api import expect

from labeler.annotate.session import DEFAULT_GUIDELINES
from storage.labeling import judgments, queue
from storage.records import Iteration, digest
from storage.tables import iterations
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
from tests.helpers.desk_world import add_pairs, add_person, free_port, serving

HOSTILE = (
    '<div style="position:fixed;inset:0;background:red;z-index:99999">mine</div>'
    "![x](http://evil.example/pixel.png) <form action=http://evil.example><button>Go</button></form>"
    " [here](javascript:document.title='owned')"
)


def test_labels_by_keyboard_and_by_mouse(browser, world, server, who):
    db, _ = world
    with desk_page(browser, world, server, who) as page:
        [one] = press(page, "1")
        two = shown(page)
        page.locator(".choice.b").click()
        wait_for_other(page, two)
        press(page, "0")
        four = shown(page)
        page.get_by_role("button", name="Both bad").click()
        wait_for_other(page, four)
        status(page, "saved")
        expect(page.locator("[data-count=done]")).to_have_text("4")
    rows = judgments_of(db, who)
    assert [row["outcome"] for row in rows[2:]] == ["tie", "both_bad"]
    assert preferred(rows[0]) == one[1]
    assert preferred(rows[1]) == two[2]
    assert all(0 < row["milliseconds"] < 60_000 for row in rows)


def test_strength_criteria_and_comment_go_along(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        version = page.locator(".guidelines[data-version]").get_attribute("data-version")
        page.keyboard.press("i")
        page.keyboard.press("c")  # opens the details and puts the cursor into the comment
        page.keyboard.type("1 reason: better put")
        page.keyboard.press("Escape")
        page.locator("[data-criterion=clear][data-side=b]").click()
        page.locator("[data-criterion=helpful][data-side=tie]").click()
        page.keyboard.press("2")
        wait_for_other(page, before)
        status(page, "saved")
        assert page.locator("[aria-pressed=true][data-strength]").count() == 0  # fresh for the next
        assert page.locator(".comment textarea").input_value() == ""
    [row] = judgments_of(world[0], who)
    assert (row["strength"], row["comment"]) == (2, "1 reason: better put")
    assert row["guidelines"] == version
    assert version == digest(DEFAULT_GUIDELINES)
    assert preferred(row) == before[2]
    side = "second" if row["outcome"] == "second" else "first"
    assert f'"clear": "{side}"' in row["criteria"].replace('":"', '": "')
    assert '"helpful": "tie"' in row["criteria"].replace('":"', '": "')


def test_a_choice_leaves_a_trace_and_is_announced(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        trace, announcer = page.locator(".trace"), page.locator(".announcer")
        expect(trace).to_be_empty()
        before = shown(page)
        page.keyboard.press("i")
        press(page, "1")
        expect(trace).to_have_text("A, clearly")
        expect(announcer).to_have_text("A is clearly better. New pair.")
        press(page, "0")
        expect(trace).to_have_text("Tie")
        page.keyboard.press("z")
        page.keyboard.press("z")
        wait_for_shown(page, before)
        expect(trace).to_have_text("Undone: A, clearly")


def test_the_reason_of_a_flag_survives_escape_and_reload(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        reason = page.locator(".flagging textarea")
        page.keyboard.press("f")
        page.keyboard.type("cut o")
        page.keyboard.press("Escape")
        expect(page.locator(".flagging")).to_be_hidden()
        page.reload()
        wait_for_shown(page, before)
        page.keyboard.press("f")
        expect(reason).to_have_value("cut o")
        page.keyboard.press("Control+Enter")
        wait_for_other(page, before)
        page.keyboard.press("f")
        expect(reason).to_have_value("")


def test_saved_is_said_only_after_the_commit(browser, world, server, who, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()
    real = os.fsync

    def slow(file):
        reached.set()
        go_on.wait(30)
        real(file)

    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        monkeypatch.setattr(os, "fsync", slow)
        try:
            page.keyboard.press("1")
            wait_for_other(page, before)  # the next pair does not wait
            assert reached.wait(20)
            page.wait_for_timeout(400)
            status(page, "saving")
            assert judgments_of(world[0], who) == []
        finally:
            go_on.set()
        status(page, "saved")
        assert len(judgments_of(world[0], who)) == 1


def test_a_reload_keeps_pair_and_sides(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.reload()
        wait_for_pair(page)
        assert shown(page) == before


def test_undo_brings_pair_and_draft_back_and_history_keeps_both(browser, world, server, who):
    db, _ = world
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.keyboard.press("u")
        page.keyboard.press("1")
        wait_for_other(page, before)
        page.keyboard.press("z")
        wait_for_shown(page, before)
        expect(page.locator("[data-strength='1']")).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("c")
        page.keyboard.type("B names the reason")
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        wait_for_other(page, before)
        status(page, "saved")
        rows = judgments_of(db, who)
        assert [preferred(row) for row in rows] == [before[1], before[2]]
        withdrawals = db.read("SELECT replaces FROM withdrawals WHERE annotator = $who", who=who.id)
        assert [row["replaces"] for row in withdrawals] == [rows[0]["id"]]

        # After a reload the page no longer knows what was last; the server does, with its details.
        page.reload()
        wait_for_pair(page)
        page.keyboard.press("z")
        wait_for_shown(page, before)
        expect(page.locator("[data-strength='1']")).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".comment textarea")).to_have_value("B names the reason")


def test_skip_and_flag(browser, world, server, who):
    db, _ = world
    with desk_page(browser, world, server, who) as page:
        one = shown(page)
        page.keyboard.press("s")
        wait_for_other(page, one)
        two = shown(page)
        page.keyboard.press("f")
        page.keyboard.type("private data: 1 2 0 9")
        page.get_by_role("button", name="Flag", exact=True).last.click()
        wait_for_other(page, two)
        three = shown(page)
        page.keyboard.press("f")
        page.keyboard.type("cut off")
        page.keyboard.press("Control+Enter")
        wait_for_other(page, three)
        status(page, "saved")
    assert (
        db.read("SELECT count(*) AS n FROM skips WHERE annotator = $who", who=who.id)[0]["n"] == 1
    )
    flags = db.read("SELECT comment FROM flags WHERE annotator = $who ORDER BY ALL", who=who.id)
    assert [row["comment"] for row in flags] == ["cut off", "private data: 1 2 0 9"]
    assert judgments_of(db, who) == []  # typing digits judged nothing


def test_keys_pressed_in_a_burst_judge_one_pair(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        # From the page itself, so that the pause does not hang on how fast the test drives it.
        page.evaluate(
            "() => { for (const key of ['1', '1', '2', '1', '0', 's', '9']) "
            "document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})) }"
        )
        wait_for_other(page, before)
        status(page, "saved")
        page.keyboard.press("2")  # after a pause it is meant
        page.wait_for_timeout(300)
        status(page, "saved")
    # The first 1 and the 2 that was meant; nobody had read the pairs that the others were about.
    assert len(judgments_of(world[0], who)) == 2


def test_a_held_key_and_a_double_click_judge_one_pair_each(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        for _ in range(5):
            page.keyboard.down("1")  # the browser reports the further ones as repeats
        page.keyboard.up("1")
        wait_for_other(page, before)
        before = shown(page)
        page.locator(".choice.a").dblclick()
        wait_for_other(page, before)
        status(page, "saved")
        page.wait_for_timeout(300)
    assert len(judgments_of(world[0], who)) == 2


def test_the_outbox_outlives_the_server_and_the_page(browser, world, who):
    db, app = world
    port = free_port()
    cookie = cookie_of(world, f"http://127.0.0.1:{port}", who)
    with new_page(browser, cookie=cookie) as page:
        with serving(app, port=port) as server:
            page.goto(f"{server.url}/label/")
            wait_for_pair(page)
            page.wait_for_load_state("networkidle")
        seen = [shown(page)]
        page.keyboard.press("1")
        wait_for_other(page, seen[0])
        seen.append(shown(page))
        page.keyboard.press("2")
        wait_for_other(page, seen[1])
        status(page, "waiting")
        assert "2 labels kept in this browser" in page.locator(".status").inner_text()
        assert judgments_of(db, who) == []

        with serving(app, port=port):
            status(page, "saved")
            rows = judgments_of(db, who)
            assert [preferred(row) for row in rows] == [seen[0][1], seen[1][2]]

        third = shown(page)
        page.keyboard.press("1")
        wait_for_other(page, third)
        status(page, "waiting")
        page.goto("about:blank")  # the tab is closed with the label unsent
        with serving(app, port=port):
            page.goto(f"http://127.0.0.1:{port}/label/")
            status(page, "saved")
            assert preferred(judgments_of(db, who)[2]) == third[1]


def test_what_was_said_of_a_pair_outlives_a_reload(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        page.keyboard.press("i")
        page.keyboard.press("c")
        page.keyboard.type("half a thought")
        page.locator("[data-criterion=clear][data-side=a]").click()
        page.reload()
        wait_for_pair(page)
        assert shown(page) == before
        assert page.locator(".comment textarea").input_value() == "half a thought"
        assert page.locator("[data-strength='2']").get_attribute("aria-pressed") == "true"
        page.keyboard.press("1")
        wait_for_other(page, before)
        status(page, "saved")
        page.reload()
        wait_for_pair(page)  # another pair, of which nothing was said
        assert page.locator(".comment textarea").input_value() == ""
        assert page.locator("[aria-pressed=true][data-strength]").count() == 0
    [row] = judgments_of(world[0], who)
    assert (row["strength"], row["comment"]) == (2, "half a thought")
    assert "clear" in row["criteria"]


def test_an_outbox_is_its_owners_alone(browser, world, who):
    db, app = world
    other = add_person(db, f"Ben {uuid.uuid4().hex[:6]}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with new_page(browser, cookie=cookie_of(world, url, who)) as page:
        with serving(app, port=port):
            page.goto(f"{url}/label/")
            wait_for_pair(page)
        before = shown(page)
        page.keyboard.press("1")
        status(page, "waiting")
        sign_in_as(page, cookie_of(world, url, other))
        with serving(app, port=port):
            # The open page belongs to `who`; the cookie no longer does.
            expect(page.locator(".status")).to_contain_text("Someone else")
            page.reload()
            wait_for_pair(page)
            page.keyboard.press("0")
            status(page, "saved")
            assert [row["outcome"] for row in judgments_of(db, other)] == ["tie"]
            assert judgments_of(db, who) == []
            sign_in_as(page, cookie_of(world, url, who))
            page.reload()
            status(page, "saved")
    assert [preferred(row) for row in judgments_of(db, who)] == [before[1]]


def test_a_refused_label_stays_visible_with_its_reason(browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        before = shown(page)
        # More than the box allows to type: the server refuses it.
        page.evaluate("document.querySelector('.comment textarea').value = 'x'.repeat(5001)")
        page.keyboard.press("1")
        wait_for_other(page, before)
        status(page, "refused")
        tray = page.locator(".tray article")
        expect(tray).to_contain_text("Not saved: A is better.")
        expect(tray).to_contain_text("comment")
        expect(tray).to_contain_text(before[0])
        page.reload()
        expect(tray).to_contain_text("comment")  # also after a reload
        page.get_by_role("button", name="Discard").click()
        expect(tray).to_have_count(0)
    assert judgments_of(world[0], who) == []


def test_a_phone_without_connection_shows_its_labels_and_its_buttons(browser, world, server, who):
    with desk_page(browser, world, server, who, width=390, height=844) as page:
        page.context.set_offline(True)
        press(page, *"120")
        status(page, "waiting")
        said = page.locator(".status").bounding_box()
        assert "3 labels kept in this browser" in page.locator(".status").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for button in page.locator(".bar nav :is(button, summary):visible").all():
            box = button.bounding_box()
            assert 0 <= box["x"] <= 390 - box["width"]
            assert box["y"] + box["height"] <= said["y"]
        page.context.set_offline(False)
        status(page, "saved")
    assert len(judgments_of(world[0], who)) == 3


@pytest.mark.parametrize("width", [390, 320])
def test_a_trace_leaves_a_phones_tools_in_one_row(browser, world, server, who, width):
    with desk_page(browser, world, server, who, width=width, height=844) as page:
        page.keyboard.press("u")
        press(page, "2")
        expect(page.locator(".trace")).to_have_text("B, slightly")
        row = page.locator(".extras :is(.trace, .tool):visible")
        boxes = [each.bounding_box() for each in row.all()]
        assert len(boxes) == 5
        middles = [box["y"] + box["height"] / 2 for box in boxes]
        assert max(middles) - min(middles) < 15


@pytest.mark.parametrize("width", [390, 320])
def test_the_choices_in_details_are_not_cut_off_on_a_phone(browser, world, server, who, width):
    """Neither their borders nor the ring of the focus, 5 px wide with its distance."""
    with desk_page(browser, world, server, who, width=width, height=844) as page:
        if not page.locator(".details").is_visible():
            page.keyboard.press("d")
        expect(page.locator(".details")).to_be_visible()
        left, right = page.evaluate(
            """() => {
              const box = document.querySelector(".details").getBoundingClientRect();
              const all = [...document.querySelectorAll(".details .segments button")];
              const seen = all.map((e) => e.getBoundingClientRect()).filter((r) => r.width);
              return [
                Math.min(...seen.map((r) => r.left)) - box.left,
                box.right - Math.max(...seen.map((r) => r.right)),
              ];
            }"""
        )
        assert min(left, right) >= 5


def test_a_phone_shows_everything_without_sideways_scrolling(browser, world, server, who):
    with desk_page(browser, world, server, who, width=390, height=844) as page:
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390
        a, b = (page.locator(f".response.{side}").bounding_box() for side in "ab")
        assert a["y"] + a["height"] <= b["y"]  # stacked
        for button in page.locator(".choice").all():
            box = button.bounding_box()
            assert box["height"] >= 44
            assert box["y"] + box["height"] <= 844
        before = shown(page)
        page.locator(".choice.b").tap() if page.evaluate("'ontouchstart' in window") else (
            page.locator(".choice.b").click()
        )
        wait_for_other(page, before)
        status(page, "saved")
        page.set_viewport_size({"width": 360, "height": 844})
        page.evaluate(
            "for (const n of document.querySelectorAll('[data-count]')) n.textContent = 12345"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 360  # with large counts
        for button in page.locator(".verdict button:visible").all():
            box = button.bounding_box()
            assert 8 <= box["x"] <= 360 - 8 - box["width"]
        for name in ("Tie", "Both bad"):
            button = page.get_by_role("button", name=name)
            box, text = button.bounding_box(), button.locator("span").bounding_box()
            assert text["x"] - box["x"] >= 10
            assert text["x"] + text["width"] <= box["x"] + box["width"] - 10


def test_help_guidelines_and_dark(browser, world, server, who):
    with desk_page(browser, world, server, who, scheme="dark") as page:
        desk = page.locator(".desk")
        for scheme in ("light", "dark"):  # the system's may change while the page is open
            page.emulate_media(color_scheme=scheme)
            expect(desk).to_have_attribute("data-theme", scheme)
        page.keyboard.press("?")
        expect(page.locator("dialog.help")).to_be_visible()
        page.keyboard.press("1")  # judges nothing while the list is open
        page.keyboard.press("Enter")  # closes it, as whoever has read it expects
        expect(page.locator("dialog.help")).to_be_hidden()
        expect(desk).not_to_have_class(re.compile("keys-off"))
        page.keyboard.press("g")
        expect(page.locator(".guidelines")).to_contain_text("because it is longer")
        page.keyboard.press("Escape")
        expect(page.locator(".guidelines")).to_be_hidden()
        page.get_by_label("Switch between light and dark").click()
        for scheme in ("light", "dark"):  # what was chosen stands
            page.emulate_media(color_scheme=scheme)
            page.evaluate("new Promise((seen) => requestAnimationFrame(() => setTimeout(seen)))")
            expect(desk).to_have_attribute("data-theme", "light")
    assert judgments_of(world[0], who) == []


def test_an_empty_desk_says_so_and_fills_by_itself(browser, world, server, who):
    db, _ = world
    iterations.save(db, Iteration(number=1, phase="done"))
    while pairs := queue.lease(db, who.id, 16).pairs:
        for pair in pairs:
            judgments.skip(
                db, id=str(uuid.uuid4()), comparison=pair.comparison.id, annotator=who.id
            )
    with new_page(browser, cookie=cookie_of(world, server.url, who)) as page:
        page.goto(f"{server.url}/label/")
        expect(page.locator(".empty h1")).to_have_text("All caught up")
        add_pairs(db, [("A new question?", "x", "y")], iteration=2)
        wait_for_pair(page)
        assert shown(page)[0] == "A new question?"
        expect(page.locator("[data-count=round]")).to_have_text("1", timeout=5_000)
        page.keyboard.press("1")
        expect(page.locator(".empty")).to_contain_text("You judged 1 today")


def test_hostile_text_stays_in_its_box_and_calls_nobody(browser, world, server, who):
    asked = []
    add_pairs(world[0], [("Hostile?", HOSTILE, f"{HOSTILE} again")], iteration=3)
    with new_page(browser, cookie=cookie_of(world, server.url, who)) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        assert "position:fixed" in page.locator(".response.a .text").inner_text()
        assert page.locator(".text :is(div[style], img, form, button, script)").count() == 0
        links = page.locator(".text a").evaluate_all("all => all.map((n) => [n.href, n.rel])")
        # The bare address alone; the one with a script is text.
        assert links == [["http://evil.example/", "nofollow noopener noreferrer"]] * 2
        page.locator(".choice.a").click()
        status(page, "saved")
    assert all(url.startswith((server.url, "data:")) for url in asked)
