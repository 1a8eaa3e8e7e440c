"""Runs on the web process's side: what is stored of them whatever fails, and the models they leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest

from pipeline.config.sections import Config
from pipeline.runs import jobs, process
from pipeline.runs.jobs import Jobs
from pipeline.runs.launchers import local
from pipeline.runs.process import Grace
from pipeline.runs.rundir import Job, RunDirectory
from storage.engine.database import Database
from storage.errors import StorageUnavailable
from storage.records import Run, now
from storage.tables import models
from storage.tables.runs import runs


def make_job(run: str = "run-1") -> Job:
    return Job(run=run, stage="reward", iteration=1, config=Config(), names={"policy": "sft-1"})


def succeeded(db: Database, run: str) -> Run:
    """A reward run that has left a model and its snapshot's name, both called like the run."""
    directory = RunDirectory.create(db.workspace / "runs" / run, make_job(run))
    directory.model.mkdir()
    (directory.model / "weights").write_text(run)
    (directory.inputs / "snapshot.txt").write_text(f"s-{run}")
    made = Run(id=run, stage="reward", iteration=1, status="succeeded", directory=f"runs/{run}")
    return runs.save(db, made)


def weights(db: Database) -> dict[str, str]:
    """What each folder of models/ holds, by its name without the time it was replaced at."""
    found = (db.workspace / "models").iterdir()
    return {
        re.sub(r"(?<=\.replaced)-.*", "", path.name): (path / "weights").read_text()
        for path in found
    }


def register(db: Database, run: Run) -> None:
    Jobs(db).register(run, role="reward", id="reward-1")


def test_a_reward_model_starts_from_sft_and_a_policy_from_the_one_it_improves(db: Database):
    names: dict[str, str | None] = {"policy": "policy-1", "reference": "sft-1"}
    for run, role in (("r", "reward"), ("p", "policy")):
        made = succeeded(db, run)
        job = replace(Jobs(db).directory(made).job(), names=names)
        Jobs(db).directory(made).write_job(job)
        Jobs(db).register(made, role=role, id=f"{role}-2")  # type: ignore[arg-type]
    assert models.get(db, "reward-2").parent == "sft-1"
    assert models.get(db, "policy-2").parent == "policy-1"


@pytest.mark.parametrize(
    ("stage", "settings", "refused"),
    [
        ("sampling", {}, False),
        ("evaluate", {}, False),
        ("reward", {}, True),
        ("policy", {}, True),
        ("policy", {"ppo.lora_rank": "4"}, False),
        ("policy", {"ppo.lora_rank": "4", "optimize.method": "dpo"}, True),
    ],
)
def test_a_stage_needs_the_disk_that_it_will_write(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage, settings, refused
):
    """Of a policy of 1 GB, with 3.5 GB free and .5 of them kept for everything else."""
    (tmp_path / "policy").mkdir()
    with (tmp_path / "policy" / "model.safetensors").open("wb") as weights_of_a_gigabyte:
        weights_of_a_gigabyte.truncate(10**9)  # takes no room itself
    usage = shutil.disk_usage(tmp_path)._replace(free=3_500_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 500_000_000)
    job = Job(
        run="run-1",
        stage=stage,
        iteration=1,
        config=Config().override(settings),
        models={"policy": str(tmp_path / "policy")},
    )
    if not refused:
        Jobs(db).require_machine(job)
        return
    with pytest.raises(ValueError, match=r"needs about 8\.5 GB .* 3\.5 GB are left"):
        Jobs(db).require_machine(job)


def test_a_model_trained_again_after_a_restore_takes_the_old_ones_place(db: Database):
    register(db, succeeded(db, "old"))
    register(db, succeeded(db, "new"))
    made = models.get(db, "reward-1")
    assert (made.run, made.snapshot) == ("new", "s-new")
    assert (db.workspace / made.path / "weights").read_text() == "new"
    assert weights(db) == {"reward-1": "new", "reward-1.replaced": "old"}


@pytest.mark.parametrize("crash", ["moved aside", "moved", "registered"])
def test_a_model_is_taken_over_once_wherever_a_crash_came(db: Database, crash: str):
    register(db, succeeded(db, "old"))
    run = succeeded(db, "new")
    place = db.workspace / "models"
    (place / "reward-1").rename(place / "reward-1.replaced-2026")
    if crash == "moved":
        (db.workspace / "runs" / "new" / "model").rename(place / "reward-1")
    if crash == "registered":
        register(db, run)
    register(db, run)
    assert weights(db) == {"reward-1": "new", "reward-1.replaced": "old"}
    assert models.get(db, "reward-1").run == "new"


LINGERING = """
import os, sys, time
from pathlib import Path
Path(sys.argv[1], "result.json").write_text("{}")
os.close(int(sys.argv[2]))
time.sleep(600)
"""
"""A worker that is done, and has let go of its lock, but does not end."""


