"""The worker: every stage end to end on the tiny model, failures, and kill and resume."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.metric_definitions import METRICS
from pipeline.runs.rundir import LOCK_FD, Report, RunDirectory
from pipeline.stages import reward
from pipeline.worker import worker
from tests.helpers.prepared_workers import ROOT, start
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_judgments,
    make_prompts,
    rows_of,
    tiny_models,
)
from tests.helpers.worker_runs import (
    events,
    events_metric,
    resume,
    run_ppo,
    steps_reported,
    wait_for,
    work,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def trained(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The models with a reward model that the reward stage made, run by the worker."""
    job = make_job("reward", models, reward__held_out_share=0.25)
    directory = RunDirectory.create(tmp_path_factory.mktemp("reward"), job)
    give(directory, "judgments.parquet", make_judgments(96))
    give(directory, "prompts.parquet", make_prompts(4))
    assert work(directory) == 0, directory.failure()
    return models | {"reward": str(directory.model)}


def assert_defined(directory: RunDirectory) -> None:
    """Every metric that a stage reported has its definition, and there were some."""
    reported = {n for e in events(directory) if e["kind"] == "metrics" for n in e["values"]}
    defined = {
        n.replace("<policy>", r) for n in METRICS for r in ("policy", "reference", "previous")
    }
    assert reported
    assert reported <= defined


