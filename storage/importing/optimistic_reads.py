"""Reads for plans that are made outside the writer thread, so that it does not wait for them.

The writer thread repeats the reads to check that the results are unchanged.
"""

from __future__ import annotations

from typing import Any

from storage.engine.database import Database
from storage.engine.transaction import Transaction


class OptimisticReads:
    """A `Reader` that records its queries and their results."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seen: list[tuple[str, dict[str, Any], list[str]]] = []

    def rows(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Rows as dicts."""
        found = self._db.read(sql, **parameters)
        self._seen.append((sql, parameters, _unordered(found)))
        return found

    def still_valid(self, tx: Transaction) -> bool:
        """Whether every query still returns the same rows, in any order."""
        return all(_unordered(tx.rows(sql, **asked)) == found for sql, asked, found in self._seen)


def _unordered(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))
