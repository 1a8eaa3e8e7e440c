"""Workers here, on a cluster of processes, on Ray and on Slurm: each behaves the same.

Ray and Slurm are real ones: `pip install ray[default]`, and a Slurm whose `sinfo` answers.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pipeline.runs import jobs as jobs_module
from pipeline.runs.jobs import Jobs
from pipeline.runs.launchers.launcher import Launcher
from pipeline.runs.launchers.remote import RemoteLauncher, job_name
from pipeline.runs.launchers.staged import StagedLauncher
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.runs.staging import attempt
from storage.engine.database import Database
from storage.records import Run
from storage.tables.runs import runs
from tests.helpers.clusters import ProcessCluster, RayNodes
from tests.helpers.stage_inputs import make_job, rows_of, tiny_models_and_reward
from tests.helpers.worker_runs import assert_equal_runs, fill, steps_reported, until, updated
from tests.pipeline.policy_methods.test_kill import events, untimed

UPDATES = 8


def slow(_: str) -> float:
    """A shaping component that makes an update of four responses take at least 0.4 s."""
    time.sleep(0.1)
    return 0.0


class Machine:
    """Where workers run, and how their node is lost."""

    settings: dict[str, Any]

    def lose_node(self, directory: RunDirectory) -> None: ...

    def jobs_named(self, name: str) -> int: ...


class ThisMachine(Machine):
    settings: dict[str, Any] = {}  # noqa: RUF012

    def lose_node(self, directory: RunDirectory) -> None:
        os.killpg(int((directory.path / "pid").read_text()), signal.SIGKILL)


class Processes(Machine):
    settings = {"worker__launcher": "ray"}  # noqa: RUF012

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = ProcessCluster()

        def launcher(config: Any, workspace: Path) -> Launcher:
            return RemoteLauncher(self.cluster, config, workspace=workspace)

        monkeypatch.setattr(jobs_module, "cluster_launcher", launcher)

    def lose_node(self, directory: RunDirectory) -> None:
        self.cluster.kill(job_name(directory, directory.job().attempt))


class Staged(Processes):
    """Processes that exchange their files with the studio by a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        super().__init__(monkeypatch)
        monkeypatch.setattr(jobs_module, "cluster_launcher", self.launcher)
        monkeypatch.setattr(attempt, "EVERY", 0.1)
        self.cluster.environment["EVERY"] = "0.1"
        self.settings = {
            "worker__launcher": "ray",
            "worker__staging": f"file://{folder}/store",
            "worker__root": f"{folder}/node",
        }

    def launcher(self, config: Any, workspace: Path) -> Launcher:
        return StagedLauncher(self.cluster, config, workspace=workspace)


class Ray(Machine):
    def __init__(self, nodes: RayNodes, **settings: Any) -> None:
        self.nodes = nodes
        self.settings = {
            "worker__launcher": "ray", "worker__ray_address": nodes.address, **settings,
        }  # fmt: skip

    def lose_node(self, directory: RunDirectory) -> None:
        name = job_name(directory, directory.job().attempt)
        job = httpx.get(f"{self.nodes.address}/api/jobs/{name}").json()
        assert job["driver_node_id"] in self.nodes.nodes
        self.nodes.kill(job["driver_node_id"])


class Slurm(Machine):
    settings = {"worker__launcher": "slurm"}  # noqa: RUF012

    def lose_node(self, directory: RunDirectory) -> None:
        name = job_name(directory, directory.job().attempt)
        subprocess.run(["scancel", "--signal=KILL", "--full", f"--name={name}"], check=True)


@contextmanager
def ray(count: int = 2, **settings: Any) -> Iterator[Ray]:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = RayNodes(port, nodes=count)
    try:
        yield Ray(nodes, **settings)
    finally:
        nodes.close()


def slurm() -> Slurm:
    if not shutil.which("sinfo") or subprocess.run(["sinfo"], capture_output=True).returncode:
        pytest.skip("no Slurm answers")
    return Slurm()


@pytest.fixture(
    params=[
        "local",
        "processes",
        "staged",
        pytest.param("ray", marks=pytest.mark.slow),
        pytest.param("staged ray", marks=pytest.mark.slow),
        pytest.param("slurm", marks=pytest.mark.slow),
    ]
)
def machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Machine]:
    if "ray" in request.param:
        store = {"worker__staging": f"file://{tmp_path}/store"} if "staged" in request.param else {}
        with ray(**store) as found:
            yield found
    else:
        yield {
            "local": ThisMachine,
            "processes": lambda: Processes(monkeypatch),
            "staged": lambda: Staged(monkeypatch, tmp_path),
            "slurm": slurm,
        }[request.param]()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def ppo(models: dict[str, str], **settings: Any) -> Job:
    shaping = {"tests.pipeline.runs.launchers.test_launchers:slow": 1.0}
    return make_job("policy", models, ppo__updates=UPDATES, shaping__weights=shaping, **settings)


def start(jobs: Jobs, job: Job) -> tuple[Run, RunDirectory]:
    run = jobs.start(job, fill=fill)
    return run, jobs.directory(run)


