"""Notifications and the audit log in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from labeler.app import create_app
from labeler.webhooks.dispatcher import Dispatcher
from labeler.webhooks.service import Webhooks
from storage.audit_records import Actor, acting
from storage.engine.database import Database
from storage.notification_records import Event
from storage.tables import audit
from storage.tables.people import tokens
from storage.tables.runs import events
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import serving
from tests.helpers.receiver import Receiver, receiving
from tests.helpers.recording_loop import RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding

WATCHED = """
window.made = [];
window.Notification = class extends Notification {
  constructor(title, options) { super(title, options); made.push([title, options.body, options.tag]); }
};
window.away = false;
document.hasFocus = () => !away;
"""
"""Counts the notifications, which are still shown, and lets the test look at another window."""


@dataclass(frozen=True)
class World:
    db: Database
    server: Any
    receiver: Receiver

    def cookie(self) -> tuple[str, str, str]:
        secret = tokens.issue(self.db, "researcher", "session", lifetime=None)
        return (self.server.url, self.server.app.state.auth.cookie, secret)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    find_chromium(full=True)
    with Database.open(tmp_path_factory.mktemp("workspace")) as db, receiving() as receiver:
        Seeding(db).history(finished=1, labels=30)
        dispatcher = Dispatcher(db, allow_private=True, every=0.1)
        app = in_a_loop(
            lambda: create_app(
                db, loop=RecordingLoop(db=db), admin=lambda *_: None, admin_token="t",
                accounts_required=False, webhooks=Webhooks(db, dispatcher),
            )
        )  # fmt: skip
        with dispatcher, serving(app) as server:
            yield World(db, server, receiver)


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[Browser]:
    assert world.server.url
    with chromium(full=True) as running:  # the shell has no notifications
        yield running


def happen(db: Database, n: int) -> Event:
    event = Event.of("labels.reached", str(n), iteration=n, labels=9, wanted=9)
    db.write(lambda tx: events.record(tx, event))
    return event


def test_a_webhook_from_the_form_to_its_delivery_and_away_again(browser, world):
    with new_page(browser, cookie=world.cookie()) as page:
        page.goto(f"{world.server.url}/research/?tab=team&section=notifications")
        page.locator("#webhook-url input, #webhook-url textarea").fill(world.receiver.url)
        page.locator("#webhook-events").get_by_label("Pair flagged").uncheck()
        page.get_by_role("button", name="Add receiver").click()
        expect(page.locator("#webhook-answer code")).to_contain_text("whsec_")
        page.locator("#webhooks").get_by_role("button", name="Send test").click()
        expect(page.locator("#webhook-answer")).to_contain_text("accepted the test with 204")
        event = happen(world.db, 101)
        expect(page.locator("#deliveries")).to_contain_text("Labels reached")
        expect(page.locator("#deliveries").get_by_role("button", name="Send again")).to_be_visible()
        assert {"ping", "labels.reached"} == {
            json.loads(r.body)["type"] for r in world.receiver.requests
        }
        page.locator("#deliveries").get_by_role("button", name="Send again").click()
        expect(page.locator("#webhook-answer")).to_contain_text("being sent again")
        assert [r.id for r in world.receiver.wait(3)[1:]] == [event.id] * 2
        page.locator("#webhooks").get_by_role("button", name="Remove").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.locator("#webhooks").get_by_role("button", name="Remove").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.locator("#webhooks")).to_contain_text("No receivers yet")


def test_events_are_in_the_title_and_notified_once_allowed_and_not_in_view(browser, world):
    happen(world.db, 200)  # before the first visit: not news
    with new_page(browser, cookie=world.cookie()) as page:
        page.context.grant_permissions(["notifications"], origin=world.server.url)
        page.add_init_script(WATCHED)
        page.goto(f"{world.server.url}/research/?tab=team&section=notifications")
        expect(page.locator("#notify-switch")).to_contain_text("Off")
        page.wait_for_selector("#ks-events", state="attached")
        page.evaluate("away = true")
        happen(world.db, 201)
        expect(page).to_have_title("(1) Labels reached · Notifications · Team · Kitestring")
        assert page.evaluate("made") == []  # it is turned off
        page.evaluate("away = false; dispatchEvent(new Event('focus'))")
        expect(page).to_have_title("Notifications · Team · Kitestring")
        page.get_by_role("button", name="Turn on in this browser").click()
        expect(page.locator("#notify-switch")).to_contain_text("On")
        happen(world.db, 202)  # in view
        expect(page.locator("#recent-events")).to_contain_text("Iteration 202 has 9 of 9 labels.")
        page.wait_for_function(
            "document.querySelector('#ks-events').dataset.events.includes('202 has')"
        )
        assert page.evaluate("made") == []
        page.evaluate("away = true")
        event = happen(world.db, 203)
        expect(page).to_have_title("(1) Labels reached · Notifications · Team · Kitestring")
        page.wait_for_timeout(5000)  # the next ticks have the same events
        assert page.evaluate("made") == [
            ["Labels reached", "Iteration 203 has 9 of 9 labels.", event.id]
        ]
        page.get_by_role("link", name="Data", exact=True).click()  # address.js sets the title
        expect(page).to_have_title("(1) Labels reached · Data · Kitestring")


def test_the_title_says_which_stage_runs_fails_and_has_finished(browser, world):
    seeding = Seeding(world.db)
    seeding.iteration(3, "reward", 9)
    seeding.run(3, "reward", "running")
    rest = "Notifications · Team · Kitestring"
    with new_page(browser, cookie=world.cookie()) as page:
        page.add_init_script(WATCHED)
        page.goto(f"{world.server.url}/research/?tab=team&section=notifications")
        expect(page).to_have_title(f"Reward model running · {rest}", timeout=15_000)
        page.evaluate("away = true")
        seeding.run(3, "reward", "failed")
        expect(page).to_have_title(f"(1) Reward failed · {rest}", timeout=15_000)
        page.evaluate("away = false; dispatchEvent(new Event('focus'))")
        expect(page).to_have_title(f"Reward model failed · {rest}")
        page.evaluate("away = true")
        seeding.iteration(4, "reward", 9)
        seeding.run(4, "reward", "running")
        expect(page).to_have_title(f"Reward model running · {rest}", timeout=15_000)
        seeding.run(4, "reward", "succeeded")
        expect(page).to_have_title(f"Reward model finished · {rest}", timeout=15_000)
        page.evaluate("away = false; dispatchEvent(new Event('focus'))")
        expect(page).to_have_title(rest)


def test_the_audit_log_shows_what_was_done_on_the_page_and_filters_it(browser, world):
    with new_page(browser, cookie=world.cookie()) as page:
        page.goto(f"{world.server.url}/research/?tab=team")
        page.locator("#annotator-name input, #annotator-name textarea").fill("Nadia")
        page.locator("#annotator-add").click()
        expect(page.locator("#annotator-answer")).to_contain_text("Nadia")
        page.get_by_role("link", name="Audit log").click()
        log = page.locator("#audit-entries")
        expect(log).to_contain_text("account.added")
        expect(log).to_contain_text("Nadia")
        expect(log.locator("tbody tr").first).to_contain_text("Rosa")
        page.locator("#audit-action input").click()
        page.get_by_role("option", name="invite.issued").click()
        expect(log).not_to_contain_text("account.added")
        expect(log).to_contain_text("invite.issued")
        with page.expect_download() as download:
            page.get_by_role("link", name="JSON Lines").click()
        lines = download.value.path().read_text(encoding="utf-8").splitlines()
        assert {json.loads(line)["action"] for line in lines} == {"invite.issued"}


def test_the_audit_log_does_not_break_the_names_of_actions(browser, world):
    settings = {f"ppo.setting_{i}": f"{i} → {10 * i}" for i in range(12)}
    with acting(Actor(account="", via="command line")):
        audit.note(world.db, "settings.saved", "config.toml", settings=settings)
    with new_page(browser, cookie=world.cookie(), width=1440) as page:
        page.goto(f"{world.server.url}/research/?tab=team&section=audit-log")
        action = page.locator("#audit-entries td", has_text="settings.saved").first
        expect(action).to_be_visible()
        lines = """cell => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return new Set([...range.getClientRects()].map((box) => box.top)).size;
        }"""
        assert action.evaluate(lines) == 1
