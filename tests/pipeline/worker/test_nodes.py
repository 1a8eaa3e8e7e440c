"""PPO on several nodes: a worker on each, as Slurm's `srun` or a job of Ray starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import psutil
import pytest

from pipeline.runs.rundir import Job, RunDirectory
from pipeline.worker import worker
from pipeline.worker.distributed import MEETING, NODE
from tests.helpers.prepared_workers import start
from tests.helpers.stage_inputs import make_job, tiny_models_and_reward
from tests.helpers.worker_runs import (
    assert_equal_runs,
    numbered,
    resume,
    run_ppo,
    steps_reported,
    wait_for,
    work,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def of_slurm(node: int) -> dict[str, str]:
    return {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": str(node)}


def of_ray(node: int) -> dict[str, str]:
    return {NODE: f"{node} 2 127.0.0.1"}


def on_two_nodes(
    directory: RunDirectory,
    attempt: int = 1,
    *,
    environment: Callable[[int], dict[str, str]] = of_slurm,
) -> list[Popen[bytes]]:
    return [
        start(directory, attempt=str(attempt), environment=environment(node)) for node in (0, 1)
    ]


def ppo(models: dict[str, str], **settings: object) -> Job:
    return make_job(
        "policy", models, worker__launcher="slurm", worker__nodes=2, ppo__lr=1e-3, **settings
    )


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_two_nodes_tell_and_make_what_one_process_does(
    models: dict[str, str], tmp_path: Path, processes: int
):
    alone = run_ppo(tmp_path / "alone", make_job("policy", models, ppo__lr=1e-3))
    assert work(alone) == 0, alone.failure()
    shared = run_ppo(tmp_path / "shared", ppo(models, worker__processes=processes))
    assert [node.wait(timeout=240) for node in on_two_nodes(shared)] == [0, 0], shared.failure()
    assert steps_reported(shared) == [1, 2, 3]
    assert numbered(shared)
    assert_equal_runs(alone, shared)
    assert json.loads(shared.heartbeat.read_text())["pid"] != os.getpid()


def test_a_lost_node_ends_the_stage_and_it_resumes(models: dict[str, str], tmp_path: Path):
    job = ppo(models, worker__processes=2, ppo__updates=12, ppo__checkpoint_every=2)
    whole = run_ppo(tmp_path / "whole", job)
    assert [node.wait(timeout=240) for node in on_two_nodes(whole)] == [0, 0], whole.failure()

    broken = run_ppo(tmp_path / "broken", job)
    first, second = on_two_nodes(broken)
    wait_for(lambda: broken.events.exists() and max(steps_reported(broken), default=0) > 3, first)
    os.killpg(second.pid, signal.SIGKILL)
    assert first.wait(timeout=120) == worker.FAILED
    assert broken.failure() == "a process on another node stopped; see the log"

    resume(broken, job, attempt=2)
    assert not (broken.path / MEETING).exists()  # the address of the lost attempt
    assert [node.wait(timeout=240) for node in on_two_nodes(broken, 2)] == [0, 0], broken.failure()
    assert steps_reported(broken) == list(range(1, 13))
    assert_equal_runs(whole, broken)


def test_a_request_to_stop_ends_both_nodes_with_a_checkpoint(
    models: dict[str, str], tmp_path: Path
):
    job = ppo(models, worker__processes=2, ppo__updates=500, ppo__checkpoint_every=0)
    directory = run_ppo(tmp_path / "run", job)
    nodes = on_two_nodes(directory, environment=of_ray)
    wait_for(lambda: directory.events.exists() and bool(steps_reported(directory)), nodes[0])
    assert '"tcp://127.0.0.1:' in (directory.path / MEETING).read_text()
    (directory.path / "cancel").write_text("2026-01-01T00:00:00+00:00")
    assert [node.wait(timeout=120) for node in nodes] == [worker.CANCELLED] * 2
    assert directory.failure() == "cancelled"
    newest = max(path.name for path in (directory.checkpoint / "checkpoints").iterdir())
    assert newest == f"step-{max(steps_reported(directory)):06d}"


def test_a_node_without_the_first_ones_address_says_what_is_missing(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.worker.distributed._WAIT", 0.5)
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_NODEID", "1")
    directory = run_ppo(tmp_path / "run", ppo(models, worker__processes=2))
    (directory.path / MEETING).write_text('{"attempt": 0, "url": "tcp://nowhere:1"}')
    with pytest.raises(ValueError, match=r"^node 2 of 2 saw no rendezvous\.json of the first node"):
        worker.main([str(directory.path), "1"])


STARTER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print(child.pid, flush=True)
child.wait()
"""
TIED = """
import subprocess, sys, time
from pathlib import Path
from pipeline.runs.rundir import RunDirectory
from pipeline.worker import heartbeat
heartbeat.EVERY = 0.05
directory = RunDirectory(Path(sys.argv[1]))
with heartbeat.tied_to_parent(directory):
    child = subprocess.Popen(["sleep", "60"])
    (directory.path / "child").write_text(str(child.pid))
    time.sleep(60)
"""


def test_a_worker_whose_starter_is_killed_ends_with_the_processes_that_it_started(tmp_path: Path):
    directory, child = RunDirectory(tmp_path), tmp_path / "child"
    command = [sys.executable, "-c", STARTER, TIED, str(tmp_path)]
    with Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        own = int(starter.stdout.readline())
        wait_for(lambda: child.exists() and child.read_text() != "", starter)
        tied = [psutil.Process(own), psutil.Process(int(child.read_text()))]
        time.sleep(0.3)  # several looks
        assert all(process.is_running() for process in tied)
        starter.kill()
    gone, alive = psutil.wait_procs(tied, timeout=20)
    assert (len(gone), alive) == (2, [])
    assert "lost the cluster's process that started it" in directory.log_tail()
