"""Deliveries to a real receiver: retries, deadlines, order, and what a dead receiver costs."""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from email.utils import format_datetime

import pytest
from standardwebhooks import Webhook as Verifier

from labeler.webhooks import sender
from labeler.webhooks.dispatcher import Dispatcher, payload
from labeler.webhooks.service import Webhooks
from labeler.webhooks.signature import KEY_FILE
from storage.engine.backup import backup
from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.notification_records import Event
from storage.records import new_id, now
from storage.tables.runs import events, webhooks
from tests.helpers.receiver import Receiver, receiving
from tests.helpers.storage_world import fill

QUICK = (timedelta(seconds=0.05), timedelta(seconds=0.05))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def service(db: Database) -> Iterator[Webhooks]:
    dispatcher = Dispatcher(db, allow_private=True, schedule=QUICK, every=0.02, seconds=2)
    with dispatcher:
        yield Webhooks(db, dispatcher)


def happen(db: Database, n: int = 1) -> Event:
    """A stage failed."""
    event = Event.of("stage.failed", str(n), run=f"run-{n}", reason="out of memory")
    db.write(lambda tx: events.record(tx, event))
    return event


def settled(db: Database, *, seconds: float = 20) -> dict[str, tuple[str, int, int | None]]:
    """Status, attempts and code of each event's delivery, once none is pending."""
    until = time.monotonic() + seconds
    while webhooks.outbox(db):
        assert time.monotonic() < until, webhooks.deliveries(db)
        time.sleep(0.01)
    found = [each.delivery for each in webhooks.deliveries(db)]
    return {each.event: (each.status, each.attempts, each.code) for each in found}


def test_an_event_arrives_signed_and_once(db, service, receiver):
    made = service.add(receiver.url, ["stage.failed"])
    event = happen(db)
    happen(db)
    assert settled(db) == {event.id: ("delivered", 1, 204)}
    (request,) = receiver.requests
    found = Verifier(made["secret"]).verify(request.body, request.headers)
    stored = events.listing(db)[0]
    assert found == {
        "type": "stage.failed",
        "timestamp": stored.created_at.isoformat(),
        "data": {"run": "run-1", "reason": "out of memory"},
    }
    assert (request.path, request.id) == ("/hook", event.id)
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"] == "Kitestring-Webhooks/1"


def test_a_refused_event_is_sent_again_with_the_same_id_and_body_until_it_is_accepted(
    db, service, receiver
):
    receiver.answers = [500, 503, 200]
    service.add(receiver.url)
    event = happen(db)
    assert settled(db) == {event.id: ("delivered", 3, 200)}
    assert {(each.id, each.body) for each in receiver.requests} == {
        (event.id, payload(events.listing(db)[0]))
    }


def test_a_receiver_that_never_accepts_is_disabled_and_gets_nothing_more(db, service, receiver):
    receiver.answers = [500]
    made = service.add(receiver.url)
    event = happen(db)
    assert settled(db) == {event.id: ("failed", 3, 500)}
    (listed,) = service.listing()
    assert not listed["active"]
    assert "The receiver answered 500." in listed["reason"]
    happen(db, 2)
    time.sleep(0.2)
    assert len(receiver.requests) == 3
    receiver.answers = [200]
    service.enable(made["id"])
    later = happen(db, 3)
    assert settled(db)[later.id] == ("delivered", 1, 200)
    service.resend(f"{made['id']}.{event.id}")
    assert settled(db)[event.id] == ("delivered", 1, 200)
    assert [each.id for each in receiver.requests[3:]] == [later.id, event.id]


def test_a_redirect_is_not_followed(service, receiver):
    with receiving() as other:
        receiver.answers = [302]
        receiver.headers = {"Location": other.url}
        made = service.add(receiver.url)
        assert service.test(made["id"])["error"] == (
            "The receiver answered 302; redirects are not followed."
        )
        assert other.requests == []


