"""What becomes of a run on a cluster when a node, a network or the studio fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labeler.research.runs.view import card
from pipeline.config.sections import Config, WorkerConfig
from pipeline.runs import jobs as jobs_module
from pipeline.runs.jobs import Jobs
from pipeline.runs.launchers.choose import cluster_launcher
from pipeline.runs.launchers.launcher import Launcher, LaunchError
from pipeline.runs.launchers.remote import ASK_EVERY, RemoteLauncher, job_name
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.worker import heartbeat, worker
from storage.commands import Commands
from storage.engine.database import Database
from storage.records import Run
from storage.tables.runs import run_machines, runs
from tests.helpers.clusters import ROOT, ProcessCluster
from tests.helpers.stage_inputs import make_job, tiny_models_and_reward
from tests.helpers.worker_runs import fill, until

SLOW = {"tests.pipeline.runs.launchers.test_launchers:slow": 1.0}


class Clock:
    """The time that the launcher sees."""

    def __init__(self) -> None:
        self.later = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.later


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[ProcessCluster]:
    made = ProcessCluster()

    def launcher(config: WorkerConfig, workspace: Path) -> Launcher:
        return RemoteLauncher(made, config, workspace=workspace, clock=clock)

    monkeypatch.setattr(jobs_module, "cluster_launcher", launcher)
    yield made
    for name in made.jobs:
        made.kill(name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def ppo(models: dict[str, str], **settings: Any) -> Job:
    return make_job(
        "policy", models, ppo__updates=1000, shaping__weights=SLOW,
        **{"worker__launcher": "ray", **settings},
    )  # fmt: skip


@pytest.fixture
def updating(
    db: Database,
    models: dict[str, str],
    cluster: ProcessCluster,  # noqa: ARG001
) -> tuple[Jobs, Run, RunDirectory]:
    """A PPO run with at least one update, on a cluster that still answers."""
    jobs = Jobs(db)
    run = jobs.start(ppo(models), fill=fill)
    directory = jobs.directory(run)
    until(lambda: jobs.poll() or (directory.events.exists() and directory.has_checkpoint()))
    assert runs.get(db, run.id).status == "running", directory.log_tail()
    return jobs, run, directory


def worker_of(cluster: ProcessCluster, directory: RunDirectory) -> Any:
    return cluster.jobs[job_name(directory, directory.job().attempt)]


def test_a_silent_cluster_is_no_reason_to_give_up_a_worker_that_answers(
    db: Database,
    updating: tuple[Jobs, Run, RunDirectory],
    cluster: ProcessCluster,
    clock: Clock,
) -> None:
    jobs, run, directory = updating
    cluster.silent = True
    clock.later += 2 * ASK_EVERY
    assert jobs.poll() == []
    seen = directory.heartbeat.read_text()
    until(lambda: directory.heartbeat.read_text() != seen)  # the worker lives
    clock.later += WorkerConfig().lost_after
    assert jobs.poll() == []
    assert runs.get(db, run.id).status == "running"


def test_a_worker_without_a_heartbeat_is_lost_whatever_the_cluster_says(
    updating: tuple[Jobs, Run, RunDirectory],
    cluster: ProcessCluster,
    clock: Clock,
) -> None:
    jobs, _, directory = updating
    hanging = worker_of(cluster, directory)
    os.killpg(hanging.pid, signal.SIGSTOP)
    assert jobs.poll() == []
    clock.later += WorkerConfig().lost_after + 1
    [ended] = jobs.poll()
    assert ended.status == "failed"
    node = os.uname().nodename
    assert (ended.reason or "").startswith(f"the worker on {node} has given no sign of life for 18")
    assert cluster.stopped == [job_name(directory, 1)]


def test_a_worker_that_comes_back_after_it_was_given_up_ends_and_writes_nothing(
    db: Database,
    updating: tuple[Jobs, Run, RunDirectory],
    cluster: ProcessCluster,
    clock: Clock,
) -> None:
    jobs, run, directory = updating
    old = worker_of(cluster, directory)
    os.killpg(old.pid, signal.SIGSTOP)
    assert jobs.poll() == []
    cluster.silent = True  # so that nobody can stop the job
    clock.later += WorkerConfig().lost_after + 1
    [lost] = jobs.poll()
    assert lost.status == "failed"
    cluster.silent = False
    jobs.resume(run.id)
    until(lambda: jobs.poll() or b'"attempt": 2' in directory.events.read_bytes())
    os.killpg(old.pid, signal.SIGCONT)
    until(lambda: old.poll() is not None, seconds=30)
    assert runs.get(db, run.id).status == "running"  # the new one goes on
    assert "attempt 1 was given up by the studio and ends" in directory.log_tail()
    assert directory.error() is None


def test_a_job_that_starts_after_its_attempt_has_ended_does_nothing(
    tmp_path: Path, models: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory.create(tmp_path / "run", replace(ppo(models), attempt=2))
    assert worker.main([str(directory.path), "1"]) == worker.FAILED
    directory.write_error("the studio gave it up")
    assert worker.main([str(directory.path), "2"]) == worker.FAILED
    assert capsys.readouterr().err.count("has ended already") == 2
    assert directory.error() == "the studio gave it up"
    assert not directory.events.exists()
    assert not directory.heartbeat.exists()


def test_a_job_that_waits_for_its_turn_is_cancelled_at_once(
    db: Database, models: dict[str, str], cluster: ProcessCluster, clock: Clock
) -> None:
    jobs = Jobs(db)
    cluster.held.add(job_name(jobs.directory(Run(
        id="run-1", stage="policy", iteration=2, status="running", directory="runs/run-1"
    )), 1))  # fmt: skip
    run = jobs.start(ppo(models), fill=fill)
    clock.later += 10_000  # waiting is no silence
    assert jobs.poll() == []
    assert runs.get(db, run.id).message == "waits for the cluster: no node is free"
    jobs.cancel(run.id)
    assert jobs.poll() == []  # it ends the job
    [ended] = jobs.poll()
    assert (ended.status, ended.reason) == ("cancelled", "cancelled by the researcher")


def test_a_job_that_the_cluster_refuses_is_a_failed_run(
    db: Database, models: dict[str, str], cluster: ProcessCluster
) -> None:
    cluster.refuses = "the cluster has no GPU"
    run = Jobs(db).start(ppo(models), fill=fill)
    assert (run.status, run.reason) == ("failed", "the cluster has no GPU")
    assert runs.get(db, run.id).status == "failed"


@pytest.mark.usefixtures("cluster")
def test_a_studio_that_stopped_before_it_submitted_leaves_a_failed_run(
    db: Database, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RemoteLauncher, "submit", stop)
        with pytest.raises(KeyboardInterrupt):
            Jobs(db).start(ppo(models), fill=fill)
    [ended] = Jobs(db).poll()
    assert ended.status == "failed"
    assert ended.reason == (
        "the cluster says: it has no such job; the studio stopped before it submitted one"
    )


def test_a_job_that_ends_before_its_worker_could_write_leaves_its_output_in_the_log(
    db: Database, models: dict[str, str], cluster: ProcessCluster, clock: Clock
) -> None:
    jobs = Jobs(db)
    run = jobs.start(ppo(models), fill=fill)
    cluster.kill(name := job_name(jobs.directory(run), 1))
    until(lambda: cluster.jobs[name].poll() is not None)
    clock.later += ASK_EVERY
    jobs.directory(run).heartbeat.unlink(missing_ok=True)
    [ended] = jobs.poll()
    assert ended.reason == f"the cluster says: exit status {-signal.SIGKILL}"
    assert f"what {name} printed" in jobs.directory(run).log_tail()


def test_a_cluster_that_ends_a_worker_leaves_a_checkpoint_and_says_so(
    db: Database, updating: tuple[Jobs, Run, RunDirectory], cluster: ProcessCluster
) -> None:
    jobs, run, directory = updating
    os.kill(worker_of(cluster, directory).pid, signal.SIGTERM)
    until(jobs.poll)
    ended = runs.get(db, run.id)
    assert ended.status == "failed"
    assert (ended.reason or "").startswith("the cluster stopped the worker, as at a time limit; ")
    assert directory.has_checkpoint()


def test_a_stopped_run_is_resumed_where_the_settings_say_now(
    updating: tuple[Jobs, Run, RunDirectory], cluster: ProcessCluster, clock: Clock
) -> None:
    jobs, run, directory = updating
    cluster.kill(job_name(directory, 1))
    clock.later += ASK_EVERY
    until(jobs.poll)
    resumed = jobs.resume(run.id, machine=WorkerConfig())
    assert resumed.config["worker"]["launcher"] == "local"
    assert directory.job().config.worker.threads == 1  # what the run had
    assert directory.is_running()
    assert list(cluster.jobs) == [job_name(directory, 1)]
    jobs.cancel(run.id)
    until(jobs.poll)
    jobs.shut_down()


def test_paths_of_a_job_follow_the_workspace_wherever_a_node_sees_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    config = Config().override({"shaping.references": str(here / "files" / "refs.parquet")})
    paths = {"policy": str(here / "models" / "policy-1"), "reference": "owner/name"}
    job = Job(run="run-1", stage="policy", iteration=1, config=config, models=paths)
    directory = RunDirectory.create(here / "runs" / "run-1", job)
    assert directory.job() == job
    shutil.copytree(here, there)
    seen = RunDirectory(there / "runs" / "run-1").job()
    assert seen.models == {"policy": str(there / "models" / "policy-1"), "reference": "owner/name"}
    assert seen.config.shaping.references == str(there / "files" / "refs.parquet")


def test_a_worker_is_started_at_the_workspaces_path_on_the_node(
    db: Database, models: dict[str, str], cluster: ProcessCluster, tmp_path: Path
) -> None:
    (tmp_path / "mounted").symlink_to(db.workspace)
    root = str(tmp_path / "mounted")
    submitted: list[list[str]] = []
    submit = cluster.submit
    cluster.submit = lambda name, command, *, log, nodes: (  # type: ignore[method-assign]
        submitted.append([*command, str(log)]) or submit(name, command, log=log, nodes=nodes)
    )
    jobs = Jobs(db)
    jobs.start(ppo(models, worker__root=root, worker__python="/opt/python"), fill=fill)
    run = f"{root}/runs/run-1"
    assert submitted == [["/opt/python", "-m", "pipeline.worker", run, "1", f"{run}/log.txt"]]


def test_a_ray_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    config = WorkerConfig(launcher="ray", ray_address="http://127.0.0.1:9")
    with pytest.raises(LaunchError) as refused:
        cluster_launcher(config, tmp_path).check()
    assert str(refused.value).startswith("Ray does not answer at http://127.0.0.1:9 (")
    assert str(refused.value).endswith(
        ". Start it with `ray start --head`, or set worker.launcher to local."
    )


def test_a_machine_without_slurm_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"^Slurm's command sinfo is not on this machine\. "):
        cluster_launcher(WorkerConfig(launcher="slurm"), tmp_path).check()


SBATCH = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/arguments
cat > {folder}/script
echo 17
"""


