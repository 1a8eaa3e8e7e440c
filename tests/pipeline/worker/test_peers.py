"""PPO in several processes of one worker: the same figures, one stream of events, one end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from pipeline.models.hub import base_model_path
from pipeline.worker import worker
from pipeline.worker.distributed import Rank, connected, launch_ranks
from tests.helpers.counted_canary import ASKED, checks
from tests.helpers.prepared_workers import start
from tests.helpers.stage_inputs import (
    make_job,
    save_random_reward,
    tiny_models_and_reward,
)
from tests.helpers.worker_runs import (
    assert_equal_runs,
    events,
    events_metric,
    numbered,
    resume,
    run_ppo,
    steps_reported,
    wait_for,
    work,
)

PASSED = "canary/pass_rate"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def test_two_processes_tell_and_make_what_one_does(models: dict[str, str], tmp_path: Path):
    done = {}
    for count in (1, 2):
        job = make_job("policy", models, worker__processes=count, ppo__lr=1e-3)
        done[count] = run_ppo(tmp_path / str(count), job)
        assert work(done[count]) == 0, done[count].failure()
        assert steps_reported(done[count]) == [1, 2, 3]
        assert numbered(done[count])
    assert not torch.distributed.is_initialized()
    assert_equal_runs(done[1], done[2])


def test_the_other_processes_start_before_the_first_waits_for_them(
    models: dict[str, str], tmp_path: Path
):
    job = make_job("policy", models, worker__processes=2)
    directory = run_ppo(tmp_path / "run", job)
    before = set(psutil.Process().children())  # other tests of this process leave some behind
    others = []

    def fail_to_import():
        with launch_ranks(job, directory.path):
            others.extend(set(psutil.Process().children()) - before)
            assert not torch.distributed.is_initialized()
            raise ImportError("the stage cannot be imported")

    with pytest.raises(ImportError, match="the stage cannot be imported"):
        fail_to_import()
    (other,) = others
    assert not other.is_running()


def test_the_first_process_alone_runs_the_canarys_checks(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    canary = {"gate__canary": f"{checks.__module__}:checks", "gate__canary_every": 2}
    curves = []
    for count in (1, 2):
        monkeypatch.setenv(ASKED, str(tmp_path / f"asked-{count}"))
        job = make_job("policy", models, worker__processes=count, **canary)
        directory = run_ppo(tmp_path / str(count), job)
        assert work(directory) == 0, directory.failure()
        assert len({*(tmp_path / f"asked-{count}").read_text().split()}) == 1
        told = (event.get("values", {}) for event in events(directory))
        curves.append([values[PASSED] for values in told if PASSED in values])
    assert len(curves[0]) == 3  # before training, after two updates, and at the end
    assert curves[1] == curves[0]


def test_processes_with_shards_make_what_one_process_does(models: dict[str, str], tmp_path: Path):
    """Of which only the first loads weights, also those of the reward model as a critic."""
    done = {}
    for count, sharding in ((1, "none"), (2, "fsdp2")):
        parts = {"worker__processes": count, "ppo__sharding": sharding, "ppo__critic": "separate"}
        done[count] = run_ppo(tmp_path / str(count), make_job("policy", models, **parts))
        assert work(done[count]) == 0, done[count].failure()
    assert_equal_runs(done[1], done[2])


@pytest.mark.slow  # a minute, and more beside other work
def test_cancelled_and_killed_it_resumes_to_the_same_end(models: dict[str, str], tmp_path: Path):
    job = make_job("policy", models, worker__processes=2, ppo__updates=20, ppo__checkpoint_every=4
    )  # fmt: skip
    whole = run_ppo(tmp_path / "whole", job)
    assert work(whole) == 0, whole.failure()

    broken = run_ppo(tmp_path / "broken", job)
    process = start(broken)
    wait_for(lambda: broken.events.exists() and max(steps_reported(broken), default=0) > 2, process)
    process.terminate()
    assert process.wait(timeout=60) == worker.CANCELLED
    assert broken.failure() == "cancelled"
    newest = max(path.name for path in (broken.checkpoint / "checkpoints").iterdir())
    assert newest == f"step-{max(steps_reported(broken)):06d}"

    resume(broken, job, attempt=2)
    process = start(broken)
    reached = max(steps_reported(broken)) + 4
    wait_for(lambda: max(steps_reported(broken), default=0) > reached, process)
    others = psutil.Process(process.pid).children()
    assert len(others) == 1
    process.kill()
    process.wait(timeout=30)
    psutil.wait_procs(others, timeout=60)
    assert not any(other.is_running() for other in others)  # none lives on, and the lock is free
    assert not broken.is_running()

    resume(broken, job, attempt=3)
    assert work(broken) == 0, broken.failure()
    assert steps_reported(broken) == list(range(1, 21))
    assert numbered(broken)
    for name in ("reward/mean", "kl/reference", "policy/loss"):
        assert events_metric(broken, name) == pytest.approx(events_metric(whole, name), abs=1e-5)


@pytest.mark.slow
def test_each_of_two_processes_samples_with_a_vllm_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Skipped where vLLM is not installed."""
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    models = dict.fromkeys(("policy", "reference"), base_model_path("demo"))
    save_random_reward(models["reference"], tmp_path / "reward", seed=0)
    models["reward"] = str(tmp_path / "reward")
    job = make_job(
        "policy", models, worker__processes=2, ppo__rollout_backend="vllm", ppo__lora_rank=4
    )
    directory = run_ppo(tmp_path / "run", job)
    process = start(directory)
    assert process.wait(timeout=280) == 0, directory.failure()
    assert steps_reported(directory) == [1, 2, 3]
    assert max(events_metric(directory, "rollout/mismatch_kl")) < 1e-6
    assert numbered(directory)


def test_processes_that_were_disconnected_within_end_well(models: dict[str, str], tmp_path: Path):
    """vLLM disconnects torch.distributed whenever its engine is collected."""
    alone = Rank(rank=0, size=1, here=1, rendezvous=f"file://{tmp_path}/meeting")
    with connected(alone, make_job("policy", models)):
        assert torch.distributed.is_initialized()
        torch.distributed.destroy_process_group()
    assert not torch.distributed.is_initialized()
    assert "LOCAL_RANK" not in os.environ


def test_a_process_that_breaks_off_ends_the_stage(models: dict[str, str], tmp_path: Path):
    job = make_job("policy", models, worker__processes=2, ppo__updates=500)
    directory = run_ppo(tmp_path / "run", job)
    process = start(directory)
    wait_for(
        lambda: directory.events.exists() and max(steps_reported(directory), default=0) > 0,
        process,
    )
    (other,) = psutil.Process(process.pid).children()
    os.kill(other.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.returncode == worker.FAILED
    assert directory.failure() == "process 2 of 2 stopped; see the log"
