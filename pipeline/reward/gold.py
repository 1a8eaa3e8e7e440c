"""What gold pairs say about annotators before a reward model is fitted: a prior of slope and bias.

The difference of rewards of a gold pair is unknown, but its sign is.  All gold pairs get the same
difference ±m, and m is the value that fits annotators of slope 1 best.  The posterior of each
annotator given the gold judgments is the prior of the joint fit, so gold judgments change the weight
of an annotator and never the rewards themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch

from pipeline.reward.annotators import (
    AnnotatorJudgments,
    FittedAnnotators,
    calibrated,
    fit_annotators,
)
from pipeline.reward.likelihood import OUTCOME_CODES, TIE, UNSTATED, Likelihood, TieValues


@dataclass(frozen=True, kw_only=True)
class GoldJudgment:
    """One answer to a gold pair: codes of `likelihood`, and the sign of the difference of rewards.

    `side` is +1 if the first response was on the left and −1 if it was on the right.
    """

    annotator: str
    sign: int
    outcome: int
    strength: int
    side: int


def read_gold(inputs: Path) -> list[GoldJudgment]:
    """The gold judgments of a reward stage; none in runs of earlier versions."""
    path = inputs / "gold.parquet"
    if not path.exists():
        return []
    return [
        GoldJudgment(
            annotator=row["annotator"],
            sign=1 if row["answer"] == "first" else -1,
            outcome=OUTCOME_CODES[row["outcome"]],
            strength=UNSTATED if pd.isna(row["strength"]) else int(row["strength"]),
            side=-1 if row["shown_swapped"] else 1,
        )
        for row in pd.read_parquet(path).to_dict("records")
    ]


def gold_prior(
    gold: Sequence[GoldJudgment], ids: Sequence[str], *, likelihood: Likelihood, ties: TieValues
) -> FittedAnnotators | None:
    """The prior of the annotators `ids`; None without gold judgments by them.

    Under ``drop``, ties are left out as in training.
    """
    index = {id: n for n, id in enumerate(ids)}
    rows = [
        each
        for each in gold
        if each.annotator in index and (each.outcome < TIE or likelihood.tie_model != "drop")
    ]
    if not rows:
        return None
    # Neither the level nor the margin depends on the annotator.
    likelihood = replace(likelihood, both_bad="tie", margin=0.0)
    judged = AnnotatorJudgments(
        d=torch.tensor([float(each.sign) for each in rows], dtype=torch.float64),
        side=torch.tensor([float(each.side) for each in rows], dtype=torch.float64),
        annotator=torch.tensor([index[each.annotator] for each in rows], dtype=torch.long),
        outcomes=torch.tensor([each.outcome for each in rows], dtype=torch.long),
        strength=torch.tensor([each.strength for each in rows], dtype=torch.long),
        level=torch.zeros(len(rows), dtype=torch.float64),
    )
    ties = TieValues(*(torch.as_tensor(value).double().cpu() for value in ties))
    scaled = calibrated(judged, likelihood, ties)
    return fit_annotators(scaled, len(ids), likelihood=likelihood, ties=ties)
