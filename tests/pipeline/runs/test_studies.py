"""What all studies share: their folders, and who may work in them."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from commands import studio
from commands.main import app
from commands.studies import format_studies
from pipeline.runs import process
from pipeline.runs.repeat import exclusive, folder_of, run_to_end
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.simulation.clients import follow
from pipeline.studies import measure
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models_and_reward

COMMANDS = (
    ("sweep", "--kl-weight", "0"),
    ("compare",),
    ("judge", "--judge", "tests.pipeline.simulation.test_judge:likes_first"),
    ("sycophancy",),
)
MODELS = {"policy": "p", "reference": "r"}


def start(path: Path, job: Job) -> RunDirectory:
    """Would start a worker; every test that calls it is refused before."""

    def fill(_inputs: Path) -> None:
        raise AssertionError("the inputs of a run that is not ours were written")

    return run_to_end(path, job, fill=fill, progress=lambda _: None)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a/b", "", ".", "..", ".git", "x\n", "-x"])
def test_a_study_stays_in_its_place(name: str):
    with pytest.raises(ValueError, match="must be a plain folder name: letters, digits and"):
        folder_of(Path("sweeps"), name)


def test_the_list_counts_the_runs_that_are_finished():
    part = {"title": "β = 0.1", "reward": None, "kl": None}
    study = {
        "id": "sweep-a", "status": "running", "planned": 3, "message": "β = 0.1 (2 of 3)",
        "repeats": "run-1", "runs": [part | {"status": "succeeded"}, part | {"status": "running"}],
    }  # fmt: skip
    first = format_studies([study]).splitlines()[0]
    assert first == "sweep-a  running, 1 of 3 runs finished  (repeats run-1)  β = 0.1 (2 of 3)"


def test_ordinary_names_are_folders():
    for name in ("kl_weight", "seed-1", "β = 0.1", "2026.11"):
        assert folder_of(Path("sweeps"), name) == Path("sweeps") / name


def test_a_folder_has_one_command_at_a_time(tmp_path: Path):
    with exclusive(tmp_path / "s"):
        with (
            pytest.raises(
                RuntimeError, match=r"another command is running in .*/s; .* another --x"
            ),
            exclusive(tmp_path / "s", option="--x"),
        ):
            pass
        with exclusive(tmp_path / "t"):
            pass
    with exclusive(tmp_path / "s"):
        pass


def test_a_worker_that_lives_on_is_left_alone(tmp_path: Path):
    """Its starter was killed; the run is still its own."""
    directory = RunDirectory.create(tmp_path / "run", make_job("policy", MODELS))
    directory.write_error("as it was")
    before = {path: path.read_bytes() for path in directory.path.glob("*.json")}
    with (
        directory.hold_lock(),
        pytest.raises(RuntimeError, match="another worker is already running in"),
    ):
        start(directory.path, make_job("policy", MODELS))
    assert {path: path.read_bytes() for path in directory.path.glob("*.json")} == before


def test_a_study_waits_for_the_worker_that_its_killed_process_left_behind(tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", make_job("policy", MODELS))
    lock, told = directory.hold_lock(), []

    def end() -> None:
        with Report(directory) as report:
            report.progress(1, 2, "update 1 of 2")
        time.sleep(1)
        directory.write_result({"seconds": 1})
        lock.close()

    worker = threading.Thread(target=end)
    worker.start()
    found = run_to_end(
        directory.path,
        make_job("policy", MODELS),
        fill=lambda _: None,
        progress=told.append,
        apart=True,
    )
    worker.join()
    assert found.result() == {"seconds": 1}
    assert told == ["update 1 of 2", "done before"]


def test_a_worker_that_the_operating_system_kills_names_memory(tmp_path: Path, monkeypatch):
    def killed(*_: Any, **__: Any) -> subprocess.Popen[bytes]:
        """A worker that has just started: a real one could end before its kill."""
        child = subprocess.Popen(["sleep", "60"])
        child.kill()
        return child

    monkeypatch.setattr(process, "start", killed)
    with pytest.raises(RuntimeError, match=r"run failed: the worker was killed .* memory ran out"):
        run_to_end(
            tmp_path / "run",
            make_job("policy", MODELS),
            fill=lambda _: None,
            progress=lambda _: None,
            apart=True,
        )


def test_what_differs_is_named_and_the_machine_is_not(tmp_path: Path):
    job = make_job("policy", MODELS)
    RunDirectory.create(tmp_path, job).write_result({})
    machine = make_job("policy", MODELS, worker__nice=9, worker__threads=2)
    assert start(tmp_path, machine).result() == {}
    other = make_job("policy", MODELS | {"policy": "q"}, ppo__lr=0.5, worker__nice=9)
    with pytest.raises(
        ValueError,
        match=r"\(ppo.lr: 3e-06 → 0.5; the policy model: p → q\); give this one another --name",
    ):
        start(tmp_path, other)
    # After a restore, another run may have made models of the same names.
    assert start(tmp_path, replace(job, repeats="run-9")).result() == {}  # it did not say which
    RunDirectory.create(tmp_path, replace(job, repeats="run-1")).write_result({})
    with pytest.raises(ValueError, match=r"\(the run that is repeated: run-1 → run-9\)"):
        start(tmp_path, replace(job, repeats="run-9"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_ctrl_c_says_how_to_go_on(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for module in (
        "pipeline.studies.study.run_sweep",
        "pipeline.studies.study.run_comparison",
        "commands.studies.judge_all",
        "pipeline.studies.sycophancy.study.study",
    ):
        monkeypatch.setattr(module, interrupted)
    monkeypatch.setattr(studio, "Studio", MagicMock())
    monkeypatch.setattr("commands.studies.planned", MagicMock())
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 130
    assert found.stderr.splitlines()[-1] == "stopped; run the same command to continue"


def test_measuring_says_how_far_it_is(tmp_path: Path):
    models = tiny_models_and_reward(tmp_path / "models")
    directory = RunDirectory.create(
        tmp_path / "run", make_job("measure", models, evaluate__batch=4)
    )
    give(directory, "prompts.parquet", make_prompts(3))
    policies = [{"name": key, "path": models[key]} for key in ("reference", "policy")]
    plan = {"policies": policies, "samples": 2}
    (directory.inputs / "plan.json").write_text(json.dumps(plan))
    with Report(directory) as report:
        measure.run(directory.job(), report, directory)
    told = [event for event in directory.events_after(0, 0) if event["kind"] == "progress"]
    assert [(e["done"], e["total"], e["message"]) for e in told] == [
        (4, 12, "reference: 4 of 6 answers"),
        (6, 12, "reference: 6 of 6 answers"),
        (10, 12, "policy: 4 of 6 answers"),
        (12, 12, "policy: 6 of 6 answers"),
    ]


def test_a_stage_that_is_called_like_its_phase_is_named_once(tmp_path):
    states = [
        {"iteration": 1, "phase": "policy", "phase_name": "DPO", "message": "DPO 50% step 2 of 4"},
        {
            "iteration": 1,
            "phase": "evaluating",
            "phase_name": "evaluating",
            "message": "evaluate 0%",
        },
        {"iteration": 2, "phase": "labeling", "phase_name": "labeling", "message": ""},
    ]
    states = [state | {"blocked": None} for state in states]
    said: list[str] = []
    answers = iter(states)
    follow(lambda _: next(answers), tmp_path, until="labeling", progress=said.append)
    assert said == [
        "iteration 1: DPO 50% step 2 of 4",
        "iteration 1: evaluating evaluate 0%",
        "iteration 2: labeling",
    ]
