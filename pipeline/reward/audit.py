"""The audit reward model: trained on prompts the reward model did not learn from, unseen by PPO.

A policy that gains reward by a mistake of its reward model gains less with one that learned from
other judgments; where the two part, the policy over-optimises (Gao et al. 2023, *Scaling Laws for
Reward Model Overoptimization*, with a gold reward in the audit's place).  It learns from the
held-out judgments and those that say when to stop, so it costs no labels; its own accuracy is
measured on those that the reward model learned from.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair
from pipeline.reward.members import train_members
from pipeline.reward.quality.calibration import calibrate
from pipeline.reward.scoring import RewardModel
from pipeline.reward.trainer import AUDITED, SHARE
from pipeline.runs.rundir import Job, Report, RunDirectory

AUDIT = "audit"
"""The folder of a reward model that holds its audit model."""

LEAST = 20
"""Judgments with a preference that an audit model needs."""


def train_audit_model(
    job: Job,
    chat: ChatTokenizer,
    pairs: Sequence[JudgedPair],
    measured: Sequence[JudgedPair],
    directory: RunDirectory,
    report: Report,
    *,
    device: torch.device,
    epochs: float,
) -> tuple[RewardModel | None, dict[str, Any] | None]:
    """One trained on `pairs` for `epochs`, and its figures on `measured`; none where there are few.

    It starts over when the stage is resumed: it is the small part of the work.
    """
    decisive = sum(pair.decisive for pair in pairs)
    if decisive < LEAST:
        message = (
            f"no audit model: {decisive} judgments with a preference are on the prompts that the "
            f"reward model does not learn from, and it needs {LEAST}"
        )
        report.note("info", "audit", message)
        return None, None
    checkpoints = directory.checkpoint / AUDIT
    shutil.rmtree(checkpoints, ignore_errors=True)
    config = replace(job.config.reward, epochs=epochs, members=1)
    model, _ = train_members(
        job.model("reference"),
        chat,
        pairs,
        config,
        checkpoints,
        report,
        device=device,
        seed=job.seed,
        doing="training the audit model",
        share=(SHARE, AUDITED),
        quiet=True,
    )
    model.network.annotators = None
    found, _ = calibrate(model, measured, scale=config.calibrate)
    return model, {"pairs": len(pairs), "measured_pairs": len(measured)} | found


def audit_model(reward: str, *, device: torch.device) -> RewardModel | None:
    """The audit model saved with the reward model at `reward`, where there is one."""
    path = Path(reward) / AUDIT
    return RewardModel.load(path, device=device) if path.is_dir() else None
