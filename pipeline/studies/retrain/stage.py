"""The stage of a study: trains a reward model again without some judgments, and measures it.

inputs/ has the files of the original reward stage, the ids that are left out (`LEFT_OUT`), the stored
responses of policies, and in how many epochs the original was trained (`TRAINED`).  The split into
training, audit and held-out prompts is the original one, of all judgments: so neither model has
learned from a held-out judgment.  The model starts from the same weights, with the same seeds and
settings.  It is not saved: outputs/ has its predictions of held-out judgments and of the responses.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline.models.text import read_messages
from pipeline.reward.data import JudgedPair, Split, stopping_pairs
from pipeline.reward.gold import read_gold
from pipeline.reward.judges import ground_judges
from pipeline.reward.predictions import expected_outcome
from pipeline.reward.quality.calibration import calibrate
from pipeline.reward.quality.held_out import COLUMNS, judged_rows
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop
from pipeline.reward.trainer import Training
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, Report, RunDirectory, read_json
from pipeline.runs.study_folder import EVALUATIONS
from pipeline.stages.reward import fit, prepare
from pipeline.studies.retrain.files import (
    LEFT_OUT,
    ORIGINAL_SCORES,
    SCORES,
    SCORES_COLUMNS,
    TRAINED,
)
from storage.records import HELD_OUT_FILE

_TRAINED, _MEASURED = 0.9, 0.95
"""The stage's progress after training, and after measuring on held-out judgments."""


@dataclass(frozen=True, kw_only=True)
class RetrainSummary:
    """The summary of the stage."""

    learned: int
    """Judgments and edits that the model learned from."""
    set_aside: int
    """Judgments that decided when to stop."""
    kept: EarlyStop | None
    """The state that early stopping kept; None without early stopping."""
    epochs: float
    """Epochs of the training; those of the original if too few judgments decide when to stop."""


def run(job: Job, report: Report, directory: RunDirectory) -> RetrainSummary:
    """Train, measure on the held-out judgments, and score the responses of policies."""
    chat, _, split, _ = prepare(job, report, directory)
    left_out = set(pd.read_parquet(directory.inputs / LEFT_OUT)["judgment"])
    kept = without(split, left_out)
    training = replace(
        Training.of_job(job, chat, directory.checkpoint, report),
        gold=read_gold(directory.inputs),
        share=(0.0, _TRAINED),
        doing="training without these judgments",
    )
    training = replace(training, config=_same_epochs(training, split, kept, directory.inputs))
    report.log(f"{len(kept.learned)} of {len(split.learned)} judgments to learn from remain")
    grounded = ground_judges(training, kept)
    kept = kept._replace(learned=[*grounded.learned])
    model, stop = fit(grounded.training, kept, grounded.notes)
    report.progress(_TRAINED, 1, f"measuring on {len(split.held_out)} held-out judgments")
    # As if they had not been given: the scale is not fitted to judgments that are left out.
    others = [pair for pair in kept.audit_set if pair.random_stream]
    _, scale = calibrate(model, kept.measured, others, scale=training.config.calibrate)
    for network in model.networks:
        network.annotators = None  # not part of the rewards
    rows = judged_rows(model, split.held_out, scale=scale)
    write_rows(directory.outputs / HELD_OUT_FILE, rows, COLUMNS)
    report.progress(_MEASURED, 1, "scoring the responses of policies")
    _score(model, directory, SCORES)
    if "original" in job.models:
        original = RewardModel.load(job.model("original"), device=training.device)
        _score(original, directory, ORIGINAL_SCORES)
    shutil.rmtree(directory.checkpoint, ignore_errors=True)
    return RetrainSummary(
        learned=len(kept.learned),
        set_aside=len(kept.audit_set),
        kept=stop,
        epochs=stop.epoch if stop else training.config.epochs,
    )


def without_pairs(pairs: list[JudgedPair], left_out: Collection[str]) -> list[JudgedPair]:
    """The pairs without those of these judgments.  An edit has the id of its judgment."""
    return [pair for pair in pairs if pair.judgment not in left_out]


def without(split: Split, left_out: Collection[str]) -> Split:
    """The split without these judgments; ValueError if nothing remains to learn from."""
    kept = Split(*(without_pairs(pairs, left_out) for pairs in split))
    if not any(pair.decisive for pair in kept.learned):
        raise ValueError(
            "nothing remains to learn from: no remaining judgment on a training prompt prefers a "
            "response"
        )
    return kept


def _same_epochs(training: Training, split: Split, kept: Split, inputs: Path) -> Any:
    """The settings; with the original's number of epochs if too few judgments are left to stop by.

    Otherwise all epochs would run, and the longer training would be part of the shift.
    """
    config, trained = training.config, read_json(inputs / TRAINED) or {}
    stopped = stopping_pairs(config, split.audit_set) and trained.get("epochs")
    if not stopped or stopping_pairs(config, kept.audit_set):
        return config
    training.report.note(
        "info",
        "early_stopping",
        f"{len(kept.audit_set)} judgments are too few to decide when to stop "
        f"({config.stopping_judgments} needed), so it is trained for {stopped:.2g} epochs, as the "
        "original was",
    )
    return replace(config, epochs=stopped, early_stopping=False)


def _score(model: RewardModel, directory: RunDirectory, name: str) -> None:
    """Write a model's rewards of the stored responses, and what it predicts against SFT's."""
    frame = pd.read_parquet(directory.inputs / EVALUATIONS)
    rows: list[dict[str, Any]] = []
    if len(frame):
        conversations = [read_messages(text) for text in frame["messages"]]
        ours, theirs = (
            model(conversations, frame[side].tolist()) for side in ("text", "reference_text")
        )
        d = torch.tensor(ours, dtype=torch.float64) - torch.tensor(theirs, dtype=torch.float64)
        network = model.network
        expected = expected_outcome(
            d, theta=network.ties().item(), tie_model=network.likelihood.tie_model
        )
        columns = (frame["policy"], frame["prompt"], ours, theirs, expected.tolist())
        rows = [dict(zip(SCORES_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]
    write_rows(directory.outputs / name, rows, SCORES_COLUMNS)