def test_sft(models: dict[str, str], tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", make_job("sft", models, sft__epochs=2))
    rows = [row | {"response": "yes, of course"} for row in make_prompts(40)]
    give(directory, "examples.parquet", rows)
    assert work(directory) == 0, directory.failure()
    result = directory.result()
    assert result is not None
    assert (result["examples"], result["held_out_examples"]) == (38, 2)
    # An untrained model is near log 261 = 5.6 nats; forty copies of one answer are soon learned.
    assert result["held_out_loss"] < 2.5
    assert (directory.model / "tokenizer.json").exists()
    kinds = {event["kind"] for event in events(directory)}
    assert kinds == {"progress", "metrics"}
    assert_defined(directory)
    assert "sft of iteration 2, attempt 1" in directory.log.read_text()
    sample = json.loads(directory.resources.read_text().splitlines()[-1])
    assert sample["memory"] > 100_000_000  # torch alone


def test_reward(trained: dict[str, str]):
    directory = RunDirectory(Path(trained["reward"]).parent)
    result = directory.result()
    assert result is not None
    assert result["pairs"] + result["held_out_pairs"] == 96
    assert result["held_out_pairs"] == 24  # 6 of 24 prompts, four judgments each
    assert result["theta"] > 0
    assert result["mean"] == 0.0
    assert {"accuracy", "log_loss", "ece", "std", "length_correlation", "seconds"} <= result.keys()
    assert_defined(directory)
    thetas = [
        e["values"]["train/theta"]
        for e in events(directory)
        if "train/theta" in e.get("values", {})
    ]
    assert len(set(thetas)) > 3  # it is learned


def test_the_reward_stage_says_what_it_does_before_and_after_it_trains(trained: dict[str, str]):
    directory = RunDirectory(Path(trained["reward"]).parent)
    told = [e for e in events(directory) if e["kind"] == "progress"]
    shares = [e["done"] / e["total"] for e in told]
    assert shares == pytest.approx(sorted(shares))  # .6 of 76 steps is not quite .6
    assert shares[0] == 0
    assert shares[-1] < 1  # it is done when it has ended
    doing = list(dict.fromkeys(e["message"].split(":")[0] for e in told))
    assert doing == [
        "encoding the judgments",
        "loading the model",
        "training the reward model",
        "scoring every judged response",
        "training the audit model",
        "centering on the SFT model's responses to 4 prompts",
        "measuring on 24 held-out judgments",
    ]
    log = directory.log.read_text()
    assert all(text in log for text in doing if not text.startswith("training"))


def test_a_resumed_reward_stage_keeps_its_place(models: dict[str, str], tmp_path: Path):
    directory = RunDirectory(tmp_path / "run")
    job = replace(make_job("reward", models), attempt=2, resume=True)
    with Report(directory, attempt=2) as report, pytest.raises(FileNotFoundError):
        reward.run(job, report, directory)  # finds no judgments
    # What is told before the checkpoint is found would be told as its successor.
    assert not events(directory)
    assert "encoding the judgments" in directory.log.read_text()


def test_sampling(models: dict[str, str], tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", make_job("sampling", models))
    plan = [row | {"arm": "random", "pairs": 1} for row in make_prompts(5)]
    give(directory, "prompts.parquet", plan)
    assert work(directory) == 0, directory.failure()
    assert not directory.is_running()
    result = directory.result()
    assert result is not None
    assert result["comparisons"] == len(rows_of(directory.outputs / "comparisons.parquet")) == 5
    assert_defined(directory)


def test_ppo_and_evaluate(trained: dict[str, str], tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "ppo", make_job("policy", trained))
    give(directory, "prompts.parquet", make_prompts(6))
    assert work(directory) == 0, directory.failure()
    result = directory.result()
    assert result is not None
    assert result["updates"] == 3
    assert result["kl/reference"] == events_metric(directory, "kl/reference")[-1]
    samples = rows_of(directory.outputs / "samples.parquet")
    assert {row["step"] for row in samples} == {1, 2, 3}
    assert {row["prompt"] for row in samples} <= {row["id"] for row in make_prompts(6)}

    made = trained | {"policy": str(directory.model)}
    evaluation = RunDirectory.create(tmp_path / "evaluate", make_job("evaluate", made))
    give(evaluation, "prompts.parquet", make_prompts(8))
    assert work(evaluation) == 0, evaluation.failure()
    found = evaluation.result()
    assert found is not None
    assert 0 <= found["win_rate_reward_model"] <= 1
    assert found["reference"]["kl"] == 0.0
    assert found["policy"]["kl"] > 0
    assert len(rows_of(evaluation.outputs / "scores.parquet")) == 3 * 8
    assert_defined(evaluation)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_only_a_run_that_needs_bitsandbytes_imports_it(optimizer: str):
    pytest.importorskip("bitsandbytes")
    code = f"""
import sys
from pipeline.config.sections import Config
from pipeline.ppo.config import PPOConfig
from pipeline.worker.worker import configure_process
configure_process(Config(ppo=PPOConfig(optimizer="{optimizer}")), nice=0)
import peft
sys.exit(sys.modules.get("bitsandbytes") is not None)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == (optimizer == "adamw_8bit")


@pytest.mark.parametrize("stage", ["policy", "evaluate"])
def test_a_stage_without_a_trainer_of_transformers_does_not_import_it(stage: str):
    code = f"""
import sys
import pipeline.stages.{stage}
sys.exit(", ".join({{"peft", "trl", "datasets", "transformers.trainer"}} & sys.modules.keys()) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_collects_garbage_when_it_has_imported_its_stage():
    code = """
import gc, runpy, sys
from types import SimpleNamespace
from pipeline.config.sections import Config
from pipeline.worker import worker

def main():
    assert not gc.isenabled()
    worker._loaded_stage(SimpleNamespace(config=Config(), kind="sampling"))
    assert gc.isenabled()
    return 0 if gc.get_freeze_count() > 100_000 else 3

worker.main = main
runpy.run_module("pipeline.worker", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_a_failure_leaves_its_reason_and_no_result(models: dict[str, str], tmp_path: Path):
    job = make_job("sampling", models | {"policy": str(tmp_path / "nowhere")})
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "prompts.parquet", [make_prompts(1)[0] | {"arm": "random", "pairs": 1}])
    assert work(directory) == 1
    assert directory.result() is None
    reason = f"there is no model directory {tmp_path / 'nowhere'}"
    assert directory.failure() == reason
    assert re.fullmatch(r"\d\d:\d\d:\d\d " + re.escape(reason), directory.log_tail(1))
    error = json.loads((directory.path / "error.json").read_text())
    assert "ModelUnavailable" in error["traceback"]


def test_a_retry_starts_its_events_afresh(models: dict[str, str], tmp_path: Path):
    job = make_job("sampling", models)
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "prompts.parquet", [make_prompts(1)[0] | {"arm": "random", "pairs": 1}])
    assert work(directory) == 0
    directory.clear_outcome()
    directory.write_job(replace(job, attempt=2))
    assert work(directory) == 0
    assert {event["attempt"] for event in events(directory)} == {2}
    assert events(directory)[0]["seq"] == 1


def test_a_second_worker_is_refused(models: dict[str, str], tmp_path: Path):
    directory = RunDirectory.create(tmp_path / "run", make_job("sampling", models))
    held = directory.hold_lock()
    with pytest.raises(RuntimeError, match="another worker is already running"):
        work(directory)
    held.close()


def test_the_worker_that_ends_lets_go_of_the_lock_its_starter_handed_down(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = RunDirectory.create(tmp_path / "run", make_job("reward", models))
    lock = os.open(directory.path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    monkeypatch.setenv(LOCK_FD, str(lock))
    assert work(directory) == 1  # there are no judgments
    assert not directory.is_running()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("lower ppo.lr"), "lower ppo.lr"),
        (KeyError("x"), "KeyError: 'x'"),
        (OSError(28, "No space left on device"), "the disk is full"),
        (MemoryError(), "the machine ran out of memory"),
        (AssertionError(), "the stage stopped with AssertionError"),
        (RuntimeError("one\ntwo"), "one"),
    ],
)
def test_reasons_are_one_sentence(error: BaseException, says: str):
    assert worker.reason_of(error).startswith(says)
    assert "\n" not in worker.reason_of(error)


def test_cancelled_ppo_keeps_the_update_it_has_made(trained: dict[str, str], tmp_path: Path):
    job = make_job("policy", trained, ppo__updates=200, ppo__checkpoint_every=1000)
    directory = run_ppo(tmp_path / "run", job)
    process = start(directory)
    wait_for(
        lambda: directory.events.exists() and max(steps_reported(directory), default=0) >= 2,
        process,
    )
    assert not directory.has_checkpoint()
    process.terminate()
    assert process.wait(timeout=60) == worker.CANCELLED
    assert directory.failure() == "cancelled"
    newest = max(path.name for path in (directory.checkpoint / "checkpoints").iterdir())
    assert newest == f"step-{max(steps_reported(directory)):06d}"


def test_killed_and_cancelled_ppo_resumes_to_the_same_end(trained: dict[str, str], tmp_path: Path):
    job = make_job("policy", trained, ppo__updates=40, ppo__checkpoint_every=4)
    whole = run_ppo(tmp_path / "whole", job)
    assert work(whole) == 0, whole.failure()

    broken = run_ppo(tmp_path / "broken", job)
    process = start(broken)
    wait_for(
        lambda: broken.events.exists() and max(steps_reported(broken), default=0) >= 6, process
    )
    assert broken.is_running()
    process.kill()
    process.wait(timeout=30)
    assert broken.result() is None
    assert not broken.is_running()
    assert broken.has_checkpoint()
    assert "was killed" in broken.failure()

    resume(broken, job, attempt=2)
    process = start(broken)
    wait_for(lambda: events(broken)[-1]["attempt"] == 2, process)
    process.terminate()
    assert process.wait(timeout=60) == worker.CANCELLED
    assert broken.failure() == "cancelled"

    resume(broken, job, attempt=3)
    assert work(broken) == 0, broken.failure()
    # Every update is told once, and the weights are those of the run nobody disturbed.
    assert steps_reported(broken) == list(range(1, 41))
    assert [event["seq"] for event in events(broken)] == list(range(1, len(events(broken)) + 1))
    for name in ("reward/mean", "kl/reference", "policy/loss"):
        assert events_metric(broken, name) == events_metric(whole, name)
    weights = [(d.model / "model.safetensors").read_bytes() for d in (whole, broken)]
    assert weights[0] == weights[1]
    samples = [rows_of(d.outputs / "samples.parquet") for d in (whole, broken)]
    assert samples[0] == samples[1]
