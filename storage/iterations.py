"""Iterations: turns of the loop."""

from __future__ import annotations

from storage import lookup
from storage.database import Database
from storage.records import Iteration

_LATEST = "SELECT * FROM iterations ORDER BY number DESC LIMIT 1"
_LISTING = "SELECT * FROM iterations ORDER BY number"


def save(db: Database, iteration: Iteration) -> Iteration:
    """Store an iteration in place of the one with the same number."""
    db.write(lambda tx: tx.store(iteration))
    return iteration


def get(db: Database, number: int) -> Iteration:
    """The iteration with this number, or NotFound."""
    return lookup.by_key(db, Iteration, number)


def latest(db: Database) -> Iteration | None:
    """The newest iteration, or None before the first."""
    found = lookup.select(db, Iteration, _LATEST)
    return found[0] if found else None


def listing(db: Database) -> list[Iteration]:
    """All iterations, first to last."""
    return lookup.select(db, Iteration, _LISTING)
