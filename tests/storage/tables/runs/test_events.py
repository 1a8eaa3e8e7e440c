"""Events are recorded once with their cause, and their deliveries with them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.errors import Conflict, NotFound
from storage.labeling import judgments, queue
from storage.notification_records import EVENTS, Delivery, Event, Webhook
from storage.records import Run, RunNote, now
from storage.tables.runs import events, runs, webhooks
from storage.tables.runs.webhooks import Attempt
from tests.helpers.storage_world import fill

HASH = "0" * 64
FAILED = Attempt(code=500, error="The receiver answered 500.")


def hook(db: Database, id: str = "wh-1", **more) -> Webhook:
    values = {"url": f"https://example.org/{id}", "events": EVENTS, "secret_hash": HASH}
    return webhooks.add(db, Webhook(id=id, **(values | more)))


def run_of(**more) -> Run:
    values = {
        "id": "run-1", "stage": "policy", "iteration": 3, "status": "running",
        "directory": "runs/run-1", "config": {"optimize": {"method": "dpo"}},
    }  # fmt: skip
    return Run(**(values | more))


def told(db: Database) -> list[tuple[str, dict]]:
    return [(each.type, dict(each.data)) for each in reversed(events.listing(db))]


def flag(db: Database, id: str = "f") -> str:
    pair = queue.lease(db, "ann", 1).pairs[0].comparison.id
    judgments.flag(db, id=id, comparison=pair, annotator="ann", comment="rude")
    return pair


def test_a_flag_is_an_event_without_its_comment_and_once_for_each_webhook_that_wants_it(db):
    fill(db)
    hook(db, "wh-1")
    hook(db, "wh-2", events=["stage.failed"])
    hook(db, "wh-3", active=False)
    pair = flag(db)
    judgments.flag(db, id="f", comparison=pair, annotator="ann", comment="rude")  # sent again
    assert told(db) == [("flag.opened", {"flag": "f", "comparison": pair})]
    assert [each.webhook for each in webhooks.outbox(db)] == ["wh-1"]


def test_each_failed_attempt_of_a_stage_is_one_event(db):
    runs.save(db, run_of())
    assert told(db) == []
    failed = run_of(status="failed", reason="out of memory")
    runs.save(db, failed)
    runs.save(db, run_of(status="failed", reason="out of memory, said again"))
    runs.save(db, run_of(status="failed", reason="diverged", attempt=2))
    runs.save(db, run_of(status="cancelled", attempt=3))
    said = [(data["attempt"], data["reason"], data["stage"]) for _, data in told(db)]
    assert said == [(1, "out of memory", "DPO"), (2, "diverged", "DPO")]


def test_an_event_that_is_recorded_again_is_not_sent_again(db):
    hook(db)
    failed = run_of(status="failed", reason="out of memory")
    runs.save(db, failed)
    webhooks.store_attempt(db, webhooks.outbox(db)[0].id, Attempt(code=200))
    runs.save(db, failed)
    assert webhooks.outbox(db) == []


def test_a_red_flag_is_one_event_for_each_attempt_however_often_it_is_reported(db):
    def note(seq: int, name: str, kind: str = "flag") -> RunNote:
        return RunNote(run="run-1", seq=seq, step=seq, kind=kind, name=name, message=f"{name}!")

    run = run_of(ingested_seq=3)
    runs.save(db, run)
    runs.ingest(db, run, [], [note(1, "kl"), note(2, "kl"), note(3, "slow", "warning")])
    runs.ingest(db, run, [], [note(1, "kl"), note(2, "kl")])  # read again after a crash
    runs.ingest(db, run_of(attempt=2), [], [note(4, "kl"), note(5, "entropy")], replace_from=0)
    said = [(d["alarm"], d["message"], d["step"]) for t, d in told(db) if t == "alarm.raised"]
    assert said == [("kl", "kl!", 1), ("kl", "kl!", 4), ("entropy", "entropy!", 5)]


def test_a_verdict_is_an_event_each_time_it_changes(db):
    for verdict in ("provisional", "promoted", "promoted", "blocked", "promoted"):
        events.record_verdict(db, "policy-1", verdict, reason="why")
    assert [(d["before"], d["verdict"]) for _, d in told(db)] == [
        ("provisional", "promoted"), ("promoted", "blocked"), ("blocked", "promoted"),
    ]  # fmt: skip
    assert len({each.id for each in events.listing(db)}) == 3


def test_nothing_is_recorded_if_the_cause_is_not_stored(db):
    hook(db)

    def refused(tx) -> None:
        tx.store(run_of(status="failed"))
        events.record(tx, events.stage_failed(run_of(status="failed"), name="DPO"))
        raise ValueError("the caller changed its mind")

    with pytest.raises(ValueError, match="changed its mind"):
        db.write(refused)
    assert (told(db), webhooks.outbox(db)) == ([], [])


def test_events_webhooks_and_deliveries_survive_a_rebuild(db):
    fill(db)
    hook(db)
    flag(db)
    webhooks.store_attempt(db, webhooks.outbox(db)[0].id, FAILED)
    known = [
        db.read(f"SELECT * FROM {t} ORDER BY id") for t in ("events", "webhooks", "deliveries")
    ]
    assert [len(each) for each in known] == [1, 1, 1]
    workspace = db.workspace
    db.close()
    (workspace / "workspace.duckdb").unlink()
    rebuild(workspace)
    with Database.open(workspace) as again:
        found = [
            again.read(f"SELECT * FROM {t} ORDER BY id")
            for t in ("events", "webhooks", "deliveries")
        ]
    assert found == known


def test_deliveries_that_fail_together_are_not_tried_again_together():
    noon, pause = now(), timedelta(seconds=1000)
    made = [
        webhooks.after(
            Delivery(id=f"wh.{n}", webhook="wh", event=str(n)), FAILED, noon, schedule=(pause,)
        ).next_at
        for n in range(40)
    ]
    seconds = sorted((each - noon).total_seconds() for each in made if each)
    assert len(seconds) == 40
    assert 1000 <= seconds[0] < 1030
    assert 1070 < seconds[-1] <= 1100


@pytest.mark.parametrize(
    ("asked", "low", "high"), [(60, 1000, 1100), (1500, 1500, 1500), (9999, 2000, 2000)]
)
def test_a_receiver_that_asks_for_a_longer_pause_gets_it_up_to_the_longest(asked, low, high):
    schedule = (timedelta(seconds=1000), timedelta(seconds=2000))
    attempt = Attempt(code=429, error="busy", retry_after=asked)
    noon = now()
    made = webhooks.after(
        Delivery(id="wh.1", webhook="wh", event="1"), attempt, noon, schedule=schedule
    )
    assert made.next_at is not None
    assert low <= (made.next_at - noon).total_seconds() <= high


def test_the_pauses_between_attempts_are_those_of_the_specification(db):
    fill(db)
    hook(db)
    flag(db)
    id = webhooks.outbox(db)[0].id
    pauses = []
    for _ in range(9):
        made = webhooks.store_attempt(db, id, FAILED)
        assert made.attempted_at is not None
        assert made.next_at is not None
        pauses.append((made.next_at - made.attempted_at).total_seconds())
    hours = 3600
    named = (
        5, 300, 1800, 2 * hours, 5 * hours, 10 * hours, 14 * hours, 20 * hours, 24 * hours,
    )  # fmt: skip
    later = [pause / expected - 1 for pause, expected in zip(pauses, named, strict=True)]
    assert all(0 <= each <= 0.1 for each in later)
    assert len({round(each, 4) for each in later}) > 5
    last = webhooks.store_attempt(db, id, FAILED)
    assert (last.status, last.attempts, last.next_at) == ("failed", 10, None)


def test_a_webhook_is_disabled_when_a_delivery_failed_for_good_and_none_succeeded_since(db):
    fill(db)
    hook(db)
    for id in ("f1", "f2", "f3"):
        flag(db, id)
    first, second, third = (each.id for each in webhooks.outbox(db))
    webhooks.store_attempt(db, first, Attempt(code=200))
    assert webhooks.store_attempt(db, second, FAILED, schedule=()).status == "failed"
    assert webhooks.get(db, "wh-1").active  # the first one succeeded since the second was made
    webhooks.send_again(db, second)
    webhooks.store_attempt(db, second, Attempt(code=200))

    late = db.write(lambda tx: events.record(tx, Event.of("flag.opened", "late", flag="late")))
    assert len(late) == 1
    webhooks.store_attempt(db, f"wh-1.{late[0].id}", FAILED, schedule=())
    dead = webhooks.get(db, "wh-1")
    assert not dead.active
    assert dead.reason.startswith("No delivery has succeeded since ")
    assert "The receiver answered 500." in dead.reason
    assert [each.id for each in webhooks.outbox(db)] == []  # the third waits
    webhooks.change(db, "wh-1", lambda each: Webhook(id=each.id, url=each.url, events=each.events))
    assert [each.id for each in webhooks.outbox(db)] == [third]


def test_410_ends_the_delivery_and_disables_the_webhook(db):
    fill(db)
    hook(db)
    flag(db)
    gone = Attempt(code=410, error="The receiver answered 410.")
    assert webhooks.store_attempt(db, webhooks.outbox(db)[0].id, gone).status == "failed"
    assert "410 Gone" in webhooks.get(db, "wh-1").reason


def test_a_ping_is_attempted_once_and_disables_nothing(db):
    hook(db)
    made = webhooks.store_attempt(db, webhooks.ping(db, "wh-1").id, FAILED)
    assert made.status == "failed"
    assert webhooks.get(db, "wh-1").active
    assert told(db) == []  # no event of the workspace


def test_a_delivery_is_sent_again_with_its_event_id_and_all_attempts(db):
    fill(db)
    hook(db)
    flag(db)
    id = webhooks.outbox(db)[0].id
    webhooks.store_attempt(db, id, Attempt(code=200))
    assert webhooks.outbox(db) == []
    again = webhooks.send_again(db, id)
    assert (again.status, again.attempts, again.id) == ("pending", 0, id)
    assert again.next_at is not None
    assert again.next_at <= now() + timedelta(seconds=1)
    with pytest.raises(NotFound, match="webhooks deliveries"):
        webhooks.send_again(db, "wh-1.evt_nothing")
    webhooks.change(
        db, "wh-1", lambda w: Webhook(id=w.id, url=w.url, events=w.events, active=False)
    )
    with pytest.raises(Conflict, match="enable it first"):
        webhooks.send_again(db, id)


def test_a_workspace_has_at_most_twenty_webhooks_with_different_urls(db):
    for n in range(20):
        hook(db, f"wh-{n}")
    with pytest.raises(Conflict, match="already a webhook with this URL"):
        hook(db, "wh-x", url="https://example.org/wh-0")
    with pytest.raises(ValueError, match="at most 20 webhooks"):
        hook(db, "wh-20")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.org", "starts with https://"),
        ("https://", "names a host"),
        ("https://user:pass@example.org/", "no user name"),
        ("https://example.org/#part", "no fragment"),
        ("https://example.org:99999/", "Port out of range"),
        ("https://example.org:0/", "from 1 to 65535"),
        ("https://exa mple.org/", "no spaces"),
        ("https://example.org/\n", "ASCII"),
        ("https://[::1/", "not valid"),
        ("https://example.org/" + "x" * 2000, "2,000"),
    ],
)
def test_a_url_that_cannot_receive_is_refused(url, says):
    with pytest.raises(ValueError, match=says):
        Webhook(id="wh", url=url, events=EVENTS)


def test_a_webhook_needs_known_events():
    with pytest.raises(ValueError, match="at least one event"):
        Webhook(id="wh", url="https://example.org/", events=[])
    with pytest.raises(ValueError, match="must be one of"):
        Webhook(id="wh", url="https://example.org/", events=["ping"])


def test_deliveries_are_listed_by_webhook_and_status(db):
    fill(db)
    hook(db, "wh-1")
    hook(db, "wh-2")
    flag(db)
    webhooks.store_attempt(db, webhooks.outbox(db)[0].id, Attempt(code=200))
    listed = webhooks.deliveries(db, status="delivered")
    assert [(each.delivery.webhook, each.type) for each in listed] == [("wh-1", "flag.opened")]
    assert [each.delivery.webhook for each in webhooks.deliveries(db, webhook="wh-2")] == ["wh-2"]
    counted = webhooks.counts(db)
    assert (counted["wh-1"].delivered, counted["wh-2"].pending) == (1, 1)
