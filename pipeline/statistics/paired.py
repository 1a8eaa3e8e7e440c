"""Shifts between two measurements of the same judgments, with 95% intervals clustered by prompt."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

from pipeline.statistics.winrate import cluster_numbers, clustered_mean
from storage.analysis.intervals import cluster_variance, student_t

Values = Sequence[float] | np.ndarray


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A figure before and after, over `units` judgments or responses on `prompts` prompts.

    `low` and `high` are the 95% interval of `shift` = after − before; None for a single prompt.
    """

    before: float
    after: float
    shift: float
    low: float | None
    high: float | None
    units: int
    prompts: int

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def mean_shift(before: Values, after: Values, prompts: Sequence[Hashable]) -> Shift:
    """The shift of a mean, from (n,) values of the same units.

    Student's t at C − 1 degrees of freedom on the paired differences of C prompts.  ValueError for
    no values or for different numbers of them.
    """
    one, two = _paired(before, after, prompts)
    mean, variance, clusters = clustered_mean(two - one, prompts)
    return _shift(one, two, mean, variance, clusters)


def share_shift(before: Values, after: Values, prompts: Sequence[Hashable]) -> Shift:
    """`mean_shift` for values in [0, 1], such as right (1) or wrong (0).

    The interval is the adjusted Wald interval of a difference of paired proportions (Bonett and Price
    2012, *J. Educ. Behav. Stat.* 37), clustered: one prompt that got better and one that got worse
    are added.  Without them, the interval would have no width if the two agree on everything.  It ends
    at −1 and 1, which no difference of shares exceeds.
    """
    one, two = _paired(before, after, prompts)
    added = [*((0, prompt) for prompt in prompts), (1, 0), (1, 1)]
    center, variance, clusters = clustered_mean(np.append(two - one, [1.0, -1.0]), added)
    found = _shift(one, two, center, variance, clusters - 2)
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(-1.0, found.low), high=min(1.0, found.high))


def subset_shift(
    outcomes: Sequence[float], kept: Sequence[bool], prompts: Sequence[Hashable]
) -> Shift | None:
    """The shift of the mean of (n,) `outcomes` when only those that are `kept` remain.

    The two means share the kept outcomes, so the variance is that of the difference of their
    influence functions, clustered by prompt.  None without a kept outcome.
    """
    x, remains = np.asarray(outcomes, dtype=float), np.asarray(kept, dtype=bool)
    if not remains.any():
        return None
    before, after = float(x.mean()), float(x[remains].mean())
    influence = remains * (x - after) / remains.sum() - (x - before) / x.size
    squares = np.bincount(cluster_numbers(prompts), weights=influence)
    clusters = squares.size
    variance = cluster_variance(float(squares @ squares), n=1, clusters=clusters)
    low, high = _interval(after - before, variance, clusters)
    return Shift(
        before=before, after=after, shift=after - before, low=low, high=high,
        units=x.size, prompts=clusters,
    )  # fmt: skip


def chance_interval(shifts: Sequence[float], *, least: float = 0.0) -> tuple[float, float] | None:
    """The 95% prediction interval of a further value, from `shifts` that only chance makes.

    mean ± t · s · √(1 + 1/n), with Student's t at n − 1 degrees of freedom; None for fewer than two.
    The standard deviation s is at least `least`: shifts of an accuracy are multiples of one judgment,
    and a few that happen to be equal would leave no room for another.
    """
    if len(shifts) < 2:
        return None
    spread = max(stdev(shifts), least)
    half = student_t(len(shifts)) * spread * math.sqrt(1 + 1 / len(shifts))
    return fmean(shifts) - half, fmean(shifts) + half


def _paired(
    before: Values, after: Values, prompts: Sequence[Hashable]
) -> tuple[np.ndarray, np.ndarray]:
    one, two = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if not one.size or not one.size == two.size == len(prompts):
        raise ValueError(
            f"a shift needs as many values before ({one.size}) as after ({two.size}) and as prompts "
            f"({len(prompts)}), at least one"
        )
    return one, two


def _shift(
    one: np.ndarray, two: np.ndarray, center: float, variance: float, clusters: int
) -> Shift:
    before, after = float(one.mean()), float(two.mean())
    low, high = _interval(center, variance, clusters)
    return Shift(
        before=before, after=after, shift=after - before, low=low, high=high,
        units=one.size, prompts=clusters,
    )  # fmt: skip


def _interval(
    center: float, variance: float, clusters: int
) -> tuple[float, float] | tuple[None, None]:
    if clusters < 2:
        return None, None
    half = student_t(clusters) * math.sqrt(variance)
    return center - half, center + half
