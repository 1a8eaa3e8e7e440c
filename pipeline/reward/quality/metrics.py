"""Metrics of a reward model on held-out judgments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import (
    FIRST,
    LEARNS_THETA,
    TIE,
    Likelihood,
    TieModel,
    TieValues,
    preference_logit,
)
from pipeline.statistics.calibration_error import expected_calibration_error
from pipeline.statistics.winrate import win_rate
from storage.reports import HeldOutFigures


def held_out_metrics(
    pairs: Sequence[JudgedPair],
    first: Sequence[float],
    second: Sequence[float],
    *,
    theta: float | Sequence[float],
    tie_model: TieModel,
) -> HeldOutFigures:
    """Accuracy with its prompt-clustered 95% interval, log-loss and ECE.

    `first` and `second` are the rewards of each pair's two texts; `theta` is one value or one per
    pair.  Accuracy and ECE are on decisive judgments; equal rewards count half.  The log-loss is on
    all judgments, or on decisive ones under ``drop``.  A figure without any judgment is None.
    """
    d = torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64)
    outcomes = torch.tensor([pair.outcome for pair in pairs])
    decisive = outcomes < TIE
    scored = decisive if tie_model == "drop" else torch.ones_like(decisive)
    learned = torch.as_tensor(theta, dtype=torch.float64).expand(len(pairs))
    threshold = learned if tie_model in LEARNS_THETA else torch.zeros_like(learned)
    log_loss = accuracy = ece = None
    if scored.any():
        model, ties = (
            Likelihood(tie_model=tie_model, both_bad="tie"),
            TieValues(theta=learned[scored]),
        )
        losses = model.loss(d[scored], outcomes[scored], ties=ties)
        log_loss = losses.mean().item()
    if decisive.any():
        toward = torch.where(outcomes == FIRST, d, -d)[decisive]
        right = ((toward > 0).double() + (toward == 0).double() / 2).tolist()
        prompts = [pair.prompt for pair in pairs if pair.decisive]
        accuracy = win_rate(right, prompts)
        # σ(log P(first) − log P(second)): P(first) given that the judgment is decisive.
        stated = torch.sigmoid(preference_logit(d, threshold, tie_model))[decisive]
        won = (outcomes == FIRST)[decisive].double()
        ece = expected_calibration_error(stated.tolist(), won.tolist())
    return HeldOutFigures(
        accuracy=accuracy.win_rate if accuracy else None,
        accuracy_low=accuracy.low if accuracy else None,
        accuracy_high=accuracy.high if accuracy else None,
        log_loss=log_loss,
        ece=ece,
    )


def length_correlation_in_pairs(
    first: Sequence[float], second: Sequence[float], pairs: Sequence[JudgedPair]
) -> float | None:
    """Correlation of reward differences with length differences: Σ d·Δ / √(Σ d² · Σ Δ²).

    Differences are not centered, because their means depend on the order of responses.  None if
    either is always 0.
    """
    d = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    longer = np.asarray([pair.first_length - pair.second_length for pair in pairs], dtype=float)
    norm = math.sqrt(float(d @ d) * float(longer @ longer))
    return float(d @ longer) / norm if norm else None
