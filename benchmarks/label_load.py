"""Judgments per second from many concurrent clients, with the real server.

    python -m benchmarks.label_load [--clients 32] [--seconds 20]

Every client is a separate annotator with a bearer token that requests four pairs, judges them one
by one, and requests more.  The server runs in a separate process.  Afterwards the stored judgments
are compared with the acknowledged ones.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import ROOT, percentiles
from storage.engine.database import Database
from tests.helpers.desk_world import add_pairs, add_person, bearer, free_port, make_app

TEXT = "A sentence of an ordinary answer, with **emphasis** and `code`. " * 6


@dataclass
class Tally:
    """One client's measurements; times in milliseconds."""

    judged: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Client(threading.Thread):
    """One annotator on one persistent connection that judges as fast as possible until `until`."""

    def __init__(self, port: int, headers: dict[str, str], *, until: float) -> None:
        super().__init__()
        self.tally = Tally()
        self.until = until
        self._headers = {**headers, "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def run(self) -> None:
        try:
            while time.time() < self.until:
                pairs = self.ask(4)
                if not pairs:
                    return
                for pair in pairs:
                    self.judge(pair)
        except (OSError, http.client.HTTPException) as problem:
            self.tally.errors.append(repr(problem))

    def ask(self, count: int, *, holding: Sequence[str] = ()) -> list[str]:
        """Ids of more pairs; if there are none and `holding` is empty, an error is recorded."""
        also = f"&holding={','.join(holding)}" if holding else ""
        start = time.perf_counter()
        status, answer = self._send("GET", f"/label/api/next?n={count}{also}")
        self.tally.asked.append(1000 * (time.perf_counter() - start))
        if status != 200 or not (answer["pairs"] or holding):
            self.tally.errors.append(f"next: {status} {answer}")
            return []
        return [pair["id"] for pair in answer["pairs"]]

    def judge(self, comparison: str) -> None:
        """Judge a pair and record how long the acknowledgment took."""
        body = {"id": str(uuid.uuid4()), "comparison": comparison, "outcome": "a"}
        start = time.perf_counter()
        status, answer = self._send("POST", "/label/api/judgments", body | {"milliseconds": 1500})
        if status == 200:
            self.tally.judged.append(1000 * (time.perf_counter() - start))
            self.tally.acknowledged.append(body["id"])
        else:
            self.tally.errors.append(f"judgments: {status} {answer}")

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        raw = json.dumps(body) if body else None
        try:
            return self._exchange(method, path, raw)
        except (ConnectionError, http.client.RemoteDisconnected):
            # The server closes a connection after 5 idle seconds, and a browser opens another one.
            # Resending is safe, because a judgment has an id.
            self._connection.close()
            return self._exchange(method, path, raw)

    def _exchange(self, method: str, path: str, raw: str | None) -> tuple[int, Any]:
        self._connection.request(method, path, raw, self._headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())


def prepare(workspace: Path, clients: int, pairs: int) -> list[dict[str, str]]:
    """A workspace with enough pairs; returns the header of each annotator."""
    with Database.open(workspace) as db:
        texts = [
            (f"Question {i}?", f"{TEXT} First {i}.", f"{TEXT} Second {i}.") for i in range(pairs)
        ]
        add_pairs(db, texts)
        return [bearer(db, add_person(db, f"annotator {i}")) for i in range(clients)]


def serve(workspace: Path, port: int) -> None:
    """Run the server; the entry point of its process."""
    import uvicorn  # noqa: PLC0415  (the measuring process does not need it)

    # uvicorn raises the signal again after its own shutdown; the workspace must be closed first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Database.open(workspace) as db:
        uvicorn.run(make_app(db), host="127.0.0.1", port=port, log_level="warning")


def wait_until_up(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError("the server exited")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
        finally:
            connection.close()
    raise RuntimeError("the server did not start")


def measure(workspace: Path, *, clients: int, seconds: float, pairs: int) -> dict[str, Any]:
    """Run once; count the clients' errors."""
    headers = prepare(workspace, clients, pairs)
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.label_load", "--serve", str(workspace)]
    process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT)
    try:
        wait_until_up(port, process)
        busy = cpu_seconds(process.pid)
        start = time.time()
        threads = [Client(port, each, until=start + seconds) for each in headers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.time() - start
        busy = cpu_seconds(process.pid) - busy
    finally:
        process.terminate()
        process.wait(30)
    return report(workspace, [thread.tally for thread in threads], took, busy)


def cpu_seconds(pid: int) -> float:
    """User and system time of the server so far, which depends little on other processes."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def accounted(workspace: Path, tallies: Sequence[Tally]) -> dict[str, int | list[str]]:
    """The clients' errors, and the difference between acknowledged and stored judgments."""
    with Database.open(workspace) as db:
        stored = [row["id"] for row in db.read("SELECT id FROM judgments")]
    acknowledged = {id for tally in tallies for id in tally.acknowledged}
    errors = [error for tally in tallies for error in tally.errors]
    return {
        "errors": len(errors),
        "first_errors": errors[:3],
        "acknowledged_but_not_stored": len(acknowledged - set(stored)),
        "stored_twice": len(stored) - len(set(stored)),
    }


def report(workspace: Path, tallies: list[Tally], took: float, busy: float) -> dict[str, Any]:
    """The figures of a run."""
    judged = [ms for tally in tallies for ms in tally.judged]
    return {
        "clients": len(tallies),
        "seconds": round(took, 1),
        "judgments": len(judged),
        "per_second": round(len(judged) / took),
        "server_cpu_ms_per_judgment": round(1000 * busy / max(1, len(judged)), 2),
        **{f"{share}_ms": time for share, time in percentiles(judged).items()},
        **accounted(workspace, tallies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pairs", type=int, default=30_000)
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.port)
        return
    with tempfile.TemporaryDirectory(prefix="kitestring-load-") as folder:
        figures = measure(
            Path(folder), clients=given.clients, seconds=given.seconds, pairs=given.pairs
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
