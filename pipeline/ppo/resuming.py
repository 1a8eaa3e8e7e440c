"""A trainer's whole state: what a checkpoint holds, and what must be the same for it to go on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any, Protocol

import torch

from pipeline.ppo.advantages import Advantages
from pipeline.ppo.checkpoint import random_states, restore_random_states
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.model import shapes_hash
from pipeline.ppo.rewarder import Rewarder
from pipeline.ppo.sharding import load_states, optimizer_state, trained_state

_FORMAT = 2
"""What a checkpoint holds and how: 1, which had no number, held frozen weights too."""


class Resumable(Protocol):
    """What of a `PPOTrainer` is kept, and what tells one run from another."""

    config: PPOConfig
    model: Any
    learner: Any
    rewarder: Rewarder
    advantages: Advantages
    sampler: Any
    generators: dict[str, torch.Generator]
    prompts: list[list[int]]
    eos_token_ids: list[int]
    frozen_hash: str
    reference_hash: str
    step: int
    history: list[dict[str, float]]
    stopped: str | None
    extra: dict[str, Any]


def state_of(trainer: Resumable) -> dict[str, Any]:
    """Everything a bit-for-bit resume needs, the caller's `extra` included."""
    return {
        "format": _FORMAT,
        "step": trainer.step,
        "model": trained_state(trainer.model),
        "optimizer": optimizer_state(trainer.model, trainer.learner.optimizer),
        "rewarder": trainer.rewarder.state_dict(),
        "category_means": trainer.advantages.category_means.sums,
        "sampler": trainer.sampler.state_dict(),
        "random": random_states(trainer.generators),
        "history": trainer.history,
        "stopped": trainer.stopped,
        "extra": json.dumps(trainer.extra),
        "run": fingerprint(trainer),
    }


def restore(trainer: Resumable, state: dict[str, Any]) -> None:
    """Put the trainer back to where `state_of` was asked; ValueError where that was another run."""
    _check_same_run(trainer, state)
    load_states(trainer.model, trainer.learner.optimizer, state)
    trainer.rewarder.load_state_dict(state["rewarder"])
    means = {name: list(found) for name, found in state["category_means"].items()}
    trainer.advantages.category_means.sums = means
    trainer.sampler.load_state_dict(state["sampler"])
    restore_random_states(state["random"], trainer.generators)
    trainer.step, trainer.stopped = state["step"], state["stopped"]
    trainer.history = [dict(metrics) for metrics in state["history"]]
    trainer.extra = json.loads(state["extra"])


def _check_same_run(trainer: Resumable, state: dict[str, Any]) -> None:
    """ValueError unless the state is of this run, or of one that this one makes longer."""
    written = state.get("format", 1)
    if written != _FORMAT:
        raise ValueError(
            f"the checkpoint was written by another version of the engine (format {written}, this "
            f"version reads {_FORMAT}); finish the run with that version, or start again from scratch "
            "in an empty directory"
        )
    ours, theirs = fingerprint(trainer), dict(state["run"])
    planned, before = ours.pop("ppo.updates"), theirs.pop("ppo.updates")
    names = sorted(ours.keys() | theirs.keys())
    differing = [name for name in names if ours.get(name) != theirs.get(name)]
    if differing:
        raise ValueError(
            f"the checkpoint belongs to another run: {', '.join(differing)} differ; "
            "resume with the same settings or start in an empty directory"
        )
    if planned < before:
        raise ValueError(
            f"the checkpoint belongs to a run of {before} updates; on a resume ppo.updates="
            f"{planned} may be raised above that, not lowered"
        )


def fingerprint(trainer: Resumable) -> dict[str, Any]:
    """What must be the same for a resume to mean anything."""
    settings = asdict(replace(trainer.config, checkpoint_every=0))
    prompts = hashlib.sha256(json.dumps(trainer.prompts).encode()).hexdigest()
    return {f"ppo.{name}": value for name, value in settings.items()} | {
        "model": shapes_hash(trainer.model),
        "frozen weights": trainer.frozen_hash,
        "prompts": prompts,
        "reference": trainer.reference_hash,
        "reward_weights": trainer.rewarder.weights,
        "eos_token_ids": trainer.eos_token_ids,
    }
