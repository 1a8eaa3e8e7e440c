"""Runs on the web process's side: what is stored of them whatever fails, and the models they leave."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from pipeline import detached, jobs
from pipeline.config import Config
from pipeline.jobs import Jobs
from pipeline.rundir import Job, RunDirectory
from storage import models, runs
from storage.database import Database
from storage.errors import StorageFull
from storage.records import Run, now


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

    monkeypatch.setattr(detached, "spawn", spawn)
    monkeypatch.setattr(jobs, "LINGERS", 0.01)
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


@pytest.mark.parametrize("error", [StorageFull("the disk is full"), duckdb.Error("spilled")])
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
        raise StorageFull("the disk is full")

    monkeypatch.setattr(runs, "save", refuse)
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 10**18)
    shipped = db.workspace / "shipped"
    shipped.mkdir()
    with pytest.raises(StorageFull):
        Jobs(db).start(make_job(), fill=lambda _: None)
    with pytest.raises(StorageFull):
        Jobs(db).adopt(make_job("run-2"), shipped)
    assert list((db.workspace / "runs").iterdir()) == []


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
    directory.ask_to_cancel(now())
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

    monkeypatch.setattr(detached, "start", start)
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
