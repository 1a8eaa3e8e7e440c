"""Completions: the responses of policies."""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine.database import Database
from storage.records import Completion


def add(db: Database, completions: Sequence[Completion]) -> int:
    """Store completions; returns the number of new ones."""
    return db.write(lambda tx: tx.store(*completions))
