"""Calibration: scales rewards to fit judgments that the model did not learn from.

A network trained on a few hundred judgments is overconfident.  One factor on all rewards corrects
that and keeps their order (temperature scaling, Guo et al. 2017, *On Calibration of Modern Neural
Networks*, section 4.2).  The scale matters wherever reward differences become probabilities (the
over-optimization alarm, BALD, ECE) and where rewards are traded off against KL.  The thresholds of
ties and strengths have their own factor: they were learned together with differences that were too
large, so the factor of the rewards alone would make ties far too likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import LEARNS_THETA, Likelihood, TieValues
from pipeline.reward.quality.metrics import held_out_metrics
from pipeline.reward.quality.reliability import SCALES, judged_by_rewards
from pipeline.reward.scoring import RewardModel
from storage.records import digest
from storage.reports import HeldOutFigures

PRIOR_SD = 0.25
"""SD of the prior on each factor's logarithm.  Unregularized, a few dozen judgments give mostly noise:
on the demo, 1.0 costs .03 nats per judgment, .25 costs .015, and .15 costs .01 but corrects an
overconfident model more slowly (`benchmarks/calibration.py`)."""

_ROUNDS = 20


@dataclass(frozen=True)
class Factors:
    """Factors on the rewards and on the thresholds of ties and strengths (θ, ν, gaps)."""

    rewards: float = 1.0
    thresholds: float = 1.0

    def over(self, other: Factors) -> Factors:
        """These factors relative to `other`."""
        return Factors(self.rewards / other.rewards, self.thresholds / other.thresholds)


def fitted_factors(
    pairs: Sequence[JudgedPair],
    first: Sequence[float],
    second: Sequence[float],
    *,
    likelihood: Likelihood,
    ties: TieValues,
    prior_sd: float = PRIOR_SD,
) -> Factors:
    """The MAP factors on the rewards of `pairs`, which the model did not learn from.

    Annotators are not distinguished: rewards get the scale of a typical judgment, including careless
    ones, because predictions are compared with such judgments.  The logarithms have the prior
    N(0, prior_sd²), so a few judgments change little.
    """
    likelihood = replace(likelihood, both_bad="tie", label_smoothing=0.0, margin=0.0)
    annotators = sorted({pair.annotator for pair in pairs})
    judged, rows = judged_by_rewards(
        pairs, first, second, annotators, tie_model=likelihood.tie_model
    )
    if not rows:
        return Factors()

    def likeliest(rewards: Tensor | float, thresholds: Tensor | float) -> float:
        """The best of `SCALES`; one argument is that grid, the other a fixed factor."""
        d = (torch.as_tensor(rewards) * judged.d).expand(len(SCALES), -1)
        fits = likelihood.log_likelihood(
            d, judged.outcomes, ties=ties.spread(thresholds), strength=judged.strength
        )
        posterior = fits.sum(-1) - (SCALES.log() / prior_sd).square() / 2
        return float(SCALES[posterior.argmax()])

    # Coordinate ascent; the likelihood is log-concave in both (Pratt 1981, "Concavity of the log
    # likelihood", JASA 76).
    learned = likelihood.tie_model in LEARNS_THETA
    grid, found = SCALES[:, None], Factors()
    for _ in range(_ROUNDS):
        rewards = likeliest(grid, found.thresholds)
        moved = Factors(rewards, likeliest(rewards, grid) if learned else 1.0)
        if moved == found:
            break
        found = moved
    return found


@dataclass(frozen=True)
class Scale:
    """The factors that rescaled a model, and the cross-fitted factors that measure it.

    Each prompt is in one of two halves; `by_half[h]` was fitted without the measured judgments of
    half h.
    """

    factors: Factors
    by_half: tuple[Factors, Factors]

    def unseen(self, pair: JudgedPair) -> Factors:
        """The factors fitted without this pair's half, relative to the rescaled model."""
        return self.by_half[_half(pair)].over(self.factors)


@dataclass(frozen=True, kw_only=True)
class CalibratedFigures(HeldOutFigures):
    """Held-out figures of a rescaled model, with its factors."""

    scale: float
    """Factor on the rewards."""
    threshold_scale: float
    """Factor on the thresholds of ties and strengths."""


def _half(pair: JudgedPair) -> int:
    return int(digest("calibration", pair.prompt), 16) % 2


def calibrate(
    model: RewardModel,
    measured: Sequence[JudgedPair],
    others: Sequence[JudgedPair] = (),
    *,
    scale: bool = True,
) -> tuple[CalibratedFigures, Scale]:
    """Rescale a model to judgments that it did not learn from; return its figures on `measured`.

    The factors are fitted on `measured` and `others`.  The figures are cross-fitted: each half of
    the measured prompts is measured at the scale that fits the other half and `others`.  Without
    `scale` the factors are 1.
    """
    network, ties = model.network, model.network.ties.values()
    pairs = [*measured, *others]
    first, second = model.both_sides(pairs)
    half = [_half(pair) for pair in measured]

    def fitted(rows: Sequence[int]) -> Factors:
        if not scale:
            return Factors()
        return fitted_factors(
            [pairs[n] for n in rows],
            [first[n] for n in rows],
            [second[n] for n in rows],
            likelihood=network.likelihood,
            ties=ties,
        )

    def without(own: int) -> Factors:
        return fitted([n for n in range(len(pairs)) if n >= len(half) or half[n] != own])

    found = Scale(factors=fitted(range(len(pairs))), by_half=(without(0), without(1)))
    unseen = [found.by_half[h] for h in half]
    figures = held_out_metrics(
        measured,
        [each.rewards * first[n] for n, each in enumerate(unseen)],
        [each.rewards * second[n] for n, each in enumerate(unseen)],
        theta=[each.thresholds * float(ties.theta) for each in unseen],
        tie_model=network.likelihood.tie_model,
    )
    model.rescale(found.factors.rewards, thresholds=found.factors.thresholds)
    return CalibratedFigures(
        **asdict(figures),
        scale=found.factors.rewards,
        threshold_scale=found.factors.thresholds,
    ), found
