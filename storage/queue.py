"""Which comparison next: leases that keep two annotators off one pair, and survive a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

from storage import comparisons
from storage.database import Database
from storage.desk import Card
from storage.records import Comparison, Prompt, shown_swapped
from storage.shelf import Texts
from storage.transaction import Transaction

LIFETIME = timedelta(minutes=30)
AT_ONCE = 16
READ_AHEAD = 64


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
    lifetime: timedelta = LIFETIME,
) -> list[LeasedPair]:
    """Up to `n` pairs for this annotator from the iteration being labeled, leased to him.

    First what he already holds (a reloaded page gets the same pairs, an undone one comes back)
    except the ids in `holding`, then half-finished overlap, then by position.  Nobody else is
    given a pair while it is leased to as many annotators as it still wants.  A lease on one of
    `holding` that is half over is extended.  Empty when there is nothing left for him, or when
    `iteration` is not the one being labeled.
    """

    n = max(0, min(n, AT_ONCE))

    def operation(tx: Transaction) -> tuple[list[Comparison], list[str]]:
        tx.desk.load(tx)
        if tx.desk.iteration is None or iteration not in (None, tx.desk.iteration):
            return [], []
        moment = tx.now()
        held = tx.desk.in_hand(annotator, moment)
        _extend(tx, [c for c in held if c.comparison.id in holding], annotator, moment, lifetime)
        again = [card for card in held if card.comparison.id not in holding][:n]
        seen = {card.comparison.id for card in held} | set(holding)
        others = (
            card for card in tx.desk.available(annotator, moment) if card.comparison.id not in seen
        )
        new = list(islice(others, n - len(again)))
        for card in new:
            tx.lease(card.comparison.id, annotator, moment, moment + lifetime)
        chosen = [card.comparison for card in again + new]
        if all(comparison.id in db.shelf for comparison in chosen):
            return chosen, []
        return chosen, [card.comparison.id for card in islice(others, READ_AHEAD)]

    chosen, ahead = db.write(operation)
    return pairs(db, annotator, chosen, ahead=ahead)


def _extend(
    tx: Transaction, cards: list[Card], annotator: str, moment: datetime, lifetime: timedelta
) -> None:
    for card in cards:
        lease = card.leases[annotator]
        if lease.expires - moment < lifetime / 2:
            tx.lease(card.comparison.id, annotator, lease.granted, moment + lifetime)


def pairs(
    db: Database, annotator: str, chosen: Sequence[Comparison], *, ahead: Sequence[str] = ()
) -> list[LeasedPair]:
    """The comparisons as this annotator sees them, in the same order; always on the same sides.

    `ahead` are ids whose texts will be wanted soon.
    """
    texts = db.shelf.fetch(db.read, [comparison.id for comparison in chosen], ahead)
    return [_pair(comparison, texts[comparison.id], annotator) for comparison in chosen]


def _pair(comparison: Comparison, texts: Texts, annotator: str) -> LeasedPair:
    swapped = shown_swapped(annotator, comparison.id)
    left, right = (texts.second, texts.first) if swapped else (texts.first, texts.second)
    return LeasedPair(comparison, texts.prompt, left, right, swapped)


def pair(db: Database, annotator: str, comparison: str) -> LeasedPair:
    """One comparison as this annotator sees it; NotFound when there is none."""
    return pairs(db, annotator, [comparisons.get(db, comparison)])[0]


def progress(db: Database, annotator: str) -> dict[str, int | None]:
    """How far he is: judged in all, judged today (UTC), remaining, and the iteration labeled.

    `remaining` counts unfinished comparisons of that iteration that he has neither judged nor
    skipped and nobody has flagged, whoever holds them now.
    """

    def operation(tx: Transaction) -> dict[str, int | None]:
        tx.desk.load(tx)
        by_day = tx.desk.judged(tx, annotator)
        return {
            "judged": sum(by_day.values()),
            "today": by_day.get(tx.now().astimezone(UTC).date(), 0),
            "remaining": tx.desk.remaining(annotator),
            "iteration": tx.desk.iteration,
        }

    return db.write(operation)
