"""The learned parameters of the likelihood, saved with the reward model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from pipeline.reward.likelihood import (
    BOTH_BAD,
    LEARNS_THETA,
    TIE,
    UNSTATED,
    Likelihood,
    TieValues,
)

_MIN_GAP = 0.1


class Ties(nn.Module):
    """θ, the gaps between the thresholds of strength, and level and scale of *both bad*.

    θ, the gaps and the scale are stored as inverse softplus.  No parameter is a scalar, because
    sharded training does not support scalars.  Old models have only `raw`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.empty(1))
        self.gaps = nn.Parameter(torch.empty(2))
        self.level = nn.Parameter(torch.empty(1))
        self.sharpness = nn.Parameter(torch.empty(1))
        self.reset()

    def reset(self) -> None:
        """Initial values before any judgment.

        Uses `nn.init`, which transformers skips for tensors that a checkpoint contains.
        """
        nn.init.constant_(self.raw, _inverse_softplus(0.5))
        nn.init.constant_(self.gaps, _inverse_softplus(1.0))
        nn.init.zeros_(self.level)
        nn.init.constant_(self.sharpness, _inverse_softplus(1.0))

    def forward(self) -> Tensor:
        """θ, a tensor of one element."""
        return softplus(self.raw)

    def packed(self) -> Tensor:
        """(5,): the fields of `TieValues` in their order."""
        return torch.cat([self(), softplus(self.gaps), self.level, softplus(self.sharpness)])

    def values(self) -> TieValues:
        """The parameters without gradients."""
        return TieValues(*self.packed().detach())

    def learn(self, likelihood: Likelihood) -> None:
        """Train only the parameters of the likelihood.

        Distributed training does not accept trainable parameters without a gradient.
        """
        self.raw.requires_grad_(likelihood.tie_model in LEARNS_THETA)
        self.gaps.requires_grad_(likelihood.tie_model == "ordinal")
        for parameter in (self.level, self.sharpness):
            parameter.requires_grad_(likelihood.both_bad == "absolute")

    @torch.no_grad()
    def start(self, likelihood: Likelihood, outcomes: Tensor, strength: Tensor) -> None:
        """Initial values that give the frequencies in the data at d = 0.

        P(tie) at d = 0 is tanh(θ/2), in Davidson's model ν/(2 + ν); its frequency is clipped to
        [.02, .9].
        """
        tied = outcomes >= TIE
        rate = min(max(tied.double().mean().item(), 0.02), 0.9)
        davidson = likelihood.tie_model == "davidson"
        theta = 2 * rate / (1 - rate) if davidson else 2 * math.atanh(rate)
        self.raw.fill_(_inverse_softplus(theta))
        stated = strength[~tied & (strength != UNSTATED)]
        if likelihood.tie_model == "ordinal" and len(stated):
            # P(at least clearly) = σ(−θ2) at d = 0, and so on for much.
            win = 1 / (1 + math.exp(theta))
            shares = [(stated >= s).double().mean().item() for s in (2, 3)]
            clearly, much = (-_logit(win * min(max(share, 0.02), 0.98)) for share in shares)
            gaps = [clearly - theta, much - clearly]
            raw = [_inverse_softplus(max(gap, _MIN_GAP)) for gap in gaps]
            self.gaps.copy_(torch.tensor(raw))
        if tied.any():
            bad = (outcomes == BOTH_BAD).sum() / tied.sum()
            # σ((κ − m) · c) at m = 0.
            scale = softplus(self.sharpness).item()
            self.level.fill_(_logit(min(max(bad.item(), 0.02), 0.98)) / scale)

    @torch.no_grad()
    def rescale(self, by: float, *, thresholds: float = 1.0) -> None:
        """Adapt to rewards multiplied by `by`, so that *both bad* stays equally likely.

        θ and the gaps are multiplied by `thresholds`.
        """
        for raw in (self.raw, self.gaps):
            spread = [_inverse_softplus(thresholds * value) for value in softplus(raw).tolist()]
            raw.copy_(torch.tensor(spread))
        self.level.mul_(by)
        self.sharpness.fill_(_inverse_softplus(softplus(self.sharpness).item() / by))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _inverse_softplus(y: float) -> float:
    return y + math.log(-math.expm1(-y))
