"""One group of operations on its way to the tables and the journal.

Records handed to `Transaction.store` are held back and written in bulk: one INSERT for each
table and one journal write for the whole group.  SQL flushes them first, so it always sees
what the transaction has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import duckdb

from storage.engine import journal
from storage.engine.codec import KINDS, Entry, Kind, columns_of, entry_of_row, kind_of, to_entry
from storage.errors import Conflict, StorageDamaged
from storage.records import now

Rows = list[dict[str, Any]]
_BYTES = "SELECT value FROM meta WHERE key = 'journal_bytes'"
_ORDERED = tuple(kind.table for kind in KINDS.values() if kind.ordered)
_ACT_NUMBERS = " UNION ALL ".join(f"SELECT id, seq FROM {table}" for table in _ORDERED)
_LAST_ACT = f"SELECT coalesce(max(seq), 0) AS seq FROM ({_ACT_NUMBERS})"
_RENUMBER = """
    UPDATE {table} SET seq = n.seq FROM (SELECT unnest($ids) AS id, unnest($numbers) AS seq) AS n
    WHERE n.id = {table}.id
"""
_SHOWN = 40
_SET_BYTES = "UPDATE meta SET value = $bytes WHERE key = 'journal_bytes'"


class Tables:
    """Bulk access to the tables of one connection.  Every identifier comes from the schema."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._types: dict[str, dict[str, str]] = {}
        for table, column, data_type in connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() "
            "WHERE NOT internal AND database_name = current_database()"
        ).fetchall():
            self._types.setdefault(table, {})[column] = data_type
        self.last_act = 0
        """The highest `seq`; whoever rolls acts back puts it back too, so that none is left out."""
        if "seq" in self._types.get("judgments", {}):
            self.last_act = int(self.rows(_LAST_ACT, {})[0]["seq"])

    def numbered(self, kind: Kind, entry: Entry) -> Entry:
        """The entry as a row: with the next `seq` where the kind is ordered."""
        if not kind.ordered:
            return entry
        self.last_act += 1
        return {**entry, "seq": self.last_act}

    def act_numbers(self) -> dict[str, int]:
        """The `seq` of every act by its id."""
        return {row["id"]: row["seq"] for row in self.rows(_ACT_NUMBERS, {})}

    def renumber(self, acts: Sequence[str]) -> None:
        """Number all acts anew, in the order of these ids."""
        parameters = {"ids": list(acts), "numbers": list(range(1, len(acts) + 1))}
        for table in _ORDERED:
            self.rows(_RENUMBER.format(table=table), parameters)
        self.last_act = len(acts)

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Run a query and return its rows as dicts; JSON columns come as text."""
        return fetch(self.connection, sql, parameters)

    def journal_bytes(self) -> int:
        """How long the journal was when the tables were last committed; StorageDamaged where the
        note of it is no number."""
        return bytes_noted(self.rows(_BYTES, {})[0]["value"])

    def unreadable(self) -> list[str]:
        """What cannot be read, in sentences.  DuckDB looks at a block when it is asked for."""
        found: list[str] = []
        for table in self._types:
            try:
                self.rows(f'SELECT bit_xor(hash(t)) FROM "{table}" AS t', {})
            except duckdb.Error as error:
                found.append(
                    f"the table {table} cannot be read ({error}); `python launch.py rebuild` makes "
                    "the database again from the journal"
                )
        return found

    def note_journal_bytes(self, size: int) -> None:
        """Note how long the journal is with what this transaction holds."""
        self.rows(_SET_BYTES, {"bytes": str(size)})

    def apply(self, kind: Kind, entries: Sequence[Entry], *, skip_stored: bool = False) -> None:
        """Put journal entries of one kind into the tables: the only way a record gets there.

        `skip_stored` leaves out ids the table has; without it such an id is a
        `duckdb.ConstraintException`.  Replaceable kinds take the last entry of each key.
        """
        if kind.expand is not None:
            entries = kind.expand(self, entries, skip_stored=skip_stored)
        if not kind.once:
            entries = list({entry[kind.key]: entry for entry in entries}.values())
            self.insert(kind.table, entries, replace=kind.key)
        elif skip_stored:
            stored = self.stored_keys(kind, [entry[kind.key] for entry in entries])
            fresh = {e[kind.key]: e for e in reversed(entries) if e[kind.key] not in stored}
            self.insert(kind.table, list(reversed(fresh.values())))
        else:
            self.insert(kind.table, entries)
        if kind.stored is not None:
            kind.stored(self, entries)

    def insert(
        self,
        table: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        replace: str | None = None,
    ) -> None:
        """Insert rows in one statement (one array a column: 20 times quicker than row by row).

        With `replace`, the columns of the key, a row already there takes the new values.
        """
        if not rows:
            return
        types = self._types[table]
        columns = columns_of([dict(row) for row in rows])
        unknown = sorted(columns.keys() - types.keys())
        if unknown:
            raise ValueError(f"{table} has no column {', '.join(unknown)}; update Kitestring")
        # JSON travels as text: DuckDB checks it when the column takes it.
        values = ", ".join(
            f"unnest(${name}::{'VARCHAR' if types[name] == 'JSON' else types[name]}[]) AS {name}"
            for name in columns
        )
        sql = f"INSERT INTO {table} BY NAME SELECT {values}"
        if replace is not None:
            keys = [part.strip() for part in replace.split(",")]
            updates = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
            sql += f" ON CONFLICT ({replace}) DO UPDATE SET {updates}"
        self.connection.execute(sql, columns)

    def stored_keys(self, kind: Kind, keys: Sequence[Any]) -> set[Any]:
        """Which of the keys the table of this kind has."""
        sql = (
            f"SELECT {kind.key} AS key FROM {kind.table} WHERE {kind.key} IN (SELECT unnest($keys))"
        )
        return {row["key"] for row in self.rows(sql, {"keys": list(keys)})}

    def stored(self, kind: Kind, keys: Sequence[Any]) -> dict[Any, Entry]:
        """The entries of those keys that the table of this kind has."""
        if not keys:
            return {}
        sql = f"SELECT * FROM {kind.table} WHERE {kind.key} IN (SELECT unnest($keys))"
        return self._entries(kind, self.rows(sql, {"keys": list(keys)}))

    def everything(self, kind: Kind) -> dict[Any, Entry]:
        """Every entry of this kind, by key, in the order of the keys."""
        return self._entries(kind, self.rows(f"SELECT * FROM {kind.table} ORDER BY {kind.key}", {}))

    def _entries(self, kind: Kind, rows: Rows) -> dict[Any, Entry]:
        if kind.gather is not None:
            kind.gather(self, rows)
        try:
            return {row[kind.key]: entry_of_row(kind, row) for row in rows}
        except ValueError as error:
            raise StorageDamaged(f"a {kind.name} that is stored is not valid: {error}") from None


def bytes_noted(value: str | None) -> int:
    """The length of the journal that a database notes; StorageDamaged where it is no number."""
    # int() takes signs, spaces and every script's digits, and no file is longer than 19 digits say.
    if value is None or not (value.isascii() and value.isdigit() and len(value) < 20):
        raise StorageDamaged(
            f"the database notes {str(value)[:_SHOWN]!r} as the length of the journal, "
            "which is not a number of bytes"
        )
    return int(value)


def fetch(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any]) -> Rows:
    """Run SQL with $name parameters and return its rows as dicts."""
    result = connection.execute(sql, dict(parameters))
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


Encoded = dict[str, list[tuple[Any, Entry, bytes]]]
"""Records by the name of their kind, each with its entry and its line of the journal."""


def encode(records: Iterable[Any]) -> Encoded:
    """Records as they will be stored; a text that cannot be written refuses them all."""
    encoded: Encoded = {}
    for record in records:
        name, entry = kind_of(record).name, to_entry(record)
        encoded.setdefault(name, []).append((record, entry, journal.encode(name, entry)))
    return encoded


class Observer(Protocol):
    """A memory of the tables that follows what is stored; see `Database.observer`."""

    def apply(self, record: object) -> None:
        """Follow a record that has just been stored."""

    def forget(self) -> None:
        """Drop everything: a transaction was rolled back."""


Observed = TypeVar("Observed", bound=Observer)


class Observers:
    """The observers of a database by their class, each made when it is first asked for."""

    def __init__(self) -> None:
        self._of: dict[type, Any] = {}

    def get(self, kind: type[Observed]) -> Observed:
        """The one observer of this class; a new one has to read the tables for what it needs."""
        if kind not in self._of:
            self._of[kind] = kind()
        return self._of[kind]

    def apply(self, record: object) -> None:
        for observer in self._of.values():
            observer.apply(record)

    def forget(self) -> None:
        for observer in self._of.values():
            observer.forget()


class Transaction:
    """What an operation passed to `Database.write` works with; lives in the writer thread.

    `careful` is set when a group is run again one by one after a failure: `store` then looks
    up every id instead of leaving it to the unique index.
    """

    def __init__(
        self, tables: Tables, observers: Observers, *, now: Callable[[], datetime], careful: bool
    ) -> None:
        self.now = now
        self.careful = careful
        self.lines: list[bytes] = []
        self.wrote = False
        self.broken = False
        self.people_changed = False
        self._tables = tables
        self._observers = observers
        self._pending: dict[str, dict[Any, Entry]] = {}
        self._deferred: dict[tuple[str, str | None], dict[Any, dict[str, Any]]] = {}

    def observer(self, kind: type[Observed]) -> Observed:
        """The database's observer of this class."""
        return self._observers.get(kind)

    def rows(self, sql: str, /, **parameters: Any) -> Rows:
        """Rows as dicts; they include what this transaction has written."""
        self.flush()
        try:
            return self._tables.rows(sql, parameters)
        except duckdb.Error:
            # DuckDB has aborted the transaction: its COMMIT would return normally and keep nothing.
            self.broken = True
            raise

    def execute(self, sql: str, /, **parameters: Any) -> None:
        """Write something that is not journaled and that a rebuild does without."""
        self.wrote = True
        self.rows(sql, **parameters)

    def insert(
        self, table: str, rows: Sequence[Mapping[str, Any]], *, replace: str | None = None
    ) -> None:
        """Bulk insert of rows that are not journaled; `replace` names the key to update by."""
        self.wrote = True
        self.flush()
        self._guarded(lambda: self._tables.insert(table, rows, replace=replace))

    def store(self, *records: Any, fresh: bool = False) -> int:
        """Store records in the tables and the journal; returns how many were new.

        A stored record of a kind that never changes must say the same, or it is a Conflict.
        Other kinds are replaced.  `fresh` promises that the ids are new; the unique index
        holds the caller to it.
        """
        return self.store_encoded(encode(records), fresh=fresh)

    def store_encoded(self, encoded: Encoded, *, fresh: bool = False) -> int:
        """The same for records that were encoded before, outside the writer thread."""
        return sum(
            self._store_kind(KINDS[name], group, fresh=fresh and not self.careful)
            for name, group in encoded.items()
        )

    def _store_kind(self, kind: Kind, group: list[tuple[Any, Entry, bytes]], *, fresh: bool) -> int:
        pending = self._pending.get(kind.name, {})
        keys = [entry[kind.key] for _, entry, _ in group]
        known: dict[Any, Entry] = {}
        if not fresh:
            unseen = [key for key in keys if key not in pending]
            self._guarded(lambda: known.update(self._tables.stored(kind, unseen)))
        known.update((key, pending[key]) for key in keys if key in pending)
        accepted: list[tuple[Any, Entry, bytes]] = []
        new = 0
        for record, entry, line in group:
            earlier = known.get(entry[kind.key])
            if earlier is not None and kind.same(earlier, entry):
                continue
            if earlier is not None and kind.once:
                raise Conflict(
                    f"a different {kind.name} is already stored under the id {entry[kind.key]!r}"
                )
            new += earlier is None
            known[entry[kind.key]] = entry
            accepted.append((record, entry, line))
        for record, entry, line in accepted:
            self.wrote = True
            self.people_changed = self.people_changed or kind.people
            row = self._tables.numbered(kind, entry)
            self._pending.setdefault(kind.name, {})[entry[kind.key]] = row
            self.lines.append(line)
            self._observers.apply(record)
        return new

    def defer(self, table: str, key: Any, row: dict[str, Any], *, replace: str | None) -> None:
        """Hold back a row that is not journaled until the next `flush`, one bulk insert a table.

        A later row of the same `key` takes its place.  `replace` names the columns to update by
        where the table may have the row already; a row first deferred without stays an insert.
        """
        self.wrote = True
        fresh = self._deferred.setdefault((table, None), {})
        rows = fresh if key in fresh else self._deferred.setdefault((table, replace), {})
        rows[key] = row

    def flush(self) -> None:
        """Send to the tables what `store` and `defer` have held back."""
        self._guarded(self._flush)

    def _flush(self) -> None:
        while self._pending:
            name = next(iter(self._pending))
            self._tables.apply(KINDS[name], list(self._pending.pop(name).values()))
        deferred, self._deferred = self._deferred, {}
        for (table, replace), rows in deferred.items():
            self._tables.insert(table, list(rows.values()), replace=replace)

    def note_journal_bytes(self, size: int) -> None:
        """Note in the same transaction how long the journal is with this group in it."""
        self._guarded(lambda: self._tables.note_journal_bytes(size))

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except duckdb.Error:
            self.broken = True
            raise


class Clock:
    """Times that never repeat or run backwards within one process: they order the acts."""

    def __init__(self) -> None:
        self._last: datetime | None = None

    def __call__(self) -> datetime:
        moment = now()
        if self._last is not None and moment <= self._last:
            moment = self._last + timedelta(microseconds=1)
        self._last = moment
        return moment
