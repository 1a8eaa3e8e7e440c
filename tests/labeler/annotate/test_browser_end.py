"""The annotator's page where nothing is left to judge, and at somebody's first visit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import pytest
from playwright.sync_api import expect

from labeler.annotate import page as label_page
from storage.labeling import queue
from storage.records import Iteration, Phase
from storage.tables import iterations
from tests.helpers.browser import new_page, wait_for_pair
from tests.helpers.desk_browser import (
    cookie_of,
    desk_page,
    judgments_of,
    press,
    shown,
    status,
    wait_for_shown,
)
from tests.helpers.desk_world import add_person, make_app, plain_pairs, serving, workspace


@pytest.fixture
def small(tmp_path):
    """A world of its own, with two pairs."""
    with workspace(tmp_path, plain_pairs(2)) as db:
        app = make_app(db)
        with serving(app) as server:
            yield (db, app), server


@pytest.fixture
def who(small):
    return add_person(small[0][0], "Ann")


def undo_button(page):
    return page.get_by_role("button", name="Undo")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_mouse_undoes_the_last_pair_when_none_is_left(browser, small, who, width):
    world, server = small
    with desk_page(browser, world, server, who, width=width, height=844) as page:
        press(page, "1")
        last = shown(page)
        page.locator(".choice.b").click()
        expect(page.locator(".empty h1")).to_have_text("All caught up")
        status(page, "saved")
        [offered] = page.locator(".verdict button:visible").all_inner_texts()
        assert offered.split() == (["Undo", "Z"] if width > 800 else ["Undo"])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.reload()  # the server knows what was last
        expect(page.locator(".empty h1")).to_have_text("All caught up")
        undo_button(page).click()
        wait_for_shown(page, last)
        assert page.locator(".choice:visible").count() == 4
        status(page, "saved")
        page.locator(".choice.a").click()
        expect(page.locator(".empty h1")).to_have_text("All caught up")
    assert len(judgments_of(world[0], who)) == 3


def test_the_mouse_undoes_the_last_pair_in_hand_without_a_connection(browser, small, who):
    world, server = small
    with desk_page(browser, world, server, who, width=390, height=844) as page:
        page.wait_for_load_state("networkidle")
        page.context.set_offline(True)
        press(page, "1")
        last = shown(page)
        page.keyboard.press("2")
        expect(page.locator(".empty h1")).to_have_text("No connection")
        expect(page.locator(".status")).to_contain_text("2 labels kept in this browser")
        undo_button(page).click()
        wait_for_shown(page, last)
        # An undo is no label.
        expect(page.locator(".status")).to_contain_text("3 actions kept in this browser")
        page.context.set_offline(False)
        status(page, "saved")


def test_no_undo_is_offered_where_there_is_nothing_to_undo(browser, small, who):
    world, server = small
    queue.lease(world[0], add_person(world[0], "Ben").id, 2)
    with new_page(browser, cookie=cookie_of(world, server.url, who)) as page:
        page.goto(f"{server.url}/label/")
        expect(page.locator(".empty h1")).to_have_text("All caught up")
        assert page.locator(".verdict button:visible").count() == 0


def test_every_phase_has_its_text_and_nothing_else_has(browser):
    view = (
        Path(label_page.__file__)
        .with_name("scripts")
        .joinpath("view.js")
        .read_text(encoding="utf-8")
    )
    with new_page(browser) as page:
        texts = page.evaluate(f"() => {{ const t = (text) => text; {view}; return IDLE; }}")
    others = {"loading", "nothing", "somebody-else", "elsewhere", "unreachable"}
    assert set(texts) == {*get_args(Phase), *others}
    assert all(title and sentence for title, sentence in texts.values())


def test_while_a_policy_trains_pairs_come_with_the_next_round(browser, small, who):
    world, server = small
    iterations.save(world[0], Iteration(number=1, phase="policy"))
    with desk_page(browser, world, server, who) as page:
        press(page, "1")
        page.keyboard.press("1")
        expect(page.locator(".empty p")).to_contain_text("here after the next sampling.")


def test_pairs_that_others_hold_are_counted_apart(browser, small, who):
    world, server = small
    db = world[0]
    queue.lease(db, add_person(db, "Ben").id, 1)
    with desk_page(browser, world, server, who) as page:
        page.keyboard.press("s")
        said = page.locator(".empty p")
        expect(said).to_contain_text("You have no pairs left to judge.")
        expect(said).to_contain_text("Another annotator has 1 pair that you may receive later.")
        assert "every pair" not in said.inner_text()


def test_today_begins_at_the_annotators_midnight(browser, small, who):
    world, server = small
    with new_page(browser, cookie=cookie_of(world, server.url, who)) as page:
        session = page.context.new_cdp_session(page)
        session.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kathmandu"})
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        page.locator(".menu summary").click()
        page.get_by_role("button", name="My statistics").click()
        expect(page.locator("dialog.figures")).to_contain_text("Judged today")
    for path in ("progress", "figures"):
        assert f"{server.url}/label/api/{path}?offset=345" in asked


@pytest.mark.parametrize("width", [1280, 390])
def test_a_first_visit_marks_the_guidelines_as_new(browser, small, who, width):
    world, server = small
    with desk_page(browser, world, server, who, width=width, height=844) as page:
        expect(page.locator(".fresh")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("g")
        expect(page.locator(".guidelines")).to_contain_text("because it is longer")
        page.reload()
        wait_for_pair(page)
        page.wait_for_load_state("networkidle")
        expect(page.locator(".fresh")).to_be_hidden()


def test_a_page_that_closes_leaves_its_pairs_to_others_and_a_reload_goes_on(browser, tmp_path):
    with workspace(tmp_path, plain_pairs(20)) as db:
        app = make_app(db)
        ann, bob = add_person(db, "Ann"), add_person(db, "Bob")
        with serving(app) as server, desk_page(browser, (db, app), server, ann) as page:
            page.wait_for_load_state("networkidle")
            held = 20 - len(queue.lease(db, bob.id, 16).pairs)
            assert held == 10  # half, while nobody else was there
            before = shown(page)
            page.reload()
            wait_for_pair(page)
            assert shown(page) == before
            page.goto("about:blank")
            # The page is gone, and so is its request for the browser's tools: the database says.
            deadline = time.monotonic() + 60
            while len(queue.lease(db, bob.id, 16).pairs) < 16:  # Ann keeps four
                assert time.monotonic() < deadline
                page.wait_for_timeout(50)
