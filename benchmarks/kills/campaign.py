"""`Campaign`, the base of all campaigns, and kills of a process without a web server."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from benchmarks.kills import ledger, writer
from benchmarks.kills.damage import damage
from benchmarks.kills.ledger import Ledger
from benchmarks.kills.recover import recover
from benchmarks.kills.world import Disk, fill

PAIRS = 45
"""Pairs per kill in a new workspace."""
_LOAD_TIME, _START_TIME = 15.0, 120.0  # seconds to wait for acts, and for an opening
_ROOM = 300_000  # maximum bytes left on a nearly full disk


@dataclass
class Report:
    """The events and results of a campaign."""

    name: str
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    while_opening: int = 0
    on_full_disk: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(self, kind: str, workspace: Path, known: Ledger, scratch: Path) -> None:
        """Count a kill and the faults after it."""
        self.kills[kind] += 1
        found = {name: n for name, n in ledger.check(workspace, known, scratch).items() if n}
        if found:
            self.notes.append(f"after kill {self.kills.total()} ({kind}): {found}")
            self.faults.update(found)

    def failed(self, why: str) -> dict[str, Any]:
        """The report of a campaign that could not continue."""
        self.faults["failed"] += 1
        self.notes.append(why)
        return self.plain()

    def done(self, known: Ledger, began: float) -> dict[str, Any]:
        """The finished report."""
        self.sent, self.acknowledged = len(known.sent), len(known.acknowledged)
        self.seconds = round(time.monotonic() - began, 1)
        return self.plain()

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in vars(self).items()}


class Campaign(ABC):
    """One workspace through a series of kills, each followed by a check."""

    def __init__(
        self, name: str, kinds: list[str], folder: Path, *, seed: int, disk: Disk | None
    ) -> None:
        self.kinds, self.folder, self.disk = kinds, folder, disk
        self.workspace = folder / "small" / "workspace" if disk else folder / "workspace"
        self.report = Report(name, seed)
        self.known = Ledger()
        self.coin = random.Random(f"{name} {seed}")

    def run(self) -> dict[str, Any]:
        """Kill once for each of `kinds`; returns the report."""
        began = time.monotonic()
        self.prepare()
        try:
            for kind in self.kinds:
                self.kill(kind)
                if kind == "damage":
                    self.report.notes.append(damage(self.workspace, self.coin))
                self.open_again(kind)
                self.report.check(kind, self.workspace, self.known, self.folder)
            self.finish()
        finally:
            self.stop()
        return self.report.done(self.known, began)

    @abstractmethod
    def prepare(self) -> None:
        """Make the workspace and start the clients."""

    @abstractmethod
    def kill(self, kind: str) -> None:
        """Start the process and kill it at a random moment."""

    @abstractmethod
    def open_again(self, kind: str) -> None:
        """After some kinds of kill, open the workspace as its owner would."""

    @abstractmethod
    def finish(self) -> None:
        """Check after the last kill that the workspace opens and works."""

    def stop(self) -> None:  # noqa: B027 (not every campaign has clients to stop)
        """Stop the clients."""


class StorageCampaign(Campaign):
    """Kills of `benchmarks.kills.writer`."""

    opening = 0.1
    """Seconds that the last complete opening took."""

    def prepare(self) -> None:
        pairs = PAIRS * len(self.kinds)
        fill(self.workspace, clients=writer.CLIENTS, pairs=pairs, seed=self.report.seed)

    def finish(self) -> None:
        self.open_again("end")

    def kill(self, kind: str) -> None:
        process, connection = writer.start(
            self.workspace,
            seed=self.coin.randrange(2**31),
            again=self.known.pending(),
            load=True,
        )
        if kind == "start":
            time.sleep(self.coin.uniform(0, 1.1 * self.opening))
        else:
            self._watch(process, connection, kind)
        process.kill()
        process.join(30)
        opened = self._read_rest(connection)
        self.report.while_opening += kind == "start" and not opened
        connection.close()

    def _watch(self, process: ForkServerProcess, connection: Connection, kind: str) -> None:
        """Read messages until it is time to kill the process."""
        moment = time.monotonic() + _START_TIME
        wanted, refusals = self.coin.randrange(5, 150), self.coin.randrange(1, 40)
        saved = full = 0
        freed = False
        while (wait := moment - time.monotonic()) > 0 and connection.poll(wait):
            heard = self._read_message(connection)
            if heard == "opened":
                moment = time.monotonic() + _LOAD_TIME
                if kind == "full" and self.disk and process.pid:
                    self.disk.fill(process.pid, self.coin.randrange(_ROOM))
            elif heard in ("", "failed"):
                return
            saved += heard == "saved"
            full += heard == "full"
            if kind == "full" and full >= refusals and not freed:
                if self.coin.random() < 0.5:
                    return
                freed, saved = True, 0  # the kill hits the recovery
                wanted = self.coin.randrange(1, 40)
                if self.disk and process.pid:
                    self.disk.free(process.pid)
            if saved >= wanted and (kind != "full" or freed):
                return

    def _read_message(self, connection: Connection) -> str:
        """Record one message of the writer; returns its kind, or "" at the end."""
        try:
            kind, *what = connection.recv()
        except (EOFError, OSError):
            return ""
        if kind == "opened":
            self.opening = what[0]
        elif kind == "sent":
            self.known.sent[what[0].id] = what[0]
        elif kind == "saved":
            self.known.acknowledged[what[0]] = None
        elif kind == "refused":
            self.known.refused.add(what[0])
        elif kind == "failed":
            self.report.faults["failed"] += 1
            self.report.notes.append(": ".join(what))
        return kind

    def _read_rest(self, connection: Connection) -> bool:
        """Record the writer's last messages; returns whether it had opened the workspace."""
        opened = False
        while heard := self._read_message(connection):
            opened |= heard == "opened"
        return opened

    def open_again(self, kind: str) -> None:
        """After a full disk, first open the workspace while the disk is still full."""
        if kind not in ("damage", "full", "end"):
            return
        if kind == "full" and self.disk:
            self._open_full()
            self.disk.free(0)
        took = recover(self.workspace)
        self.report.recoveries.update(took or ["opened"] if kind == "damage" else took)
        if kind != "damage" and took:
            self.report.faults["failed"] += 1
            self.report.notes.append(f"{kind}: opened only by {took}")

    def _open_full(self) -> None:
        """Open the workspace while its disk is full: the error may not say that it is damaged."""
        process, connection = writer.start(self.workspace, seed=0, again=[], load=False)
        said = "died"
        try:
            while connection.poll(_START_TIME):
                kind, *what = connection.recv()
                said = what[0] if kind == "failed" else "opened"
                if said == "StorageDamaged":
                    self.report.faults["failed"] += 1
                    self.report.notes.append(f"on the full disk: {what[1]}")
        except EOFError:
            pass
        process.kill()
        process.join(30)
        self.report.on_full_disk[said] += 1
