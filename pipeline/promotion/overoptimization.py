"""The over-optimization alarm: does the reward model predict a higher win rate than people give?

PPO exploits responses that the reward model overrates.  The predicted win rate then exceeds the
human win rate (Gao et al. 2023, "Scaling laws for reward model overoptimization", ICML).  Some of
that excess comes with every optimization: the policy was chosen by the model that judges it (the
optimizer's curse, Smith and Winkler 2006).  It grows with the KL to SFT, so the prediction is
discounted by KL before it is compared.
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


def remaining_lead(kl: float, kl_discount: float) -> float:
    """The share of its predicted lead over SFT that a policy at `kl` nats is expected to keep.

    1/(1 + `kl_discount` · KL), where `kl_discount` is per nat; 1 for a KL below 0, which a noisy
    estimate can have.  docs/benchmarks.md has the data behind the form and the default.
    """
    return 1 / (1 + kl_discount * max(kl, 0.0))


def over_optimization(
    predicted: Sequence[float],
    outcomes: Sequence[float],
    prompts: Sequence[Hashable],
    *,
    lead: float = 1.0,
) -> OverOptimization:
    """Compare (n,) predicted mean outcomes in [0, 1] with the (n,) outcomes (1, ½, 0) of people.

    Each prediction p counts as ½ + `lead` · (p − ½); see `remaining_lead`.

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
    p = 0.5 + lead * (p - 0.5)
    gap, variance, clusters = clustered_mean(p - x, prompts)
    error = math.sqrt(max(variance, 0.25 / clusters**2)) if clusters > 1 else None
    z = gap / error if error else 0.0
    return OverOptimization(
        predicted=float(p.mean()),
        lead=lead,
        human=float(x.mean()),
        error=error,
        z=z,
        alarm=z > ALARM_Z and clusters >= MIN_PROMPTS,
        comparisons=p.size,
        prompts=clusters,
    )
