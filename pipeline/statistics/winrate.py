"""How often one policy's responses beat another's, with a 95% interval.

A win counts 1, a tie ½, a loss 0.  Judgments of one prompt resemble each other, so the independent
unit is the prompt.  Intervals that treat judgments as independent cover 82–92% instead of 95%.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from storage.analysis.intervals import WinRate, cluster_variance, clustered

_MAX_PER_JUDGMENT = 4
"""Maximum effective observations per judgment.  When nearly all judgments are ties, the variance
depends on the few that are not: without this limit, one win and 59 ties would get an interval of
three percentage points."""


def win_rate(outcomes: Sequence[float], prompts: Sequence[Hashable]) -> WinRate:
    """The mean of `outcomes` (1 win, ½ tie, 0 loss) with a prompt-clustered 95% interval.

    `prompts` names the prompt of each outcome.  The interval is Wilson's at the effective sample
    size, with Student's t at C − 1 degrees of freedom for C prompts: `clustered` in
    `storage/analysis/intervals.py`.
    Raises ValueError for other outcomes, none, or a different number of prompts.
    """
    x = np.asarray(outcomes, dtype=float)
    if x.size == 0 or x.size != len(prompts):
        raise ValueError(
            f"a win rate needs as many prompts ({len(prompts)}) as outcomes ({x.size}), at least one"
        )
    if not np.isin(x, (0.0, 0.5, 1.0)).all():
        raise ValueError("outcomes must be 1 (win), 0.5 (tie) or 0 (loss)")
    return mean_share(x, prompts, most=_MAX_PER_JUDGMENT * x.size)


def mean_share(
    shares: np.ndarray, prompts: Sequence[Hashable], *, most: float = math.inf
) -> WinRate:
    """`win_rate` for (n,) `shares` anywhere in [0, 1], such as means of several outcomes.

    The effective sample size is at most `most`.  One prompt gives the interval [0, 1].
    """
    mean, variance, clusters = clustered_mean(shares, prompts)
    low, high = clustered(mean, variance, clusters=clusters, most=most) or (0.0, 1.0)
    return WinRate(win_rate=mean, low=low, high=high, comparisons=shares.size, prompts=clusters)


def standard_error(
    scores: Sequence[float] | np.ndarray, prompts: Sequence[Hashable]
) -> float | None:
    """Standard error of the mean of `scores`, clustered by prompt; None for a single prompt."""
    _, variance, clusters = clustered_mean(np.asarray(scores, dtype=float), prompts)
    return None if clusters == 1 else math.sqrt(variance)


def clustered_mean(values: np.ndarray, prompts: Sequence[Hashable]) -> tuple[float, float, int]:
    """Mean of (n,) values, its cluster-robust variance, and the number of prompts.

    The variance is infinite when all values belong to one prompt.
    """
    index = cluster_numbers(prompts)
    clusters, mean = int(index.max()) + 1, float(values.mean())
    residuals = np.bincount(index, weights=values - mean)
    squares = float(residuals @ residuals)
    return mean, cluster_variance(squares, n=values.size, clusters=clusters), clusters


def outcome(ours: float, theirs: float) -> float:
    """1 when `ours` is the higher score, ½ when they are equal, 0 otherwise."""
    return 0.5 if ours == theirs else float(ours > theirs)


def cluster_numbers(prompts: Sequence[Hashable]) -> np.ndarray:
    """(n,) number of each prompt, counted from 0 in the order in which they first appear."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(prompt, len(numbers)) for prompt in prompts])
