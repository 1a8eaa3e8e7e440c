"""The database that an import reads from and stores in, while people label.

A large file is stored in batches, so a judgment waits for one of them at most.  Between two batches
others write: `WritesByOthers` records it, and a plan that this affects is made again.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from storage.control import CANCEL_SECONDS, Control
from storage.engine.database import Database
from storage.engine.transaction import Encoded, Transaction
from storage.records import Annotator, Judgment, Withdrawal
from storage.tables.people.pseudonyms import key_of

MAX_VALUES = 2_000
"""Values of a list in one query: the interpreter lock is held while they are converted."""

ByOthers = Annotator | Judgment | Withdrawal


@dataclass(frozen=True)
class Batch:
    """Records to store in one transaction.  `fresh` says that none of their ids is stored."""

    records: dict[str, Encoded]
    fresh: bool


@dataclass(frozen=True)
class Stored:
    """`added`: the number of new records by the names in the batch.  It is None if nothing was
    stored, because `by_others` have to be checked first."""

    added: dict[str, int] | None
    by_others: list[ByOthers]


class Target(Protocol):
    """What an import needs of a database; a `Reader` of a snapshot between start and stop."""

    def start_reading(self) -> None:
        """Begin a snapshot.  What others write after it is recorded."""

    def stop_reading(self) -> None:
        """End the snapshot."""

    def rows(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Rows as dicts.  A query with a list must return the rows for each of its values: a long
        list is passed in parts."""
        ...

    def storing(self, total: int) -> None:
        """Say that `total` records follow; raises `ImportCancelled` if nothing is to be stored."""

    def store(self, batch: Batch, people: Collection[str]) -> Stored:
        """Store a batch, unless others have written records of `people` (annotators' ids and
        names) that no earlier call returned."""
        ...

    def pseudonym_key(self) -> bytes:
        """The workspace's secret key, created on first use."""
        ...


class WritesByOthers:
    """Observer of accounts and acts that are stored while an import runs."""

    def __init__(self) -> None:
        self.records: list[ByOthers] = []
        self.active = False

    def apply(self, record: object) -> None:
        if self.active and isinstance(record, ByOthers):
            self.records.append(record)

    def forget(self) -> None:
        """Keep the records: one that was rolled back can only cause another plan."""


class DatabaseTarget:
    """The target in the process that has the database open; for one thread."""

    def __init__(self, db: Database, control: Control | None = None) -> None:
        self._db = db
        self._control = control or Control()
        self._others = db.write(lambda tx: tx.observer(WritesByOthers))
        self._checked = 0
        self._reading = ExitStack()

    def start_reading(self) -> None:
        def watch(_: Transaction) -> None:
            self._others.records, self._others.active = [], True

        # In the writer thread and before the snapshot: all other writes are in one of them.
        self._db.write(watch)
        self._checked = 0
        self._reading.enter_context(self._db.snapshot())

    def stop_reading(self) -> None:
        self._reading.close()

    def close(self) -> None:
        self.stop_reading()
        self._others.active = False

    def rows(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]:
        name = next((name for name, value in parameters.items() if isinstance(value, list)), None)
        if name is None:
            return self._db.read(sql, **parameters)
        values = list(dict.fromkeys(parameters.pop(name)))
        return [
            row
            for start in range(0, len(values), MAX_VALUES)
            for row in self._db.read(
                sql, **parameters, **{name: values[start : start + MAX_VALUES]}
            )
        ]

    def storing(self, total: int) -> None:
        self._control.start_storing(total)

    def store(self, batch: Batch, people: Collection[str]) -> Stored:
        known = set(people)

        def operation(tx: Transaction) -> tuple[Stored, int]:
            new = self._others.records[self._checked :]
            if found := [record for record in new if not known.isdisjoint(_who(record))]:
                return Stored(None, found), self._checked + len(new)
            self._others.active = False
            try:
                added = {
                    name: tx.store_encoded(records, fresh=batch.fresh)
                    for name, records in batch.records.items()
                }
            finally:
                self._others.active = True
            return Stored(added, []), self._checked + len(new)

        stored, self._checked = self._db.write(operation)
        if stored.added is not None:
            self._control.stored += sum(len(e) for r in batch.records.values() for e in r.values())
        return stored

    def pseudonym_key(self) -> bytes:
        return key_of(self._db)


@contextmanager
def target_of(db: Database | Target, control: Control | None = None) -> Iterator[Target]:
    """The target for an import; the imports of a database run one after the other."""
    if not isinstance(db, Database):
        yield db
        return
    control = control or Control()
    lock = db.cache(_OneAtATime).lock
    while not lock.acquire(timeout=CANCEL_SECONDS):
        control.require_wanted()
    try:
        target = DatabaseTarget(db, control)
        try:
            yield target
        finally:
            target.close()
    finally:
        lock.release()


class _OneAtATime:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def _who(record: ByOthers) -> tuple[str, ...]:
    return (record.id, record.name) if isinstance(record, Annotator) else (record.annotator,)