def test_a_worker_that_is_done_and_does_not_end_is_not_waited_for(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(directory: RunDirectory, lock: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", LINGERING, str(directory.path), str(lock)]
        spawned.append(subprocess.Popen(command, pass_fds=[lock]))
        return spawned[-1]

    monkeypatch.setattr(process, "spawn", spawn)
    monkeypatch.setattr(local, "EXIT_TIMEOUT", 0.01)
    made = Jobs(db)
    run = made.start(make_job(), fill=lambda _: None)
    try:
        while not made.poll():
            assert spawned[0].poll() is None
        assert runs.get(db, run.id).status == "succeeded"
        spawned[0].kill()
        while spawned[0].returncode is None:  # reaped by a later look
            made.poll()
    finally:
        spawned[0].kill()
        spawned[0].wait()


@pytest.mark.parametrize("error", [StorageUnavailable("the disk is full"), duckdb.Error("spilled")])
def test_a_stage_that_could_not_be_stored_leaves_no_directory(db: Database, error: Exception):
    def fill(_: Path) -> None:
        raise error

    with pytest.raises(type(error)):
        Jobs(db).start(make_job(), fill=fill)
    assert runs.listing(db) == []
    assert list((db.workspace / "runs").iterdir()) == []


def test_a_failure_that_could_not_be_stored_leaves_no_directory(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise StorageUnavailable("the disk is full")

    monkeypatch.setattr(runs, "save", refuse)
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 10**18)
    shipped = db.workspace / "shipped"
    shipped.mkdir()
    with pytest.raises(StorageUnavailable):
        Jobs(db).start(make_job(), fill=lambda _: None)
    with pytest.raises(StorageUnavailable):
        Jobs(db).adopt(make_job("run-2"), shipped)
    assert list((db.workspace / "runs").iterdir()) == []


ASKED = datetime(2026, 1, 1, tzinfo=UTC)


def asked_to_stop(path: Path, *, updates: Sequence[float], since: Sequence[float] = ()) -> Grace:
    """What a worker gets whose updates ended these seconds before and after it was asked to stop."""
    directory = RunDirectory.create(path / "run", make_job())
    os.utime(directory.path / "job.json", (ASKED.timestamp() - 5000,) * 2)
    ended = [*(ASKED.timestamp() - before for before in updates)]
    ended += [ASKED.timestamp() + after for after in since]
    lines = [
        {
            "seq": i,
            "attempt": 1,
            "time": t,
            "kind": "progress",
            "done": i,
            "total": 9,
            "message": "",
        }
        for i, t in enumerate(ended, 1)
    ]
    directory.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    directory.request_cancel(ASKED)
    grace = process.kill_if_late(directory, ASKED)
    assert grace is not None
    return grace


@pytest.mark.parametrize(
    ("updates", "seconds"),
    [
        ([30, 20, 10], 60),  # short updates: the minute that everybody gets
        ([2000, 1400, 800, 100], 1400),  # the slowest of the last three took 700 s
        (
            [9000, 1900, 1800, 1700, 1600],
            3200,
        ),  # a suspended night is forgotten; 1600 s at this one
        ([], 10_000),  # 5,000 s at its first update when it was asked
    ],
)
def test_a_cancelled_worker_is_given_twice_the_time_of_its_updates(
    tmp_path: Path, updates: list[float], seconds: float
):
    grace = asked_to_stop(tmp_path, updates=updates)
    assert grace.seconds == pytest.approx(seconds)
    assert not grace.is_over(ASKED + timedelta(seconds=seconds - 1))
    assert grace.is_over(ASKED + timedelta(seconds=seconds + 1))


def test_a_cancelled_workers_last_update_and_checkpoint_are_signs_of_life(tmp_path: Path):
    ended = asked_to_stop(tmp_path, updates=[20, 10], since=[50])
    assert ended.since == ASKED + timedelta(seconds=50)
    part = tmp_path / "run" / "checkpoint" / ".step-000003.tmp" / "state.pt"
    part.parent.mkdir(parents=True)
    part.touch()
    os.utime(part, (ASKED.timestamp() + 90,) * 2)
    assert asked_to_stop(tmp_path, updates=[20, 10], since=[50]).since == ASKED + timedelta(
        seconds=90
    )


def test_a_worker_that_goes_on_although_it_was_asked_to_stop_gains_no_time(tmp_path: Path):
    grace = asked_to_stop(tmp_path, updates=[20, 10], since=[5, 15, 25, 35])
    assert grace.since == ASKED + timedelta(seconds=5)
    assert grace.is_over(ASKED + timedelta(seconds=66))


@pytest.mark.usefixtures("dying_workers")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "cancelled by the researcher"),  # killed
        ("cancelled", "cancelled by the researcher"),
        (
            "the disk is full; free some space",
            "cancelled by the researcher; it ended with an error: the disk is full; free some space",
        ),
    ],
)
def test_a_request_to_cancel_hides_no_failure(db: Database, error: str | None, reason: str):
    made = Jobs(db)
    run = made.start(make_job(), fill=lambda _: None)
    directory = made.directory(run)
    directory.request_cancel(now())
    if error:
        directory.write_error(error)
    made.poll()
    ended = runs.get(db, run.id)
    assert (ended.status, ended.reason) == ("cancelled", reason)


def test_a_further_attempt_never_finds_the_process_id_of_the_one_before(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    found: list[bool] = []

    def start(directory: RunDirectory, *_: object, **__: object) -> subprocess.Popen[bytes]:
        found.append((directory.path / "pid").exists())
        return subprocess.Popen(["true"])

    monkeypatch.setattr(process, "start", start)
    made = Jobs(db)
    run = made.start(make_job(), fill=lambda _: None)
    for _ in range(2):
        made.poll()
        made.directory(run).checkpoint.mkdir(exist_ok=True)
        (made.directory(run).checkpoint / "state").touch()
        made.resume(run.id)
    made.poll()
    assert (made.directory(run).path / "pid").exists()
    assert found == [False] * 3
