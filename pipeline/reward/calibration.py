"""The scale of rewards: as sure of itself as the judgments that it did not learn from allow.

A network trained on a few hundred judgments orders responses well before it knows how far apart
they are, and then says so too loudly: half of what it stakes is memory.  One factor on all
rewards mends that without changing their order (temperature scaling, Guo et al. 2017, *On
Calibration of Modern Neural Networks*, section 4.2).  It matters wherever differences of rewards
are read as probabilities (the over-optimisation alarm, BALD, ECE) and where rewards are traded
against KL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import Likelihood, TieValues
from pipeline.reward.metrics import held_out_metrics
from pipeline.reward.reliability import judged_by_rewards
from pipeline.reward.scoring import RewardModel
from storage.records import digest

PRIOR_SD = 1.0
"""Of the factor's logarithm, around 0.  Without it the factor of a few judgments that happen to
contradict the model would be 0.  On the demo, factors of .3 to 1.2 are found."""

_FACTORS = torch.logspace(-1.3, 0.7, 201, dtype=torch.float64)  # .05 to 5


def fitted_scale(
    pairs: Sequence[JudgedPair],
    first: Sequence[float],
    second: Sequence[float],
    *,
    likelihood: Likelihood,
    ties: TieValues,
) -> float:
    """The likeliest factor on the rewards of `pairs`, which the model did not learn from.

    By whom they were judged plays no part: rewards come out at the scale of a typical judgment of
    these people, careless ones among them, since predictions are held to such judgments.  The
    factor's logarithm has the prior N(0, PRIOR_SD²), so few judgments change little; 1 for none.
    """
    likelihood = replace(likelihood, both_bad="tie", label_smoothing=0.0, margin=0.0)
    everybody = sorted({pair.annotator for pair in pairs})
    judged, rows = judged_by_rewards(
        pairs, first, second, everybody, tie_model=likelihood.tie_model
    )
    if not rows:
        return 1.0
    fits = likelihood.log_likelihood(
        _FACTORS[:, None] * judged.d, judged.outcomes, ties=ties, strength=judged.strength
    )
    posterior = fits.sum(-1) - (_FACTORS.log() / PRIOR_SD).square() / 2
    return float(_FACTORS[posterior.argmax()])


@dataclass(frozen=True)
class Scale:
    """The factor that all rewards were multiplied by, and those that judge it without flattery.

    A prompt is in one of two halves, and `by_half[h]` was fitted without the measured judgments of
    half h.
    """

    factor: float
    by_half: tuple[float, float]

    def unseen(self, pair: JudgedPair) -> float:
        """What takes rewards at `factor` to the scale that was fitted without this pair's prompt."""
        return self.by_half[_half(pair)] / self.factor


def _half(pair: JudgedPair) -> int:
    return int(digest("calibration", pair.prompt), 16) % 2


def calibrate(
    model: RewardModel,
    measured: Sequence[JudgedPair],
    others: Sequence[JudgedPair] = (),
    *,
    scale: bool = True,
) -> tuple[dict[str, Any], Scale]:
    """Put a model's rewards on the scale of judgments it did not learn from; its figures on `measured`.

    The factor is fitted on `measured` and `others`.  The figures (`held_out_metrics`, and the
    factor as ``scale``) are not flattered by it: each half of the measured prompts is read at the
    scale that the other half and `others` fit.  Without `scale` the rewards stay as they are, at a
    factor of 1.
    """
    network, ties = model.network, model.network.ties.values()
    pairs = [*measured, *others]
    first, second = model.both_sides(pairs)
    half = [_half(pair) for pair in measured]

    def fitted(rows: Sequence[int]) -> float:
        if not scale:
            return 1.0
        return fitted_scale(
            [pairs[n] for n in rows],
            [first[n] for n in rows],
            [second[n] for n in rows],
            likelihood=network.likelihood,
            ties=ties,
        )

    def without(own: int) -> float:
        return fitted([n for n in range(len(pairs)) if n >= len(half) or half[n] != own])

    found = Scale(factor=fitted(range(len(pairs))), by_half=(without(0), without(1)))
    figures = held_out_metrics(
        measured,
        [found.by_half[h] * first[n] for n, h in enumerate(half)],
        [found.by_half[h] * second[n] for n, h in enumerate(half)],
        theta=float(ties.theta),
        tie_model=network.likelihood.tie_model,
    )
    model.rescale(found.factor)
    return figures | {"scale": found.factor}, found
