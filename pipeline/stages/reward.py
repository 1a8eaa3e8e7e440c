"""The reward stage: judgments in, a centred reward model out, and one to audit it by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pandas as pd
import torch

from pipeline.config.reward import RewardConfig
from pipeline.models.devices import pick_device
from pipeline.models.generate import Sampler
from pipeline.models.hf_trainer import prefixed
from pipeline.models.text import ChatTokenizer, Messages, read_messages
from pipeline.ppo.metrics import length_correlation
from pipeline.reward.audit import AUDIT, train_audit_model
from pipeline.reward.data import (
    JudgedPair,
    annotator_ids,
    job_pairs,
    judged_by,
    notes_on_kinds,
    split_judgments,
    stopping_pairs,
)
from pipeline.reward.likelihood import LEARNS_THETA
from pipeline.reward.members import train_members
from pipeline.reward.predictions import predict
from pipeline.reward.quality.calibration import calibrate
from pipeline.reward.quality.held_out import measure_quality
from pipeline.reward.quality.metrics import held_out_metrics, length_correlation_in_pairs
from pipeline.reward.quality.reliability import notes_on_annotators, reliability
from pipeline.reward.scoring import RewardModel
from pipeline.reward.trainer import SHARE
from pipeline.runs.rundir import Job, Report, RunDirectory
from storage.records import derive_seed


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Train on inputs/judgments.parquet from the SFT weights; saves model/ and model/audit/."""
    config, path = job.config.reward, job.model("reference")

    def tell(done: float, doing: str) -> None:
        report.log(doing)
        if done or not job.resume:  # a resumed run's events begin at its checkpoint
            report.progress(done, 1, doing)

    tell(0, "encoding the judgments")
    chat = ChatTokenizer.load(path)
    pairs = job_pairs(job, report, directory, chat, path)
    train, apart, held_out = split_judgments(pairs, config, seed=job.config.seed)
    report.log(f"{len(train)} judgments to train on, {len(held_out)} held out, {len(apart)} apart")
    # Pairs that a reward model chose are the hard ones, and say nothing of all others.
    measured = [pair for pair in held_out if pair.random_stream]
    kinds = judged_by(directory.inputs)
    tell(0, "loading the model")
    device = pick_device(job.config.worker.device)

    def measure(model: RewardModel, step: int) -> None:
        found = _measure(model, measured)
        report.metrics(step, prefixed("held_out", _reported(found)))

    model, kept = train_members(
        path,
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
        outside=stopping_pairs(config, apart),
        notes=[
            *notes_on_kinds(kinds),
            *_notes_on_stopping(config, apart),
            *_notes_on_measuring(measured),
        ],
    )
    network = model.network
    tell(SHARE, f"measuring on {len(measured)} held-out judgments")
    likelihood = network.likelihood
    others = [pair for pair in apart if pair.random_stream]
    figures, scale = calibrate(model, measured, others, scale=config.calibrate)
    summary = figures | {
        "theta": network.ties().item() if likelihood.tie_model in LEARNS_THETA else None,
        "tie_model": likelihood.tie_model,
        "both_bad": likelihood.both_bad,
        "members": model.members,
        "pairs": len(train),
        "held_out_pairs": len(measured),
        "held_out_preferences": sum(pair.decisive for pair in measured),
        "apart_pairs": len(apart),
        "kept": asdict(kept) if kept else None,
        "judged_by": kinds,
        "ties": sum(not pair.decisive for pair in pairs),
    }
    people = network.annotators
    for each in model.networks:
        each.annotators = None  # no part of the rewards
    audit, summary["audit"] = train_audit_model(
        job, chat, [*apart, *held_out], [pair for pair in train if pair.random_stream],
        directory, report,
        device=device, epochs=kept.epoch if kept else config.epochs,
    )  # fmt: skip
    summary |= {"annotators": []}
    if people is not None:
        folds = [([*apart, *held_out], model), *([(train, audit)] if audit else [])]
        summary |= _reliability(folds, pairs, model, report)
    first, second = model.both_sides(pairs)
    summary["length_correlation_in_pairs"] = length_correlation_in_pairs(first, second, pairs)
    if config.center:
        asked = _reference_responses(job, report, directory.inputs, device)
        summary |= _centre(model, *asked)
        if audit:
            _centre(audit, *asked)
    tell(0.95, "scoring every judged response")
    summary |= _spread(model, pairs)
    summary["quality"] = measure_quality(
        model, held_out, pairs, summary, directory.outputs, scale=scale
    )
    for each, folder in ((model, directory.model), (audit, directory.model / AUDIT)):
        if each:
            each.save(folder)
    return summary | {"predicted_pairs": predict(job, report, directory, device=device)}


