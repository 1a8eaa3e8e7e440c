"""The workspace's database: one writer thread, a journal, and a cursor for each reading thread.

A write is an operation: a function of a `Transaction`.  The writer thread takes all waiting
operations, runs them in one DuckDB transaction and finishes the group in this order::

    validate ─▶ tables ─▶ journal + fsync ─▶ COMMIT ─▶ acknowledge

An acknowledged write is therefore in both.  If the disk refuses a write, `_attempt` stores nothing
and raises StorageUnavailable: routes answer 503, and the annotator's page retries the request.
`storage/engine/watch.py` notices when the disk accepts writes again.  Nothing here opens, copies or
hashes the .duckdb file: closing a handle to it in this process would drop DuckDB's lock on it.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from storage.audit_records import Actor, actor
from storage.engine import connection as engine
from storage.engine.health import Health
from storage.engine.journal import Journal
from storage.engine.migrations import migrate
from storage.engine.reconcile import reconcile, require_own_runs
from storage.engine.replacing import refuse_pending_replacement, replacement_pending
from storage.engine.schema_check import require_known
from storage.engine.transaction import Clock, Observer, Tables, Transaction, fetch
from storage.engine.workspace import (
    DATABASE,
    JOURNAL,
    WAL,
    keep_wal_aside,
    lock_workspace,
    make_workspace,
)
from storage.errors import StorageDamaged, StorageUnavailable, WorkspaceLocked, cause_of, explain

T = TypeVar("T")
C = TypeVar("C")
Operation = Callable[[Transaction], Any]
_Answer = tuple[Any, BaseException | None]
"""An operation's result, and the exception that it raised, if any."""
_GROUP = 256
_LONGEST = 10.0
_REBUILD = ". If the file is damaged, `python launch.py rebuild` rebuilds it from the journal"


