"""What an annotator is shown of their own work, and nothing of anybody else's.

Agreement with others is the one figure that others' answers go into.  Shown at once it would give
them away: judge one more pair, look whether the figure rose.  So it counts only what was said
before `midnight`, goes up in blocks of `BLOCK` pairs, and says no more than "over 95%" at the end
of the scale, where it would tell what was said of every single pair.  What is revised or undone
on a later day than it was said counts as it was said: otherwise each undo would move the blocks
on by one pair, and the difference would be what others said of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from storage.analysis.reliability import work_of
from storage.engine.database import Database
from storage.records import AnnotatorKind
from storage.tables import settings

BLOCK = 20
"""Pairs that enter the agreement together."""
CLEAREST = 0.95
"""The agreement is never shown nearer to all, or to none, than this."""

# Their pairs that others judged too, in the order in which they came to be judged by two; items,
# turned where the texts stand the other way round, as storage/engine/items.py has them.  Of each person
# the first answer that outlived its day (UTC).
_SHARED = """
    WITH dated AS (
        SELECT *, (created_at AT TIME ZONE 'UTC')::DATE AS day FROM judgments
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


def own_figures(
    db: Database,
    annotator: str,
    *,
    midnight: datetime,
    kinds: Sequence[AnnotatorKind] | None = None,
) -> dict[str, Any]:
    """The figures of one annotator for their own eyes; JSON-able, None where there are no data.

    ``judgments``, ``today`` (since `midnight`), ``decided``, ``left_rate``, ``tie_rate``,
    ``both_bad_rate``, ``median_seconds``; ``agreement`` with others of `kinds` (None: whoever is
    learned from), in whole percent as a share, on ``shared_pairs``, a multiple of `BLOCK`.
    """
    figures = work_of(db, annotator)
    today = db.read(_TODAY, annotator=annotator, midnight=midnight)[0]["n"]
    shared = db.read(
        _SHARED,
        annotator=annotator,
        midnight=midnight,
        kinds=list(kinds or settings.learn_from(db)),
        block=BLOCK,
    )[0]
    names = ("decided", "left_rate", "tie_rate", "both_bad_rate", "median_seconds")
    return {
        "judgments": figures.get("judgments", 0),
        "today": today,
        **{name: figures.get(name) for name in names},
        "shared_pairs": shared["items"],
        "agreement": _shown(shared["agreement"]),
    }


_TODAY = """
    SELECT count(*) AS n FROM current_judgments
    WHERE annotator = $annotator AND created_at >= $midnight
"""


def _shown(agreement: float | None) -> float | None:
    if agreement is None:
        return None
    return round(min(max(agreement, 1 - CLEAREST), CLEAREST), 2)