def test_an_answer_that_comes_byte_by_byte_ends_at_the_deadline(receiver):
    def trickle(handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(200):
            handler.wfile.write(b"y")
            time.sleep(0.05)

    receiver.answers = [trickle]
    start = time.monotonic()
    made = sender.post(receiver.url, b"{}", {}, allow_private=True, seconds=0.5)
    assert time.monotonic() - start < 2
    assert made.error == "The receiver did not answer within 0.5 seconds."


def test_an_endless_answer_is_read_only_in_part(receiver):
    sent = []

    def pour(handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")
        try:
            while True:
                sent.append(handler.wfile.write(b"x" * 65536))
        except OSError:
            pass

    receiver.answers = [pour]
    start = time.monotonic()
    assert sender.post(receiver.url, b"{}", {}, allow_private=True, seconds=10).code == 200
    assert time.monotonic() - start < 5
    assert sum(sent) < 50_000_000


def test_a_receiver_that_is_not_there_is_an_error_in_a_sentence(service):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    made = service.add(f"http://127.0.0.1:{port}/")
    found = service.test(made["id"])
    assert (found["status"], found["code"]) == ("failed", None)
    assert found["error"].startswith("The connection failed: ")
    other = service.add("http://no-such-host.invalid/")
    assert service.test(other["id"])["error"].startswith("The host cannot be found: ")


def test_a_ping_is_sent_at_once_and_also_to_a_disabled_webhook(service, receiver):
    made = service.add(receiver.url, ["flag.opened"])
    service.disable(made["id"])
    found = service.test(made["id"])
    assert (found["status"], found["code"]) == ("delivered", 204)
    (request,) = receiver.requests
    assert (json.loads(request.body)["type"], request.id) == ("ping", found["event"])


def test_after_a_rotation_receivers_with_either_secret_accept_the_request(db, service, receiver):
    first = service.add(receiver.url)
    second = service.rotate(first["id"])
    assert first["secret"] != second["secret"]
    happen(db)
    settled(db)
    (request,) = receiver.requests
    for secret in (first["secret"], second["secret"]):
        assert Verifier(secret).verify(request.body, request.headers)["type"] == "stage.failed"


def test_a_removed_webhook_gets_nothing(db, service, receiver):
    made = service.add(receiver.url)
    service.remove(made["id"])
    happen(db)
    time.sleep(0.2)
    assert (receiver.requests, service.listing()) == ([], [])


def test_the_secret_is_shown_once_and_is_in_no_file_that_leaves_the_workspace(
    db, service, receiver, tmp_path
):
    made = service.add(receiver.url)
    rotated = service.rotate(made["id"])
    happen(db)
    settled(db)
    assert "secret" not in json.dumps(service.listing())
    key = (db.workspace / KEY_FILE).read_text().strip()
    target = backup(db, tmp_path / "backup")
    files = [each for each in target.rglob("*") if each.is_file()]
    assert {each.name for each in files} == {"workspace.duckdb", "journal.jsonl", "backup.json"}
    for file in [*files, db.workspace / "journal.jsonl"]:
        content = file.read_bytes()
        for secret in (key, made["secret"], rotated["secret"]):
            bare = secret.removeprefix("whsec_")
            assert bare.encode() not in content, file
            assert bytes.fromhex(key) not in content


def test_a_dead_receiver_delays_neither_other_webhooks_nor_labels(db, receiver):
    """The dead receiver accepts connections and never answers."""
    fill(db, pairs=200)
    held = threading.Event()
    with (
        receiving() as dead,
        Dispatcher(db, allow_private=True, every=0.02, seconds=20) as dispatcher,
    ):
        dead.answers = [lambda _: held.wait(30)]
        service = Webhooks(db, dispatcher)
        service.add(dead.url)
        service.add(receiver.url)
        quiet = [label(db) for _ in range(40)]
        for n in range(30):
            happen(db, n)
        dead.wait(1)
        busy = [label(db) for _ in range(40)]
        receiver.wait(30, seconds=10)
        assert len(dead.requests) == 1  # one request at a time
        held.set()
    # Both medians are a few milliseconds; the dead receiver holds its request for 20 seconds.
    assert statistics.median(busy) < 5 * statistics.median(quiet) + 0.02
    assert max(busy) < 2


def label(db: Database) -> float:
    """Seconds that one judgment takes."""
    pair = queue.lease(db, "ann", 1).pairs[0].comparison.id
    start = time.perf_counter()
    judgments.judge(db, id=new_id("j"), comparison=pair, annotator="ann", outcome="a")
    return time.perf_counter() - start


def test_what_was_due_while_nothing_ran_is_sent_at_the_next_start(db, receiver):
    idle = Dispatcher(db, allow_private=True)
    Webhooks(db, idle).add(receiver.url)
    happened = [happen(db, n) for n in range(3)]
    with Dispatcher(db, allow_private=True, every=0.02):
        receiver.wait(3)
        found = settled(db)
    assert [each.id for each in receiver.requests] == [each.id for each in happened]
    assert set(found.values()) == {("delivered", 1, 204)}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120), ("0", 0), ("-5", 0), ("soon", 0), ("1e9", 0), ("99999999999999999999", 86_400),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400), ("Sun, 06 Nov 1994 08:49:37 GMT", 0), ("\u00b2", 0),
    ],
)  # fmt: skip
def test_a_receiver_can_ask_for_a_later_attempt(receiver, header, seconds):
    receiver.answers = [503]
    receiver.headers = {"Retry-After": header}
    made = sender.post(receiver.url, b"{}", {}, allow_private=True, seconds=5)
    assert (made.code, made.retry_after) == (503, seconds)


def test_a_date_in_retry_after_is_the_time_until_then(receiver):
    receiver.answers = [429]
    receiver.headers = {"Retry-After": format_datetime(now() + timedelta(minutes=5), usegmt=True)}
    made = sender.post(receiver.url, b"{}", {}, allow_private=True, seconds=5)
    assert 295 < made.retry_after <= 300