class Database:
    """An open workspace.  `read`, `write` and `close` are thread-safe."""

    def __init__(self, workspace: Path, *, lock: Any) -> None:
        self.workspace = workspace
        self.clock: Callable[[], datetime] = Clock()
        self.accounts_version = 0
        """The number of commits that changed an annotator or a token."""
        self.health = Health()
        self.committed = 0
        """The number of journal bytes that are committed; they never change."""
        self._lock = lock
        self._observers: dict[type, Observer] = {}
        self._caches: dict[type, Any] = {}
        # Not threading.local: that is cleared after a thread was joined, and a cursor destroyed
        # while the interpreter ends aborts the process (its destructor needs the interpreter lock).
        self._cursors: weakref.WeakKeyDictionary[threading.Thread, duckdb.DuckDBPyConnection]
        self._cursors = weakref.WeakKeyDictionary()
        self._waiting: queue.SimpleQueue[tuple[Operation, Future[Any]] | None] = queue.SimpleQueue()
        self._state_lock = threading.Lock()
        self._closed = False
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.journal = Journal(workspace / JOURNAL)
        try:
            self._connect()
        except BaseException:
            self.journal.close()
            raise
        self._writer = threading.Thread(
            target=self._write_groups, name="storage-writer", daemon=True
        )
        self._writer.start()

    @classmethod
    def open(cls, workspace: Path, *, create: bool = True) -> Database:
        """Lock and open a workspace, migrate its schema, and reconcile journal and tables.

        Raises WorkspaceLocked, NotFound (no workspace and not `create`), StorageDamaged,
        StorageUnavailable, or ReplacementUnfinished after an interrupted restore.
        """
        workspace = Path(workspace).absolute()
        make_workspace(workspace, create=create or replacement_pending(workspace))
        lock = lock_workspace(workspace)
        try:
            refuse_pending_replacement(workspace)
            return cls(workspace, lock=lock)
        except BaseException as error:
            lock.close()
            if isinstance(error, OSError) and _disk_refused(error):
                raise _unopened(workspace, error) from error
            raise

    # -- reading ---------------------------------------------------------------------------

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """This thread's cursor; a connection shared by threads would return wrong rows."""
        if self._closed:
            raise RuntimeError("the workspace is closed")
        thread = threading.current_thread()
        cursor = self._cursors.get(thread)
        if cursor is None:
            with self._state_lock:
                if self._connection is None:
                    raise StorageUnavailable("the database is closed until the disk accepts writes")
                cursor = self._cursors[thread] = engine.cursor_of(self._connection)
        return cursor

    def read(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """Rows of SQL with $name parameters, as dicts; JSON columns are text."""
        return fetch(self.cursor(), sql, parameters)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads of this thread see one consistent state, while writes continue."""
        cursor = self.cursor()
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        try:
            cursor.execute("SELECT key FROM meta LIMIT 1").fetchall()  # fixes the snapshot
            yield
        finally:
            # The cursor is gone if the database was closed or reconnected meanwhile.
            with suppress(duckdb.ConnectionException):
                cursor.execute("ROLLBACK")

    def copy_to_parquet(self, sql: str, path: Path, /, **parameters: Any) -> int:
        """Write the rows of a query to a parquet file; returns their number."""
        target = str(path).replace("'", "''")
        statement = f"COPY ({sql}) TO '{target}' (FORMAT parquet)"
        return int(self.cursor().execute(statement, parameters).fetchall()[0][0])

    def cache(self, kind: type[C]) -> C:
        """The database's only instance of this class, created at the first call.

        It lives until the database is closed, and may cache only immutable records.
        """
        with self._state_lock:
            if kind not in self._caches:
                self._caches[kind] = kind()
            return self._caches[kind]

    # -- writing ---------------------------------------------------------------------------

    def write(self, operation: Callable[[Transaction], T]) -> T:
        """Run `operation` in the writer thread; returns when it is journaled and committed.

        If it raises, nothing of it is stored, and the exception is raised here.  It may run again
        if another operation of its group fails, so it must not change anything outside the
        transaction.  Raises StorageUnavailable if the disk refuses the write; the caller may retry.
        """
        return self.submit(operation).result()

    def submit(self, operation: Callable[[Transaction], T]) -> Future[T]:
        """Like `write`, without waiting for the result."""
        if threading.current_thread() is self._writer:
            raise RuntimeError("an operation must use its own transaction, not db.write")
        if (who := actor()) is not None:
            operation = _acting(who, operation)
        future: Future[T] = Future()
        # A caller that stops waiting cannot cancel the operation.
        future.set_running_or_notify_cancel()
        with self._state_lock:
            if self._closed:
                raise RuntimeError("the workspace is closed")
            self._waiting.put((operation, future))
        return future

    def close(self) -> None:
        """Finish waiting writes, checkpoint the write-ahead log and release the lock."""
        with self._state_lock:
            if self._closed:
                return
            self._closed = True
            self._waiting.put(None)
        self._writer.join()
        self._disconnect()
        self.journal.close()
        self._lock.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the writer thread -----------------------------------------------------------------

    def _write_groups(self) -> None:
        while (first := self._waiting.get()) is not None:
            group = [first]
            while len(group) < _GROUP and not self._waiting.empty():
                item = self._waiting.get()
                if item is None:
                    self._run_group(group)
                    return
                group.append(item)
            self._run_group(group)

    def _run_group(self, group: list[tuple[Operation, Future[Any]]]) -> None:
        """Run a group of operations in one transaction, or one by one if one of them fails."""
        answers: list[_Answer]
        try:
            answers = self._attempt([operation for operation, _ in group], careful=False)
        except StorageUnavailable as error:
            self.health.refused = explain(error)
            answers = [(None, StorageUnavailable(str(error))) for _ in group]
        except BaseException:
            answers = [self._attempt_alone(operation) for operation, _ in group]
        for (_, future), (result, error) in zip(group, answers, strict=True):
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _attempt_alone(self, operation: Operation) -> _Answer:
        try:
            return self._attempt([operation], careful=True)[0]
        except BaseException as error:  # raised in the caller; this thread continues
            return None, error

    def _attempt(self, operations: list[Operation], *, careful: bool) -> list[_Answer]:
        """One transaction; returns only after the commit, or raises with nothing stored.

        An operation that raises before it has written anything does not affect the others; after
        it has written, the whole transaction fails.
        """
        tables = self._begin()
        transaction = Transaction(tables, self._observers, now=self.clock, careful=careful)
        start, last_act = self.journal.size, tables.last_act
        try:
            answers: list[_Answer] = []
            wrote = False
            for operation in operations:
                transaction.wrote = False
                try:
                    answers.append((operation(transaction), None))
                except Exception as error:
                    if transaction.wrote or transaction.broken:
                        raise
                    answers.append((None, error))
                wrote = wrote or transaction.wrote
                if transaction.broken:
                    raise RuntimeError("an operation continued after its SQL had failed")
            transaction.flush()
            self._finish(tables, transaction, wrote=wrote)
        except BaseException as error:
            tables.last_act = last_act
            self._undo(start)
            if _disk_refused(error):
                raise StorageUnavailable(f"nothing was stored: {explain(error)}") from error
            raise
        return answers

    def _finish(self, tables: Tables, transaction: Transaction, *, wrote: bool) -> None:
        """Write the journal, then commit, so that an acknowledged write is in both."""
        if not wrote:
            tables.connection.execute("ROLLBACK")
            return
        if transaction.lines:
            length = sum(map(len, transaction.lines))
            tables.store_journal_bytes(self.journal.size + length)
            self.journal.append(transaction.lines)
        else:
            self.journal.require_in_place()
        self._commit(tables.connection)
        if transaction.accounts_changed:
            self.accounts_version += 1
        self.committed = self.journal.size
        self.health.refused = None

    def _commit(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("COMMIT")

    def _begin(self) -> Tables:
        if self._connection is None:
            self._reconnect()
        try:
            self._tables.connection.execute("BEGIN")
        except duckdb.Error:
            self._disconnect()
            self._reconnect()
            self._tables.connection.execute("BEGIN")
        return self._tables

    def _undo(self, journal_size: int) -> None:
        """Roll tables, journal and observers back to the state before the group."""
        for observer in self._observers.values():
            observer.forget()
        if self.journal.size != journal_size:
            self.journal.truncate(journal_size)
        connection = self._tables.connection
        try:
            with suppress(duckdb.TransactionException):  # a failed commit has rolled back already
                connection.execute("ROLLBACK")
            connection.execute("SELECT 1")
        except duckdb.Error:
            self._restart()

    # -- the connection --------------------------------------------------------------------

    def _connect(self) -> None:
        """Open the file: check its schema, migrate an old workspace, reconcile with the journal.

        Raises StorageDamaged or StorageUnavailable, and then leaves the workspace closed.
        """
        path = self.workspace / DATABASE
        unclean = keep_wal_aside(self.workspace)
        is_new = not path.exists() and not (self.workspace / WAL).exists()
        connection = _open_file(path)
        try:
            try:
                if not is_new:
                    require_known(connection)
                migrate(connection)
                Tables(connection).journal_bytes()
            except StorageDamaged as error:
                raise StorageDamaged(f"{path}: {error}{_REBUILD}") from None
            reconcile(connection, self.journal, thorough=unclean)
            tables = Tables(connection)
            require_own_runs(tables)
        except duckdb.Error as error:
            connection.close()
            if _disk_refused(error) and not isinstance(error, duckdb.FatalException):
                raise _unopened(path, error) from error
            raise StorageDamaged(f"{path} cannot be read: {error}{_REBUILD}") from error
        except BaseException:
            connection.close()
            raise
        with self._state_lock:
            self._connection = connection
            self.committed = self.journal.size
            self._tables = tables

    def _disconnect(self) -> None:
        with self._state_lock:
            connection, self._connection = self._connection, None
            # DuckDB keeps one instance for each file until its last cursor is closed.
            for cursor in self._cursors.values():
                _close(cursor)
            self._cursors.clear()
            if connection is not None:
                connection.close()

    def _restart(self) -> None:
        """Reconnect, because DuckDB refuses all queries after a fatal error.

        If that fails too, the next write tries again.
        """
        self._disconnect()
        with suppress(StorageUnavailable):
            self._reconnect()

    def _reconnect(self) -> None:
        try:
            self._connect()
        except (duckdb.Error, OSError, StorageDamaged) as error:
            raise StorageUnavailable(
                f"{self.workspace} cannot be opened again yet: {explain(error)}"
            ) from error


def _close(cursor: duckdb.DuckDBPyConnection) -> None:
    """Close a cursor; a query that another thread runs in it is interrupted.

    Raises ``duckdb.ResourceInUseException`` if that query goes on for `_LONGEST` seconds.
    """
    until = time.monotonic() + _LONGEST
    while True:
        try:
            return cursor.close()
        except duckdb.ResourceInUseException:
            if time.monotonic() > until:
                raise
            cursor.interrupt()
            time.sleep(0.01)


def _acting(who: Actor, operation: Callable[[Transaction], T]) -> Callable[[Transaction], T]:
    """The operation, for a person: changes are noted in the audit log, in the same transaction."""

    def acted(tx: Transaction) -> T:
        with tx.acting(who):
            return operation(tx)

    return acted


def _open_file(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        return engine.connect(path)
    except duckdb.IOException as error:
        if "lock" in str(error):
            raise WorkspaceLocked(f"another program has {path} open: {error}") from error
        if cause_of(error):
            raise _unopened(path, error) from error
        raise StorageUnavailable(f"{path} cannot be opened: {error}{_REBUILD}") from error
    except duckdb.Error as error:
        raise StorageDamaged(f"{path} cannot be read: {error}{_REBUILD}") from error


def _unopened(path: Path, error: BaseException) -> StorageUnavailable:
    return StorageUnavailable(f"{path} cannot be opened: {explain(error)}")


def _disk_refused(error: BaseException) -> bool:
    """Whether the same write may succeed later."""
    if isinstance(error, duckdb.FatalException):
        return True
    if isinstance(error, duckdb.Error) and "could not write" in str(error).lower():
        return True
    return isinstance(error, duckdb.Error | OSError) and cause_of(error) is not None
