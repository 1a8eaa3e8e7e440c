"""Webhooks and the outbox of their deliveries.

`events.record` stores deliveries; `labeler/webhooks/` sends them and stores each attempt here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from storage.engine import lookup
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound
from storage.notification_records import PING, Delivery, DeliveryStatus, Event, EventType, Webhook
from storage.records import digest, new_id
from storage.tables.runs import events

MAX_WEBHOOKS = 20
SCHEDULE = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=14),
    timedelta(hours=20),
    timedelta(hours=24),
)
"""The pauses after failed attempts, as the Standard Webhooks specification recommends them."""
JITTER = 0.1
"""The share of a pause by which it is longer at most: deliveries that failed together come apart."""
GONE = 410
"""The status code with which a receiver asks for no further requests."""

_LISTING = "SELECT * FROM webhooks WHERE NOT removed ORDER BY created_at, id"
_WEBHOOK = "SELECT * FROM webhooks WHERE id = $id AND NOT removed"
_URL = "SELECT 1 FROM webhooks WHERE url = $url AND NOT removed"
_DELIVERY = "SELECT * FROM deliveries WHERE id = $id"
_EVENT = "SELECT * FROM events WHERE id = $id"
_OUTBOX = """
    SELECT d.id, d.webhook, d.next_at FROM deliveries AS d JOIN webhooks AS w ON w.id = d.webhook
    WHERE d.status = 'pending' AND w.active AND NOT w.removed ORDER BY d.next_at, d.created_at, d.id
"""
_DELIVERIES = """
    SELECT d.*, e.type, w.url, w.active FROM deliveries AS d
    JOIN events AS e ON e.id = d.event JOIN webhooks AS w ON w.id = d.webhook
    WHERE NOT w.removed AND ($webhook IS NULL OR d.webhook = $webhook)
      AND ($status IS NULL OR d.status = $status)
    ORDER BY coalesce(d.attempted_at, d.created_at) DESC, d.id LIMIT $limit
"""
_LAST_SUCCESS = """
    SELECT 1 FROM deliveries
    WHERE webhook = $webhook AND status = 'delivered' AND attempted_at >= $since LIMIT 1
"""
_STATES = """
    SELECT webhook, count(*) FILTER (status = 'pending') AS pending,
           count(*) FILTER (status = 'failed') AS failed,
           count(*) FILTER (status = 'delivered') AS delivered,
           max(attempted_at) FILTER (status = 'delivered') AS delivered_at
    FROM deliveries GROUP BY webhook
"""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The result of one request; `error` is empty if the receiver accepted the event.

    `retry_after` is the pause in seconds that the receiver asks for.
    """

    code: int | None = None
    error: str = ""
    retry_after: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Due:
    """A pending delivery and the time of its next attempt."""

    id: str
    webhook: str
    next_at: datetime


@dataclass(frozen=True, kw_only=True)
class ListedDelivery:
    """A delivery with the type of its event, and the URL and the state of its webhook."""

    delivery: Delivery
    type: EventType
    url: str
    active: bool


