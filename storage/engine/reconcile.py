"""Reconciles the tables and the journal at start-up, whichever of them is behind.

`Database._connect` calls `reconcile`.  Records that only the journal has are applied to the tables;
records that only the tables have are appended to the journal.  If the two contradict each other,
the workspace stays closed and the error says how to repair it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import duckdb

from storage.engine import journal as journals
from storage.engine.codec import KINDS, Entry, Kind
from storage.engine.journal import Journal, Line
from storage.engine.transaction import Tables
from storage.errors import JournalDamaged, StorageDamaged

_CHUNK = 20_000
REWRITE = (
    "move the journal out of the workspace and start again: the journal is then rewritten from the "
    "database, and no record in the database is lost"
)
GO_BACK = "restore a backup with `python launch.py restore`"


def replay(tables: Tables, lines: Iterable[Line]) -> int:
    """Apply journal lines to the tables; returns their number.

    Order matters only within a kind, so each chunk is applied in bulk, kind by kind.
    """
    count = 0
    remaining = iter(lines)
    while chunk := list(islice(remaining, _CHUNK)):
        count += len(chunk)
        _apply(tables, chunk)
    return count


def _apply(tables: Tables, lines: list[Line]) -> None:
    rows: dict[str, list[Entry]] = {name: [] for name in KINDS}
    known = {name: _stored_acts(tables, kind, lines) for name, kind in KINDS.items()}
    for line in lines:
        kind, entry = KINDS[line.kind], line.entry
        if kind.ordered:  # a line may occur twice, and only the first gets a number
            if entry[kind.key] in known[kind.name]:
                continue
            known[kind.name].add(entry[kind.key])
        rows[line.kind].append(tables.numbered(kind, entry))
    for name, entries in rows.items():
        if entries:
            tables.apply(KINDS[name], entries, skip_stored=True)


def _stored_acts(tables: Tables, kind: Kind, lines: list[Line]) -> set[Any]:
    keys = [line.entry[kind.key] for line in lines if kind.ordered and line.kind == kind.name]
    return tables.stored_keys(kind, keys) if keys else set()


def reconcile(connection: duckdb.DuckDBPyConnection, journal: Journal, *, thorough: bool) -> None:
    """Add to the tables what only the journal has, and to the journal what only the tables have.

    Each transaction stores the length of the journal.  A longer journal has groups that were never
    committed: they are applied.  A shorter journal has lost its end: records that only the database
    has are appended to it.  `thorough` (after an unclean stop) also compares every record by its
    key, because either file may have lost records in the middle.

    Damaged lines beyond the committed length are set aside in a file beside the journal.  Damaged
    lines within it raise StorageDamaged; the message first names the repair that loses nothing.
    """
    tables = Tables(connection)
    applied = tables.journal_bytes()
    # An empty database cannot tell which lines were committed: it may have been lost.
    if 0 < applied < journal.size and journal.ends_a_line(applied):
        journal.set_aside_damage(applied)
    if applied == journal.size and not thorough:
        return
    try:
        _synchronize(connection, tables, journal, applied)
    except JournalDamaged as error:
        ways = (
            f"To lose nothing, {REWRITE}. Or {GO_BACK}"
            if applied
            else f"The database is empty: {GO_BACK}"
        )
        raise StorageDamaged(f"{error}. {ways}") from None


def _synchronize(
    connection: duckdb.DuckDBPyConnection, tables: Tables, journal: Journal, applied: int
) -> None:
    connection.execute("BEGIN")
    try:
        lost_its_end = applied > journal.size or not journal.ends_a_line(applied)
        if not lost_its_end:
            replay(tables, journal.lines(applied))
        if missing := _compare(tables, journal, trust_tables=lost_its_end):
            journal.append(missing)
        tables.store_journal_bytes(journal.size)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _compare(tables: Tables, journal: Journal, *, trust_tables: bool) -> list[bytes]:
    """Apply what only the journal has; return lines for what only the tables have.

    If a mutable record differs, the journal takes precedence, unless it has lost its end.
    """
    last = _last_lines(journal)
    numbers = tables.act_numbers()
    behind: list[Line] = []
    missing: list[tuple[int, str, bytes]] = []
    for name, kind in KINDS.items():
        stored = tables.stored(kind)
        journaled = last[name]
        _check_immutable(kind, stored, journaled)
        behind += [
            line
            for key, line in journaled.items()
            if key not in stored
            or not (kind.immutable or trust_tables or kind.same(stored[key], line.entry))
        ]
        missing += [
            (numbers[key] if kind.ordered else 0, str(key), journals.encode(name, entry))
            for key, entry in stored.items()
            if key not in journaled
            or (trust_tables and not kind.immutable and not kind.same(entry, journaled[key].entry))
        ]
    behind.sort(key=lambda line: line.number)
    _apply(tables, behind)
    missing.sort(key=lambda line: line[0])  # acts in their order, after everything else
    if behind or missing:
        acts = [
            line for name, kind in KINDS.items() if kind.ordered for line in last[name].values()
        ]
        acts.sort(key=lambda line: line.number)
        later = [key for number, key, _ in missing if number]
        tables.renumber([*(line.entry["id"] for line in acts), *later])
    return [line for _, _, line in missing]


def _last_lines(journal: Journal) -> dict[str, dict[Any, Line]]:
    """The effective line of each key, by kind: the first for immutable kinds, else the last."""
    last: dict[str, dict[Any, Line]] = {name: {} for name in KINDS}
    for line in journal.lines():
        kind, known = KINDS[line.kind], last[line.kind]
        key = line.entry[kind.key]
        if not kind.immutable or key not in known:
            known[key] = line
    return last


def _check_immutable(kind: Kind, stored: dict[Any, Entry], journaled: dict[Any, Line]) -> None:
    """Raise StorageDamaged if an immutable record differs between tables and journal."""
    for key, line in journaled.items() if kind.immutable else ():
        if key in stored and not kind.same(stored[key], line.entry):
            raise StorageDamaged(
                f"the {kind.name} {key!r} differs between the database and line {line.number} of "
                "the journal, whose checksum is valid; `python launch.py rebuild` rebuilds the "
                "database from the journal"
            )


def require_own_runs(tables: Tables) -> None:
    """Raise StorageDamaged if the directory of a stored run is outside the workspace: a manipulated
    backup could otherwise make the studio read and write files anywhere."""
    for kind in ("run", "study_run"):
        tables.stored(KINDS[kind])
