"""Latency for annotators at a realistic pace while the same workspace trains or imports judgments.

    python -m benchmarks.label_beside_training [--annotators 100] [--seconds 60] [--burners 3]
    python -m benchmarks.label_beside_training --annotators 50 --beside import

Runs `serve` on a workspace of the demo that is training, or into which files of `--rows` judgments
are imported, one after the other.  Each annotator is a client with a bearer
token that behaves like the page: it holds a few pairs, requests more when few are left, and judges
one every few seconds.  `--burners` keeps that many cores busy.  Prints one JSON object; a latency
is the time from the request to the reply "saved".
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import ROOT, percentiles
from benchmarks.label_load import Client, Tally, accounted, cpu_seconds, wait_until_up
from commands.studio import Studio
from pipeline.loop.workspace_config import prepare as prepare_workspace
from storage.engine import lookup
from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.records import Comparison, Completion, digest
from storage.tables import comparisons, completions
from storage.tables.runs import runs
from tests.helpers.desk_world import add_person, bearer, free_port

HAND, FEW = 4, 2
"""Number of pairs that a page requests, and the number left when it requests more."""
FIRST_LABELS = 120
"""Judgments for training that are stored before the annotators start."""
SETTINGS = {
    "reward": {"reward.epochs": "200"},
    "policy": {"reward.epochs": "1", "reward.ensemble": "heads", "ppo.updates": "5000"},
}
"""Settings with which the stage runs longer than the measurement."""


class Imports(threading.Thread):
    """Imports files of new judgments through the server, one after the other, until `stop`."""

    def __init__(self, workspace: Path, folder: Path, rows: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        """Seconds that each finished import took."""
        self.stop = threading.Event()
        self._workspace, self._folder, self._rows = workspace, folder, rows
        self._first = self._write(0)

    def run(self) -> None:
        file = self._first
        while not self.stop.is_set():
            start = time.perf_counter()
            command = [sys.executable, "launch.py", "import", "--workspace", str(self._workspace)]
            command += ["--judgments", str(file)]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            self.seconds.append(time.perf_counter() - start)
            file = self._write(len(self.seconds))

    def _write(self, number: int) -> Path:
        """A file of judgments that no earlier file has."""
        file = self._folder / f"judgments-{number}.jsonl"
        with file.open("w") as lines:
            for i in range(self._rows):
                row = {
                    "prompt": f"Question {number}.{i // 5}",
                    "response_a": f"One answer, {number}.{i}, " + "with some more words. " * 8,
                    "response_b": f"Another answer, {number}.{i}, " + "with other words. " * 8,
                    "outcome": "ab"[i % 2],
                    "annotator": f"imported {i % 40}",
                }
                lines.write(json.dumps(row) + "\n")
        return file


class Annotator(Client):
    """Judges a pair about every `pace` seconds (exponential, at least a tenth of it)."""

    def __init__(
        self, port: int, headers: dict[str, str], *, until: float, pace: float, seed: int
    ) -> None:
        super().__init__(port, headers, until=until)
        self._pace, self._coin = pace, random.Random(seed)
        self._hand: list[str] = []

    def run(self) -> None:
        try:
            self._think(self._coin.uniform(0, self._pace))  # clients start at different times
            while time.time() < self.until:
                if len(self._hand) < FEW:
                    self._hand += self.ask(HAND, holding=self._hand)
                if not self._hand:
                    return
                self._think(self._coin.expovariate(1 / self._pace) + self._pace / 10)
                if time.time() < self.until:  # else all clients would judge at the end at once
                    self.judge(self._hand.pop(0))
        except (OSError, http.client.HTTPException) as problem:
            self.tally.errors.append(repr(problem))

    def _think(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self.until - time.time())))


def prepare(workspace: Path, *, annotators: int, pairs: int, stage: str) -> list[dict[str, str]]:
    """Make a demo workspace that is ready to train, with pairs; return the annotators' headers."""
    settings = prepare_workspace(workspace, None, [], ["worker.threads=1"])
    Database.open(workspace).close()
    studio = Studio(workspace, settings)
    try:
        studio.fill_demo(settings)
        while studio.loop.advance() != "labeling":
            time.sleep(0.1)
        first = add_person(studio.db, "the first annotator")
        add_pairs(studio.db, pairs)
        for _ in range(FIRST_LABELS):
            (pair,) = queue.lease(studio.db, first.id, 1).pairs
            judgments.judge(
                studio.db,
                id=str(uuid.uuid4()),
                comparison=pair.comparison.id,
                annotator=first.id,
                outcome=random.Random(pair.comparison.id).choice(["a", "b"]),
            )
        if stage in SETTINGS:
            studio.loop.train(SETTINGS[stage])
        people = [add_person(studio.db, f"annotator {i}") for i in range(annotators)]
        return [bearer(studio.db, person) for person in people]
    finally:
        studio.close()


