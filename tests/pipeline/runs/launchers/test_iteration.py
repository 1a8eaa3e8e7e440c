"""A whole iteration of the demo on a cluster, with the studio outside it, and everything that can fail.

Ray and Slurm are real ones, as in test_launchers.py.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commands.studio import Remote, is_up
from pipeline.config.sections import CONFIGS
from pipeline.runs.rundir import RunDirectory
from pipeline.simulation.annotators import population
from pipeline.simulation.clients import LabelClient
from pipeline.simulation.preference import score
from pipeline.simulation.report import PairJudge
from pipeline.worker.heartbeat import EVERY
from storage.reports import LoopState, from_json
from tests.helpers.clusters import ROOT
from tests.helpers.worker_runs import steps_reported, until, updated
from tests.pipeline.runs.launchers.test_launchers import (
    Machine,
    assert_same_result,
    ray,
    slurm,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

LABELS = 24
UPDATES = 24
SECONDS = 0.8
"""What an update of eight responses takes at least."""
SETTINGS = f"""
[labeling]
labels = {LABELS}

[ppo]
updates = {UPDATES}

[shaping.weights]
"tests.helpers.slow_shaping:slow" = 1.0

[worker]
nice = 0
"""


class Studio:
    """`launch.py serve` of a workspace, which can be killed and started again."""

    def __init__(self, workspace: Path, options: list[str]) -> None:
        self._workspace, self._options = workspace, options
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "launch.py",
            "serve",
            f"--workspace={self._workspace}",
            "--port=0",
        ]
        self._process = subprocess.Popen(
            [*command, *self._options], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        until(lambda: self._process.poll() is not None or is_up(self._workspace))
        assert self._process.poll() is None
        self._connection = ExitStack()
        self.server = self._connection.enter_context(Remote(self._workspace))

    def kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._connection.close()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=60)

    def call(self, command: str, **arguments: Any) -> Any:
        return self.server.call(command, **arguments)

    def state(self) -> LoopState:
        return from_json(LoopState, self.call("advance"))

    def wait(self, phase: str, *, iteration: int = 1) -> None:
        """Until the loop is in this phase; a stage that stops is an error."""
        state = self.state()
        while (state.iteration, state.phase) != (iteration, phase):
            assert state.blocked is None, state.blocked
            assert state.trouble is None, state.trouble
            time.sleep(0.5)
            state = self.state()

    def run_of(self, stage: str) -> RunDirectory:
        """The directory of the newest run of a stage, once there is one."""

        def found() -> list[str]:
            return [run["id"] for run in self.call("runs.list") if run["stage"] == stage]

        until(found)
        return RunDirectory(self._workspace / "runs" / found()[-1])

    def job_of(self, run: RunDirectory) -> str:
        """The cluster's job of the newest attempt."""
        return self.call("runs.get", id=run.path.name)["machine"]["job"]

    def model(self, id: str) -> Path:
        return self._workspace / "models" / id

    def label(self) -> None:
        """The judgments of the iteration, by two simulated annotators in turn."""
        for person in population(2, bad=0, seed=0):
            account = {"name": person.name, "role": "annotator", "kind": "simulated"}
            token = self.call("users.add", **account, token=True)["token"]
            judge = PairJudge(person, score, seed=0, shuffle=False)
            left = LABELS // 2
            with LabelClient(self.server.url, token) as client:
                while left:
                    pairs = client.next(left)
                    assert pairs, "the pairs ran out"
                    for pair in pairs:
                        client.judge(pair.id, judge(pair))
                    left -= len(pairs)


@pytest.fixture(params=["ray", "slurm"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    if request.param == "slurm":
        yield slurm()
        return
    with ray() as found:
        yield found


@pytest.fixture
def studio(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for `slow`
    (tmp_path / "settings.toml").write_text(SETTINGS)
    options = [f"--config={file}" for file in (CONFIGS / "tiny.toml", tmp_path / "settings.toml")]
    options += [f"--set={k.replace('__', '.')}={v}" for k, v in machine.settings.items()]
    running = Studio(tmp_path / "workspace", options)
    try:
        yield running
    finally:
        running.close()


def test_an_iteration_survives_a_lost_node_a_lost_studio_and_a_cancel(
    studio: Studio, machine: Machine
) -> None:
    studio.wait("labeling")
    studio.label()
    studio.call("train", overrides={})
    studio.wait("policy")
    policy = studio.run_of("policy")

    until(lambda: updated(policy, 2))
    studio.kill()
    seen = len(steps_reported(policy))
    until(lambda: updated(policy, seen + 1))
    studio.start()
    first = studio.job_of(policy)
    machine.lose_node(policy)
    assert stopped(studio).resumable
    lost_at = len(steps_reported(policy))
    assert lost_at < UPDATES

    studio.call("resume")
    until(lambda: updated(policy, lost_at + 2))
    assert studio.job_of(policy) != first
    asked = len(steps_reported(policy))
    studio.call("cancel")
    until(lambda: policy.error() is not None)
    # The worker looks for the request every two seconds, in which it may begin further updates.
    updates = len(steps_reported(policy)) - asked
    assert updates <= 1 + EVERY / SECONDS
    assert stopped(studio).resumable

    studio.call("resume")
    studio.wait("labeling", iteration=2)
    done = {run["stage"]: run["status"] for run in studio.call("runs.list", iteration=1)}
    assert done == dict.fromkeys(("sampling", "reward", "policy", "evaluate"), "succeeded")
    shutil.copytree(studio.model("policy-1"), policy.model)  # where it was registered
    assert_same_result(policy, undisturbed(policy))


def stopped(studio: Studio) -> Any:
    """Why the loop is blocked, as soon as it is."""
    until(lambda: studio.state().blocked)
    return studio.state().blocked


def undisturbed(disturbed: RunDirectory) -> RunDirectory:
    """The same job with the same inputs, on this machine and in one go."""
    job = disturbed.job()
    here = replace(job.config.worker, launcher="local")
    alone = RunDirectory.create(
        disturbed.path.with_name("undisturbed"),
        replace(job, attempt=1, resume=False, config=replace(job.config, worker=here)),
    )
    shutil.copytree(disturbed.inputs, alone.inputs, dirs_exist_ok=True)
    subprocess.run([sys.executable, "-m", "pipeline.worker", alone.path], cwd=ROOT, check=True)
    return alone
