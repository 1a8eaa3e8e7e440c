"""What a worker uses is sampled while it runs, and read afterwards."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from pipeline.runs.rundir import RunDirectory
from pipeline.worker.resources import Sampler, sampled
from storage.commands import Commands
from storage.engine.database import Database
from storage.records import Run
from storage.tables import run_resources, runs
from tests.helpers.command_line import run as launch


@pytest.fixture
def run(db: Database) -> Run:
    made = Run(id="r", stage="policy", iteration=1, status="running", directory="runs/r")
    (db.workspace / made.directory).mkdir(parents=True)
    return runs.save(db, made)


def busy(seconds: float) -> None:
    """Work on one core, without the lock of the interpreter, as torch does."""
    end, text = time.process_time() + seconds, bytes(20_000_000)
    while time.process_time() < end:
        hashlib.sha256(text)


def test_memory_that_is_taken_and_work_that_is_done_are_seen(db: Database, run: Run):
    assert run_resources.used(db, run) is None
    with sampled(RunDirectory(db.workspace / run.directory), every=0.1):
        before = json.loads(json.dumps(Sampler().sample()))["memory"]
        held = bytearray(300_000_000)
        held[::4096] = b"x" * len(held[::4096])  # untouched pages take no memory
        busy(0.6)
        del held
        busy(0.3)
    found = run_resources.used(db, run)
    assert found is not None
    assert found.samples >= 4
    assert found.peak - before > 280_000_000
    assert found.memory < found.peak - 200_000_000
    assert 0.02 < found.mean_cpu < 1.5  # one thread, of a machine that may be busy
    assert found.gpus == ()
    shown = Commands(db).call("runs.get", {"id": "r"})["resources"]
    assert (shown["peak"], shown["samples"]) == (found.peak, found.samples)


def test_the_processes_that_a_worker_starts_count():
    code = "x = bytearray(200_000_000); x[::4096] = b'x' * len(x[::4096]); print(1, flush=True); input()"
    sampler = Sampler()
    alone = sampler.sample()["memory"]
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # fmt: skip
        assert child.stdout is not None
        child.stdout.readline()
        together = sampler.sample()["memory"]
        child.communicate(b"\n")
    assert 200_000_000 < together - alone < 300_000_000
    assert sampler.sample()["memory"] - alone < 50_000_000


def test_the_figures_of_a_gpu_are_its_newest_and_its_peak(db: Database, run: Run):
    rows = [
        {"time": n, "cpu": n, "memory": 10 - n,
         "gpus": [{"name": "H100", "memory": memory, "total": 80, "utilisation": 0.5}]}
        for n, memory in enumerate((10, 70, 30))
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"time": 3, "cp'
    (db.workspace / run.directory / "resources.jsonl").write_text(text)
    found = run_resources.used(db, run)
    assert found is not None
    assert (found.samples, found.cpu, found.mean_cpu, found.memory, found.peak) == (3, 2, 1, 8, 10)
    (gpu,) = found.gpus
    assert (gpu.memory, gpu.peak, gpu.total, gpu.utilisation) == (30, 70, 80, 0.5)


def test_the_command_prints_the_end_of_the_log(db: Database, run: Run):
    lines = "".join(f"line {n}\n" for n in range(300))
    (db.workspace / run.directory / "log.txt").write_text(lines)
    runs.save(db, replace(run, status="failed", reason="stopped"))
    (db.workspace / "config.toml").write_text('[model]\nname = "demo"\n')
    place = str(db.workspace)
    db.close()
    assert launch("runs", "r", "--log", "2", "--workspace", place) == "line 298\nline 299\n"
