"""The figures that an annotator sees about their own judgments.

Agreement with others must not reveal single answers of others: if it were up to date, an annotator
could judge one more pair and see whether it rose.  So it counts only judgments before `midnight`,
grows in blocks of `BLOCK` pairs, and stays between 1 − `MAX_SHOWN_AGREEMENT` and
`MAX_SHOWN_AGREEMENT`, since 100% would reveal every answer.  Judgments revised or undone on a later
day count with their first outcome: otherwise each undo would shift the blocks by one pair and
reveal the others' answer to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.analysis.reliability import judging_statistics
from storage.engine.database import Database
from storage.records import AnnotatorKind
from storage.tables import settings

BLOCK = 20
"""Pairs that are added to the agreement at a time."""
MAX_SHOWN_AGREEMENT = 0.95
"""The highest agreement that is shown; 1 minus it is the lowest."""

# The annotator's items that others judged too, in the order of the second judgment.  Outcomes are
# reversed for flipped twins (storage/engine/items.py).  Each annotator counts with the first answer
# that was not revised or withdrawn on the same day (UTC).
_SHARED = """
    WITH dated AS (
        SELECT *, (created_at AT TIME ZONE 'UTC')::DATE AS day FROM judgments
        ANTI JOIN checks USING (comparison)
        WHERE created_at < $midnight),
    said AS (
        SELECT j.* FROM dated AS j
        ANTI JOIN dated AS later ON later.replaces = j.id AND later.day = j.day
        ANTI JOIN withdrawals AS w
            ON w.replaces = j.id AND (w.created_at AT TIME ZONE 'UTC')::DATE = j.day),
    ratings AS (
        SELECT i.item, j.annotator,
               arg_min(CASE WHEN i.twin AND i.flipped AND j.outcome = 'first' THEN 'second'
                            WHEN i.twin AND i.flipped AND j.outcome = 'second' THEN 'first'
                            ELSE j.outcome END, (j.created_at, j.id)) AS outcome,
               min(j.created_at) AS said_at
        FROM said AS j
        JOIN annotators AS a ON a.id = j.annotator
        JOIN items AS i ON i.comparison = j.comparison
        WHERE (j.annotator = $annotator OR list_contains($kinds, a.kind))
          AND i.item IN (SELECT m.item FROM items AS m
                         JOIN said AS own ON own.comparison = m.comparison
                         WHERE own.annotator = $annotator)
        GROUP BY i.item, j.annotator),
    compared AS (
        SELECT mine.item, avg((mine.outcome = other.outcome)::INTEGER) AS alike,
               greatest(mine.said_at, min(other.said_at)) AS shared_at
        FROM ratings AS mine JOIN ratings AS other ON other.item = mine.item
        WHERE mine.annotator = $annotator AND other.annotator <> $annotator
        GROUP BY mine.item, mine.said_at),
    numbered AS (
        SELECT alike, row_number() OVER (ORDER BY shared_at, item) AS place,
               count(*) OVER () AS n
        FROM compared)
    SELECT count(*) AS items, avg(alike) AS agreement FROM numbered
    WHERE place <= n - n % $block
"""


@dataclass(frozen=True, kw_only=True)
class OwnFigures:
    """The response of ``/label/api/figures``; None for a figure without data."""

    judgments: int
    today: int
    """Judgments since midnight."""
    decided: int | None
    """Judgments that prefer a response."""
    left_rate: float | None
    """Share of `decided` for the response on the left."""
    tie_rate: float | None
    both_bad_rate: float | None
    median_seconds: float | None
    shared_pairs: int
    """Pairs that others judged too, a multiple of `BLOCK`."""
    agreement: float | None
    """Agreement with others on the shared pairs, rounded to whole percent."""


def own_figures(
    db: Database,
    annotator: str,
    *,
    midnight: datetime,
    kinds: Sequence[AnnotatorKind] | None = None,
) -> OwnFigures:
    """The figures of one annotator.  Agreement is with others of `kinds`, by default the kinds that
    reward models learn from."""
    work = judging_statistics(db, annotator)
    today = db.read(_TODAY, annotator=annotator, midnight=midnight)[0]["n"]
    shared = db.read(
        _SHARED,
        annotator=annotator,
        midnight=midnight,
        kinds=list(kinds or settings.learn_from(db)),
        block=BLOCK,
    )[0]
    return OwnFigures(
        judgments=work.judgments,
        today=today,
        decided=work.decided if work.judgments else None,
        left_rate=work.left_rate,
        tie_rate=work.tie_rate,
        both_bad_rate=work.both_bad_rate,
        median_seconds=work.median_seconds,
        shared_pairs=shared["items"],
        agreement=_limited(shared["agreement"]),
    )


_TODAY = """
    SELECT count(*) AS n FROM standing_judgments
    WHERE annotator = $annotator AND created_at >= $midnight
"""


def _limited(agreement: float | None) -> float | None:
    if agreement is None:
        return None
    return round(min(max(agreement, 1 - MAX_SHOWN_AGREEMENT), MAX_SHOWN_AGREEMENT), 2)
