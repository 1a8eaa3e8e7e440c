"""A transaction: a group of operations that is written to the tables and the journal.

`Transaction.store` collects records and writes them in bulk: one INSERT for each table and one
journal write for the group.  Queries flush them first, so they see what the transaction has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, cast

import duckdb

from storage.audit_records import Actor, AuditEntry
from storage.engine import journal
from storage.engine.codec import KINDS, Entry, Kind, columns_of, from_row, kind_of, to_entry
from storage.errors import Conflict, StorageDamaged
from storage.records import new_id, now

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
_MAX_SUBJECTS = 10
_SET_BYTES = "UPDATE meta SET value = $bytes WHERE key = 'journal_bytes'"


class Tables:
    """Bulk access to the tables of one connection.  All identifiers in SQL come from the schema."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._types: dict[str, dict[str, str]] = {}
        for table, column, data_type in connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() "
            "WHERE NOT internal AND database_name = current_database()"
        ).fetchall():
            self._types.setdefault(table, {})[column] = data_type
        self.last_act = 0
        """The highest `seq`.  A rollback must restore it, so that numbers have no gaps."""
        if "seq" in self._types.get("judgments", {}):
            self.last_act = int(self.rows(_LAST_ACT, {})[0]["seq"])

    def numbered(self, kind: Kind, entry: Entry) -> Entry:
        """The entry as a row, with the next `seq` if the kind is ordered."""
        if not kind.ordered:
            return entry
        self.last_act += 1
        return {**entry, "seq": self.last_act}

    def act_numbers(self) -> dict[str, int]:
        """The `seq` of every act by its id."""
        return {row["id"]: row["seq"] for row in self.rows(_ACT_NUMBERS, {})}

    def renumber(self, acts: Sequence[str]) -> None:
        """Number all acts again, in the order of these ids."""
        parameters = {"ids": list(acts), "numbers": list(range(1, len(acts) + 1))}
        for table in _ORDERED:
            self.rows(_RENUMBER.format(table=table), parameters)
        self.last_act = len(acts)

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Run a query and return its rows as dicts; JSON columns come as text."""
        return fetch(self.connection, sql, parameters)

    def journal_bytes(self) -> int:
        """The length of the journal at the last commit; StorageDamaged if it is not a number."""
        return parse_journal_bytes(self.rows(_BYTES, {})[0]["value"])

    def unreadable(self) -> list[str]:
        """A sentence for each table that cannot be read; reading a block checks it."""
        found: list[str] = []
        for table in self._types:
            try:
                self.rows(f'SELECT bit_xor(hash(t)) FROM "{table}" AS t', {})
            except duckdb.Error as error:
                found.append(
                    f"the table {table} cannot be read ({error}); `python launch.py rebuild` rebuilds "
                    "the database from the journal"
                )
        return found

    def store_journal_bytes(self, size: int) -> None:
        """Store the length that the journal has with the lines of this transaction."""
        self.rows(_SET_BYTES, {"bytes": str(size)})

    def apply(self, kind: Kind, entries: Sequence[Entry], *, skip_stored: bool = False) -> None:
        """Write journal entries of one kind to the tables.  All writes of records end here.

        `skip_stored` skips ids that the table has; without it such an id raises
        `duckdb.ConstraintException`.  For replaceable kinds the last entry of a key wins.
        """
        if kind.expand is not None:
            entries = kind.expand(self, entries)
        if not kind.immutable:
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
        """Insert rows in one statement (one array per column: 20 times as fast as row by row).

        `replace` names the key columns, separated by commas: a row with the same key is updated.
        """
        if not rows:
            return
        types = self._types[table]
        columns = columns_of(rows)
        unknown = sorted(columns.keys() - types.keys())
        if unknown:
            raise ValueError(f"{table} has no column {', '.join(unknown)}; update Kitestring")
        # JSON is passed as text; DuckDB checks it when it stores it.
        values = ", ".join(
            f"unnest(${name}::{'VARCHAR' if types[name] == 'JSON' else types[name]}[]) AS {name}"
            for name in columns
        )
        sql = f"INSERT INTO {table} BY NAME SELECT {values}"
        if replace is not None:
            keys = replace.replace(" ", "").split(",")
            updates = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
            sql += f" ON CONFLICT ({replace}) DO UPDATE SET {updates}"
        self.connection.execute(sql, columns)

    def stored_keys(self, kind: Kind, keys: Sequence[Any]) -> set[Any]:
        """The members of `keys` that the table of this kind has."""
        sql = (
            f"SELECT {kind.key} AS key FROM {kind.table} WHERE {kind.key} IN (SELECT unnest($keys))"
        )
        return {row["key"] for row in self.rows(sql, {"keys": list(keys)})}

    def stored(self, kind: Kind, keys: Sequence[Any] | None = None) -> dict[Any, Entry]:
        """The stored entries of this kind with these keys (None: all), by key, in key order."""
        if keys is not None and not keys:
            return {}
        where = "" if keys is None else f"WHERE {kind.key} IN (SELECT unnest($keys))"
        sql = f"SELECT * FROM {kind.table} {where} ORDER BY {kind.key}"
        rows = self.rows(sql, {} if keys is None else {"keys": list(keys)})
        if kind.gather is not None:
            kind.gather(self, rows)
        try:
            return {row[kind.key]: to_entry(from_row(kind.record, row)) for row in rows}
        except ValueError as error:
            raise StorageDamaged(f"a stored {kind.name} is not valid: {error}") from None


def parse_journal_bytes(value: str | None) -> int:
    """The length of the journal that a database stores; StorageDamaged if it is not a number."""
    # int() accepts signs, spaces and digits of all scripts; lengths of files have at most 19 digits.
    if value is None or not (value.isascii() and value.isdigit() and len(value) < 20):
        raise StorageDamaged(
            f"the database stores {str(value)[:_SHOWN]!r} as the length of the journal, "
            "which is not a number of bytes"
        )
    return int(value)


def fetch(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any]) -> Rows:
    """Run SQL with $name parameters and return its rows as dicts."""
    result = connection.execute(sql, dict(parameters))
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


Encoded = dict[str, list[tuple[Any, Entry, bytes]]]
"""By the name of the kind: records, each with its entry and its line of the journal."""


def encode(records: Iterable[Any]) -> Encoded:
    """Records as they will be stored; ValueError if a text is not valid UTF-8."""
    encoded: Encoded = {}
    for record in records:
        name, entry = kind_of(type(record)).name, to_entry(record)
        encoded.setdefault(name, []).append((record, entry, journal.encode(name, entry)))
    return encoded


class Observer(Protocol):
    """A cache of the tables that is updated with each stored record."""

    def apply(self, record: object) -> None:
        """Update the cache with a record that has just been stored."""

    def forget(self) -> None:
        """Clear the cache: a transaction was rolled back."""


Observed = TypeVar("Observed", bound=Observer)


class Transaction:
    """The argument of an operation that is passed to `Database.write`; used in the writer thread.

    `careful` is set when operations are run again one by one after a failure: `store` then looks
    up every id instead of relying on the unique index.
    """

    def __init__(
        self,
        tables: Tables,
        observers: dict[type, Observer],
        *,
        now: Callable[[], datetime],
        careful: bool,
    ) -> None:
        self.now = now
        self.careful = careful
        self.lines: list[bytes] = []
        self.wrote = False
        self.broken = False
        self.accounts_changed = False
        self._tables = tables
        self._observers = observers
        self._actor: Actor | None = None
        self._notes: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self._pending: dict[str, dict[Any, Entry]] = {}
        self._deferred: dict[tuple[str, str | None], dict[Any, dict[str, Any]]] = {}

    def observer(self, kind: type[Observed]) -> Observed:
        """The database's observer of this class, created empty at its first use."""
        if kind not in self._observers:
            self._observers[kind] = kind()
        return cast("Observed", self._observers[kind])

    def rows(self, sql: str, /, **parameters: Any) -> Rows:
        """Rows as dicts; they include what this transaction has written."""
        self.flush()
        with self._record_failure():
            return self._tables.rows(sql, parameters)

    def execute(self, sql: str, /, **parameters: Any) -> None:
        """Write data that is not journaled; a rebuild loses it."""
        self.wrote = True
        self.rows(sql, **parameters)

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Bulk insert of rows that are not journaled."""
        self.wrote = True
        self.flush()
        with self._record_failure():
            self._tables.insert(table, rows)

    def store(self, *records: Any, fresh: bool = False) -> int:
        """Store records in the tables and the journal; returns how many were new.

        Raises Conflict if different content is stored under the id of an immutable record; mutable
        records are replaced.  `fresh` says that the ids are new, which saves a query; the unique
        index checks it.
        """
        return self.store_encoded(encode(records), fresh=fresh)

    def store_encoded(self, encoded: Encoded, *, fresh: bool = False) -> int:
        """Like `store`, for records that were encoded outside the writer thread."""
        return sum(
            self._store_kind(KINDS[name], group, fresh=fresh and not self.careful)
            for name, group in encoded.items()
        )

    def _store_kind(self, kind: Kind, group: list[tuple[Any, Entry, bytes]], *, fresh: bool) -> int:
        pending = self._pending.get(kind.name, {})
        keys = [entry[kind.key] for _, entry, _ in group]
        known: dict[Any, Entry] = {}
        if not fresh:
            with self._record_failure():
                known = self._tables.stored(kind, [key for key in keys if key not in pending])
        known.update((key, pending[key]) for key in keys if key in pending)
        accepted: list[tuple[Any, Entry, bytes]] = []
        new = 0
        for record, entry, line in group:
            earlier = known.get(entry[kind.key])
            if earlier is not None and kind.same(earlier, entry):
                continue
            if earlier is not None and kind.immutable:
                raise Conflict(
                    f"a different {kind.name} is already stored under the id {entry[kind.key]!r}"
                )
            if self._actor is not None and kind.audit is not None:
                noted = kind.audit(earlier, entry)
                if noted is not None:
                    self.note(noted.action, noted.subject, noted.details)
            new += earlier is None
            known[entry[kind.key]] = entry
            accepted.append((record, entry, line))
        for record, entry, line in accepted:
            self.wrote = True
            self.accounts_changed = self.accounts_changed or kind.accounts
            row = self._tables.numbered(kind, entry)
            self._pending.setdefault(kind.name, {})[entry[kind.key]] = row
            self.lines.append(line)
            for observer in self._observers.values():
                observer.apply(record)
        return new

    @contextmanager
    def acting(self, who: Actor | None) -> Iterator[None]:
        """Note in the audit log what the block changes for this person."""
        self._actor = who
        try:
            yield
            self._store_notes()
        finally:
            self._actor = None
            self._notes = {}

    def note(self, action: str, subject: str, details: Mapping[str, Any]) -> None:
        """Note an action in the audit log; equal actions on one subject become one entry."""
        if self._actor is not None:
            self._notes.setdefault((action, subject), []).append(details)

    def _store_notes(self) -> None:
        assert self._actor is not None
        for (action, subject), details in self._few_notes():
            count = {"count": len(details)} if len(details) > 1 else {}
            entry = AuditEntry(
                id=new_id(),
                action=action,
                subject=subject,
                actor=self._actor.account,
                via=self._actor.via,
                details={**details[-1], **count},
                created_at=self.now(),
            )
            self.store(entry, fresh=True)

    def _few_notes(self) -> Iterator[tuple[tuple[str, str], list[Mapping[str, Any]]]]:
        """The notes; if an action has many subjects, as in an import, they are one note."""
        for action in dict.fromkeys(action for action, _ in self._notes):
            found = {key: each for key, each in self._notes.items() if key[0] == action}
            if len(found) <= _MAX_SUBJECTS:
                yield from found.items()
            else:
                yield (action, ""), [{}] * sum(map(len, found.values()))

    def defer(self, table: str, key: Any, row: dict[str, Any], *, replace: str | None) -> None:
        """Delay writing a row that is not journaled until the next `flush`.

        A later row of the same `key` replaces it.  `replace` names the key columns if the table may
        have the row already; a row that was first deferred without it stays an insert.
        """
        self.wrote = True
        fresh = self._deferred.setdefault((table, None), {})
        rows = fresh if key in fresh else self._deferred.setdefault((table, replace), {})
        rows[key] = row

    def flush(self) -> None:
        """Write the pending rows of `store` and `defer` to the tables."""
        pending, self._pending = self._pending, {}
        deferred, self._deferred = self._deferred, {}
        with self._record_failure():
            for name, entries in pending.items():
                self._tables.apply(KINDS[name], list(entries.values()))
            for (table, replace), rows in deferred.items():
                self._tables.insert(table, list(rows.values()), replace=replace)

    @contextmanager
    def _record_failure(self) -> Iterator[None]:
        """Record an error, after which DuckDB has aborted the transaction: COMMIT would succeed
        and store nothing."""
        try:
            yield
        except duckdb.Error:
            self.broken = True
            raise


class Clock:
    """A clock whose times strictly increase within one process."""

    def __init__(self) -> None:
        self._last: datetime | None = None

    def __call__(self) -> datetime:
        moment = now()
        if self._last is not None and moment <= self._last:
            moment = self._last + timedelta(microseconds=1)
        self._last = moment
        return moment
