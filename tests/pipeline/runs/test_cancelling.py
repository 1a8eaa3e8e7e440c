"""A real worker that is asked to stop: its update is waited for, and a stuck one is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from pipeline.ppo.checkpoint import list_checkpoints
from pipeline.runs import process
from pipeline.runs.jobs import Jobs
from pipeline.runs.rundir import RunDirectory
from storage.engine.database import Database
from storage.records import Run
from storage.tables.runs import runs
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models_and_reward
from tests.helpers.worker_runs import steps_reported, until

UPDATE_TAKES = 1.5


def slow(_: str) -> float:
    """A shaping component that makes an update of four responses take `UPDATE_TAKES` seconds."""
    time.sleep(UPDATE_TAKES / 4)
    return 0.0


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


@pytest.fixture
def updating(
    db: Database, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Jobs, Run, RunDirectory]]:
    """A PPO run in the middle of its third update, with less patience than an update takes."""
    monkeypatch.setattr(process, "CANCEL_GRACE", UPDATE_TAKES / 10)
    shaping = {"tests.pipeline.runs.test_cancelling:slow": 1.0}
    job = make_job(
        "policy", models, ppo__updates=100, ppo__checkpoint_every=1000, shaping__weights=shaping
    )
    jobs = Jobs(db)
    run = jobs.start(
        job, fill=lambda to: give(RunDirectory(to.parent), "prompts.parquet", make_prompts(6))
    )
    directory = jobs.directory(run)
    try:
        until(lambda: directory.events.exists() and len(steps_reported(directory)) >= 2)
        time.sleep(UPDATE_TAKES / 3)
        yield jobs, run, directory
    finally:
        process._signal(directory, signal.SIGKILL)
        jobs.shut_down()


def test_a_worker_that_the_operating_system_kills_names_memory(
    db: Database, updating: tuple[Jobs, Run, RunDirectory]
) -> None:
    jobs, run, directory = updating
    os.killpg(int((directory.path / "pid").read_text()), signal.SIGKILL)
    until(lambda: not directory.is_running())
    [ended] = jobs.poll()
    assert (ended.id, ended.status) == (run.id, "failed")
    assert ended.reason is not None
    assert ended.reason.startswith(
        "the worker was killed (SIGKILL); if nobody did it, memory ran out: "
    )
    assert runs.get(db, run.id).reason == ended.reason


def test_an_update_that_takes_longer_than_the_floor_is_waited_for(
    db: Database, updating: tuple[Jobs, Run, RunDirectory]
) -> None:
    jobs, run, directory = updating
    jobs.cancel(run.id)
    waiting = runs.get(db, run.id)
    assert waiting.status == "running"
    assert "finishes this update and saves a checkpoint; the last updates took" in waiting.message
    until(jobs.poll)
    ended = runs.get(db, run.id)
    assert (ended.status, ended.reason) == ("cancelled", "cancelled by the researcher")
    made = max(steps_reported(directory))
    assert made >= 3  # the update at work when it was asked
    newest = list_checkpoints(directory.checkpoint / "checkpoints")[-1]
    assert newest.name == f"step-{made:06d}"
    assert ended.message.startswith(f"update {made} of 100")  # and no longer what it waited for


def test_a_worker_that_is_stuck_is_killed_after_twice_an_update(
    db: Database, updating: tuple[Jobs, Run, RunDirectory]
) -> None:
    jobs, run, directory = updating
    os.kill(int((directory.path / "pid").read_text()), signal.SIGSTOP)
    asked = time.monotonic()
    jobs.cancel(run.id)
    until(jobs.poll)
    assert time.monotonic() - asked > 2 * UPDATE_TAKES
    assert runs.get(db, run.id).status == "cancelled"
    assert not directory.has_checkpoint()
