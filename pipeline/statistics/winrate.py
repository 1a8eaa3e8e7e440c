"""How often one policy's responses beat another's, with an honest interval.

A win counts 1, a tie ½, a loss 0.  Comparisons of the same prompt resemble each other, so the
prompt, not the comparison, is the independent unit: treating comparisons as independent gives
"95%" intervals that cover 82–92% of the time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

_NO_VARIANCE = 1e-12  # what rounding leaves of a sum that is zero
_MOST_A_JUDGMENT = 4
"""Effective observations of a judgment at most, as where three of four are ties: beyond that the few
that are none decide the variance, and one win beside 59 ties would leave an interval of three points."""


@dataclass(frozen=True, kw_only=True)
class WinRate:
    """A win rate with its 95% interval, over `comparisons` outcomes of `prompts` prompts."""

    win_rate: float
    low: float
    high: float
    comparisons: int
    prompts: int


def win_rate(outcomes: Sequence[float], prompts: Sequence[Hashable]) -> WinRate:
    """The mean of `outcomes` (1 win, ½ tie, 0 loss) with a prompt-clustered 95% interval.

    `prompts` names the prompt of each outcome.  The variance of the mean w over n outcomes in C
    prompts is the cluster-robust one (Liang and Zeger 1986, Biometrika 73)

        v = C/(C−1) · Σ_c (Σ_{i∈c} (x_i − w))² / n²

    and the interval is Wilson's with the effective sample size w(1−w)/v (Korn and Graubard 1998;
    Franco et al. 2019, J. Surv. Stat. Methodol. 7), with Student's t at C−1 degrees of freedom: it
    stays inside [0, 1] and does not collapse to a point when every outcome is the same.
    """
    x = np.asarray(outcomes, dtype=float)
    if x.size == 0 or x.size != len(prompts):
        raise ValueError(
            f"a win rate needs as many prompts ({len(prompts)}) as outcomes ({x.size}), at least one"
        )
    if not np.isin(x, (0.0, 0.5, 1.0)).all():
        raise ValueError("outcomes must be 1 (win), 0.5 (tie) or 0 (loss)")
    return mean_share(x, prompts, most=_MOST_A_JUDGMENT * x.size)


def mean_share(
    shares: np.ndarray, prompts: Sequence[Hashable], *, most: float = math.inf
) -> WinRate:
    """The same for (n,) `shares` anywhere in [0, 1], such as means of several outcomes.

    The effective sample size is `most` at most.
    """
    w, variance, clusters = clustered_mean(shares, prompts)
    if clusters == 1:
        # One prompt says nothing about how prompts differ.
        return WinRate(win_rate=w, low=0.0, high=1.0, comparisons=shares.size, prompts=1)
    effective = w * (1 - w) / variance if variance > _NO_VARIANCE else float(clusters)
    low, high = _wilson(w, min(effective, most), float(stdtrit(clusters - 1, 0.975)))
    return WinRate(win_rate=w, low=low, high=high, comparisons=shares.size, prompts=clusters)


def standard_error(scores: Sequence[float], prompts: Sequence[Hashable]) -> float | None:
    """Of the mean of `scores`, clustered by prompt like a win rate's; None for a single prompt."""
    _, variance, clusters = clustered_mean(np.asarray(scores, dtype=float), prompts)
    return None if clusters == 1 else math.sqrt(variance)


def clustered_mean(values: np.ndarray, prompts: Sequence[Hashable]) -> tuple[float, float, int]:
    """Mean of (n,) values, its cluster-robust variance (formula in `win_rate`), number of prompts.

    The variance is infinite where all values are of one prompt.
    """
    index = cluster_numbers(prompts)
    clusters, mean = int(index.max()) + 1, float(values.mean())
    if clusters == 1:
        return mean, math.inf, 1
    residuals = np.bincount(index, weights=values - mean)
    variance = clusters / (clusters - 1) * float(residuals @ residuals) / values.size**2
    return mean, variance, clusters


def outcome(ours: float, theirs: float) -> float:
    """1 when `ours` is the higher score, ½ when they are equal, 0 otherwise."""
    return 0.5 if ours == theirs else float(ours > theirs)


def cluster_numbers(prompts: Sequence[Hashable]) -> np.ndarray:
    """(n,) number of each prompt, counted from 0 in the order in which they first appear."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(prompt, len(numbers)) for prompt in prompts])


def _wilson(w: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's (1927) score interval of a proportion `w` seen in `n` trials."""
    center = (w + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(w * (1 - w) / n + z**2 / (4 * n**2))
    return max(0.0, center - half), min(1.0, center + half)
