"""Events: what happened, recorded once.

A caller records an event in the transaction of the record that causes it (`record`).  Its id follows
from the cause, so recording it again has no effect.  The same transaction stores a pending delivery
for each active webhook that subscribes to the event.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from storage.engine import lookup
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.notification_records import Delivery, Event, Webhook
from storage.records import Flag, Iteration, Run, RunNote

_SUBSCRIBED = """
    SELECT * FROM webhooks WHERE active AND NOT removed AND list_contains(events::VARCHAR[], $type)
"""
_LISTING = """
    SELECT * FROM events WHERE type <> 'ping' AND ($since IS NULL OR created_at > $since)
    ORDER BY created_at DESC, id LIMIT $limit
"""
_VERDICTS = """
    SELECT data ->> 'verdict' AS verdict FROM events
    WHERE type = 'gate.verdict' AND data ->> 'policy' = $policy ORDER BY created_at
"""


def record(tx: Transaction, *events: Event) -> list[Event]:
    """Store the events that are not stored, with their deliveries; returns the new ones."""
    new = [event for event in events if tx.store(event)]
    for event in new:
        subscribed = [from_row(Webhook, row) for row in tx.rows(_SUBSCRIBED, type=event.type)]
        tx.store(*(delivery_of(event, webhook, tx.now()) for webhook in subscribed))
    return new


def delivery_of(event: Event, webhook: Webhook, moment: datetime) -> Delivery:
    """The delivery of an event to a webhook, due now."""
    return Delivery(
        id=f"{webhook.id}.{event.id}",
        webhook=webhook.id,
        event=event.id,
        next_at=moment,
        created_at=moment,
    )


def listing(db: Database, *, since: datetime | None = None, limit: int = 50) -> list[Event]:
    """The newest events first, without pings; with `since`, those recorded later."""
    return lookup.select(db, Event, _LISTING, since=since, limit=limit)


def flag_opened(flag: Flag) -> Event:
    """An annotator flagged a pair.  The comment is not in the event, because it is personal data."""
    return Event.of("flag.opened", flag.id, flag=flag.id, comparison=flag.comparison)


def stage_failed(run: Run, *, name: str) -> Event:
    """An attempt of a stage failed."""
    return Event.of(
        "stage.failed",
        run.id,
        str(run.attempt),
        run=run.id,
        stage=name,
        iteration=run.iteration,
        attempt=run.attempt,
        reason=run.reason or "",
    )


def red_flags(run: Run, notes: Iterable[RunNote], *, name: str) -> list[Event]:
    """The red flags of an attempt of a stage, each once."""
    first: dict[str, RunNote] = {}
    for note in notes:
        if note.kind == "flag":
            first.setdefault(note.name, note)
    return [
        Event.of(
            "alarm.raised",
            run.id,
            str(run.attempt),
            note.name,
            alarm=note.name,
            message=note.message,
            run=run.id,
            stage=name,
            iteration=run.iteration,
            step=note.step,
        )
        for note in first.values()
    ]


def overoptimization(policy: str, *, message: str) -> Event:
    """The over-optimization alarm of a policy."""
    return Event.of(
        "alarm.raised",
        "overoptimization",
        policy,
        alarm="overoptimization",
        message=message,
        policy=policy,
    )


def labels_reached(iteration: Iteration, labels: int) -> Event:
    """The iteration has the labels that it wanted."""
    return Event.of(
        "labels.reached",
        str(iteration.number),
        iteration=iteration.number,
        labels=labels,
        wanted=iteration.labels_wanted,
    )


def record_verdict(db: Database, policy: str, verdict: str, *, reason: str) -> Event | None:
    """Record that a policy's verdict changed; returns the event, or None if it did not.

    A policy without an event is provisional.
    """

    def operation(tx: Transaction) -> Event | None:
        known = [row["verdict"] for row in tx.rows(_VERDICTS, policy=policy)]
        before = known[-1] if known else "provisional"
        if verdict == before:
            return None
        event = Event.of(
            "gate.verdict",
            policy,
            str(len(known) + 1),
            policy=policy,
            verdict=verdict,
            before=before,
            reason=reason,
        )
        return next(iter(record(tx, event)), None)

    return db.write(operation)
