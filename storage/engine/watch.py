"""Monitors a workspace while it is served: whether the journal is intact and writes succeed.

It uses one low-priority thread and never opens the database file, because closing any handle to
that file would drop DuckDB's lock.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

from storage.engine.database import Database
from storage.engine.files import probe
from storage.engine.journal import is_intact, raw_lines
from storage.engine.reconcile import REWRITE
from storage.errors import JournalDamaged, StorageDamaged, StorageUnavailable, explain

_CHUNK = 1 << 18
_PROBE = ".disk-probe"
_PROBE_EVERY = 60.0
_SAME = "UPDATE meta SET value = value WHERE key = 'journal_bytes'"


class Watch:
    """A context that keeps `db.health` up to date.

    Every `every` seconds it checks that the journal is in place and, if writes are refused, whether
    they succeed again.  Every 60 seconds it checks that the disk accepts writes.  In between it
    verifies the journal's checksums in steps of 256 KiB with pauses of `pause` seconds (5 MB/s,
    about 1% of a core).  The next pass begins `rest` seconds after the end of the last one.
    """

    def __init__(
        self,
        db: Database,
        *,
        every: float = 5.0,
        pause: float = 0.05,
        rest: float = 600.0,
    ) -> None:
        self._db = db
        self._every, self._pause, self._rest = every, pause, rest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # only there does a thread have its own priority
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        checks = self._passes()
        look = next_probe = time.monotonic()
        while True:
            moment = time.monotonic()
            if moment >= look:
                look = moment + self._every
                refused = check_journal(self._db)
                if moment >= next_probe or refused:
                    next_probe = moment + _PROBE_EVERY
                    probe_disk(self._db)
            if self._stop.wait(min(next(checks), max(0.0, look - time.monotonic()))):
                return

    def _passes(self) -> Iterator[float]:
        """Check the journal repeatedly; yields how long to wait before the next step."""
        while True:
            yield from check_lines(self._db, self._pause)
            resume = time.monotonic() + self._rest
            yield self._every
            while time.monotonic() < resume:
                yield self._every


def check_journal(db: Database) -> bool:
    """Record in `db.health` whether the journal is in place; returns whether writes are refused."""
    try:
        db.journal.require_in_place()
    except StorageUnavailable as error:
        db.health.refused = str(error)
    return db.health.refused is not None


def probe_disk(db: Database) -> None:
    """Write 64 KiB and, if writes were refused, to the database; store an error in `db.health`."""
    try:
        probe(db.workspace / _PROBE)
        if db.health.refused is not None:
            db.journal.require_in_place()
            db.write(lambda tx: tx.execute(_SAME))
    except Exception as error:  # any error means that writes are refused
        db.health.refused = explain(error)


def check_lines(db: Database, pause: float) -> Iterator[float]:
    """Check every committed line of the journal in steps; yields the seconds to wait after each.

    Committed lines never change, so this can run beside the writer thread.  At the end, or at the
    first damaged line, it updates `db.health`.
    """
    path, stop = db.journal.path, db.committed
    end = waited = 0
    try:
        for number, (end, raw) in enumerate(raw_lines(path, stop=stop), 1):
            if not is_intact(raw):
                raise JournalDamaged(
                    f"{path} is damaged at line {number}: its checksum does not match"
                )
            if end - waited >= _CHUNK:
                waited = end
                yield pause
        if end < stop:
            raise JournalDamaged(f"{path} ends at byte {end}; {stop} were committed")
        db.health.damaged = None
    except StorageDamaged as error:
        db.health.damaged = f"{error}. Labels are still accepted. Stop the server; {REWRITE}"
    except OSError as error:
        db.health.damaged = explain(error)
