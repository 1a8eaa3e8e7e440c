"""A sampler whose weights are not the policy's: the run stops, in the engine and in the studio."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.ppo import ActorCritic, PPOTrainer, SamplerMismatch, trainer
from pipeline.ppo.checkpoint import list_checkpoints
from pipeline.ppo.network.model import Setup, weights_hash
from pipeline.ppo.rollouts.backends import TransformersGenerate
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import policy as ppo_stage
from pipeline.worker.worker import reason_of
from tests.helpers.ppo_helpers import tiny_model, tiny_trainer
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models_and_reward


class Deaf(TransformersGenerate):
    """Samples with weights of its own and never takes in the policy's."""

    def __init__(self, setup: Setup, model: Any) -> None:
        super().__init__(replace(setup, model=ActorCritic(model)))


def deafened(directory: Path | None = None, *, seed: int, **settings: Any) -> PPOTrainer:
    """A trainer whose sampler keeps the weights of a model made with this seed."""
    trainer = tiny_trainer(directory, rollout_backend="transformers", **settings)
    trainer.backend = Deaf(trainer.backend.setup, tiny_model(seed=seed))
    return trainer


def test_wrong_weights_in_the_sampler_stop_the_run_before_it_learns_from_them(tmp_path):
    trainer = deafened(tmp_path, seed=1, checkpoint_every=1)
    before = weights_hash(trainer.model)
    run = trainer.run()
    update = next(run)
    with pytest.raises(SamplerMismatch, match=r"rollout_backend") as stopped:
        next(run)
    mismatch = update.metrics["rollout/mismatch_kl"]
    assert mismatch > 0.3
    flag = update.flags[0]
    assert (flag.name, flag.level) == ("sampler_mismatch", "stop")
    assert f"{mismatch:.2g}" in flag.seen
    assert f"{mismatch:.2g}" in str(stopped.value)
    assert trainer.stopped == "sampler_mismatch"
    assert update.metrics["optim/steps"] == 0
    assert weights_hash(trainer.model) == before
    assert update.checkpoint is None
    assert list_checkpoints(tmp_path / "checkpoints") == []


def test_weights_that_never_arrive_stop_the_run_once_the_policy_has_moved_on():
    trainer = deafened(seed=0, lr=2e-2, updates=20)  # the policy's own weights, as of the start
    hashes, mismatches = [], []

    def follow() -> None:
        for update in trainer.run():
            hashes.append(weights_hash(trainer.model))
            mismatches.append(update.metrics["rollout/mismatch_kl"])
            stopped = any(flag.name == "sampler_mismatch" for flag in update.flags)
            assert stopped == (mismatches[-1] > 0.05)

    with pytest.raises(SamplerMismatch):
        follow()
    assert mismatches[0] < 1e-9
    assert len(mismatches) > 1
    assert all(m <= 0.05 for m in mismatches[:-1])
    assert mismatches[-1] > 0.05
    assert hashes[-1] == hashes[-2]  # nothing was learned from the samples that stopped it


def test_a_sampler_that_follows_the_policy_goes_on():
    trainer = tiny_trainer(rollout_backend="transformers", lr=2e-2, updates=6)
    flags = [flag.name for update in trainer.run() for flag in update.flags]
    assert trainer.step == 6
    assert "sampler_mismatch" not in flags


def test_log_probabilities_that_are_not_finite_count_as_a_mismatch():
    trainer = tiny_trainer(rollout_backend="transformers")
    sample = trainer.backend

    def broken(prompts, uniforms):
        found = sample(prompts, uniforms)
        return replace(found, logprobs=torch.full_like(found.logprobs, -torch.inf))

    broken.foreign = True
    trainer.backend = broken
    with pytest.raises(SamplerMismatch):
        list(trainer.run())


def test_the_studio_says_what_was_seen_and_what_to_try(tmp_path, monkeypatch):
    job = make_job("policy", tiny_models_and_reward(tmp_path), ppo__rollout_backend="transformers")
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "prompts.parquet", make_prompts(8))

    def deaf(setup: Setup, _: Any) -> Deaf:
        other = copy.deepcopy(setup.model.policy)
        with torch.no_grad():
            for weight in other.parameters():
                weight.mul_(3)
        return Deaf(setup, other)

    monkeypatch.setattr(trainer, "make_backend", deaf)
    with Report(directory) as report, pytest.raises(SamplerMismatch) as stopped:
        ppo_stage.run(job, report, directory)
    said = reason_of(stopped.value)
    assert "rollout_backend='own'" in said
    assert not directory.model.exists()
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    cards = [event for event in events if event.get("name") == "sampler_mismatch"]
    assert [card["payload"]["level"] for card in cards] == ["stop"]
    assert all(cards[0]["payload"][part] for part in ("seen", "why", "remedy"))
