"""How annotators differ: a slope on the rewards and a bias to one side.

Slopes and biases are learned with the reward model if `reward.annotators` is set (the default) and
there are at least two annotators.  An unreliable annotator gets a small slope, so their judgments
change the rewards less; no annotator is excluded.

For a difference of rewards d, annotator w judges by (1 + δ_w) · d + s · b_w, which replaces d in the
tie model.  s is +1 if the first response was on the left and −1 if it was on the right, so b_w > 0
prefers the left.

δ ~ N(0, .35²) and b ~ N(0, .3²), so annotators with few judgments stay close to average.  Answers to
gold pairs replace this prior by the posterior given them (gold.py).  The slope
can be negative: judgments by an annotator who confuses the buttons are as informative as others.
Model judges beside people have fixed slopes and biases (judges.py).
Similar models: Dawid and Skene (1979) and, for pairs, Chen et al. (2013), *Pairwise Ranking
Aggregation in a Crowdsourced Setting*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pipeline.reward.likelihood import Likelihood, TieValues, log_probabilities

SLOPE_SD, BIAS_SD = 0.35, 0.3
"""Standard deviations of the priors on δ and b."""

SCALES = torch.logspace(-1.3, 0.7, 201, dtype=torch.float64)
"""Grid of factors on rewards, .05 to 5, for the search of the best one."""

_STEPS = 100
_TOLERANCE = 1e-10


@dataclass(frozen=True, kw_only=True)
class GroundedJudge:
    """How a model judge judges by the standard of people: z = slope · d + bias · s + length · Δ, where Δ
    is the difference of the responses' lengths in tokens."""

    slope: float
    bias: float
    length: float
    slope_sd: float
    """Standard error of the slope."""


