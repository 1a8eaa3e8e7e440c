"""The recorded workload: a workspace is filled, labeled, killed, backed up, rebuilt and restored.

    python -m benchmarks.powercuts.workload PHASE ROOT SEED

Each phase is a separate process.  It writes a line to ROOT/acts.jsonl before it sends an act and
when the act is acknowledged; the recorder records these writes in order with the other changes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kills import writer
from benchmarks.kills.world import fill
from storage.engine.backup import backup, rebuild, restore
from storage.engine.database import Database

ACTS = "acts.jsonl"
WORKSPACE = "workspace"
BACKUP = "backup"
PAIRS = 120
PHASES = ("make", "go on", "checkpoint", "back up", "rebuild", "restore")
_CLIENTS = 4
_CHECKPOINT_OFTEN = "SET wal_autocheckpoint = '60KB'"


class ActLog:
    """Writes the lines of ROOT/acts.jsonl; stops its clients after `most` acts."""

    def __init__(self, root: Path, most: int) -> None:
        self._file = os.open(root / ACTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self.left = most

    def __call__(self, kind: str, *what: Any) -> None:
        with self._lock:
            if kind == "sent":
                self.left -= 1
                if self.left < 0:
                    raise BrokenPipeError  # the client stops, as when the reader of a pipe is gone
                what = (asdict(what[0]),)
            if kind == "idle":
                if self.left < 0:
                    raise BrokenPipeError
                return
            if kind in ("failed", "full"):
                os.write(2, f"{kind}: {what}\n".encode())
                os._exit(3)
            os.write(self._file, json.dumps([kind, *what]).encode() + b"\n")


def label(workspace: Path, told: ActLog, seed: int, *, checkpoint: bool = False) -> Database:
    """Act as several concurrent clients until `told` stops them; returns the open database."""
    db = Database.open(workspace)
    if checkpoint:
        db.write(lambda tx: tx.execute(_CHECKPOINT_OFTEN))
    threads = [
        threading.Thread(target=writer.act, args=(db, f"a-{n}", seed + n, told))
        for n in range(_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return db


def run(phase: str, root: Path, acts: int, seed: int) -> None:
    """Run one phase.  "make", "checkpoint" and "restore" end like a kill: nothing is closed."""
    workspace, told = root / WORKSPACE, ActLog(root, acts)
    if phase == "make":
        fill(workspace, clients=_CLIENTS, pairs=PAIRS, seed=seed)
        told("filled", PAIRS)
    elif phase == "rebuild":
        rebuild(workspace)
    elif phase == "restore":
        told("restoring")
        restore(root / BACKUP, workspace)
        told("restored")
    db = label(workspace, told, seed, checkpoint=phase == "checkpoint")
    if phase == "back up":
        told("backing up")
        backup(db, root / BACKUP)
        told("backed up")
        told.left = acts
        db.close()
        db = label(workspace, told, seed + _CLIENTS)
    if phase in ("make", "checkpoint", "restore"):
        os._exit(0)
    db.close()


if __name__ == "__main__":
    run(PHASES[int(sys.argv[1])], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
