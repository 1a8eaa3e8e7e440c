"""The over-optimisation alarm: does the reward model promise more than people see?

PPO finds what the reward model overrates.  Where that happens the win rate which the reward model
predicts runs ahead of the one that people give (Gao et al. 2023, "Scaling laws for reward model
overoptimization", ICML).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.statistics.winrate import clustered_mean

ALARM = 2.0
"""Standard errors between prediction and people from which the alarm is raised: 2.3% of the time
by chance where the reward model is right."""

FEWEST_PROMPTS = 20
"""Below this many prompts the standard error is itself too unsure for z to mean anything."""


@dataclass(frozen=True, kw_only=True)
class OverOptimization:
    """Predicted and human win rate over the same `comparisons` judgments of `prompts` prompts.

    `z` is (predicted − human)/`error`; `alarm` is raised at z > 2 with enough prompts.
    """

    predicted: float
    human: float
    error: float
    z: float
    alarm: bool
    comparisons: int
    prompts: int


def over_optimization(
    predicted: Sequence[float], outcomes: Sequence[float], prompts: Sequence[Hashable]
) -> OverOptimization:
    """Compare (n,) predicted mean outcomes in [0, 1] with the (n,) outcomes (1, ½, 0) of people.

    The standard error is that of the mean difference, clustered by prompt: pairs on which the
    reward model is sure are as hard for people, so the two are far from independent.  It is at
    least ½/C for C prompts, as if one prompt more had differed by ½: no z is infinite.  Of a single
    prompt nothing is known: its error is infinite and z is 0.
    """
    p, x = np.asarray(predicted, dtype=float), np.asarray(outcomes, dtype=float)
    if not 0 < p.size == x.size == len(prompts):
        raise ValueError(
            f"{p.size} predictions need as many outcomes ({x.size}) and prompts ({len(prompts)}), "
            "at least one"
        )
    if not (((p >= 0) & (p <= 1)).all() and ((x >= 0) & (x <= 1)).all()):
        raise ValueError("predictions and outcomes must lie between 0 (loss) and 1 (win)")
    gap, variance, clusters = clustered_mean(p - x, prompts)
    error = math.sqrt(max(variance, 0.25 / clusters**2))
    z = gap / error
    return OverOptimization(
        predicted=float(p.mean()),
        human=float(x.mean()),
        error=error,
        z=z,
        alarm=z > ALARM and clusters >= FEWEST_PROMPTS,
        comparisons=p.size,
        prompts=clusters,
    )
