"""A reward stage in several processes: each trains a share of the networks, and nothing else changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file

from pipeline.runs.rundir import Job, RunDirectory
from pipeline.worker import worker
from tests.helpers.prepared_workers import start
from tests.helpers.stage_inputs import give, make_job, make_judgments, make_prompts, tiny_models
from tests.helpers.worker_runs import events, numbered, resume, wait_for, work


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def reward_run(path: Path, job: Job) -> RunDirectory:
    directory = RunDirectory.create(path, job)
    give(directory, "judgments.parquet", make_judgments(96))
    give(directory, "prompts.parquet", make_prompts(4))
    return directory


def reported(directory: RunDirectory) -> list[tuple[int, dict[str, float]]]:
    return [(e["step"], e["values"]) for e in events(directory) if e["kind"] == "metrics"]


def assert_same_weights(one: RunDirectory, other: RunDirectory) -> None:
    """Every file of weights, of all members and of the audit model, bit for bit."""
    found = sorted(path.relative_to(one.model) for path in one.model.rglob("*.safetensors"))
    assert len(found) == len({*other.model.rglob("*.safetensors")})
    assert any("audit" in path.parts for path in found)
    for path in found:
        mine, theirs = load_file(one.model / path), load_file(other.model / path)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), path


def assert_same_model(one: RunDirectory, other: RunDirectory) -> None:
    """The weights, the summary and the held-out predictions."""
    assert_same_weights(one, other)
    mine, theirs = ({**(each.result() or {})} for each in (one, other))
    del mine["seconds"], theirs["seconds"]
    assert theirs == mine
    tables = [pd.read_parquet(each.outputs / "held_out.parquet") for each in (one, other)]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize("stopping", [False, True])
def test_two_processes_make_the_model_that_one_makes(
    models: dict[str, str], tmp_path: Path, stopping: bool
):
    done = []
    for count in (1, 2):
        job = make_job(
            "reward", models, worker__processes=count, reward__members=3,
            reward__held_out_share=0.25, reward__audit_share=0.25 if stopping else 0.0,
            reward__stopping_judgments=20, reward__early_stopping=stopping,
        )  # fmt: skip
        done.append(reward_run(tmp_path / str(count), job))
        assert work(done[-1]) == 0, done[-1].failure()
        assert numbered(done[-1])
    assert not torch.distributed.is_initialized()
    assert "LOCAL_RANK" not in os.environ
    assert reported(done[1]) == reported(done[0])
    assert_same_model(*done)


def test_two_processes_measure_a_judge_once(models: dict[str, str], tmp_path: Path):
    rows = make_judgments(160, prompts=40)
    for n, row in enumerate(rows):
        by_model = n >= 110
        row["annotator"] = "bot" if by_model else f"a-{n % 2}"
        row["annotator_kind"] = "model" if by_model else "person"
    done = []
    for count in (1, 2):
        job = make_job(
            "reward",
            models,
            worker__processes=count,
            reward__members=2,
            reward__epochs=2,
            reward__held_out_share=0.35,
        )
        directory = reward_run(tmp_path / str(count), job)
        give(directory, "judgments.parquet", rows)
        done.append(directory)
        assert work(directory) == 0, directory.failure()
    notes = [[e for e in events(each) if e.get("name") == "judges"] for each in done]
    assert len(notes[0]) == len(notes[1]) == 1
    assert notes[1][0]["payload"] == notes[0][0]["payload"]
    assert [*notes[0][0]["payload"]["judges"]] == ["bot"]
    assert_same_weights(*done)  # estimates of annotators differ by rounding


def test_cancelled_and_killed_it_resumes_to_the_same_model(models: dict[str, str], tmp_path: Path):
    settings = {"reward__members": 4, "reward__epochs": 12, "reward__held_out_share": 0.25}
    job = make_job("reward", models, worker__processes=2, **settings)
    whole = reward_run(tmp_path / "whole", job)
    assert work(whole) == 0, whole.failure()
    broken = reward_run(tmp_path / "broken", job)

    def steps() -> int:
        return len(events(broken)) if broken.events.exists() else 0

    process = start(broken)
    wait_for(lambda: steps() > 20, process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == worker.CANCELLED
    assert broken.failure() == "cancelled"
    assert not broken.is_running()

    resume(broken, job, attempt=2)
    process = start(broken)
    before = steps()
    wait_for(lambda: steps() > before + 5, process)
    (other,) = psutil.Process(process.pid).children()
    os.kill(other.pid, signal.SIGKILL)
    assert process.wait(timeout=120) == worker.FAILED
    assert broken.failure() == "process 2 of 2 stopped; see the log"

    resume(broken, job, attempt=3)
    assert work(broken) == 0, broken.failure()
    assert numbered(broken)
    assert_same_model(whole, broken)
    trained = {step: values for step, values in reported(broken) if "train/loss" in values}
    assert trained == {step: values for step, values in reported(whole) if "train/loss" in values}
