"""The sections Notifications and Audit log, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape

import pytest
from standardwebhooks import Webhook as Verifier

from labeler.research.team.audit.tab import AuditTab
from labeler.research.team.notifications import view
from labeler.research.team.notifications.tab import NotificationsTab
from labeler.webhooks.dispatcher import Dispatcher
from labeler.webhooks.service import Webhooks
from storage.audit_records import Actor, acting
from storage.engine.database import Database
from storage.notification_records import EVENTS, Event
from storage.records import Annotator
from storage.tables import audit
from storage.tables.people import annotators
from storage.tables.runs import events, webhooks
from storage.tables.runs.webhooks import Attempt
from tests.helpers.mail_server import mail_server
from tests.helpers.receiver import Receiver, receiving
from tests.helpers.recording_loop import HOSTILE
from tests.helpers.research_tabs import laid_out, pressed

REA = Actor("r", "browser")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def tab(db: Database) -> NotificationsTab:
    service = Webhooks(db, Dispatcher(db, allow_private=True))
    return laid_out(lambda: NotificationsTab(db, service))


@pytest.fixture
def log(db: Database) -> AuditTab:
    annotators.add(db, Annotator(id="r", name="Rea", role="researcher"))
    annotators.add(db, Annotator(id="v", name="Vic", role="viewer"))
    return laid_out(lambda: AuditTab(db))


def told(tab: NotificationsTab, updates: dict) -> str:
    return updates[tab.answer]


def test_a_webhook_is_added_and_its_secret_shown_once(db, tab, receiver):
    updates = tab._add(f" {receiver.url} ", HOSTILE.rstrip("\u202e"), ["flag.opened"])
    secret = re.search(r"whsec_[\w+/=]+", told(tab, updates))
    assert secret is not None
    assert "whsec_" not in json.dumps({str(k): v for k, v in tab.refresh().items()})
    assert "<img" not in updates[tab.webhooks]
    (made,) = webhooks.listing(db)
    done = tab._act(pressed("test", made.id))
    assert "accepted the test with 204" in told(tab, done)
    (request,) = receiver.requests
    assert Verifier(secret[0]).verify(request.body, request.headers)["type"] == "ping"
    assert "/hook" not in updates[tab.webhooks]  # the path may contain a token


@pytest.mark.parametrize(
    ("url", "chosen", "says"),
    [
        ("", list(EVENTS), "starts with https://"),
        (None, list(EVENTS), "starts with https://"),
        ("https://example.org/", [], "at least one event"),
        ("https://example.org/", None, "at least one event"),
        ("https://example.org/", ["ping"], "must be one of"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused_with_the_reason(db, tab, url, chosen, says):
    updates = tab._add(url, "", chosen)
    assert says in unescape(told(tab, updates))
    assert tab.url not in updates  # what was typed stays
    assert webhooks.listing(db) == []


def test_the_buttons_of_a_webhook(db, tab, receiver):
    tab._add(receiver.url, "", list(EVENTS))
    (made,) = webhooks.listing(db)
    assert "gets nothing" in told(tab, tab._act(pressed("disable", made.id)))
    assert not webhooks.get(db, made.id).active
    assert "gets events again" in told(tab, tab._act(pressed("enable", made.id)))
    assert "whsec_" in told(tab, tab._act(pressed("rotate", made.id)))
    assert webhooks.get(db, made.id).secret == 2
    receiver.answers = [500]
    assert "The receiver answered 500." in told(tab, tab._act(pressed("test", made.id)))
    assert "removed" in told(tab, tab._act(pressed("remove", made.id)))
    assert "there is no webhook" in told(tab, tab._act(pressed("test", made.id))).lower()
    assert "no such button" in told(tab, tab._act(pressed("format the disk", made.id)))


def test_a_failed_delivery_is_shown_with_its_error_and_sent_again(db, tab, receiver):
    tab._add(receiver.url, "", list(EVENTS))
    event = Event.of("stage.failed", "1", stage="PPO", iteration=3, reason="out of memory")
    db.write(lambda tx: events.record(tx, event))
    (due,) = webhooks.outbox(db)
    webhooks.store_attempt(db, due.id, Attempt(code=500, error="The receiver answered 500."))
    shown = tab.refresh()[tab.deliveries]
    assert "The receiver answered 500." in shown
    assert re.search(r"next attempt in [45]\.\d s", shown)
    assert "Send again" not in shown
    webhooks.store_attempt(db, due.id, Attempt(code=500, error="No."), schedule=())
    seen = tab.refresh()
    assert "Send again" in seen[tab.deliveries]
    assert "No delivery has succeeded since" in seen[tab.webhooks]
    assert "enable it first" in told(tab, tab._act(pressed("resend", due.id)))
    tab._act(pressed("enable", due.webhook))
    assert "being sent again" in told(tab, tab._act(pressed("resend", due.id)))
    assert webhooks.outbox(db)[0].id == due.id


def test_every_event_is_told_in_words():
    data = {
        "labels.reached": {"iteration": 3, "labels": 200, "wanted": 200},
        "stage.failed": {"iteration": 3, "stage": "reward", "reason": "x" * 500},
        "gate.verdict": {"policy": "policy-2", "verdict": "blocked", "reason": "It is rude."},
        "alarm.raised": {"alarm": "kl", "message": "approx_kl is high."},
        "flag.opened": {"flag": "f", "comparison": "c"},
    }
    found = {type: view.told(Event.of(type, "1", **data[type])) for type in EVENTS}
    assert {each.title for each in found.values()} == {
        "Labels reached", "Reward failed", "policy-2 is blocked", "Alarm: kl", "Pair flagged",
    }  # fmt: skip
    assert found["labels.reached"].text == "Iteration 3 has 200 of 200 labels."
    assert len(found["stage.failed"].text) == 200


def test_the_page_gets_the_events_as_data_and_not_as_html(db):
    event = Event.of("stage.failed", "1", stage="PPO", iteration=1, reason=f'"{HOSTILE}')
    db.write(lambda tx: events.record(tx, event))
    markup = str(view.payload(events.listing(db)))
    assert "<img" not in markup
    attribute = re.search(r'data-events="([^"]*)"', markup)
    assert attribute is not None
    (found,) = json.loads(unescape(attribute[1]))
    assert (found["id"], found["title"]) == (event.id, "PPO failed")


def test_the_audit_log_is_filtered_and_links_the_same_entries(db, log):
    with acting(REA):
        annotators.add(db, Annotator(id="a", name="Ann <b>"))
        audit.note(db, "export", "trl", rows=3, names=False)
        seen = log.refresh("", "", "", "")
        assert "Ann &lt;b&gt;" in seen[log.entries]
        assert "rows: 3; names: no" in seen[log.entries]
        one = log.refresh("Rea", "export", "7", "TRL")
        assert "Ann" not in one[log.entries]
        link = unescape(one[log.links])
        assert "actor=Rea&action=export&search=TRL&since=" in link
        assert "file=csv" in link
        assert "Nothing found" in log.refresh("Rea", "", "", "zebra")[log.entries]
        choices = [value for _, value in seen[log.action].choices]
    assert choices == ["", "account.added", "export"]


def test_only_researchers_read_the_audit_log(db, log):
    with acting(REA):
        audit.note(db, "export", "trl")
    for who in (Actor("v", "browser"), None):
        with acting(who):
            seen = log.refresh("", "", "", "")
        assert "Only researchers" in seen[log.entries]
        assert "trl" not in json.dumps([str(each) for each in seen.values()])


def test_an_e_mail_address_is_added_tested_and_has_no_secret_to_rotate(db, tab):
    assert "has to create mail.toml" in told(tab, tab._add("ann@example.org", "", list(EVENTS)))
    with mail_server() as mails:
        lines = (
            'host = "127.0.0.1"',
            f"port = {mails.port}",
            'tls = "none"',
            'sender = "s@example.org"',
        )
        (db.workspace / "mail.toml").write_text("\n".join(lines))
        updates = tab._add("ann@example.org", "", ["stage.failed"])
        assert "The e-mail address is added" in told(tab, updates)
        assert "whsec_" not in told(tab, updates)
        assert "ann@example.org" in updates[tab.webhooks]
        assert "Rotate" not in updates[tab.webhooks]
        (made,) = webhooks.listing(db)
        assert made.events == ("stage.failed",)
        done = told(tab, tab._act(pressed("test", made.id)))
        assert "The mail server accepted the test with 250." in done
        assert mails.recipients == [["ann@example.org"]]
        mails.answers = ["550 no such mailbox"]
        refused = told(tab, tab._act(pressed("test", made.id)))
        assert "The mail server answered 550: no such mailbox." in refused
