"""The reward stage: trains a reward model and its audit model on the judgments.

::

    judgments → split by prompt → train the members (pipeline/reward/trainer.py, likelihood.py)
      → calibrate on held-out judgments → train the audit model → estimate annotators
      → center → measure the quality → predict the judgments of policies

On a CPU, `worker.processes` divide the training: each trains some members, the last one the audit
model, while the first one goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pandas as pd
import torch

from pipeline.config.reward import RewardConfig
from pipeline.models.generate import Sampler
from pipeline.models.hf_trainer import prefixed
from pipeline.models.text import ChatTokenizer, Messages, read_messages
from pipeline.ppo.metrics import length_correlation
from pipeline.reward.audit import train_audit_model
from pipeline.reward.data import (
    JudgedPair,
    Split,
    annotator_ids,
    both_texts,
    job_pairs,
    judged_by,
    notes_on_kinds,
    split_judgments,
    stopping_pairs,
    without_edits,
)
from pipeline.reward.gold import GoldJudgment, read_gold
from pipeline.reward.judges import ground_judges
from pipeline.reward.likelihood import LEARNS_THETA
from pipeline.reward.members import train_members
from pipeline.reward.predictions import predict
from pipeline.reward.quality.calibration import calibrate
from pipeline.reward.quality.held_out import measure_quality
from pipeline.reward.quality.metrics import held_out_metrics, length_correlation_in_pairs
from pipeline.reward.quality.reliability import notes_on_annotators, reliability
from pipeline.reward.scoring import AUDIT, RewardModel
from pipeline.reward.stopping import EarlyStop
from pipeline.reward.summary import Centering, JudgmentCounts, RewardSpread, RewardSummary
from pipeline.reward.trainer import SHARE, Training
from pipeline.reward.validation_split import LEARNED
from pipeline.runs.parquet import write_rows
from pipeline.runs.peers import ALONE, Peers, current
from pipeline.runs.rundir import Job, Note, Report, RunDirectory
from storage.analysis.annotator_fit import AnnotatorFit
from storage.records import derive_seed


def run(job: Job, report: Report, directory: RunDirectory) -> RewardSummary | None:
    """Train on inputs/judgments.parquet from the SFT weights; saves model/ and model/audit/.

    None in all but the first of several processes.
    """
    config = job.config.reward
    chat, pairs, split, kinds = prepare(job, report, directory)
    judged = _measuring(pairs)
    gold = read_gold(directory.inputs)
    training = replace(Training.of_job(job, chat, directory.checkpoint, report), gold=gold)
    processes = current()
    grounded = ground_judges(training, split, processes)
    training, split = grounded.training, split._replace(learned=[*grounded.learned])
    model, stop = fit(training, split, [*notes_on_kinds(kinds), *grounded.notes], processes)
    epochs = stop.epoch if stop else config.epochs
    if processes.rank > 0:
        train_audit_model(training, split, epochs=epochs, processes=processes)
        return None
    _progress(job, report, SHARE, "scoring every judged response")
    model.remember(both_texts(pairs))
    others = [pair for pair in split.audit_set if pair.random_stream]
    figures, scale = calibrate(model, split.measured, others, scale=config.calibrate)
    learns_annotators = model.network.annotators is not None
    for network in model.networks:
        network.annotators = None  # not part of the rewards
    audit, audit_figures = train_audit_model(training, split, epochs=epochs, processes=processes)
    fit_of_annotators = (
        measure_annotators(model, audit, judged, split, report, gold) if learns_annotators else None
    )
    counts = _counts(model, judged, split)
    in_pairs = length_correlation_in_pairs(*model.both_sides(judged), judged)
    centering = None
    if config.center:
        responses = reference_responses(job, report, directory.inputs, training.device)
        centering = center(model, *responses)
        if audit:
            center(audit, *responses)
    _progress(job, report, 0.95, f"measuring on {len(split.measured)} held-out judgments")
    spread = _spread(model, judged)
    quality = measure_quality(
        model, split.held_out, judged, directory.outputs, scale=scale, log_loss=figures.log_loss,
        expected=fit_of_annotators and fit_of_annotators.expected_preference_agreement,
    )  # fmt: skip
    learned = [{"judgment": pair.judgment} for pair in without_edits(split.learned)]
    write_rows(directory.outputs / LEARNED, learned, ("judgment",))
    model.save(directory.model)
    if audit:
        audit.save(directory.model / AUDIT)
    return RewardSummary(
        held_out=figures,
        counts=counts,
        kept=stop,
        judged_by=kinds,
        audit=audit_figures,
        annotators=fit_of_annotators,
        length_correlation_in_pairs=in_pairs,
        centering=centering,
        spread=spread,
        quality=quality,
        predicted_pairs=predict(job, report, directory, device=training.device),
    )


def _measuring(pairs: Sequence[JudgedPair]) -> list[JudgedPair]:
    return [pair for pair in pairs if pair.measures]


def _progress(job: Job, report: Report, done: float, doing: str) -> None:
    report.log(doing)
    if done or not job.resume:  # a resumed run's events begin at its checkpoint
        report.progress(done, 1, doing)


def prepare(
    job: Job, report: Report, directory: RunDirectory
) -> tuple[ChatTokenizer, list[JudgedPair], Split, dict[str, dict[str, int]]]:
    """The tokenizer, all judgments and edits, their split, and their counts by kind of annotator."""
    _progress(job, report, 0, "encoding the judgments")
    path = job.model("reference")
    chat = ChatTokenizer.load(path)
    pairs = job_pairs(job, report, directory, chat, path)
    split = split_judgments(pairs, job.config.reward, seed=job.config.seed)
    report.log(
        f"{len(split.learned)} judgments to train on, {len(split.held_out)} held out, "
        f"{len(split.audit_set)} set aside"
    )
    _progress(job, report, 0, "loading the model")
    return chat, pairs, split, judged_by(directory.inputs)


def fit(
    training: Training,
    split: Split,
    notes: Sequence[Note],
    processes: Peers = ALONE,
) -> tuple[RewardModel, EarlyStop | None]:
    """Train the members; report `notes` and others before, and held-out figures after each epoch."""
    measured = split.measured

    def measure(model: RewardModel, step: int) -> None:
        figures = held_out_metrics(
            measured,
            *model.both_sides(measured),
            theta=model.network.ties().item(),
            tie_model=model.network.likelihood.tie_model,
        )
        values = {"accuracy": figures.accuracy, "log_loss": figures.log_loss, "ece": figures.ece}
        training.report.metrics(step, prefixed("held_out", values))

    notes = [
        *notes,
        *_notes_on_stopping(training.config, split.audit_set),
        *_notes_on_measuring(measured),
    ]
    stopping = stopping_pairs(training.config, split.audit_set)
    return train_members(
        training,
        split.learned,
        stopping=stopping,
        measure=measure,
        notes=notes,
        processes=processes,
    )


def _counts(model: RewardModel, pairs: Sequence[JudgedPair], split: Split) -> JudgmentCounts:
    likelihood = model.network.likelihood
    learns_theta = likelihood.tie_model in LEARNS_THETA
    return JudgmentCounts(
        theta=model.network.ties().item() if learns_theta else None,
        tie_model=likelihood.tie_model,
        both_bad=likelihood.both_bad,
        members=model.members,
        pairs=len(split.learned),
        held_out_pairs=len(split.measured),
        held_out_preferences=sum(pair.decisive for pair in split.measured),
        apart_pairs=len(split.audit_set),
        learned_by=Counter(pair.annotator for pair in without_edits(split.learned)),
        ties=sum(not pair.decisive for pair in pairs),
    )


def _notes_on_stopping(config: RewardConfig, audit_set: Sequence[JudgedPair]) -> list[Note]:
    if not config.early_stopping or stopping_pairs(config, audit_set):
        return []
    message = (
        "early stopping is off, so all epochs run: it needs "
        f"{config.stopping_judgments} judgments on the prompts set aside (reward.audit_share)"
    )
    return [Note(kind="info", name="early_stopping", message=message)]


def _notes_on_measuring(measured: Sequence[JudgedPair]) -> list[Note]:
    if measured:
        return []
    message = (
        "accuracy is not measured: a reward model chose all judged pairs, and accuracy is measured "
        "on random pairs only (sampling.selection)"
    )
    return [Note(kind="warning", name="held_out", message=message)]


def measure_annotators(
    model: RewardModel,
    audit: RewardModel | None,
    pairs: Sequence[JudgedPair],
    split: Split,
    report: Report,
    gold: Sequence[GoldJudgment] = (),
) -> AnnotatorFit:
    """The weight of each annotator's judgments; warns of annotators with a low weight."""
    folds = [(split.unseen, model), *([(_measuring(split.learned), audit)] if audit else [])]
    found = reliability(
        folds,
        annotator_ids(pairs),
        Counter(pair.annotator for pair in pairs),
        likelihood=model.network.likelihood,
        ties=model.network.ties.values(),
        gold=gold,
    )
    for note in notes_on_annotators(found.annotators):
        report.add(note)
    return found


