"""Completions: what policies answered."""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine import lookup
from storage.engine.database import Database
from storage.records import Completion


def add(db: Database, completions: Sequence[Completion]) -> int:
    """Store completions; returns how many were new."""
    return db.write(lambda tx: tx.store(*completions))


def get(db: Database, completion: str) -> Completion:
    """The completion with this id, or NotFound."""
    return lookup.by_key(db, Completion, completion)


def get_many(db: Database, completions: Sequence[str]) -> dict[str, Completion]:
    """The completions that exist with these ids, by id."""
    return lookup.by_keys(db, Completion, completions)
