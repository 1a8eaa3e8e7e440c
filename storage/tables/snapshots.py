"""Snapshots: the judgments that a reward model was trained on.

"Train" freezes the judgments (`Preparation._write_judgments` in pipeline/loop/stage_inputs.py).  A
judgment that arrives later is `waiting` for the next snapshot.  A judgment that is undone later
stays in its snapshots, but not in the next one; the model is not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine.database import Database
from storage.records import AnnotatorKind

# Snapshots grow, so the newest has nearly all judgments of the others: what it lacks is looked up in
# the others, whose rows are many.
_NEW = """
    WITH taken AS MATERIALIZED (
             SELECT DISTINCT judgment FROM snapshot_judgments
             WHERE snapshot IN (SELECT hash FROM snapshots WHERE iteration = $iteration)),
         earlier AS (SELECT hash, judgments FROM snapshots WHERE iteration < $iteration),
         left_over AS MATERIALIZED (
             SELECT judgment FROM taken WHERE judgment NOT IN (
                 SELECT judgment FROM snapshot_judgments
                 WHERE snapshot = (SELECT hash FROM earlier ORDER BY judgments DESC, hash LIMIT 1))),
         older AS MATERIALIZED (
             SELECT judgment FROM snapshot_judgments SEMI JOIN left_over USING (judgment)
             WHERE snapshot IN (SELECT hash FROM earlier))
    SELECT count(*) AS new FROM left_over WHERE judgment NOT IN (FROM older)
    HAVING (SELECT count(*) FROM snapshots WHERE iteration = $iteration) > 0
       AND (SELECT count(*) FROM earlier) > 0
"""
_WAITING = """
    WITH left_over AS MATERIALIZED (
             SELECT j.id AS judgment
             FROM current_judgments AS j
             JOIN annotators AS a ON a.id = j.annotator
             JOIN comparisons AS c ON c.id = j.comparison
             JOIN prompts AS p ON p.id = c.prompt
             WHERE p.role <> 'held-out' AND list_contains($kinds, a.kind)
               AND j.id NOT IN (
                 SELECT judgment FROM snapshot_judgments
                 WHERE snapshot = (SELECT hash FROM snapshots ORDER BY judgments DESC, hash LIMIT 1))),
         older AS MATERIALIZED (
             SELECT judgment FROM snapshot_judgments SEMI JOIN left_over USING (judgment))
    SELECT count(*) AS n FROM left_over WHERE judgment NOT IN (FROM older)
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
