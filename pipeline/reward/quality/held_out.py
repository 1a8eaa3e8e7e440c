"""A reward model's predictions for individual held-out judgments, and its quality on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import LEARNS_THETA, OUTCOME_CODES, TieModel, log_probabilities
from pipeline.reward.quality.calibration import Factors, Scale
from pipeline.reward.quality.ceiling import agreement, agreement_group, items_of
from pipeline.reward.quality.figures import quality
from pipeline.reward.scoring import RewardModel
from pipeline.runs.parquet import write_rows
from storage.records import HELD_OUT_FILE
from storage.reports import Quality

COLUMNS = (
    "judgment", "comparison", "prompt", "annotator", "arm", "outcome", "first", "second", "d",
    "p_first", "p_second", "expected", "first_length", "second_length",
)  # fmt: skip
"""`d` is the difference of rewards.  `p_first` and `p_second` are the tie model's probabilities, of d
at the scale that was fitted without the pair's prompt.  `expected` is P(first) + ½ P(tie).  Lengths
are in tokens."""

_OUTCOMES = {code: name for name, code in OUTCOME_CODES.items()}


def judged_rows(
    model: RewardModel, pairs: Sequence[JudgedPair], *, scale: Scale | None = None
) -> list[dict[str, Any]]:
    """Judgments with the model's predictions, by `COLUMNS`.

    With the `scale` of a calibrated model, each probability is at the scale that was fitted without
    its prompt.
    """
    first, second = model.both_sides(pairs)
    network = model.network
    tie_model = network.likelihood.tie_model
    theta = network.ties().item() if tie_model in LEARNS_THETA else 0.0
    d = torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64)
    unseen = [scale.unseen(pair) if scale else Factors() for pair in pairs]
    factors = torch.tensor([(f.rewards, f.thresholds) for f in unseen], dtype=torch.float64)
    by_rewards, by_thresholds = factors.reshape(-1, 2).unbind(-1)
    chances = log_probabilities(d * by_rewards, theta * by_thresholds, tie_model).exp().tolist()
    return [
        {
            "judgment": pair.judgment,
            "comparison": pair.comparison,
            "prompt": pair.prompt,
            "annotator": pair.annotator,
            "arm": pair.arm,
            "outcome": _OUTCOMES[pair.outcome],
            "first": pair.first,
            "second": pair.second,
            "d": difference,
            "p_first": p_first,
            "p_second": p_second,
            "expected": p_first + p_tie / 2,
            "first_length": pair.first_length,
            "second_length": pair.second_length,
        }
        for pair, difference, (p_first, p_second, p_tie) in zip(
            pairs, d.tolist(), chances, strict=True
        )
    ]


def measure_quality(
    model: RewardModel,
    held_out: Sequence[JudgedPair],
    pairs: Sequence[JudgedPair],
    outputs: Path,
    *,
    scale: Scale,
    log_loss: float | None,
    expected: float | None,
) -> Quality:
    """The quality on the held-out judgments; writes their table to outputs/held_out.parquet.

    `pairs` are all judgments; they measure people's agreement.  `log_loss` comes from the
    calibration; `expected` is the agreement that fitted annotators would have.
    """
    rows = judged_rows(model, held_out, scale=scale)
    write_rows(outputs / HELD_OUT_FILE, rows, COLUMNS)
    items = items_of(pairs).values()
    return quality(
        rows,
        groups={pair.judgment: agreement_group(item) for item in items for pair in item},
        log_loss=log_loss,
        coin_log_loss=coin_log_loss(model.network.likelihood.tie_model, held_out, pairs),
        agreed=agreement(pairs),
        expected=expected,
    )


def coin_log_loss(
    tie_model: TieModel, held_out: Sequence[JudgedPair], pairs: Sequence[JudgedPair]
) -> float | None:
    """Log-loss of a baseline that predicts ties at other prompts' tie rate, and else chance.

    None without judgments.  The tie model at d = 0 would be too weak a baseline: equal responses
    tie more often than others.  ``half`` and ``drop`` have no probability for a tie.
    """
    measured = [p for p in held_out if p.random_stream and (p.decisive or tie_model != "drop")]
    if not measured:
        return None
    if tie_model not in LEARNS_THETA:
        return math.log(2)
    measured_prompts = {pair.prompt for pair in measured}
    others = [
        pair.decisive
        for pair in pairs
        if pair.random_stream and pair.prompt not in measured_prompts
    ]
    # Add one to each outcome's count, so that a few judgments do not give a rate of 0 or 1.
    tied = (others.count(False) + 1) / (len(others) + 3)
    ties = sum(not pair.decisive for pair in measured)
    wins = len(measured) - ties
    return -(ties * math.log(tied) + wins * math.log((1 - tied) / 2)) / len(measured)
