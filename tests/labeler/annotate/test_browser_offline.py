"""Labeling without a connection, and over a slow one."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from labeler.annotate.session import DEFAULT_GUIDELINES
from storage.labeling import judgments
from storage.tables import guidelines
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
    wait_for_shown,
)
from tests.helpers.desk_world import add_person, free_port, serving

PAIRS_KEPT = """() => new Promise((found) => {
    const opening = indexedDB.open("kitestring");
    opening.onsuccess = () => {
        const count = opening.result.transaction("pairs").objectStore("pairs").count();
        count.onsuccess = () => { opening.result.close(); found(count.result); };
    };
})"""
FILES_KEPT = """async () => {
    const found = [];
    for (const name of await caches.keys())
        for (const request of await (await caches.open(name)).keys())
            found.push(new URL(request.url).pathname);
    return found;
}"""


def wait_until_kept(page, pairs=32):
    """Until the browser has so many pairs, and the page itself."""
    page.wait_for_function(f"async () => (await ({PAIRS_KEPT})()) >= {pairs}")
    page.wait_for_function(f"async () => (await ({FILES_KEPT})()).includes('/label/')")
    page.wait_for_function(
        f"async () => (await ({FILES_KEPT})()).filter((path) => path.endsWith('.js')).length > 5"
    )
    page.wait_for_timeout(1000)


@contextmanager
def stopped_server(browser, world, who):
    """A desk whose server is gone, its address, and a server that comes back there."""
    port = free_port()
    desk = f"http://127.0.0.1:{port}/label/"
    with new_page(browser, cookie=cookie_of(world, desk, who), service_worker=True) as page:
        with serving(world[1], port=port):
            page.goto(desk)
            wait_for_pair(page)
            wait_until_kept(page)
        yield page, desk, lambda: serving(world[1], port=port)


def test_thirty_labels_without_a_server_over_a_reload_and_a_closed_tab(browser, world, who):
    db, _ = world
    with stopped_server(browser, world, who) as (page, desk, back):
        seen = press(page, *"12" * 6)
        current = shown(page)
        page.reload()
        wait_for_shown(page, current)
        seen += press(page, *"12" * 5)
        current = shown(page)
        another = page.context.new_page()
        page.close()
        another.goto(desk)
        wait_for_shown(another, current)
        expect(another.locator(".guidelines .text")).not_to_be_empty()  # although no server answers
        seen += press(another, *"12" * 4)
        another.keyboard.press("z")
        wait_for_shown(another, seen[-1])
        press(another, "1")
        expect(another.locator(".status")).to_contain_text("kept in this browser")
        assert judgments_of(db, who) == []
        with back():
            status(another, "saved")
            expect(another.locator("[data-count=done]")).to_have_text("30")
    undone = {row["replaces"] for row in db.read("SELECT replaces FROM withdrawals")}
    rows = [row for row in judgments_of(db, who) if row["id"] not in undone]
    expected = [pair[1 + index % 2] for index, pair in enumerate(seen)]
    expected[-1] = seen[-1][1]
    assert [preferred(row) for row in rows] == expected
    assert len({row["comparison"] for row in rows}) == 30
    [version] = {row["guidelines"] for row in rows}  # of the copy, after the page was loaded again
    assert version == guidelines.version(db, DEFAULT_GUIDELINES)


def test_an_undo_after_a_reload_without_a_server_says_that_it_waits(browser, world, who):
    db, _ = world
    with stopped_server(browser, world, who) as (page, _, back):
        (judged,) = press(page, "1")
        current = shown(page)
        page.reload()
        wait_for_shown(page, current)
        page.keyboard.press("z")
        expect(page.locator(".status")).to_contain_text("the last action will be undone")
        with back():
            status(page, "saved")
            wait_for_shown(page, judged)
    [row] = judgments_of(db, who)
    undone = {each["replaces"] for each in db.read("SELECT replaces FROM withdrawals")}
    assert row["id"] in undone


# Presses "1" again and again; what was not shown at once, in milliseconds after the key.
LABEL = """async ([count, pause]) => {
    const text = () => document.querySelector(".turn.last .text").innerText;
    const late = [], times = [];
    for (let i = 0; i < count; i++) {
        await new Promise((next) => setTimeout(next, pause));
        const [before, start] = [text(), performance.now()];
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "1", bubbles: true }));
        times.push(performance.now() - start);
        const state = document.querySelector(".desk").dataset.state;
        if (state !== "judging" || text() === before) late.push([i, state]);
    }
    return [late, times.sort((a, b) => a - b)[count / 2]];
}"""


@pytest.mark.parametrize("delay", [300, 2000])
def test_a_slow_connection_never_makes_the_annotator_wait(browser, world, server, who, delay):
    with new_page(browser, cookie=cookie_of(world, server.url, who), service_worker=True) as page:
        page.add_init_script(
            "const real = window.fetch; window.fetch = async (path, ...more) => {"
            f"  if (String(path).includes('/label/api/')) await new Promise((go) => setTimeout(go, {delay}));"
            "  return real(path, ...more) }"
        )
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        late, median = page.evaluate(LABEL, [20, 700])
        assert late == []
        assert median < 100
        status(page, "saved")
    assert len(judgments_of(world[0], who)) == 20


def test_a_copied_pair_that_was_judged_elsewhere_meanwhile_does_not_come_again(
    browser, world, server, who
):
    with desk_page(browser, world, server, who, service_worker=True) as page:
        wait_until_kept(page)
        before = shown(page)
        [id] = page.evaluate("Object.keys(localStorage).filter((key) => key.includes('shown'))")
        comparison = page.evaluate("key => localStorage.getItem(key)", id)
        page.goto("about:blank")
        judgments.judge(
            world[0], id="phone", comparison=comparison, annotator=who.id, outcome="tie"
        )
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        assert shown(page) != before


def test_sign_out_and_another_person_delete_the_copies(browser, world, server, who):
    db, _ = world
    with desk_page(browser, world, server, who, service_worker=True) as page:
        wait_until_kept(page)
        other = add_person(db, f"{who.name} too")
        page.route("**/label/api/next?*", lambda route: route.abort())
        sign_in_as(page, cookie_of(world, server.url, other))
        page.reload()
        expect(page.locator(".empty h1")).to_have_text("No connection")
        assert page.evaluate(PAIRS_KEPT) == 0
        page.unroute("**/label/api/next?*")
        wait_for_pair(page)
        wait_until_kept(page)
        page.locator(".menu summary").click()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/sign-in")
        assert page.evaluate(PAIRS_KEPT) == 0
        assert page.evaluate(FILES_KEPT) == []
        assert page.evaluate("navigator.serviceWorker.getRegistrations()") == []


def test_the_worker_keeps_the_page_and_nothing_that_is_read_or_written(browser, world, server, who):
    with desk_page(browser, world, server, who, service_worker=True) as page:
        wait_until_kept(page)
        page.reload()
        wait_for_pair(page)
        press(page, "1")
        status(page, "saved")
        page.goto(f"{server.url}/sign-in")
        kept = page.evaluate(FILES_KEPT)
    assert "/label/" in kept
    assert not [path for path in kept if "/label/api/" in path or "heartbeat" in path]
    assert all(path.startswith(("/label/", "/static/")) for path in kept)


def test_pairs_and_judgments_do_not_pass_through_the_worker(browser, world, server, who):
    sources = """() => performance.getEntriesByType("resource")
        .filter((entry) => entry.name.includes("/label/api/"))
        .map((entry) => entry.workerMatchedSourceType)"""
    with desk_page(browser, world, server, who, service_worker=True) as page:
        wait_until_kept(page)
        page.wait_for_function("navigator.serviceWorker.controller")
        page.evaluate("performance.clearResourceTimings()")
        press(page, "1")
        status(page, "saved")
        page.evaluate("fetch('/label/api/judgments?search=').then((found) => found.text())")
        found = page.evaluate(sources)
    assert len(found) >= 2
    assert set(found) == {"network"}


def test_a_changed_page_replaces_the_worker_and_its_copy(browser, world, server, who):
    with desk_page(browser, world, server, who, service_worker=True) as page:
        wait_until_kept(page)
        [old] = page.evaluate("caches.keys()")
        script = page.evaluate("fetch('/label/worker.js').then((found) => found.text())")
        assert old.removeprefix("kitestring-desk-") in script
        page.context.route(
            "**/label/worker.js",
            lambda route: route.fulfill(
                body=script.replace('const VERSION = "', 'const VERSION = "new-'),
                content_type="text/javascript",
            ),
        )
        page.reload()
        wait_for_pair(page)
        page.wait_for_function(
            "async () => (await caches.keys()).every((name) => name.startsWith('kitestring-desk-new-'))"
        )
        wait_until_kept(page)


def test_leases_are_renewed_while_the_annotator_reads_and_end_when_nobody_does(
    browser, world, server, who
):
    with new_page(browser, cookie=cookie_of(world, server.url, who), service_worker=True) as page:
        page.clock.install()
        page.goto(f"{server.url}/label/")
        wait_for_pair(page)
        wait_until_kept(page)
        asked = []
        page.on(
            "request",
            lambda request: asked.append(request.url) if "/next?" in request.url else None,
        )
        page.clock.fast_forward("05:00")
        page.wait_for_timeout(500)
        assert asked == []
        with page.expect_response("**/label/api/next?n=1&*"):
            page.clock.fast_forward("06:00")
        page.clock.fast_forward("30:00")
        page.wait_for_timeout(500)
        asked.clear()
        page.clock.fast_forward("30:00")
        page.wait_for_timeout(500)
        assert asked == []
