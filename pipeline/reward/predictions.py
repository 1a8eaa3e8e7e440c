"""Predicts the judgments of a policy's completions with the reward model that trained the policy.

That model was trained before these completions existed.  The reward model of the current stage has
already learned from the judgments of them.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from pipeline.models.hub import ModelUnavailable
from pipeline.models.text import read_messages
from pipeline.reward.likelihood import TieModel, log_probabilities
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job, Report, RunDirectory

COLUMNS = ("comparison", "first", "first_score", "second_score")


def predict(job: Job, report: Report, directory: RunDirectory, *, device: torch.device) -> int:
    """Score inputs/evaluation_pairs.parquet with the ``proxy`` model, into predictions.parquet.

    Returns the number of pairs: 0 without pairs, as in the first iteration, or with a warning if the
    model is missing.
    """
    path = directory.inputs / "evaluation_pairs.parquet"
    if not path.exists():
        return 0
    pairs = pd.read_parquet(path)
    report.log(f"predicting {len(pairs)} comparisons with the policy's own reward model")
    try:
        model = RewardModel.load(job.model("proxy"), device=device)
    except ModelUnavailable as error:
        message = f"no predictions for the over-optimization alarm: {error}"
        report.note("warning", "no_predictions", message)
        return 0
    conversations = [read_messages(text) for text in pairs["messages"]]
    first, second = (model(conversations, pairs[side].tolist()) for side in ("first_text", "second_text"))  # fmt: skip
    likelihood, theta = model.network.likelihood, model.network.ties().item()
    expected = expected_outcome(
        torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64),
        theta=theta,
        tie_model=likelihood.tie_model,
    )
    rows = list(zip(pairs["comparison"], expected.tolist(), first, second, strict=True))
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    found.to_parquet(directory.outputs / "predictions.parquet", index=False)
    return len(pairs)


def expected_outcome(d: Tensor, *, theta: float, tie_model: TieModel) -> Tensor:
    """P(first is preferred) + ½ P(tie) at reward differences d (n,)."""
    first, _, tie = log_probabilities(d, theta, tie_model).exp().unbind(-1)
    return first + tie / 2
