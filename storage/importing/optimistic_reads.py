"""Plans made beside the writer thread: making and encoding them takes long, and all writes wait for it.

The writer repeats their reads, to see whether they still hold.
"""

from __future__ import annotations

from typing import Any

from storage.engine.database import Database
from storage.engine.transaction import Transaction


class OptimisticReads:
    """Reads for a plan made outside the writer thread, which may find them to be true no more."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seen: list[tuple[str, dict[str, Any], list[str]]] = []

    def rows(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Rows as dicts, remembered with the question."""
        found = self._db.read(sql, **parameters)
        self._seen.append((sql, parameters, _unordered(found)))
        return found

    def still_valid(self, tx: Transaction) -> bool:
        """Whether every question has the same answer now."""
        return all(_unordered(tx.rows(sql, **asked)) == found for sql, asked, found in self._seen)


def _unordered(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))
