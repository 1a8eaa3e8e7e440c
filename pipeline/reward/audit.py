"""The audit reward model, trained on prompts that the reward model did not learn from.

PPO does not use it.  A policy that exploits an error of its reward model gains less reward from a
model that learned from other judgments; where the two diverge, the policy over-optimizes (Gao et
al. 2023, *Scaling Laws for Reward Model Overoptimization*, with a gold reward instead of the audit
model).  The audit model learns from the held-out judgments and from those that decide when to stop,
so it needs no extra labels.  Its accuracy is measured on the reward model's training judgments.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, replace

from pipeline.reward.data import Split, both_texts
from pipeline.reward.members import train_members
from pipeline.reward.quality.calibration import CalibratedFigures, calibrate
from pipeline.reward.scoring import AUDIT, RewardModel
from pipeline.reward.trainer import AUDITED, SHARE, Training
from pipeline.runs.peers import ALONE, Peers

MIN_PREFERENCES = 20
"""Minimum number of judgments with a preference for an audit model."""


@dataclass(frozen=True, kw_only=True)
class AuditFigures(CalibratedFigures):
    """Figures of an audit model, on the judgments that the reward model learned from."""

    pairs: int
    """Judgments that it learned from."""
    measured_pairs: int


def train_audit_model(
    training: Training, split: Split, *, epochs: float, processes: Peers = ALONE
) -> tuple[RewardModel | None, AuditFigures | None]:
    """The audit model, trained for `epochs`, and its figures; None if there are too few judgments.

    A resumed stage trains it from the start.  The last of several `processes` trains it, and all
    return it; a collective call.
    """
    decisive = sum(pair.decisive for pair in split.unseen)
    if decisive < MIN_PREFERENCES:
        message = (
            f"no audit model: it needs {MIN_PREFERENCES} judgments with a preference on prompts "
            f"that the reward model does not learn from, and there are {decisive}"
        )
        training.report.note("info", "audit", message)
        return None, None
    if processes.size == 1:
        return _train(training, split, epochs=epochs)
    folder, figures = training.checkpoints / "trained" / AUDIT, None
    if processes.rank == processes.size - 1:
        model, figures = _train(training, split, epochs=epochs)
        model.save(folder)
    else:
        training.report.progress(SHARE, 1, "training the audit model in another process")
    figures = processes.gather(figures)[-1]
    return RewardModel.load(folder, device=training.device), figures


def _train(training: Training, split: Split, *, epochs: float) -> tuple[RewardModel, AuditFigures]:
    training = replace(
        training,
        checkpoints=training.checkpoints / AUDIT,
        config=replace(training.config, epochs=epochs, members=1),
        resume=False,
        doing="training the audit model",
        share=(SHARE, AUDITED),
        quiet=True,
    )
    shutil.rmtree(training.checkpoints, ignore_errors=True)
    model, _ = train_members(training, split.unseen)
    model.network.annotators = None
    model.remember(both_texts(split.learned))
    measured = [pair for pair in split.learned if pair.random_stream]
    figures, _ = calibrate(model, measured, scale=training.config.calibrate)
    return model, AuditFigures(
        pairs=len(split.unseen), measured_pairs=len(measured), **asdict(figures)
    )