class AnnotatorEffects(nn.Module):
    """δ and b of each annotator, learned with the rewards; those of `fixed` are not learned."""

    prior_delta: Tensor
    prior_bias: Tensor
    prior_delta_sd: Tensor
    prior_bias_sd: Tensor
    learned: Tensor

    def __init__(
        self,
        ids: Sequence[str],
        prior: FittedAnnotators | None = None,
        *,
        fixed: Mapping[str, GroundedJudge] | None = None,
    ) -> None:
        super().__init__()
        self.ids, fixed = list(ids), fixed or {}
        prior = prior or ungrounded(len(ids))
        delta, bias = prior.delta.tolist(), prior.bias.tolist()
        for n, id in enumerate(self.ids):
            if id in fixed:
                delta[n], bias[n] = fixed[id].slope - 1, fixed[id].bias
        self.delta = nn.Parameter(torch.tensor(delta))
        self.bias = nn.Parameter(torch.tensor(bias))
        learned = torch.tensor([id not in fixed for id in self.ids])
        self.register_buffer("learned", learned, persistent=False)
        for name, value in vars(prior).items():
            self.register_buffer(f"prior_{name}", value.float(), persistent=False)

    def forward(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes and biases (M,) of the annotators at `index` (M,)."""
        learned = self.learned[index]
        delta, bias = self.delta[index], self.bias[index]
        return (
            1 + torch.where(learned, delta, delta.detach()),
            torch.where(learned, bias, bias.detach()),
        )

    def penalty(self) -> Tensor:
        """The prior's negative log-density up to a constant; without gold pairs
        ½ Σ (δ/.35)² + (b/.3)²."""
        slopes = (self.delta - self.prior_delta) / self.prior_delta_sd
        biases = (self.bias - self.prior_bias) / self.prior_bias_sd
        return ((slopes.square() + biases.square()) * self.learned).sum() / 2


@dataclass(frozen=True, kw_only=True)
class AnnotatorJudgments:
    """The inputs of the annotator model; every tensor is (N,), in float64.

    `d` are differences of rewards, `side` is +1 if the first response was on the left, else −1, and
    `annotator` is an index.
    """

    d: Tensor
    side: Tensor
    annotator: Tensor
    outcomes: Tensor
    strength: Tensor
    level: Tensor


@dataclass(frozen=True, kw_only=True)
class FittedAnnotators:
    """δ and b at the optimum of the posterior, and their standard errors; all (W,)."""

    delta: Tensor
    bias: Tensor
    delta_sd: Tensor
    bias_sd: Tensor


def ungrounded(count: int) -> FittedAnnotators:
    """The prior of `count` annotators without gold judgments."""
    zeros, ones = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    return FittedAnnotators(
        delta=zeros, bias=zeros, delta_sd=SLOPE_SD * ones, bias_sd=BIAS_SD * ones
    )


def calibrated(
    judged: AnnotatorJudgments, likelihood: Likelihood, ties: TieValues
) -> AnnotatorJudgments:
    """The judgments with the reward differences multiplied by the best of `SCALES`."""
    fits = likelihood.log_likelihood(
        SCALES[:, None] * judged.d, judged.outcomes, ties=ties, strength=judged.strength
    )
    return replace(judged, d=SCALES[fits.sum(-1).argmax()] * judged.d)


def effective(d: Tensor, slope: Tensor, bias: Tensor, side: Tensor) -> Tensor:
    """The argument of the tie model that replaces d."""
    return slope * d + side * bias


def fit_annotators(
    judged: AnnotatorJudgments,
    count: int,
    *,
    likelihood: Likelihood,
    ties: TieValues,
    prior: FittedAnnotators | None = None,
) -> FittedAnnotators:
    """The MAP estimates of δ and b of `count` annotators, given the rewards, by Newton's method.

    The likelihoods are log-concave in z and z is linear in (δ, b), so there is one optimum.
    Standard errors are from the inverse of the observed information plus the prior's; they treat
    the rewards as known.  Annotators without judgments keep the prior, by default `ungrounded`.
    """
    prior = prior or ungrounded(count)
    mean = torch.stack([prior.delta, prior.bias], -1)
    precision = torch.stack([prior.delta_sd, prior.bias_sd], -1) ** -2
    at = mean.clone()
    features = torch.stack([judged.d, judged.side], -1)

    def posterior(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-densities (W,), gradients (W, 2) and information (W, 2, 2) at `at`."""
        z = (judged.d + (features * at[judged.annotator]).sum(-1)).requires_grad_()
        each = likelihood.log_likelihood(
            z, judged.outcomes, ties=ties, strength=judged.strength, level=judged.level
        )
        (first,) = torch.autograd.grad(each.sum(), z, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), z)
        first, outer = first.detach(), features.unsqueeze(-1) * features.unsqueeze(-2)
        value = _sums(each.detach(), judged.annotator, count)
        value = value - (precision * (at - mean) ** 2).sum(-1) / 2
        gradient = _sums(features * first[:, None], judged.annotator, count)
        gradient = gradient - precision * (at - mean)
        curved = _sums(outer * -second[:, None, None], judged.annotator, count)
        return value, gradient, curved + torch.diag_embed(precision)

    value, gradient, information = posterior(at)
    for _ in range(_STEPS):
        step = torch.linalg.solve(information, gradient)
        if step.abs().max() < _TOLERANCE:
            break
        # Halve the steps until no posterior falls: a long first step can overshoot.
        share = torch.ones(count, 1, dtype=torch.float64)
        while True:
            trial = posterior(at + share * step)
            worse = trial[0] < value - 1e-12 * value.abs()
            if not worse.any() or share.min() < 1e-6:
                break
            share = torch.where(worse[:, None], share / 2, share)
        at = at + share * step
        value, gradient, information = trial
    sd = torch.linalg.inv(information).diagonal(dim1=-2, dim2=-1).sqrt()
    return FittedAnnotators(delta=at[:, 0], bias=at[:, 1], delta_sd=sd[:, 0], bias_sd=sd[:, 1])


def annotator_weights(fitted: FittedAnnotators, likelihood: Likelihood, ties: TieValues) -> Tensor:
    """(W,) weight of one judgment of each annotator; 1 is average.

    It is the Fisher information about d of a judgment on equally good responses: slope² · I(b) /
    I(0), with I(z) = Σ p′(z)² / p(z) over first, second and tie.  A slope of −1 counts fully, a slope
    of 0 not at all.
    """

    def information(z: Tensor) -> Tensor:
        def probabilities(z: Tensor) -> Tensor:
            found = log_probabilities(z, ties.theta, likelihood.tie_model).exp()
            return found if likelihood.tie_model not in ("drop", "half") else found[..., :2]

        found = torch.func.jvp(probabilities, (z,), (torch.ones_like(z),))
        return (found[1] ** 2 / found[0]).sum(-1)

    return (
        (1 + fitted.delta) ** 2
        * information(fitted.bias)
        / information(torch.zeros_like(fitted.bias))
    )


def _sums(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Sums of rows by index: (N, …) to (count, …)."""
    found = torch.zeros(count, *values.shape[1:], dtype=values.dtype)
    return found.index_add_(0, index, values)
