"""Kills of ``launch.py serve`` while clients judge over HTTP."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

import httpx

from benchmarks.common import ROOT, launch
from benchmarks.kills.campaign import PAIRS, Campaign
from benchmarks.kills.ledger import Act
from benchmarks.kills.recover import recover
from benchmarks.kills.world import fill
from pipeline.simulation.annotators import Choice
from pipeline.simulation.clients import LabelClient, ServerRefused
from storage.engine.workspace import SERVER
from storage.records import ScreenOutcome, new_id
from tests.helpers.desk_world import free_port

CLIENTS = 16
OUTCOMES: tuple[ScreenOutcome, ...] = ("a", "b", "tie", "both_bad")
_START, _LOAD = 180.0, 60.0  # seconds to wait for a start, and for acts
_ROOM = 60_000  # maximum bytes left on a nearly full disk
_MAX_ACTS = 100  # maximum acts between two kills


class Unstarted(RuntimeError):
    """The server did not start; its log says why."""


class WebCampaign(Campaign):
    """Kills of the web process."""

    def prepare(self) -> None:
        self.port = free_port()
        self.starting = 10.0  # seconds that the last complete start took
        self.stopped = threading.Event()
        launch("init", "--workspace", self.workspace, timeout=_START)
        pairs = (PAIRS + _MAX_ACTS) * len(self.kinds) + 400
        tokens = fill(self.workspace, clients=CLIENTS, pairs=pairs, seed=self.report.seed)
        self.threads = [
            threading.Thread(target=self._judge, args=(name, token), daemon=True)
            for name, token in tokens.items()
        ]
        for thread in self.threads:
            thread.start()

    def open_again(self, kind: str) -> None:
        if kind == "damage":
            self.report.recoveries.update(recover(self.workspace) or ["opened"])

    def finish(self) -> None:
        server = self._start()
        self._wait_for_acts(20)
        self.stopped.set()
        server.send_signal(signal.SIGINT)
        server.wait(60)

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(30)

    def _judge(self, annotator: str, token: str) -> None:
        """Judge every pair; judgments without an acknowledgment are sent again with the same id."""
        coin = random.Random(f"{annotator} {self.report.seed}")
        url = f"http://127.0.0.1:{self.port}"
        while not self.stopped.is_set():
            try:
                with LabelClient(url, token, patience=2 * _START) as connection:
                    while not self.stopped.is_set():
                        self._judge_some(connection, annotator, coin)
            except ServerRefused as error:
                # Leases are not journaled.  After damage, the lease of an unanswered act may be
                # lost; its sender then gets the pair again.
                self.known.refused |= {
                    a.id for a in self.known.pending() if a.annotator == annotator
                }
                if not self.report.recoveries:
                    self._trouble(f"{annotator}: {error}")
            except (httpx.HTTPError, ValueError) as error:
                if not self.stopped.is_set():
                    self._trouble(f"{annotator}: {type(error).__name__}: {error}")

    def _judge_some(self, connection: LabelClient, annotator: str, coin: random.Random) -> None:
        for pair in connection.next(4):
            outcome = coin.choice(OUTCOMES)
            act = Act(new_id(), "judgment", annotator, pair.id, outcome)
            self.known.sent[act.id] = act
            verdict = Choice(outcome=outcome, milliseconds=coin.randrange(60_000))
            connection.judge(pair.id, verdict, id=act.id)
            self.known.acknowledged[act.id] = None
            if self.stopped.is_set():
                return

    def _trouble(self, what: str) -> None:
        self.report.faults["failed"] += 1
        self.report.notes.append(what)
        time.sleep(0.5)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "launch.py", "serve", "--workspace", self.workspace]
        with (self.folder / "serve.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _start(self) -> subprocess.Popen[bytes]:
        """The real server; returns once it answers."""
        began = time.monotonic()
        server = self._launch()
        while time.monotonic() < began + _START:
            if server.poll() is not None:
                break
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=1).is_success:
                    self.starting = time.monotonic() - began
                    return server
            except httpx.TransportError:
                time.sleep(0.05)
        server.kill()
        log = (self.folder / "serve.log").read_text()[-2000:]
        raise Unstarted(f"the server did not answer: {log}")

    def kill(self, kind: str) -> None:
        (self.workspace / SERVER).unlink(missing_ok=True)
        if kind == "start":
            server = self._launch()
            # Most of a start is imports; the workspace opens in the last third.
            time.sleep(self.coin.uniform(0.3, 1.1) * self.starting)
        else:
            server = self._start()
            self._wait_for_acts(self.coin.randrange(5, _MAX_ACTS))
            if kind == "full" and self.disk:
                self.disk.fill(server.pid, self.coin.randrange(_ROOM))
                time.sleep(self.coin.uniform(0.2, 4.0))
        server.kill()
        server.wait(30)
        opened = (self.workspace / SERVER).exists()
        self.report.while_opening += kind == "start" and not opened
        if self.disk:
            self.disk.free(0)

    def _wait_for_acts(self, more: int) -> None:
        before, give_up = len(self.known.acknowledged), time.monotonic() + _LOAD
        while len(self.known.acknowledged) < before + more and time.monotonic() < give_up:
            time.sleep(0.002)