@dataclass(frozen=True, kw_only=True)
class DeliveryCounts:
    """The deliveries of a webhook by status, and the time of the last success."""

    pending: int = 0
    failed: int = 0
    delivered: int = 0
    delivered_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What one request sends: a delivery, its event and its webhook."""

    delivery: Delivery
    event: Event
    webhook: Webhook


def add(db: Database, webhook: Webhook) -> Webhook:
    """Store a new webhook.

    Conflict if another one has the same URL; ValueError for more than `MAX_WEBHOOKS`.
    """

    def operation(tx: Transaction) -> Webhook:
        if tx.rows(_URL, url=webhook.url):
            raise Conflict("there is already a webhook with this URL; remove it first")
        if len(tx.rows(_LISTING)) >= MAX_WEBHOOKS:
            raise ValueError(f"a workspace has at most {MAX_WEBHOOKS} webhooks; remove one first")
        tx.store(webhook)
        return webhook

    return db.write(operation)


def change(db: Database, id: str, changed: Callable[[Webhook], Webhook]) -> Webhook:
    """Store `changed(webhook)`; NotFound for an unknown or removed webhook."""

    def operation(tx: Transaction) -> Webhook:
        made = changed(_webhook(tx, id))
        tx.store(made)
        return made

    return db.write(operation)


def _webhook(tx: Transaction, id: str) -> Webhook:
    rows = tx.rows(_WEBHOOK, id=id)
    if not rows:
        raise NotFound(f"there is no webhook {id!r}; `webhooks list` shows the ids")
    return from_row(Webhook, rows[0])


def get(db: Database, id: str) -> Webhook:
    """The webhook with this id, or NotFound."""
    found = lookup.select(db, Webhook, _WEBHOOK, id=id)
    if not found:
        raise NotFound(f"there is no webhook {id!r}; `webhooks list` shows the ids")
    return found[0]


def listing(db: Database) -> list[Webhook]:
    """The webhooks that were not removed, oldest first."""
    return lookup.select(db, Webhook, _LISTING)


def counts(db: Database) -> dict[str, DeliveryCounts]:
    """The deliveries of each webhook by status; a webhook without any is left out."""
    return {
        row.pop("webhook"): DeliveryCounts(**row)
        for row in (dict(each) for each in db.read(_STATES))
    }


def deliveries(
    db: Database,
    *,
    webhook: str | None = None,
    status: DeliveryStatus | None = None,
    limit: int = 50,
) -> list[ListedDelivery]:
    """Deliveries, those with the newest attempt first."""
    rows = db.read(_DELIVERIES, webhook=webhook, status=status, limit=limit)
    return [
        ListedDelivery(
            delivery=from_row(Delivery, row),
            type=row["type"],
            url=row["url"],
            active=row["active"],
        )
        for row in rows
    ]


def outbox(db: Database) -> list[Due]:
    """The pending deliveries to active webhooks, the next attempt first."""
    return [Due(**row) for row in db.read(_OUTBOX)]


def prepared(db: Database, delivery: str) -> Prepared:
    """A delivery with what its request needs; NotFound for an unknown one or a removed webhook."""
    found = lookup.by_key(db, Delivery, delivery)
    event = lookup.by_key(db, Event, found.event)
    return Prepared(delivery=found, event=event, webhook=get(db, found.webhook))


def ping(db: Database, webhook: str) -> Delivery:
    """Store a ping to one webhook, which may be disabled; it is attempted once."""

    def operation(tx: Transaction) -> Delivery:
        to = _webhook(tx, webhook)
        event = Event.of(PING, new_id(), webhook=to.id)
        delivery = events.delivery_of(event, to, tx.now())
        tx.store(event, delivery)
        return delivery

    return db.write(operation)


def send_again(db: Database, delivery: str) -> Delivery:
    """Make a delivery due now, with the same event id and all attempts again.

    NotFound for an unknown delivery or a removed webhook; Conflict if the webhook is disabled.
    """

    def operation(tx: Transaction) -> Delivery:
        rows = tx.rows(_DELIVERY, id=delivery)
        if not rows:
            raise NotFound(
                f"there is no delivery {delivery!r}; `webhooks deliveries` shows the ids"
            )
        found = from_row(Delivery, rows[0])
        if not _webhook(tx, found.webhook).active:
            raise Conflict("the webhook is disabled; enable it first")
        due = replace(found, status="pending", attempts=0, next_at=tx.now())
        tx.store(due)
        return due

    return db.write(operation)


def store_attempt(
    db: Database, delivery: str, attempt: Attempt, *, schedule: Sequence[timedelta] = SCHEDULE
) -> Delivery:
    """Store the result of an attempt and the time of the next one.

    Disables the webhook if the receiver answered `GONE`, or if the last attempt failed and no other
    delivery succeeded since this one was made.
    """

    def operation(tx: Transaction) -> Delivery:
        found = from_row(Delivery, tx.rows(_DELIVERY, id=delivery)[0])
        event = from_row(Event, tx.rows(_EVENT, id=found.event)[0])
        made = after(found, attempt, tx.now(), schedule=() if event.type == PING else schedule)
        if attempt.code == GONE:
            made = replace(made, status="failed", next_at=None)
        tx.store(made)
        if made.status == "failed" and event.type != PING:
            _disable_if_dead(tx, made)
        return made

    return db.write(operation)


def after(
    delivery: Delivery, attempt: Attempt, moment: datetime, *, schedule: Sequence[timedelta]
) -> Delivery:
    """The delivery after one more attempt.

    The next one comes after the pause of the schedule, up to `JITTER` later, or when the receiver
    asked for it, if that is later; after the schedule's longest pause at the latest.
    """
    made = replace(
        delivery,
        attempts=delivery.attempts + 1,
        code=attempt.code,
        error=attempt.error,
        attempted_at=moment,
        next_at=None,
    )
    if not attempt.error:
        return replace(made, status="delivered")
    if made.attempts > len(schedule):
        return replace(made, status="failed")
    pause = schedule[made.attempts - 1] * (1 + JITTER * _share(made))
    asked = min(timedelta(seconds=attempt.retry_after), max(schedule))
    return replace(made, next_at=moment + max(pause, asked))


def _share(delivery: Delivery) -> float:
    """A number from 0 to 1 that differs between deliveries and attempts."""
    return int(digest(delivery.id, str(delivery.attempts))[:8], 16) / 0xFFFFFFFF


def _disable_if_dead(tx: Transaction, failed: Delivery) -> None:
    rows = tx.rows(_WEBHOOK, id=failed.webhook)
    if not rows or not rows[0]["active"]:
        return
    if failed.code == GONE:
        reason = "The receiver answered 410 Gone, which asks for no further requests."
    elif tx.rows(_LAST_SUCCESS, webhook=failed.webhook, since=failed.created_at):
        return
    else:
        since = failed.created_at.strftime("%Y-%m-%d %H:%M UTC")
        reason = (
            f"No delivery has succeeded since {since}. The last error: {failed.error} Repair the "
            "receiver, then enable the webhook."
        )
    tx.store(replace(from_row(Webhook, rows[0]), active=False, reason=reason))
