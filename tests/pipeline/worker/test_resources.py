"""What a worker uses is sampled while it runs, and read afterwards."""

from __future__ import annotations

import hashlib
import json
import math
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
from storage.tables.runs import run_resources, runs
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


def sample(time: float, cpu: float = 1.0, memory: int = 1, gpus: list | None = None) -> dict:
    return {"time": time, "cpu": cpu, "memory": memory, "gpus": gpus or [], "total": 9}


def history(db: Database, run: Run, rows: list[dict]) -> run_resources.ResourceHistory:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (db.workspace / run.directory / "resources.jsonl").write_text(text)
    found = run_resources.history(db, run)
    assert found is not None
    return found


def test_the_history_counts_the_time_that_a_worker_ran(db: Database, run: Run):
    assert run_resources.history(db, run) is None
    # three samples, a night, and two more; at 10 s, the pause counts as one step
    times = (100, 110, 120, 50_000, 50_010)
    found = history(db, run, [sample(t, cpu=i, memory=i) for i, t in enumerate(times)])
    assert list(found.seconds) == [0, 10, 20, 25, 30, 40]
    assert list(found.cpu) == pytest.approx([0, 1, 2, math.nan, 3, 4], nan_ok=True)
    assert list(found.memory) == pytest.approx([0, 1, 2, math.nan, 3, 4], nan_ok=True)
    assert found.total == 9
    # a clock that was set back
    found = history(db, run, [sample(t) for t in (100, 110, 50, 60)])
    assert list(found.seconds) == [0, 10, 15, 20, 30]


def test_a_gpu_is_unknown_until_the_stage_uses_it(db: Database, run: Run):
    first = [{"name": "H100", "memory": 30, "total": 80}]
    second = [{"name": "H100", "memory": 40, "total": 80, "utilisation": 0.5}]
    found = history(db, run, [sample(0), sample(10, gpus=first), sample(20, gpus=second)])
    (gpu,) = found.gpus
    assert (gpu.name, gpu.total) == ("H100", 80)
    assert list(gpu.memory) == pytest.approx([math.nan, 30, 40], nan_ok=True)
    assert list(gpu.utilisation) == pytest.approx([math.nan, math.nan, 0.5], nan_ok=True)


def test_many_samples_become_means_of_cpu_and_the_highest_memory(db: Database, run: Run):
    found = history(db, run, [sample(10 * i, cpu=i % 2, memory=i) for i in range(480)])
    assert len(found.seconds) == 240
    assert list(found.seconds[:3]) == [5, 25, 45]
    assert set(found.cpu) == {0.5}
    assert list(found.memory[:3]) == [1, 3, 5]
    assert found.memory[-1] == 479


def test_of_a_long_file_samples_at_even_distances_are_read(db: Database, run: Run, monkeypatch):
    rows = [sample(10 * i, memory=i) for i in range(20_000)]  # two days and more
    parsed = []
    monkeypatch.setattr(
        json, "loads", lambda line, loads=json.loads: parsed.append(1) or loads(line)
    )
    found = history(db, run, rows)
    assert (db.workspace / run.directory / "resources.jsonl").stat().st_size > 1_048_576
    assert 900 < len(parsed) < 1100
    assert 180 < len(found.seconds) <= 240
    assert found.memory[-1] == 19_999
    assert found.seconds[-1] == pytest.approx(200_000, rel=0.01)
    # evenly: the memory grows as the time does
    for seconds, memory in zip(found.seconds, found.memory, strict=True):
        assert memory == pytest.approx(seconds / 10, abs=120)


def test_the_command_prints_the_end_of_the_log(db: Database, run: Run):
    lines = "".join(f"line {n}\n" for n in range(300))
    (db.workspace / run.directory / "log.txt").write_text(lines)
    runs.save(db, replace(run, status="failed", reason="stopped"))
    (db.workspace / "config.toml").write_text('[model]\nname = "demo"\n')
    place = str(db.workspace)
    db.close()
    assert launch("runs", "r", "--log", "2", "--workspace", place) == "line 298\nline 299\n"
