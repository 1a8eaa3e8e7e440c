"""Snapshots: the judgments that a reward model was trained on.

"Train" freezes the judgments (`Preparation._write_judgments` in pipeline/loop/stage_inputs.py).  A
judgment that arrives later is `waiting` for the next snapshot.  A judgment that is undone later
stays in its snapshots, but not in the next one; the model is not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine.database import Database
from storage.records import AnnotatorKind

_NEW = """
    WITH taken AS (SELECT hash FROM snapshots WHERE iteration = $iteration),
         earlier AS (SELECT hash FROM snapshots WHERE iteration < $iteration)
    SELECT count(*) FILTER (judgment NOT IN (
               SELECT judgment FROM snapshot_judgments WHERE snapshot IN (FROM earlier))) AS new
    FROM snapshot_judgments WHERE snapshot IN (FROM taken)
    HAVING (SELECT count(*) FROM taken) > 0 AND (SELECT count(*) FROM earlier) > 0
"""
_WAITING = """
    SELECT count(*) AS n
    FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    WHERE p.role <> 'held-out' AND list_contains($kinds, a.kind)
      AND j.id NOT IN (SELECT judgment FROM snapshot_judgments)
"""


def new_in(db: Database, iteration: int) -> int | None:
    """The number of judgments that this iteration is the first to train on.

    None before it trains, and in the first iteration that trains.
    """
    rows = db.read(_NEW, iteration=iteration)
    return rows[0]["new"] if rows else None


def waiting(db: Database, kinds: Sequence[AnnotatorKind]) -> int:
    """The number of current judgments by these kinds of annotators that are in no snapshot yet."""
    return db.read(_WAITING, kinds=list(kinds))[0]["n"]
