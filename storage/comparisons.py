"""Comparisons: pairs of completions that wait for judgments."""

from __future__ import annotations

from collections.abc import Sequence

from storage import lookup
from storage.database import Database
from storage.records import Comparison

_LISTING = """
    SELECT * FROM comparisons WHERE $iteration IS NULL OR iteration = $iteration
    ORDER BY iteration, position, id
"""


def add(db: Database, comparisons: Sequence[Comparison]) -> int:
    """Store comparisons; returns how many were new.  A stored one keeps its position."""
    return db.write(lambda tx: tx.store(*comparisons))


def get(db: Database, comparison: str) -> Comparison:
    """The comparison with this id, or NotFound."""
    return lookup.by_key(db, Comparison, comparison)


def listing(db: Database, iteration: int | None = None) -> list[Comparison]:
    """All comparisons, or those of one iteration, in the order the queue serves them."""
    return lookup.select(db, Comparison, _LISTING, iteration=iteration)
