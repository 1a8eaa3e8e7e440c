"""Which comparison next: leases that keep two annotators off one pair, and survive a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from storage import comparisons, prompts
from storage.database import Database
from storage.desk import Card
from storage.records import Comparison, Prompt, now, shown_swapped
from storage.transaction import Transaction

LIFETIME = timedelta(minutes=30)
AT_ONCE = 16

_PAIRS = """
    SELECT c.id AS comparison, p.id AS prompt, f.text AS first_text, s.text AS second_text
    FROM comparisons AS c
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE c.id IN (SELECT unnest($ids))
"""
_PROGRESS = """
    WITH labeling AS (
        SELECT number FROM iterations
        QUALIFY number = max(number) OVER () AND phase = 'labeling'),
    open AS (
        SELECT c.id, c.wanted FROM comparisons AS c
        WHERE c.iteration = (FROM labeling) AND c.arm <> 'imported'
          AND c.id NOT IN (SELECT comparison FROM open_flags)
          AND c.id NOT IN (SELECT comparison FROM open_skips WHERE annotator = $annotator)
          AND c.id NOT IN (SELECT comparison FROM current_judgments WHERE annotator = $annotator)),
    unfinished AS (
        SELECT o.id FROM open AS o LEFT JOIN current_judgments AS j ON j.comparison = o.id
        GROUP BY o.id, o.wanted HAVING count(DISTINCT j.annotator) < o.wanted)
    SELECT (SELECT count(*) FROM current_judgments WHERE annotator = $annotator) AS judged,
           (SELECT count(*) FROM current_judgments
            WHERE annotator = $annotator AND created_at >= $midnight) AS today,
           (SELECT count(*) FROM unfinished) AS remaining,
           (SELECT number FROM labeling) AS iteration
"""


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

    def operation(tx: Transaction) -> list[Comparison]:
        tx.desk.load(tx)
        if tx.desk.iteration is None or iteration not in (None, tx.desk.iteration):
            return []
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
        return [card.comparison for card in again + new]

    n = max(0, min(n, AT_ONCE))
    return pairs(db, annotator, db.write(operation))


def _extend(
    tx: Transaction, cards: list[Card], annotator: str, moment: datetime, lifetime: timedelta
) -> None:
    for card in cards:
        lease = card.leases[annotator]
        if lease.expires - moment < lifetime / 2:
            tx.lease(card.comparison.id, annotator, lease.granted, moment + lifetime)


def pairs(db: Database, annotator: str, leased: Sequence[Comparison]) -> list[LeasedPair]:
    """The comparisons as this annotator sees them, in the same order; always on the same sides."""
    if not leased:
        return []
    rows = db.read(_PAIRS, ids=[comparison.id for comparison in leased])
    texts = {row["comparison"]: row for row in rows}
    prompts_by_id = prompts.get_many(db, [comparison.prompt for comparison in leased])
    return [
        _pair(comparison, prompts_by_id[comparison.prompt], texts[comparison.id], annotator)
        for comparison in leased
    ]


def _pair(
    comparison: Comparison, prompt: Prompt, texts: dict[str, Any], annotator: str
) -> LeasedPair:
    swapped = shown_swapped(annotator, comparison.id)
    left, right = texts["first_text"], texts["second_text"]
    if swapped:
        left, right = right, left
    return LeasedPair(comparison, prompt, left, right, swapped)


def pair(db: Database, annotator: str, comparison: str) -> LeasedPair:
    """One comparison as this annotator sees it; NotFound when there is none."""
    return pairs(db, annotator, [comparisons.get(db, comparison)])[0]


def release(db: Database, annotator: str, ids: Sequence[str]) -> None:
    """Let others have these comparisons now; he may still answer them."""

    def operation(tx: Transaction) -> None:
        moment = tx.now()
        for comparison in dict.fromkeys(ids):
            lease = tx.desk.card(tx, comparison).leases.get(annotator)
            if lease is not None and lease.expires > moment:
                tx.lease(comparison, annotator, lease.granted, moment)

    db.write(operation)


def progress(db: Database, annotator: str, *, midnight: datetime | None = None) -> dict[str, Any]:
    """How far he is: judged in all, judged today (since midnight UTC), remaining, iteration.

    `remaining` counts unfinished comparisons of the iteration being labeled that he has neither
    judged nor skipped and nobody has flagged, whoever holds them now.
    """
    midnight = midnight or now().replace(hour=0, minute=0, second=0, microsecond=0)
    return db.read(_PROGRESS, annotator=annotator, midnight=midnight)[0]
