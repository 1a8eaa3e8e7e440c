"""Which comparison next: leases that keep two annotators off one pair, and survive a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice

from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.labeling.queue_cache import QueueCache, QueueItem, grant
from storage.labeling.text_cache import TextCache, Texts
from storage.records import LEASE_LIFETIME, Comparison, Prompt, shown_swapped
from storage.tables import comparisons

AT_ONCE = 16
READ_AHEAD = 64
MOST_HELD = 64
"""Live leases of one annotator.  A page holds four pairs; naming more keeps no others waiting."""


@dataclass(frozen=True)
class LeasedPair:
    """A comparison as it goes on the screen; `swapped` when `first` stands on the right."""

    comparison: Comparison
    prompt: Prompt
    left: str
    right: str
    swapped: bool


def lease_next(
    db: Database,
    annotator: str,
    n: int,
    *,
    iteration: int | None = None,
    holding: Sequence[str] = (),
    lifetime: timedelta = LEASE_LIFETIME,
) -> list[LeasedPair]:
    """Up to `n` pairs for this annotator, leased to them: from the newest iteration that has any,
    and among them, in the same random order, those that were written elsewhere.

    First what they already hold (a reloaded page gets the same pairs, an undone one comes back)
    except the ids in `holding`, then half-finished overlap, then by position.  Nobody else is
    given a pair while it is leased to as many annotators as it still wants.  A lease on one of
    `holding` that is half over is extended; beyond `MOST_HELD` the leases given first end.  Empty
    when there is nothing left for them, or when `iteration` is another one.
    """

    n = max(0, min(n, AT_ONCE))
    named = set(holding)

    def operation(tx: Transaction) -> tuple[list[Comparison], list[str]]:
        tx.observer(QueueCache).load(tx)
        if iteration not in (None, tx.observer(QueueCache).iteration):
            return [], []
        moment = tx.now()
        held = tx.observer(QueueCache).unanswered(annotator, moment)
        again = [item for item in held if item.comparison.id not in named][:n]
        seen = {item.comparison.id for item in held} | named
        others = (
            item
            for item in tx.observer(QueueCache).available(annotator, moment)
            if item.comparison.id not in seen
        )
        new = list(islice(others, n - len(again)))
        ended = give(tx, new, annotator, moment, lifetime, keep=again)
        on_screen = [c for c in held if c.comparison.id in named and c.comparison.id not in ended]
        _extend(tx, on_screen, annotator, moment, lifetime)
        chosen = [item.comparison for item in again + new]
        if all(comparison.id in db.cache(TextCache) for comparison in chosen):
            return chosen, []
        return chosen, [item.comparison.id for item in islice(others, READ_AHEAD)]

    chosen, ahead = db.write(operation)
    return pairs(db, annotator, chosen, ahead=ahead)


def give(
    tx: Transaction,
    items: Sequence[QueueItem],
    annotator: str,
    moment: datetime,
    lifetime: timedelta = LEASE_LIFETIME,
    *,
    keep: Sequence[QueueItem] = (),
) -> set[str]:
    """Lease these items to an annotator; the only way to get a new lease.

    Beyond `MOST_HELD` the leases given first end, but for those on `items` and `keep`.  Returns the
    ids of the comparisons whose leases ended: others may have them, and the annotator may still
    answer them.
    """
    stay = {item.comparison.id for item in (*items, *keep)}
    held = tx.observer(QueueCache).held(annotator, moment)
    others = [item for item in held if item.comparison.id not in stay]
    ended = others[::-1][: max(0, len(others) + len(stay) - MOST_HELD)]
    for item in ended:
        grant(tx, item.comparison.id, annotator, item.leases[annotator].granted, moment)
    for item in items:
        grant(tx, item.comparison.id, annotator, moment, moment + lifetime)
    return {item.comparison.id for item in ended}


def _extend(
    tx: Transaction, items: list[QueueItem], annotator: str, moment: datetime, lifetime: timedelta
) -> None:
    for item in items:
        lease = item.leases[annotator]
        if lease.expires - moment < lifetime / 2:
            grant(tx, item.comparison.id, annotator, lease.granted, moment + lifetime)


def pairs(
    db: Database, annotator: str, chosen: Sequence[Comparison], *, ahead: Sequence[str] = ()
) -> list[LeasedPair]:
    """The comparisons as this annotator sees them, in the same order; always on the same sides.

    `ahead` are ids whose texts will be wanted soon.
    """
    texts = db.cache(TextCache).fetch(db.read, [comparison.id for comparison in chosen], ahead)
    return [_pair(comparison, texts[comparison.id], annotator) for comparison in chosen]


def _pair(comparison: Comparison, texts: Texts, annotator: str) -> LeasedPair:
    swapped = shown_swapped(annotator, comparison.id)
    left, right = (texts.second, texts.first) if swapped else (texts.first, texts.second)
    return LeasedPair(comparison, texts.prompt, left, right, swapped)


def pair(db: Database, annotator: str, comparison: str) -> LeasedPair:
    """One comparison as this annotator sees it; NotFound when there is none."""
    return pairs(db, annotator, [comparisons.get(db, comparison)])[0]


def midnight(moment: datetime, offset: int = 0) -> datetime:
    """When the day of `moment` began where clocks are `offset` minutes ahead of UTC."""
    there = moment.astimezone(timezone(timedelta(minutes=offset)))
    return there.replace(hour=0, minute=0, second=0, microsecond=0)


def progress(db: Database, annotator: str, *, offset: int = 0) -> dict[str, int | None]:
    """How far they are: judged in all, judged today, remaining, and the iteration labeled.

    Today began at midnight where clocks are `offset` minutes ahead of UTC.
    `remaining` counts unfinished comparisons in the queue that they have neither judged nor
    skipped and nobody has flagged, whoever holds them now.
    """

    def operation(tx: Transaction) -> dict[str, int | None]:
        tx.observer(QueueCache).load(tx)
        judged, today = tx.observer(QueueCache).judged(tx, annotator, midnight(tx.now(), offset))
        return {
            "judged": judged,
            "today": today,
            "remaining": tx.observer(QueueCache).remaining(annotator),
            "iteration": tx.observer(QueueCache).iteration,
        }

    return db.write(operation)


def with_others(db: Database, annotator: str) -> int:
    """How many pairs that still want a judgment go to nobody else now, because others hold them."""

    def operation(tx: Transaction) -> int:
        tx.observer(QueueCache).load(tx)
        return tx.observer(QueueCache).with_others(annotator, tx.now())

    return db.write(operation)


def unfinished(db: Database) -> int:
    """How many pairs still want a judgment, from whomever; flagged ones do not count."""

    def operation(tx: Transaction) -> int:
        tx.observer(QueueCache).load(tx)
        return tx.observer(QueueCache).unfinished

    return db.write(operation)