def _notes_on_stopping(config: RewardConfig, apart: Sequence[JudgedPair]) -> list[dict[str, Any]]:
    if not config.early_stopping or stopping_pairs(config, apart):
        return []
    message = (
        f"all epochs are trained: fewer than {config.stopping_judgments} judgments are on the share of prompts "
        "that would say when to stop (reward.audit_share)"
    )
    return [{"kind": "info", "name": "early_stopping", "message": message}]


def _notes_on_measuring(measured: Sequence[JudgedPair]) -> list[dict[str, Any]]:
    if measured:
        return []
    message = (
        "a reward model chose all the pairs that were judged, and nothing can be measured on those: "
        "no accuracy (sampling.selection)"
    )
    return [{"kind": "warning", "name": "held_out", "message": message}]


def _measure(model: RewardModel, pairs: Sequence[JudgedPair]) -> dict[str, Any]:
    network = model.network
    return held_out_metrics(
        pairs,
        *model.both_sides(pairs),
        theta=network.ties().item(),
        tie_model=network.likelihood.tie_model,
    )


def _reliability(
    folds: Sequence[tuple[Sequence[JudgedPair], RewardModel]],
    pairs: Sequence[JudgedPair],
    model: RewardModel,
    report: Report,
) -> dict[str, Any]:
    """What the annotators' judgments count for; whoever counts for little is pointed out."""
    network = model.network
    found = reliability(
        folds,
        annotator_ids(pairs),
        Counter(pair.annotator for pair in pairs),
        likelihood=network.likelihood,
        ties=network.ties.values(),
    )
    for note in notes_on_annotators(found["annotators"]):
        report.note(**note)
    return found


def _reported(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("accuracy", "log_loss", "ece")}


def _reference_responses(
    job: Job, report: Report, inputs: Path, device: torch.device
) -> tuple[list[Messages], list[str]]:
    """What the SFT model answers to the prompts that rewards are centred on."""
    conversations = _centring_prompts(inputs)
    doing = f"centring on the SFT model's responses to {len(conversations)} prompts"
    report.log(doing)
    report.progress(0.85, 1, doing)
    sampler = Sampler.of_job(job, job.model("reference"), device)
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
        seed=derive_seed("centre", str(job.seed)),
        batch=job.config.sampling.batch,
    )
    return fitting, [response.text for response in responses]


def _centre(
    model: RewardModel, conversations: Sequence[Messages], responses: Sequence[str]
) -> dict[str, float]:
    """Shift each head's rewards so that the SFT model's own responses average 0.

    The likelihood sees little but differences, so the level is free; PPO reads it (a terminal
    reward far from 0 is a large error for the value head at first).  The shift goes into the
    saved bias.
    """
    members = model.member_scores(conversations, responses)
    rewards = [fmean(each) for each in zip(*members, strict=True)]
    model.shift([-fmean(each) for each in members])
    return {"mean": 0.0, "std": pstdev(rewards), "shift": -fmean(rewards)}


def _centring_prompts(inputs: Path) -> list[Any]:
    path = inputs / "prompts.parquet"
    if not path.exists():
        raise ValueError(
            "reward.center needs prompts to centre on; set reward.center=false if there are none"
        )
    return [read_messages(text) for text in pd.read_parquet(path)["messages"]]


def _spread(model: RewardModel, pairs: Sequence[JudgedPair]) -> dict[str, Any]:
    """The reward's correlation with length over all judged responses, each counted once."""
    sides = {p.first: (p.first_ids, p.first_length) for p in pairs}
    sides |= {p.second: (p.second_ids, p.second_length) for p in pairs}
    rewards = model.score([ids for ids, _ in sides.values()])
    found = {"length_correlation": length_correlation(rewards, [n for _, n in sides.values()])}
    return found | {"judged_mean": fmean(rewards), "judged_std": pstdev(rewards)}
