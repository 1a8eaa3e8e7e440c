"""Two tabs of one annotator in one browser: one has the desk."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from playwright.sync_api import expect

from tests.helpers.browser import wait_for_pair
from tests.helpers.desk_browser import (
    desk_page,
    judgments_of,
    preferred,
    press,
    shown,
    status,
    wait_for_other,
)

ELSEWHERE = "This page is open in another tab"
# As over plain http, except on localhost.
NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })"
# A tab takes the desk by force after 3 s, and sends a request again after 20 s, which pass between two
# steps on a busy machine.
PATIENT = """{
  const [signal, timer] = [AbortSignal.timeout, setTimeout];
  const patient = (ms) => [3000, 20000].includes(ms) ? 120000 : ms;
  AbortSignal.timeout = (ms) => signal.call(AbortSignal, patient(ms));
  window.setTimeout = (run, ms, ...rest) => timer(run, patient(ms), ...rest);
}"""
# Another process sees what a tab writes to localStorage a moment later, and on a busy machine after it
# got the lock.
LATE_STORAGE = """() => {
  for (const name of ["setItem", "removeItem"]) {
    const write = Storage.prototype[name];
    Storage.prototype[name] = function (...said) { setTimeout(() => write.apply(this, said), 700) };
  }
}"""


@pytest.fixture(params=["locks", "no locks"])
def tab(request, browser, world, server, who):
    with desk_page(browser, world, server, who) as page:
        if request.param == "no locks":
            page.context.add_init_script(NO_LOCKS)
            page.reload()
            wait_for_pair(page)
        yield page


def open_another(tab, server):
    second = tab.context.new_page()
    second.goto(f"{server.url}/label/")
    expect(second.locator(".empty h1")).to_have_text(ELSEWHERE)
    return second


def take_over(page):
    page.get_by_role("button", name="Use it here").click()
    wait_for_pair(page)


def test_a_second_tab_says_so_and_takes_over_with_pair_and_draft(tab, world, server, who):
    current = shown(tab)
    tab.keyboard.press("i")
    tab.keyboard.press("c")
    tab.keyboard.type("half a thought")
    second = open_another(tab, server)
    assert second.locator(".choice:visible").count() == 0
    second.keyboard.press("1")
    second.keyboard.press("z")
    take_over(second)
    assert shown(second) == current
    assert second.locator(".comment textarea").input_value() == "half a thought"
    expect(tab.locator(".empty h1")).to_have_text(ELSEWHERE)
    tab.keyboard.press("Escape")
    for key in "1sz":
        tab.keyboard.press(key)
    press(second, "1")
    status(second, "saved")
    now = shown(second)
    tab.bring_to_front()
    take_over(tab)
    expect(second.locator(".empty h1")).to_have_text(ELSEWHERE)
    assert shown(tab) == now
    assert tab.locator(".comment textarea").input_value() == ""
    expect(tab.locator("[data-count=done]")).to_have_text("1")
    press(tab, "2")
    status(tab, "saved")
    rows = judgments_of(world[0], who)
    assert [preferred(row) for row in rows] == [current[1], now[2]]
    assert rows[0]["comment"] == "half a thought"


@pytest.mark.parametrize("storage", ["fast", "late"])
def test_what_was_unsent_is_sent_once_by_the_tab_that_took_over(tab, world, server, who, storage):
    tab.evaluate(PATIENT)
    if storage == "late":
        tab.evaluate(LATE_STORAGE)
    sent = Counter()
    tab.context.on(
        "request",
        lambda request: (
            sent.update([request.post_data_json["id"]])
            if request.url.endswith("/judgments")
            else None
        ),
    )
    held = []
    tab.route("**/label/api/judgments", lambda route: held.append(route))
    seen = press(tab, "1", "2", "1")
    tab.context.add_init_script(PATIENT)
    second = open_another(tab, server)
    second.get_by_role("button", name="Use it here").click()
    expect(tab.locator(".empty h1")).to_have_text(ELSEWHERE)
    assert len(held) == 1
    held[0].continue_()  # the one that was on its way; the second tab waited for it
    wait_for_pair(second)
    status(second, "saved")
    rows = judgments_of(world[0], who)
    assert [preferred(row) for row in rows] == [seen[0][1], seen[1][2], seen[2][1]]
    assert set(sent.values()) == {1}
    assert len(held) == 1


def test_a_tab_goes_on_when_the_other_was_closed(tab, server):
    current = shown(tab)
    second = open_another(tab, server)
    third = open_another(tab, server)
    tab.close()
    has = the_one_with_the_desk(second, third)
    wait_for_pair(has)
    assert shown(has) == current


def the_one_with_the_desk(*pages):
    """The only page of several that is not told that the desk is elsewhere."""
    titles = [page.locator(".empty h1") for page in pages]
    deadline = time.monotonic() + 60
    while sum(not title.is_visible() for title in titles) != 1 and time.monotonic() < deadline:
        pages[0].wait_for_timeout(100)
    [has] = [page for page, title in zip(pages, titles, strict=True) if not title.is_visible()]
    return has


def test_without_locks_two_tabs_whose_answers_are_late_do_not_both_keep_the_desk(
    browser, world, server, who
):
    with desk_page(browser, world, server, who) as tab:
        tab.context.add_init_script(NO_LOCKS)
        tab.reload()
        wait_for_pair(tab)
        second, third = open_another(tab, server), open_another(tab, server)
        for page in (second, third):
            page.evaluate(
                """() => {
                  const post = BroadcastChannel.prototype.postMessage;
                  BroadcastChannel.prototype.postMessage = function (said) {
                    setTimeout(() => post.call(this, said), 1500) }
                }"""
            )
        tab.close()
        for page in (second, third):
            expect(page.locator(".empty h1")).to_be_hidden()
        has = the_one_with_the_desk(second, third)
        press(has, "1")
        status(has, "saved")
        has.wait_for_timeout(4000)  # every late answer has arrived
        assert the_one_with_the_desk(second, third) is has
    assert len(judgments_of(world[0], who)) == 1


def test_a_reload_keeps_the_desk_in_its_tab(tab, server):
    second = open_another(tab, server)
    tab.reload()
    wait_for_pair(tab)
    expect(second.locator(".empty h1")).to_have_text(ELSEWHERE)


def test_a_tab_that_does_not_answer_loses_the_desk(browser, world, server, who):
    with desk_page(browser, world, server, who) as tab:
        before = shown(tab)
        tab.evaluate("BroadcastChannel.prototype.postMessage = () => {}")
        second = open_another(tab, server)
        take_over(second)
        expect(tab.locator(".empty h1")).to_have_text(ELSEWHERE)
        assert shown(second) == before
        press(second, "1")
        wait_for_other(second, before)
        status(second, "saved")
    assert len(judgments_of(world[0], who)) == 1


def test_without_locks_a_late_answer_ends_the_second_desk(browser, world, server, who):
    with desk_page(browser, world, server, who) as tab:
        tab.context.add_init_script(NO_LOCKS)
        tab.context.add_init_script(
            "const post = BroadcastChannel.prototype.postMessage;"
            "BroadcastChannel.prototype.postMessage = function (said) {"
            "  setTimeout(() => post.call(this, said), said.to || said.holder ? 4000 : 0) }"
        )
        tab.reload()
        wait_for_pair(tab)
        second = tab.context.new_page()
        second.goto(f"{server.url}/label/")
        wait_for_pair(second)
        expect(second.locator(".empty h1")).to_have_text(ELSEWHERE)
        expect(second.locator(".pair")).to_be_hidden()
        press(tab, "1")
        status(tab, "saved")
    assert len(judgments_of(world[0], who)) == 1
