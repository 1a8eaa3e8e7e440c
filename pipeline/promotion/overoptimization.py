"""The over-optimization alarm: does the reward model predict a higher win rate than people give?

PPO exploits responses that the reward model overrates.  The predicted win rate then exceeds the
human win rate (Gao et al. 2023, "Scaling laws for reward model overoptimization", ICML).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from pipeline.statistics.winrate import clustered_mean
from storage.gate_report import OverOptimization

ALARM_Z = 2.0
"""The alarm is raised above this many standard errors; if the reward model is right, chance raises
it 2.3% of the time."""

MIN_PROMPTS = 20
"""With fewer prompts the estimate of the standard error is too uncertain for an alarm."""


def over_optimization(
    predicted: Sequence[float], outcomes: Sequence[float], prompts: Sequence[Hashable]
) -> OverOptimization:
    """Compare (n,) predicted mean outcomes in [0, 1] with the (n,) outcomes (1, ½, 0) of people.

    The standard error is that of the mean paired difference, clustered by prompt: predictions and
    outcomes correlate.  It is at least ½/C for C prompts, as if one more prompt had differed by ½,
    so that z is finite.  For a single prompt z is 0.
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
    error = math.sqrt(max(variance, 0.25 / clusters**2)) if clusters > 1 else None
    z = gap / error if error else 0.0
    return OverOptimization(
        predicted=float(p.mean()),
        human=float(x.mean()),
        error=error,
        z=z,
        alarm=z > ALARM_Z and clusters >= MIN_PROMPTS,
        comparisons=p.size,
        prompts=clusters,
    )