def ended(jobs: Jobs, db: Database, run: Run) -> Run:
    until(lambda: jobs.poll() or runs.get(db, run.id).status != "running")
    return runs.get(db, run.id)


@pytest.fixture(scope="module")
def undisturbed(
    models: dict[str, str], empty_workspace: Path, tmp_path_factory: pytest.TempPathFactory
) -> RunDirectory:
    """The same run on this machine, which nobody disturbs."""
    workspace = tmp_path_factory.mktemp("undisturbed") / "workspace"
    with Database.open(shutil.copytree(empty_workspace, workspace)) as db:
        jobs = Jobs(db)
        run, directory = start(jobs, ppo(models))
        assert ended(jobs, db, run).status == "succeeded", directory.failure()
        jobs.shut_down()
    return directory


def test_a_worker_that_loses_its_node_is_resumed_bit_for_bit(
    db: Database, models: dict[str, str], undisturbed: RunDirectory, machine: Machine
) -> None:
    jobs = Jobs(db)
    run, directory = start(jobs, ppo(models, **machine.settings))
    until(lambda: jobs.poll() or updated(directory, 3))
    assert runs.get(db, run.id).status == "running", directory.log_tail()
    machine.lose_node(directory)
    lost = ended(jobs, db, run)
    assert lost.status == "failed"
    assert lost.reason
    assert len(steps_reported(directory)) < UPDATES
    resumed = jobs.resume(run.id)
    assert ended(jobs, db, resumed).status == "succeeded", directory.failure()
    jobs.shut_down()
    assert_same_result(directory, undisturbed)


def test_a_cancelled_worker_saves_its_work_and_continues_bit_for_bit(
    db: Database, models: dict[str, str], undisturbed: RunDirectory, machine: Machine
) -> None:
    jobs = Jobs(db)
    run, directory = start(jobs, ppo(models, **machine.settings, ppo__checkpoint_every=1000))
    until(lambda: jobs.poll() or updated(directory, 2))
    jobs.cancel(run.id)
    cancelled = ended(jobs, db, run)
    assert (cancelled.status, cancelled.reason) == ("cancelled", "cancelled by the researcher")
    assert 2 <= len(steps_reported(directory)) < UPDATES
    resumed = jobs.resume(run.id)
    assert ended(jobs, db, resumed).status == "succeeded", directory.failure()
    jobs.shut_down()
    assert_same_result(directory, undisturbed)


def test_a_restarted_studio_follows_the_worker_of_the_one_before(
    db: Database, models: dict[str, str], machine: Machine
) -> None:
    jobs = Jobs(db)
    run, directory = start(jobs, ppo(models, **machine.settings))
    until(lambda: jobs.poll() or updated(directory, 1))
    jobs.shut_down()
    directory.handle.unlink(missing_ok=True)  # as if it had ended before it stored the handle
    again = Jobs(db)
    assert ended(again, db, run).status == "succeeded", directory.failure()
    assert runs.get(db, run.id).attempt == 1
    told = [event["step"] for event in events(directory) if event["kind"] == "metrics"]
    assert told == list(range(1, UPDATES + 1))  # by one worker
    again.shut_down()


@pytest.mark.slow
def test_two_nodes_of_slurm_train_together_and_resume_after_one_is_lost(
    db: Database, models: dict[str, str], undisturbed: RunDirectory
) -> None:
    machine = slurm()
    listed = subprocess.run(["sinfo", "--Node", "--noheader"], capture_output=True, text=True)
    if len(listed.stdout.splitlines()) < 2:
        pytest.skip("this Slurm has one node")
    jobs = Jobs(db)
    run, directory = start(
        jobs, ppo(models, worker__nodes=2, worker__processes=2, **machine.settings)
    )
    until(lambda: jobs.poll() or updated(directory, 3))
    (second,) = workers_of(directory, node="1")
    second.kill()
    lost = ended(jobs, db, run)
    assert (lost.status, lost.reason) == (
        "failed", "a process on another node stopped; see the log",
    )  # fmt: skip
    until(lambda: not workers_of(directory, node="0"))
    resumed = jobs.resume(run.id)
    assert ended(jobs, db, resumed).status == "succeeded", directory.failure()
    jobs.shut_down()
    assert_equal_runs(undisturbed, directory)


def workers_of(directory: RunDirectory, *, node: str) -> list[psutil.Process]:
    """The workers of a run whose number among the nodes of their Slurm step is this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if (
                {"pipeline.worker", str(directory.path.resolve())} <= {*process.cmdline()}
                and process.environ().get("SLURM_NODEID") == node
                and "SLURM_STEP_NUM_NODES" in process.environ()
                and process.name() != "srun"
            ):
                found.append(process)
    return found


def assert_same_result(ours: RunDirectory, theirs: RunDirectory) -> None:
    assert events(ours) == events(theirs)
    files = [(each.model / "model.safetensors").read_bytes() for each in (ours, theirs)]
    assert files[0] == files[1]
    samples = [rows_of(each.outputs / "samples.parquet") for each in (ours, theirs)]
    assert samples[0] == samples[1]
    results = [untimed(each.result() or {}) for each in (ours, theirs)]
    assert results[0] == results[1]
