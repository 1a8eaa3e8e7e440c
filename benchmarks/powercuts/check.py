"""Checks that a workspace has every act that was acknowledged before a power failure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.kills.ledger import Act, Ledger
from benchmarks.kills.recover import recover
from storage.engine.backup import restore, verify
from storage.engine.database import Database

TIMEOUT = 120.0  # seconds


@dataclass
class Expected:
    """The expected content of a workspace, and of its backup: None before there is one."""

    ledger: Ledger = field(default_factory=Ledger)
    pairs: int = 0
    backed_up: Ledger | None = None

    def hear(self, lines: bytes) -> None:
        """Process lines that the workload wrote."""
        for line in lines.splitlines():
            kind, *what = json.loads(line)
            if kind == "sent":
                act = Act(**what[0])
                self.ledger.sent[act.id] = act
            elif kind == "saved":
                self.ledger.acknowledged[what[0]] = None
            elif kind == "refused":
                self.ledger.refused.add(what[0])
            elif kind == "filled":
                self.pairs = what[0]
            elif kind == "backing up":
                self._coming = Ledger(dict(self.ledger.sent), dict(self.ledger.acknowledged))
            elif kind == "backed up":
                self.backed_up = self._coming
            elif kind == "restoring":  # from here on, acts after the backup may be missing
                assert self.backed_up is not None
                self.ledger.acknowledged = dict(self.backed_up.acknowledged)


def examine(workspace: Path, expected: Ledger, pairs: int) -> dict[str, Any]:
    """Open the workspace in its own process; returns the faults, and the recovery actions under
    "recovered"."""
    took: list[str] = []
    found = _in_a_process(workspace, expected, pairs)
    if "refused" in found:
        refused = found["refused"]
        try:
            took = recover(workspace)
        except Exception as error:
            return {"unopened": 1, "why": f"{refused}; then {error}"}
        found = _in_a_process(workspace, expected, pairs) | {"why": refused}
        if "refused" in found:
            return {"unopened": 1, "why": found["refused"]}
    return found | {"recovered": took}


def restored(backup: Path, expected: Ledger, pairs: int) -> dict[str, Any]:
    """Restore a backup into a new workspace next to it, and examine that workspace."""
    workspace = backup.with_name("restored")
    try:
        restore(backup, workspace)
    except Exception as error:
        return {"unopened": 1, "why": f"the backup: {type(error).__name__}: {error}"}
    return examine(workspace, expected, pairs)


def _in_a_process(workspace: Path, expected: Ledger, pairs: int) -> dict[str, Any]:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_examine, args=(workspace, expected, pairs, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(TIMEOUT) else {"refused": "no answer"}
    except EOFError:
        return {"refused": "the process died"}
    finally:
        process.kill()
        process.join(10)
        ours.close()


def _examine(workspace: Path, expected: Ledger, pairs: int, connection: Connection) -> None:
    try:
        with Database.open(workspace) as db:
            found: dict[str, Any] = dict(expected.faults(db))
            differences = verify(db).differences
            found["rebuild_differs"] = len(differences)
            stored = db.read("SELECT count(*) AS n FROM comparisons")[0]["n"]
            found["lost"] += max(0, pairs - stored)
        if differences:
            found["why"] = differences[0]
    except Exception as error:
        found = {"refused": f"{type(error).__name__}: {error}"}
    connection.send(found)


def faults(found: dict[str, Any], names: Iterable[str]) -> dict[str, int]:
    """The counts that are not zero."""
    return {name: found[name] for name in names if found.get(name)}
