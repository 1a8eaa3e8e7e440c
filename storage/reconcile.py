"""Making the tables and the journal agree at start-up, whichever of the two is behind."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import duckdb

from storage import journal as journals
from storage.codec import KINDS, Entry, Kind
from storage.errors import StorageDamaged
from storage.journal import Journal, Line
from storage.transaction import Tables

_CHUNK = 20_000


def replay(tables: Tables, lines: Iterable[Line]) -> int:
    """Apply journal lines to the tables; returns how many there were.

    Order matters only within a kind, so each chunk is applied kind by kind, in bulk.
    """
    count = 0
    remaining = iter(lines)
    while chunk := list(islice(remaining, _CHUNK)):
        count += len(chunk)
        for name in KINDS:
            _apply(tables, name, [line for line in chunk if line.kind == name])
    return count


def _apply(tables: Tables, kind: str, lines: list[Line]) -> None:
    if lines:
        tables.apply(KINDS[kind], [line.entry for line in lines], skip_stored=True)


def reconcile(
    connection: duckdb.DuckDBPyConnection, journal: Journal, *, thorough: bool
) -> tuple[int, int]:
    """Make both say the same; returns (entries put in the tables, entries put in the journal).

    The database notes in each transaction how long the journal was.  A longer journal holds
    groups whose commit never came: they are applied.  A shorter one has lost its end: what
    only the database has is appended to it.  `thorough` (after an unclean stop) compares every
    record by its key as well, since either file may have lost something in the middle.
    """
    tables = Tables(connection)
    applied = tables.journal_bytes()
    if applied == journal.size and not thorough:
        return 0, 0
    connection.execute("BEGIN")
    try:
        replayed = 0
        lost_its_end = applied > journal.size or not journal.ends_a_line(applied)
        if not lost_its_end:
            replayed = replay(tables, journal.lines(applied))
        added, missing = _compare(tables, journal, trust_tables=lost_its_end)
        if missing:
            journal.append(missing)
        tables.note_journal_bytes(journal.size)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return replayed + added, len(missing)


def _compare(tables: Tables, journal: Journal, *, trust_tables: bool) -> tuple[int, list[bytes]]:
    """Apply what only the journal has; return lines for what only the tables have.

    Where a replaceable record differs, the journal is right, unless it has lost its end.
    """
    last: dict[str, dict[Any, Line]] = {name: {} for name in KINDS}
    for line in journal.lines():
        kind = KINDS[line.kind]
        known = last[line.kind]
        key = line.entry[kind.key]
        if not kind.once or key not in known:
            known[key] = line
    added = 0
    missing: list[bytes] = []
    for name, kind in KINDS.items():
        stored = tables.everything(kind)
        journaled = last[name]
        _check_constant(kind, stored, journaled)
        behind = [
            line
            for key, line in journaled.items()
            if key not in stored
            or not (kind.once or trust_tables or kind.same(stored[key], line.entry))
        ]
        behind.sort(key=lambda line: line.number)
        _apply(tables, name, behind)
        added += len(behind)
        missing += [
            journals.encode(name, entry)
            for key, entry in stored.items()
            if key not in journaled
            or (trust_tables and not kind.once and not kind.same(entry, journaled[key].entry))
        ]
    return added, missing


def _check_constant(kind: Kind, stored: dict[Any, Entry], journaled: dict[Any, Line]) -> None:
    """Raise StorageDamaged where a record that never changes reads differently in the two."""
    for key, line in journaled.items() if kind.once else ():
        if key in stored and not kind.same(stored[key], line.entry):
            raise StorageDamaged(
                f"the {kind.name} {key!r} differs between the database and line {line.number} of "
                "the journal, whose checksum holds; `python launch.py rebuild` trusts the journal"
            )