def reference_responses(
    job: Job, report: Report, inputs: Path, device: torch.device
) -> tuple[list[Messages], list[str]]:
    """The prompts that rewards are centered on, and the SFT model's responses to them."""
    conversations = _centering_prompts(inputs)
    doing = f"centering on the SFT model's responses to {len(conversations)} prompts"
    _progress(job, report, 0.85, doing)
    sampler = Sampler.of_job(job, job.model("reference"), device)
    limit = job.config.ppo.max_new_tokens
    fitting = [messages for messages in conversations if sampler.fits(messages, limit)]
    if not fitting:
        raise ValueError(
            f"no prompt leaves room for ppo.max_new_tokens={limit} in the model's context; lower it"
        )
    if len(fitting) < len(conversations):
        left_out = len(conversations) - len(fitting)
        message = f"{left_out} prompts exceed the model's context and were left out of centering"
        report.note("warning", "long_prompts", message, count=left_out)
    responses = sampler.sample(
        fitting,
        temperature=job.config.ppo.temperature,
        max_new_tokens=limit,
        seed=derive_seed("centre", str(job.seed)),
        batch=job.config.sampling.batch,
    )
    return fitting, [response.text for response in responses]


def center(
    model: RewardModel, conversations: Sequence[Messages], responses: Sequence[str]
) -> Centering:
    """Shift each member's rewards so that the SFT model's responses average 0.

    The likelihood depends almost only on differences, so the level is arbitrary, but PPO uses it:
    a mean reward far from 0 is a large initial error of the value head.  The saved bias contains
    the shift.
    """
    members = model.member_scores(conversations, responses)
    rewards = [fmean(each) for each in zip(*members, strict=True)]
    model.shift([-fmean(each) for each in members])
    return Centering(mean=0.0, std=pstdev(rewards), shift=-fmean(rewards))


def _centering_prompts(inputs: Path) -> list[Any]:
    path = inputs / "prompts.parquet"
    if not path.exists():
        raise ValueError(
            "reward.center needs prompts to center on; set reward.center=false if there are none"
        )
    return [read_messages(text) for text in pd.read_parquet(path)["messages"]]


def _spread(model: RewardModel, pairs: Sequence[JudgedPair]) -> RewardSpread:
    sides = {p.first: (p.first_ids, p.first_length) for p in pairs}
    sides |= {p.second: (p.second_ids, p.second_length) for p in pairs}
    rewards = model.score([ids for ids, _ in sides.values()])
    return RewardSpread(
        length_correlation=length_correlation(rewards, [length for _, length in sides.values()]),
        judged_mean=fmean(rewards),
        judged_std=pstdev(rewards),
    )
