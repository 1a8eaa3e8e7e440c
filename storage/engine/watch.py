"""Looks after an open workspace while it is served: is the journal whole, does the disk take writes?

One thread of low priority.  It never touches the database file: closing any handle to that would
drop DuckDB's lock.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from storage.engine.database import Database
from storage.engine.journal import check_stretch
from storage.engine.reconcile import REWRITE
from storage.engine.transaction import Transaction
from storage.errors import StorageDamaged, StorageFull, explain

_CHUNK = 1 << 18
_PROBE = ".disk-probe"
_PROBE_BYTES = 1 << 16
_SAME = "UPDATE meta SET value = value WHERE key = 'journal_bytes'"


class Watch:
    """While the context is open, `db.health` says what is wrong with the workspace.

    Every `every` seconds: is the journal the file that was opened; and where writes are refused,
    are they taken again.  Every `probe_every` seconds: does the disk take writes.  Between them
    the journal's checksums, 256 KiB and then a pause of `pause` seconds (5 MB/s: about a
    hundredth of a core); the next pass begins `rest` seconds after the last one's end.
    """

    def __init__(
        self,
        db: Database,
        *,
        every: float = 5.0,
        probe_every: float = 60.0,
        pause: float = 0.05,
        rest: float = 600.0,
    ) -> None:
        self._db = db
        self._every, self._probe_every = every, probe_every
        self._pause, self._rest = pause, rest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        checks = self._passes()
        look = probe = time.monotonic()
        while True:
            moment = time.monotonic()
            if moment >= look:
                look = moment + self._every
                refused = check_journal(self._db)
                if moment >= probe or refused:
                    probe = moment + self._probe_every
                    probe_disk(self._db)
            if self._stop.wait(min(next(checks), max(0.0, look - time.monotonic()))):
                return

    def _passes(self) -> Iterator[float]:
        """Check the journal over and over; yields how long to wait before the next step."""
        while True:
            yield from check_lines(self._db, self._pause)
            resume = time.monotonic() + self._rest
            yield self._every
            while time.monotonic() < resume:
                yield self._every


def check_journal(db: Database) -> bool:
    """Note whether the journal is where it belongs; returns whether writes are refused now."""
    try:
        db.journal.require_in_place()
    except StorageFull as error:
        db.health.refused = str(error)
    return db.health.refused is not None


def probe_disk(db: Database) -> None:
    """Write a file of 64 KiB and, where writes were refused, the database; notes what happens."""
    path = db.workspace / _PROBE
    try:
        _write_and_remove(path)
        if db.health.refused is not None:
            db.journal.require_in_place()
            db.write(_write_nothing)
    except Exception as error:  # whatever a write is refused with is what people must be told
        db.health.refuse(error)


def _write_nothing(tx: Transaction) -> None:
    tx.execute(_SAME)


def _write_and_remove(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(bytes(_PROBE_BYTES))
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)
        path.unlink(missing_ok=True)


def check_lines(db: Database, pause: float) -> Iterator[float]:
    """Check every committed line of the journal in steps; yields the seconds to wait after each.

    What is committed never changes, so this runs beside the writer thread.  At the end, or at
    the first damaged line, it notes the state in `db.health`.
    """
    stop, start, number = db.committed, 0, 1
    while start < stop:
        try:
            start, number = check_stretch(
                db.journal.path, start, number, bytes_least=min(_CHUNK, stop - start)
            )
        except StorageDamaged as error:
            db.health.damaged = f"{error}. Labels are still taken. Stop the server; {REWRITE}"
            return
        except OSError as error:
            db.health.damaged = explain(error)
            return
        yield pause
    db.health.damaged = None
