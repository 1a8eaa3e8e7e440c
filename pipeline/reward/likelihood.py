"""How likely each outcome of a comparison is, given the two rewards.

With d = r_first − r_second and a tie threshold θ > 0 (Rao and Kupper 1967, *Ties in
Paired-Comparison Experiments: A Generalization of the Bradley-Terry Model*, JASA 62):

    P(first)  = σ(d − θ)
    P(second) = σ(−d − θ)
    P(tie)    = σ(d + θ) − σ(d − θ) = σ(d + θ) · σ(θ − d) · (1 − e^−2θ)

θ → 0 is Bradley and Terry (1952).  The product form of P(tie) keeps digits where the difference
of two sigmoids has none left, so values and gradients are finite at |d| = 80 in every precision.
A tie at d = 0 has probability tanh(θ/2), which is where θ starts: at the tie rate of the data.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

TieModel = Literal["rao_kupper", "drop", "half"]

FIRST, SECOND, TIE = 0, 1, 2
OUTCOME_CODES = {"first": FIRST, "second": SECOND, "tie": TIE, "both_bad": TIE}
"""Both bad says that neither is better, which is all that a difference of rewards can learn."""


def log_probabilities(d: Tensor, theta: Tensor | float) -> Tensor:
    """(N, 3) log-probabilities of first, second, tie for (N,) reward differences."""
    theta = torch.as_tensor(theta, dtype=d.dtype, device=d.device)
    tie = logsigmoid(d + theta) + logsigmoid(theta - d) + _log1mexp(2 * theta)
    return torch.stack([logsigmoid(d - theta), logsigmoid(-d - theta), tie], dim=-1)


def preference_logit(d: Tensor, theta: Tensor | float) -> Tensor:
    """log P(first) − log P(second): the log-odds that a decisive judgment goes to `first`.

    Not d itself: for large θ it approaches 2d near 0.
    """
    theta = torch.as_tensor(theta, dtype=d.dtype, device=d.device)
    return logsigmoid(d - theta) - logsigmoid(-d - theta)


def negative_log_likelihood(
    d: Tensor, outcomes: Tensor, *, theta: Tensor | float, tie_model: TieModel
) -> Tensor:
    """(N,) losses of (N,) reward differences under (N,) outcome codes.

    ``half`` counts a tie as half a win for each side.  Under ``drop`` ties must have been left
    out already: a ValueError says so, rather than a loss that ignores them quietly.
    """
    if tie_model == "rao_kupper":
        return -log_probabilities(d, theta).gather(-1, outcomes.unsqueeze(-1)).squeeze(-1)
    tied = outcomes == TIE
    if tie_model == "drop" and bool(tied.any()):
        raise ValueError("reward.tie_model=drop takes decisive judgments only; leave ties out")
    first, second = -logsigmoid(d), -logsigmoid(-d)
    decisive = torch.where(outcomes == FIRST, first, second)
    return torch.where(tied, (first + second) / 2, decisive)


class TieThreshold(nn.Module):
    """θ = softplus(raw), learned and saved with the reward model.

    `raw` has one element rather than none, because sharded training cannot hold scalars.
    """

    def __init__(self, theta: float = 0.5) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor([_inverse_softplus(theta)]))

    def forward(self) -> Tensor:
        """θ, a tensor of one element."""
        return softplus(self.raw)

    def start_at(self, tie_rate: float) -> None:
        """Set θ so that equal responses tie as often as the data does (clipped to [.02, .9])."""
        theta = 2 * math.atanh(min(max(tie_rate, 0.02), 0.9))
        with torch.no_grad():
            self.raw.fill_(_inverse_softplus(theta))


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 − e^−x) for x > 0."""
    return torch.log(-torch.expm1(-x))


def _inverse_softplus(y: float) -> float:
    return y + math.log(-math.expm1(-y))
