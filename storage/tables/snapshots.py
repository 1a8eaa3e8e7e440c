"""Snapshots: which judgments a reward model was trained on.

A judgment undone later stays in the snapshots it is in; the next one differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import AnnotatorKind, Snapshot

_MEMBERS = "SELECT judgment FROM snapshot_judgments WHERE snapshot = $hash ORDER BY judgment"
_ROW = "SELECT * FROM snapshots WHERE hash = $hash"
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


def add(db: Database, snapshot: Snapshot) -> int:
    """Store a snapshot; taking the same one again changes nothing."""
    return db.write(lambda tx: tx.store(snapshot))


def new_in(db: Database, iteration: int) -> int | None:
    """How many judgments this iteration trains on that none did before.

    None before it trains, and in the first iteration that does.
    """
    rows = db.read(_NEW, iteration=iteration)
    return rows[0]["new"] if rows else None


def waiting(db: Database, kinds: Sequence[AnnotatorKind]) -> int:
    """How many judgments by these kinds of annotators no training has learned from yet."""
    return db.read(_WAITING, kinds=list(kinds))[0]["n"]


def get(db: Database, snapshot: str) -> Snapshot:
    """The snapshot with this hash, its judgments' ids in order, or NotFound."""
    rows = db.read(_ROW, hash=snapshot)
    if not rows:
        raise NotFound(f"there is no snapshot {snapshot!r}")
    members = tuple(row["judgment"] for row in db.read(_MEMBERS, hash=snapshot))
    return from_row(Snapshot, {**rows[0], "judgments": members})
