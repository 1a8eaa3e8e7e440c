"""The learning-curve stage: trains the reward model again on fewer labels.

inputs/ has the judgments and edits that a reward model was trained on and its predictions on the
held-out judgments.  The training prompts are divided into four blocks.  In order r, the models at
25, 50 and 75% learn from one, two and three blocks, starting with block r and wrapping around.
Within an order the training sets are nested; over all orders each judgment is unseen at each share.
The results of each model on unseen judgments go to outputs/ORDER-BLOCKS.parquet, so an interrupted
study continues with the next model.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import (
    JudgedPair,
    Split,
    job_pairs,
    split_by_prompt,
    split_for_stopping,
    stopping_pairs,
    without_edits,
)
from pipeline.reward.gold import read_gold
from pipeline.reward.judges import ground_judges
from pipeline.reward.members import train_members
from pipeline.reward.quality import held_out as table
from pipeline.reward.quality.figures import of_stream, outcomes
from pipeline.reward.report.learning_curve import BLOCKS, COLUMNS, FULL_MODEL, ORDERS, file_of
from pipeline.reward.scoring import RewardModel
from pipeline.reward.trainer import Training
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, Report, RunDirectory
from storage.records import HELD_OUT_FILE, digest

MIN_JUDGMENTS = 40
"""Minimum training judgments; a quarter of fewer would be too few to train on."""


@dataclass(frozen=True)
class CurveSummary:
    """The summary of a learning curve's stage."""

    models: int
    """Total number of models of the curve."""


def run(job: Job, report: Report, directory: RunDirectory) -> CurveSummary:
    """Train the missing models."""
    config = job.config.reward
    chat = ChatTokenizer.load(job.model("reference"))
    pairs = job_pairs(job, report, directory, chat, job.model("reference"))
    rest, held_out = split_by_prompt(
        pairs, held_out_share=config.held_out_share, seed=job.config.seed
    )
    require_enough(without_edits(rest))
    total = len(without_edits(pairs))
    known = pd.read_parquet(directory.inputs / HELD_OUT_FILE).to_dict("records")
    _write(directory.outputs, known, order=FULL_MODEL, blocks=BLOCKS, labels=total)
    block = deal(rest, seed=job.config.seed)
    plan = [(order, blocks) for order in ORDERS for blocks in range(1, BLOCKS)]
    training = replace(
        Training.of_job(job, chat, directory.checkpoint / "model", report),
        gold=read_gold(directory.inputs),
    )
    grounded = ground_judges(training, Split(rest, [], held_out))
    training, rest = grounded.training, [*grounded.learned]
    for number, (order, blocks) in enumerate(plan):
        if file_of(directory.outputs, order, blocks).exists():
            continue
        kept = {(order + k) % BLOCKS for k in range(blocks)}
        learned = [pair for pair in rest if block[pair.prompt] in kept]
        unseen = [
            pair
            for pair in without_edits(rest)
            if not pair.judge and block[pair.prompt] not in kept
        ]
        doing = f"model {number + 1} of {len(plan)}, on {blocks / BLOCKS:.0%} of the labels"
        report.log(f"{doing}: {len(learned)} judgments")
        share = (number / len(plan), (number + 1) / len(plan))
        own = replace(training, resume=False, doing=doing, share=share, quiet=True)
        model = _trained(own, learned, seed=job.config.seed)
        judged = table.judged_rows(model, [*held_out, *unseen])
        labels = total * len(without_edits(learned)) / len(without_edits(rest))
        _write(directory.outputs, judged, order=order, blocks=blocks, labels=labels)
    return CurveSummary(len(plan))


def require_enough(rest: Sequence[JudgedPair]) -> None:
    """Raise ValueError if a quarter of the labels would be too few to train on."""
    prompts = len({pair.prompt for pair in rest if pair.decisive})
    if len(rest) < MIN_JUDGMENTS or prompts < 2 * BLOCKS:
        raise ValueError(
            f"a learning curve needs {MIN_JUDGMENTS} judgments to learn from, with preferences on "
            f"{2 * BLOCKS} prompts, and there are {len(rest)} on {prompts}; label more pairs first"
        )


def deal(pairs: Sequence[JudgedPair], *, seed: int) -> dict[str, int]:
    """The block of each prompt, from the order of the ids' digests."""
    decisive = {pair.prompt for pair in pairs if pair.decisive}
    prompts = {pair.prompt for pair in pairs}
    # Prompts with preferences come first, so that each block gets its share of them.
    by_digest = sorted(prompts, key=lambda id: (id not in decisive, digest("curve", str(seed), id)))
    return {prompt: number % BLOCKS for number, prompt in enumerate(by_digest)}


def _trained(training: Training, pairs: Sequence[JudgedPair], *, seed: int) -> RewardModel:
    """The reward model that the stage would train if only these pairs had been judged."""
    config = training.config
    train, audit_set = split_for_stopping(
        pairs, share=config.audit_share, least=config.stopping_judgments, seed=seed
    )
    shutil.rmtree(training.checkpoints, ignore_errors=True)  # of an interrupted model
    model, _ = train_members(training, train, stopping=stopping_pairs(config, audit_set))
    shutil.rmtree(training.checkpoints, ignore_errors=True)
    return model


def _write(outputs: Path, judged: Sequence[Any], *, order: int, blocks: int, labels: float) -> None:
    """Store whether a model was right about preferences of the random stream, by `COLUMNS`."""
    _, decided = of_stream(judged)
    right, _ = outcomes(decided)
    model = {"order": order, "share": blocks / BLOCKS, "labels": float(labels)}
    rows = [
        model | {"judgment": row["judgment"], "prompt": row["prompt"], "right": each}
        for row, each in zip(decided, right.tolist(), strict=True)
    ]
    target = file_of(outputs, order, blocks)
    unfinished = target.with_suffix(".unfinished")
    write_rows(unfinished, rows, COLUMNS)
    unfinished.replace(target)
