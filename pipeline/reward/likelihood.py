"""The probability of each outcome of a comparison, given the two rewards.

With d = r_first − r_second, each model is symmetric (swapping the responses changes the sign of d),
so the probabilities of a win and of a tie define it:

    drop, half   P(win) = σ(d)                               Bradley and Terry 1952
    rao_kupper   P(win) = σ(d − θ)                           Rao and Kupper 1967
                 P(tie) = σ(d + θ) − σ(d − θ)
    davidson     P(win) : P(tie) : P(loss) = e^d/2 : θ : e^−d/2     Davidson 1970 (ν = θ)
    ordinal      P(tie) as in Rao and Kupper; a win is slightly, clearly or much better by the
                 thresholds θ < θ2 < θ3, with θ2 = θ + gap_clearly and θ3 = θ2 + gap_much:
                 P(slightly) = σ(d − θ) − σ(d − θ2), P(clearly) = σ(d − θ2) − σ(d − θ3),
                 P(much) = σ(d − θ3)                                    McCullagh 1980

A win of unknown strength has the sum of the three probabilities.  *Both bad* is a tie; under
``both_bad="absolute"`` the level m = (r_first + r_second) / 2 splits ties into equal and both bad:
P(both bad | tie) = σ((κ − m) · c).

Differences of sigmoids are computed as σ(a) − σ(a − g) = σ(a) · σ(g − a) · (1 − e^−g), which avoids
cancellation: values and gradients are finite at |d| = 80 in every precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

TieModel = Literal["rao_kupper", "davidson", "ordinal", "drop", "half"]
BothBad = Literal["tie", "absolute"]

FIRST, SECOND, TIE, BOTH_BAD = 0, 1, 2, 3
OUTCOME_CODES = {"first": FIRST, "second": SECOND, "tie": TIE, "both_bad": BOTH_BAD}
UNSTATED = 0
"""The strength of a judgment without one; 1 is slightly, 2 clearly, 3 much."""

LEARNS_THETA = ("rao_kupper", "davidson", "ordinal")
"""Tie models that have a θ."""


class TieValues(NamedTuple):
    """Parameters of the likelihoods: scalar tensors or numbers.

    `theta` > 0 is θ (Davidson's ν); `gap_clearly` and `gap_much` > 0 are θ2 − θ and θ3 − θ2;
    `kappa` is κ and `scale` > 0 is c.
    """

    theta: Any
    gap_clearly: Any = 1.0
    gap_much: Any = 1.0
    kappa: Any = 0.0
    scale: Any = 1.0

    def spread(self, by: Any) -> TieValues:
        """A copy with the thresholds multiplied by `by`."""
        theta, clearly, much = (by * v for v in (self.theta, self.gap_clearly, self.gap_much))
        return self._replace(theta=theta, gap_clearly=clearly, gap_much=much)


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """A model of outcomes, with changes to its loss.

    `label_smoothing` is the assumed probability that a judgment was reversed.  `margin` is
    subtracted from d if a response is much better, and ⅔ and ⅓ of it if it is clearly and slightly
    better (Touvron et al. 2023, *Llama 2*, section 3.2.2).
    """

    tie_model: TieModel
    both_bad: BothBad
    label_smoothing: float = 0.0
    margin: float = 0.0

    def log_likelihood(
        self,
        d: Tensor,
        outcomes: Tensor,
        *,
        ties: TieValues,
        strength: Tensor | None = None,
        level: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities of outcome codes, in the shape of `d`; the rest broadcasts to it.

        ``ordinal`` and a margin use `strength`; ``absolute`` needs `level`.  ``half`` gives a tie
        the mean of both wins' log-probabilities.  Raises ValueError for ties under ``drop``.
        """
        tied = outcomes >= TIE
        if self.tie_model == "drop" and bool(tied.any()):
            raise ValueError("reward.tie_model=drop needs decisive judgments; leave ties out")
        ties = TieValues(*(torch.as_tensor(v, dtype=d.dtype, device=d.device) for v in ties))
        # A win of the second at d is a win of the first at −d.
        toward = torch.where(outcomes == SECOND, -d, d)
        if self.margin and strength is not None:
            toward = toward - self.margin / 3 * strength.to(d.dtype)
        found = torch.where(tied, self._log_tie(d, ties), self._log_win(toward, ties, strength))
        if self.both_bad == "absolute":
            if level is None:
                raise ValueError("reward.both_bad=absolute needs the level of the two rewards")
            bad = (ties.kappa - level) * ties.scale
            split = torch.where(outcomes == BOTH_BAD, logsigmoid(bad), logsigmoid(-bad))
            found = found + torch.where(tied, split, torch.zeros_like(split))
        return found

    def loss(self, d: Tensor, outcomes: Tensor, **given: Tensor | TieValues | None) -> Tensor:
        """Negative log-likelihood with label smoothing; arguments as `log_likelihood`."""
        loss = -self.log_likelihood(d, outcomes, **given)  # type: ignore[arg-type]
        if not self.label_smoothing:
            return loss
        mirrored = -self.log_likelihood(-d, outcomes, **given)  # type: ignore[arg-type]
        return (1 - self.label_smoothing) * loss + self.label_smoothing * mirrored

    def _log_win(self, d: Tensor, ties: TieValues, strength: Tensor | None) -> Tensor:
        if self.tie_model in ("drop", "half"):
            return logsigmoid(d)
        if self.tie_model == "davidson":
            return _davidson(d, ties.theta)[..., FIRST]
        over = d - ties.theta
        whole = logsigmoid(over)
        if self.tie_model == "rao_kupper" or strength is None:
            return whole
        clearly = over - ties.gap_clearly
        found = torch.where(strength == 1, _log_interval(over, ties.gap_clearly), whole)
        found = torch.where(strength == 2, _log_interval(clearly, ties.gap_much), found)
        return torch.where(strength == 3, logsigmoid(clearly - ties.gap_much), found)

    def _log_tie(self, d: Tensor, ties: TieValues) -> Tensor:
        if self.tie_model in ("drop", "half"):
            return (logsigmoid(d) + logsigmoid(-d)) / 2
        if self.tie_model == "davidson":
            return _davidson(d, ties.theta)[..., TIE]
        return _log_interval(d + ties.theta, 2 * ties.theta)


def log_probabilities(
    d: Tensor, theta: Tensor | float, tie_model: TieModel = "rao_kupper"
) -> Tensor:
    """(…, 3) log-probabilities of first, second and tie for (…) reward differences.

    Strengths are summed, and both bad is a tie.  Under ``drop`` and ``half`` ties have probability 0.
    """
    theta = torch.as_tensor(theta, dtype=d.dtype, device=d.device)
    if tie_model == "davidson":
        return _davidson(d, theta)
    if tie_model in ("drop", "half"):
        never = torch.full_like(d, -torch.inf)
        return torch.stack([logsigmoid(d), logsigmoid(-d), never], dim=-1)
    tie = _log_interval(d + theta, 2 * theta)
    return torch.stack([logsigmoid(d - theta), logsigmoid(-d - theta), tie], dim=-1)


def preference_logit(
    d: Tensor, theta: Tensor | float, tie_model: TieModel = "rao_kupper"
) -> Tensor:
    """log P(first) − log P(second): the log-odds that a decisive judgment goes to `first`.

    With thresholds it differs from d: for large θ it approaches 2d near d = 0.
    """
    if tie_model not in ("rao_kupper", "ordinal"):
        return d
    theta = torch.as_tensor(theta, dtype=d.dtype, device=d.device)
    return logsigmoid(d - theta) - logsigmoid(-d - theta)


def _log_interval(a: Tensor, gap: Tensor) -> Tensor:
    """log(σ(a) − σ(a − gap)) for gap > 0."""
    return logsigmoid(a) + logsigmoid(gap - a) + torch.log(-torch.expm1(-gap))


def _davidson(d: Tensor, nu: Tensor) -> Tensor:
    """(…, 3) log-probabilities of first, second and tie."""
    scores = torch.stack([d / 2, -d / 2, nu.log().expand_as(d)], dim=-1)
    return scores.log_softmax(-1)
