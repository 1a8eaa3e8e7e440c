"""A policy stage on several nodes of a real Ray cluster: `pip install ray[default]`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest

from pipeline.runs.jobs import Jobs
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.worker.distributed import NODE
from storage.engine.database import Database
from storage.tables.runs import runs
from tests.helpers.worker_runs import assert_equal_runs, steps_reported, until, updated
from tests.pipeline.runs.launchers import test_launchers
from tests.pipeline.runs.launchers.test_launchers import UPDATES, ended, ppo, ray
from tests.pipeline.runs.launchers.test_launchers import start as start_run

pytestmark = pytest.mark.slow

models = test_launchers.models
undisturbed = test_launchers.undisturbed


def workers_of(directory: RunDirectory) -> dict[int, psutil.Process]:
    """The workers of a run by the number of their node, without the processes that they started."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            place = process.environ().get(NODE)
            words = process.cmdline()
            if place and words[-2:-1] == [str(directory.path.resolve())]:
                found[int(place.split()[0])] = process
    return found


def shared(models: dict[str, str], settings: dict[str, Any], *, updates: int = UPDATES) -> Job:
    job = ppo(models, **settings, worker__nodes=2, worker__processes=2)
    return replace(job, config=job.config.override({"ppo.updates": str(updates)}))


@pytest.mark.parametrize("number", [0, 1])
def test_two_nodes_of_ray_train_together_and_resume_after_one_is_lost(
    db: Database, models: dict[str, str], undisturbed: RunDirectory, number: int
) -> None:
    with ray(3) as machine:
        jobs = Jobs(db)
        run, directory = start_run(jobs, shared(models, machine.settings))
        until(lambda: jobs.poll() or updated(directory, 3))
        workers = workers_of(directory)
        nodes = [machine.nodes.node_of(workers[n]) for n in (0, 1)]
        assert len({*nodes}) == 2
        machine.nodes.kill(nodes[number])
        lost = ended(jobs, db, run)
        assert lost.status == "failed"
        if number == 0:  # it could not say anything itself
            assert (lost.reason or "").startswith("Ray says: node 1 of 2 (")
            assert (lost.reason or "").endswith(") was lost; resume continues on other nodes")
        else:
            assert lost.reason == "a process on another node stopped; see the log"
        assert len(steps_reported(directory)) < UPDATES
        until(lambda: not workers_of(directory), seconds=30)
        resumed = jobs.resume(run.id)
        assert ended(jobs, db, resumed).status == "succeeded", directory.failure()
        jobs.shut_down()
    assert_equal_runs(undisturbed, directory)


def test_a_request_to_stop_ends_two_nodes_of_ray_with_a_checkpoint(
    db: Database, models: dict[str, str]
) -> None:
    with ray() as machine:
        jobs = Jobs(db)
        run, directory = start_run(jobs, shared(models, machine.settings, updates=1000))
        until(lambda: jobs.poll() or updated(directory, 2))
        jobs.cancel(run.id)
        cancelled = ended(jobs, db, run)
        assert (cancelled.status, cancelled.reason) == ("cancelled", "cancelled by the researcher")
        newest = max(path.name for path in (directory.checkpoint / "checkpoints").iterdir())
        assert newest == f"step-{len(steps_reported(directory)):06d}"
        until(lambda: not workers_of(directory), seconds=30)
        jobs.shut_down()


def test_workers_of_a_job_that_ray_ends_do_not_stay_behind(
    db: Database, models: dict[str, str]
) -> None:
    with ray() as machine:
        jobs = Jobs(db)
        run, directory = start_run(jobs, shared(models, machine.settings))
        until(lambda: jobs.poll() or updated(directory, 1))
        workers = workers_of(directory)
        assert {*workers} == {0, 1}
        (driver,) = (
            each
            for each in psutil.process_iter()
            if each.cmdline()[1:3] == ["-m", "pipeline.worker.ray_nodes"]
            and str(directory.path.resolve()) in each.cmdline()
        )
        driver.kill()
        lost = ended(jobs, db, run)
        assert lost.status == "failed", lost
        until(lambda: not workers_of(directory), seconds=30)
        jobs.shut_down()


def test_a_ray_with_too_few_nodes_says_so_at_once_and_gives_up(
    db: Database, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_START_TIMEOUT_SECONDS", "45")
    with ray(1) as machine:
        jobs = Jobs(db)
        run, directory = start_run(jobs, shared(models, machine.settings))
        sentence = (
            "2 nodes with 1 CPU are needed, and the cluster has 1; add nodes, or cancel and lower "
            "worker.nodes"
        )
        told = f"waits for Ray: waiting for resources: {sentence}"
        until(lambda: jobs.poll() or runs.get(db, run.id).message == told)
        assert runs.get(db, run.id).status == "running"
        gave_up = ended(jobs, db, run)
        assert (gave_up.status, gave_up.reason) == (
            "failed",
            f"Ray says: no resources in 45 s (RAY_JOB_START_TIMEOUT_SECONDS): {sentence}",
        )
        # The node is free, so a stage of one node runs.
        again, directory = start_run(jobs, replace(ppo(models, **machine.settings), run="run-2"))
        assert ended(jobs, db, again).status == "succeeded", directory.failure()
        jobs.shut_down()


def test_a_job_that_waits_for_nodes_of_ray_is_cancelled_at_once(
    db: Database, models: dict[str, str]
) -> None:
    with ray(1) as machine:
        jobs = Jobs(db)
        run, _ = start_run(jobs, shared(models, machine.settings))
        until(lambda: jobs.poll() or "the cluster has 1" in (runs.get(db, run.id).message or ""))
        jobs.cancel(run.id)
        assert jobs.poll() == []  # it ends the job
        cancelled = ended(jobs, db, run)
        assert (cancelled.status, cancelled.reason) == ("cancelled", "cancelled by the researcher")
        jobs.shut_down()
