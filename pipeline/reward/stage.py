"""The reward stage: judgments in, a centred reward model out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pandas as pd
import torch

from pipeline.devices import pick_device
from pipeline.reward.data import (
    JudgedPair,
    annotator_ids,
    judged_by,
    notes_on_kinds,
    read_pairs,
    split_by_prompt,
)
from pipeline.reward.likelihood import LEARNS_THETA
from pipeline.reward.metrics import (
    held_out_metrics,
    length_correlation,
    length_correlation_in_pairs,
)
from pipeline.reward.network import from_language_model
from pipeline.reward.reliability import notes_on_annotators, reliability
from pipeline.reward.scoring import RewardModel
from pipeline.reward.trainer import train_reward_model
from pipeline.rundir import Job, Report, RunDirectory
from pipeline.sampler import Sampler
from pipeline.text import ChatTokenizer, read_messages
from pipeline.training import prefixed
from storage.records import digest


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Train on inputs/judgments.parquet from the SFT weights; saves model/."""
    config, path = job.config.reward, job.model("reference")
    chat = ChatTokenizer.load(path)
    pairs = read_pairs(directory.inputs / "judgments.parquet", chat, max_tokens=config.max_tokens)
    train, held_out = split_by_prompt(
        pairs, held_out_share=config.held_out_share, seed=job.config.seed
    )
    report.log(f"{len(train)} judgments to train on, {len(held_out)} held out")
    kinds = judged_by(directory.inputs)
    device = pick_device(job.config.worker.device)
    network = from_language_model(path, chat, heads=config.members).to(device)
    model = RewardModel(network, chat, device)

    def measure(step: int) -> None:
        found = _measure(model, held_out, config.tie_model)
        report.metrics(step, prefixed("held_out", _reported(found)))
        network.train()

    train_reward_model(
        network,
        chat,
        train,
        config,
        directory.checkpoint,
        report,
        device=device,
        seed=job.seed,
        bootstrap_seed=job.config.seed,
        resume=job.resume,
        measure=measure,
        notes=notes_on_kinds(kinds),
    )
    network.eval()
    summary = _measure(model, held_out, config.tie_model) | {
        "theta": network.ties().item() if config.tie_model in LEARNS_THETA else None,
        "tie_model": config.tie_model,
        "both_bad": network.likelihood.both_bad,
        "members": model.members,
        "pairs": len(train),
        "held_out_pairs": len(held_out),
        "judged_by": kinds,
        "ties": sum(not pair.decisive for pair in pairs),
    }
    summary |= _figures(model, pairs, report)
    summary |= _centre(model, job, report, directory.inputs) if config.center else {}
    summary |= _spread(model, pairs)
    network.annotators = None  # theirs are the differences between people, not the rewards
    network.save_pretrained(directory.model)
    chat.tokenizer.save_pretrained(directory.model)
    return summary


def _measure(model: RewardModel, pairs: Sequence[JudgedPair], tie_model: Any) -> dict[str, Any]:
    first, second = _both_sides(model, pairs)
    theta = model.network.ties().item()
    return held_out_metrics(pairs, first, second, theta=theta, tie_model=tie_model)


def _both_sides(model: RewardModel, pairs: Sequence[JudgedPair]) -> tuple[list[float], list[float]]:
    """The rewards of each pair's first and second text."""
    rewards = model.score([p.first_ids for p in pairs] + [p.second_ids for p in pairs])
    return rewards[: len(pairs)], rewards[len(pairs) :]


def _figures(model: RewardModel, pairs: Sequence[JudgedPair], report: Report) -> dict[str, Any]:
    """What all judgments together say of the annotators and of length."""
    first, second = _both_sides(model, pairs)
    network = model.network
    found: dict[str, Any] = {
        "annotators": [],
        "length_correlation_in_pairs": length_correlation_in_pairs(first, second, pairs),
    }
    if network.annotators is None:
        return found
    found |= reliability(
        pairs, first, second, annotator_ids(pairs),
        likelihood=network.likelihood, ties=network.ties.values(),
    )  # fmt: skip
    for note in notes_on_annotators(found["annotators"]):
        report.note(**note)
    return found


def _reported(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("accuracy", "log_loss", "ece")}


def _centre(model: RewardModel, job: Job, report: Report, inputs: Path) -> dict[str, float]:
    """Shift each head's rewards so that the SFT model's own responses average 0.

    The likelihood sees differences only, so the level is free; PPO reads it (a terminal reward
    far from 0 is a large error for the value head at first).  The shift goes into the saved bias.
    """
    conversations = _centring_prompts(inputs)
    report.log(f"centring on the SFT model's responses to {len(conversations)} prompts")
    sampler = Sampler.of_job(job, job.model("reference"), model.device)
    limit = job.config.ppo.max_new_tokens
    fitting = [messages for messages in conversations if sampler.fits(messages, limit)]
    if not fitting:
        raise ValueError(
            f"no prompt leaves room for ppo.max_new_tokens={limit} in the model's context; lower it"
        )
    if len(fitting) < len(conversations):
        left_out = len(conversations) - len(fitting)
        message = f"{left_out} prompts exceed the model's context and were not centred on"
        report.note("warning", "long_prompts", message, count=left_out)
    responses = sampler.sample(
        fitting,
        temperature=job.config.ppo.temperature,
        max_new_tokens=limit,
        seed=int(digest("centre", str(job.seed)), 16) % 2**31,
        batch=job.config.sampling.batch,
    )
    members = model.member_scores(fitting, [response.text for response in responses])
    rewards = [fmean(each) for each in zip(*members, strict=True)]
    model.network.shift(torch.tensor([-fmean(each) for each in members]))
    return {"mean": 0.0, "std": pstdev(rewards), "shift": -fmean(rewards)}


def _centring_prompts(inputs: Path) -> list[Any]:
    for name in ("centering.parquet", "prompts.parquet"):
        if (inputs / name).exists():
            return [read_messages(text) for text in pd.read_parquet(inputs / name)["messages"]]
    raise ValueError("reward.center needs prompts to centre on; set reward.center=false without")


@torch.no_grad()
def _spread(model: RewardModel, pairs: Sequence[JudgedPair]) -> dict[str, Any]:
    """The reward's correlation with length over all judged responses, each counted once."""
    sides = {p.first: (p.first_ids, p.first_length) for p in pairs}
    sides |= {p.second: (p.second_ids, p.second_length) for p in pairs}
    rewards = model.score([ids for ids, _ in sides.values()])
    found = {"length_correlation": length_correlation(rewards, [n for _, n in sides.values()])}
    return found | {"judged_mean": fmean(rewards), "judged_std": pstdev(rewards)}