def add_pairs(db: Database, count: int) -> None:
    """Add pairs to the first iteration, made from the demo's shipped texts."""
    of_first = "SELECT * FROM comparisons WHERE iteration = 1 ORDER BY position, id"
    known = lookup.select(db, Comparison, of_first)
    texts = lookup.by_keys(db, Completion, [c.first for c in known])
    made, pairs = [], []
    for i in range(count):
        model = known[i % len(known)]
        sides = [
            Completion(
                id=f"x-{digest(str(i), side)}",
                prompt=model.prompt,
                policy=texts[model.first].policy,
                text=f"{texts[model.first].text} ({side} {i})",
            )
            for side in ("one", "two")
        ]
        made += sides
        pairs.append(
            Comparison(
                id=f"c-{digest(str(i))}", prompt=model.prompt, first=sides[0].id,
                second=sides[1].id, iteration=1, arm="random", wanted=1, position=10_000 + i,
            )
        )  # fmt: skip
    completions.add(db, made)
    comparisons.add(db, pairs)


def wait_for_stage(workspace: Path, stage: str, server: subprocess.Popen[bytes]) -> Path:
    """Wait until the stage reports that it trains; return its run directory."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError("the server exited")
        for directory in sorted((workspace / "runs").iterdir()):
            job, events = directory / "job.json", directory / "events.jsonl"
            of_stage = job.exists() and json.loads(job.read_text())["stage"] == stage
            if of_stage and events.exists() and events.read_text().count('"metrics"') >= 2:
                return directory
        time.sleep(0.5)
    raise RuntimeError(f"the {stage} stage did not start to train")


def measure(
    workspace: Path,
    *,
    annotators: int,
    seconds: float,
    pace: float,
    burners: int,
    beside: str,
    rows: int,
) -> dict[str, Any]:
    """Run once; count the clients' errors."""
    pairs = int(2 * annotators * (seconds / pace + 10))
    headers = prepare(workspace, annotators=annotators, pairs=pairs, stage=beside)
    imports = Imports(workspace, workspace.parent, rows) if beside == "import" else None
    port = free_port()
    command = [sys.executable, "launch.py", "serve", "--workspace", str(workspace)]
    server = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(burners)]
    try:
        wait_until_up(port, server)
        if imports:
            imports.start()
        directory = None if imports else wait_for_stage(workspace, beside, server)
        time.sleep(10)  # until the load is steady
        used, events = cpu_seconds(server.pid), _lines(directory)
        load = os.getloadavg()[0]
        start = time.time()
        people = [
            Annotator(port, each, until=start + seconds, pace=pace, seed=i)
            for i, each in enumerate(headers)
        ]
        for person in people:
            person.start()
        for person in people:
            person.join()
        took, used = time.time() - start, cpu_seconds(server.pid) - used
        events, load = _lines(directory) - events, max(load, os.getloadavg()[0])
    finally:
        for process in busy:
            process.kill()
        if imports:
            imports.stop.set()
            imports.join()
        _stop_worker(workspace)
        server.terminate()
        server.wait(60)
    tallies = [person.tally for person in people]
    figures = report(workspace, tallies, took=took, used=used)
    about = {"annotators": annotators, "pace_seconds": pace, "beside": beside, "burners": burners}
    about |= {"load": round(load, 1), "events_of_the_stage": events}
    if imports:
        about |= {"rows": rows, "import_seconds": [round(each, 1) for each in imports.seconds]}
    return about | figures


def _lines(directory: Path | None) -> int:
    return (directory / "events.jsonl").read_bytes().count(b"\n") if directory else 0


def _stop_worker(workspace: Path) -> None:
    """Stop the workspace's workers, which outlive the server."""
    for pid in (workspace / "runs").glob("*/pid"):
        try:
            psutil.Process(int(pid.read_text())).kill()
        except psutil.NoSuchProcess:
            continue


def report(workspace: Path, tallies: list[Tally], *, took: float, used: float) -> dict[str, Any]:
    """The figures of a run."""
    with Database.open(workspace) as db:
        metrics = sum(len(runs.metrics(db, run.id)) for run in runs.listing(db))
    judged = [ms for tally in tallies for ms in tally.judged]
    asked = [ms for tally in tallies for ms in tally.asked]
    return {
        "seconds": round(took, 1),
        "judgments": len(judged),
        "per_second": round(len(judged) / took, 1),
        "judgment_ms": percentiles(judged, (50, 95, 99)),
        "next_ms": percentiles(asked, (50, 95, 99)),
        "server_cpu_share": round(used / took, 3),
        "server_cpu_ms_per_judgment": round(1000 * used / max(1, len(judged)), 2),
        "stored_metrics": metrics,
        **accounted(workspace, tallies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--annotators", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pace", type=float, default=5, help="seconds between two judgments")
    parser.add_argument("--burners", type=int, default=0, help="additional busy cores")
    parser.add_argument("--beside", choices=[*sorted(SETTINGS), "import"], default="policy")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of an imported file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kitestring-beside-") as folder:
        figures = measure(
            Path(folder) / "workspace",
            annotators=given.annotators,
            seconds=given.seconds,
            pace=given.pace,
            burners=given.burners,
            beside=given.beside,
            rows=given.rows,
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
