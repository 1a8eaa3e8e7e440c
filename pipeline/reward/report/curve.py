"""A study's stage: the reward model trained again on fewer labels, for a learning curve.

inputs/ has the judgments that a reward model was made from and what it says of its held-out ones.
The prompts it learned from are dealt into four blocks.  In order r, the models at 25, 50 and 75%
learn from the first, the first two and the first three blocks, beginning with block r and going
round: nested within an order, and over all orders each judgment is unseen at each share.  Each
model's verdicts on what it has not seen go to outputs/ORDER-SHARE.parquet, so that a study that was
stopped trains each of them once.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.models.devices import pick_device
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair, job_pairs, set_apart, split_by_prompt, stopping_pairs
from pipeline.reward.members import train_members
from pipeline.reward.quality import held_out as table
from pipeline.reward.quality.figures import of_stream, outcomes
from pipeline.reward.report.learning_curve import BLOCKS, COLUMNS, ORDERS, THE_MODEL, file_of
from pipeline.reward.scoring import RewardModel
from pipeline.runs.parquet import write_rows
from pipeline.runs.rundir import Job, Report, RunDirectory
from storage.records import digest

FEWEST = 40
"""Judgments to learn from below which a quarter of them is too few to train anything."""


def run(job: Job, report: Report, directory: RunDirectory) -> dict[str, Any]:
    """Train the models that are still missing; the number there are."""
    config, path = job.config.reward, job.model("reference")
    chat = ChatTokenizer.load(path)
    pairs = job_pairs(job, report, directory, chat, path)
    rest, held_out = split_by_prompt(
        pairs, held_out_share=config.held_out_share, seed=job.config.seed
    )
    require_enough(rest)
    known = pd.read_parquet(directory.inputs / table.TABLE).to_dict("records")
    _write(directory.outputs, known, order=THE_MODEL, blocks=BLOCKS, labels=len(pairs))
    block = deal(rest, seed=job.config.seed)
    plan = [(order, blocks) for order in ORDERS for blocks in range(1, BLOCKS)]
    for number, (order, blocks) in enumerate(plan):
        if file_of(directory.outputs, order, blocks).exists():
            continue
        kept = {(order + k) % BLOCKS for k in range(blocks)}
        learned = [pair for pair in rest if block[pair.prompt] in kept]
        unseen = [pair for pair in rest if block[pair.prompt] not in kept]
        doing = f"model {number + 1} of {len(plan)}, on {blocks / BLOCKS:.0%} of the labels"
        model = _trained(
            job, chat, learned, directory, report, doing=doing,
            share=(number / len(plan), (number + 1) / len(plan)),
        )  # fmt: skip
        said = table.judged_rows(model, [*held_out, *unseen])
        labels = len(pairs) * len(learned) / len(rest)
        _write(directory.outputs, said, order=order, blocks=blocks, labels=labels)
    return {"models": len(plan)}


def require_enough(rest: Sequence[JudgedPair]) -> None:
    """Raises ValueError where a quarter of the labels would be too few to train on."""
    prompts = len({pair.prompt for pair in rest if pair.decisive})
    if len(rest) < FEWEST or prompts < 2 * BLOCKS:
        raise ValueError(
            f"a learning curve needs {FEWEST} judgments to learn from, with preferences on "
            f"{2 * BLOCKS} prompts, and there are {len(rest)} on {prompts}; label more pairs first"
        )


def deal(pairs: Sequence[JudgedPair], *, seed: int) -> dict[str, int]:
    """The block of each prompt: all with preferences are dealt round in an order from their ids."""
    decisive = {pair.prompt for pair in pairs if pair.decisive}
    prompts = {pair.prompt for pair in pairs}
    # Each block gets its share of those with preferences, without which nothing can be learned.
    by_digest = sorted(prompts, key=lambda id: (id not in decisive, digest("curve", str(seed), id)))
    return {prompt: number % BLOCKS for number, prompt in enumerate(by_digest)}


def _trained(
    job: Job,
    chat: ChatTokenizer,
    pairs: Sequence[JudgedPair],
    directory: RunDirectory,
    report: Report,
    *,
    doing: str,
    share: tuple[float, float],
) -> RewardModel:
    """A reward model as the stage would make it, had only these pairs been judged."""
    config, device = job.config.reward, pick_device(job.config.worker.device)
    report.log(f"{doing}: {len(pairs)} judgments")
    train, apart = set_apart(
        pairs, share=config.audit_share, least=config.stopping_judgments, seed=job.config.seed
    )
    checkpoints = directory.checkpoint / "model"
    shutil.rmtree(checkpoints, ignore_errors=True)  # of a model that was interrupted
    model, _ = train_members(
        job.model("reference"),
        chat,
        train,
        config,
        checkpoints,
        report,
        device=device,
        seed=job.seed,
        bootstrap_seed=job.config.seed,
        outside=stopping_pairs(config, apart),
        doing=doing,
        share=share,
        quiet=True,
    )
    shutil.rmtree(checkpoints, ignore_errors=True)
    return model


def _write(outputs: Path, said: Sequence[Any], *, order: int, blocks: int, labels: float) -> None:
    """What a model says of judgments with a preference, of the random stream, by `COLUMNS`."""
    _, decided = of_stream(said)
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