def submitted_to_slurm(
    db: Database, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    **settings: Any,
) -> tuple[RunDirectory, set[str], str]:  # fmt: skip
    """The run directory, sbatch's arguments and the script's last line."""
    for name, text in (("sbatch", SBATCH.format(folder=tmp_path)), ("sinfo", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    jobs = Jobs(db)
    run = jobs.start(ppo(models, worker__launcher="slurm", **settings), fill=fill)
    given = {*(tmp_path / "arguments").read_text().splitlines()}
    return jobs.directory(run), given, (tmp_path / "script").read_text().splitlines()[-1]


def test_slurm_gets_the_resources_and_none_of_the_studios_environment(
    db: Database, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, given, last = submitted_to_slurm(
        db, models, tmp_path, monkeypatch, worker__gpus=2, worker__cpus=8,
        worker__slurm_partition="a100", worker__slurm_account="lab",
        worker__slurm_minutes=90, worker__slurm_options=("--qos=high",),
    )  # fmt: skip
    assert {
        "--partition=a100", "--account=lab", "--time=90", "--gpus-per-node=2", "--cpus-per-task=8",
        "--nodes=1", "--ntasks-per-node=1", "--qos=high", "--export=NONE", "--no-requeue",
    } <= given  # fmt: skip
    assert last == f"exec {sys.executable} -m pipeline.worker {directory.path.resolve()} 1"
    assert '"id": "17"' in directory.handle.read_text()


def test_slurm_starts_a_worker_on_each_node_of_the_policy_stage(
    db: Database, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, given, last = submitted_to_slurm(
        db, models, tmp_path, monkeypatch, worker__nodes=2, worker__processes=2, worker__cpus=4
    )
    assert {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4"} <= given
    command, _, started = last.partition(f" {sys.executable} ")
    assert command.split()[:2] == ["exec", "srun"]
    # srun takes neither over from sbatch, and sbatch's --export=NONE empties the tasks' environment.
    assert {"--nodes=2", "--ntasks=2", "--cpus-per-task=4", "--export=ALL"} <= {*command.split()}
    assert started.startswith("-m pipeline.worker ")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"worker.root": "workspace"}, "worker.root=workspace must be an absolute path"),
        ({"worker.ray_address": "ray-head:8265"}, "worker.ray_address=ray-head:8265 must be"),
        ({"worker.slurm_options": '["qos=high"]'}, "an option of sbatch begins with --"),
        (
            {"worker.launcher": "ray", "worker.gpus": "1", "worker.processes": "2"},
            "worker.processes=2 is more than worker.gpus=1 on worker.nodes=1",
        ),
        ({"worker.nodes": "2", "worker.processes": "2"}, "needs worker.launcher=ray or slurm"),
        (
            {"worker.launcher": "slurm", "worker.nodes": "2", "worker.processes": "3"},
            "worker.nodes=2 must divide worker.processes=3",
        ),
    ],
)
def test_wrong_settings_of_a_cluster_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config().override(settings)


def test_a_heartbeat_passes_a_request_to_stop_on_as_a_signal(
    tmp_path: Path, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)
    directory = RunDirectory.create(tmp_path / "run", ppo(models))
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: told.append(signum))
    try:
        with heartbeat.kept(directory, 1):
            until(directory.heartbeat.exists)
            assert told == []
            (directory.path / "cancel").write_text("2026-01-01T00:00:00+00:00")
            until(lambda: told)
            time.sleep(0.2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]  # once


def test_a_run_says_where_it_runs(db: Database, updating: tuple[Jobs, Run, RunDirectory]) -> None:
    _, run, directory = updating
    node = os.uname().nodename
    found = Commands(db).call("runs.get", {"id": run.id})["machine"]
    assert found == {"launcher": "the cluster", "job": job_name(directory, 1), "node": node}
    page = card(run, now=run.created_at, seconds_left=None, machine=run_machines.of(db, run))
    assert f"the cluster: job {job_name(directory, 1)}, node {node}" in page


def test_serve_does_not_start_if_the_cluster_does_not_answer(tmp_path: Path) -> None:
    command = [
        sys.executable, "launch.py", "serve", "--workspace", str(tmp_path / "workspace"), "--port", "0",
        "--set", "worker.launcher=ray", "--set", "worker.ray_address=http://127.0.0.1:9",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.strip().startswith("kitestring: Ray does not answer at http://127.0.0.1:9")
