"""What more labels would add: the trend of a learning curve and its uncertainty.

The model is that accuracy grows by the same amount with each doubling of the labels, as Stiennon et
al. (2020, *Learning to summarize from human feedback*, section 4.3) found for reward models of
human preferences.  Four points cannot identify a form with a limit, such as a − b·n^−c.  If
accuracy levels off, the true gain is smaller than the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from scipy.special import stdtrit

from pipeline.statistics.winrate import cluster_numbers
from storage.reports import ExpectedGain, Forecast, Trend
from storage.wording import points

_NO_VARIANCE = 1e-12  # what rounding leaves of a sum that is zero
MORE_LABELS = 100
"""Number of additional labels in the forecast."""
FULL_MODEL = -1
"""The order of the reward model itself, which learned from all labels."""


@dataclass(frozen=True)
class MeasuredJudgments:
    """Whether models were right about judgments that they had not learned from; all (N,).

    `judgment` and `prompt` are numbers from 0, `order` is the model's or `FULL_MODEL`, `share` the
    share of the labels that it learned from, `right` 1, ½ or 0.
    """

    judgment: np.ndarray
    prompt: np.ndarray
    order: np.ndarray
    share: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[tuple[Hashable, Hashable, int, float, float]]) -> MeasuredJudgments:
        """Build from rows of (judgment, prompt, order, share, right)."""
        judgments, prompts, orders, shares, right = zip(*rows, strict=True)
        return cls(
            judgment=cluster_numbers(judgments),
            prompt=cluster_numbers(prompts),
            order=np.array(orders),
            share=np.array(shares, dtype=float),
            right=np.array(right, dtype=float),
        )

    def __getitem__(self, chosen: np.ndarray) -> MeasuredJudgments:
        """Some of the rows."""
        return MeasuredJudgments(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def means(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Judgment, prompt, share and mean over orders (M,), one row for each judgment and share."""
        shares, place = np.unique(self.share, return_inverse=True)
        cell = self.judgment * shares.size + place
        _, first, number = np.unique(cell, return_index=True, return_inverse=True)
        mean = np.bincount(number, self.right) / np.bincount(number)
        return self.judgment[first], self.prompt[first], self.share[first], mean


def trend(seen: MeasuredJudgments, labels: Mapping[float, float]) -> Trend | None:
    """The slope over log2 of the labels, within judgments.

    `labels` maps each share to its number of labels.  Each judgment has its own intercept: it is
    compared with itself at other shares, so training judgments of the reward model count at the
    shares whose models did not learn from them.  The variance is clustered two ways (Cameron,
    Gelbach and Miller 2011, J. Bus. Econ. Stat. 29), by prompt (Arellano 1987) and by order
    (jackknife), because another draw of the labels trains different models.  The intersection term
    is omitted, which makes the variance slightly too large.  Student's t has Satterthwaite's
    degrees of freedom.  None without two orders and two prompts, or if all models are right about
    the same judgments.
    """
    orders = sorted({int(order) for order in seen.order} - {FULL_MODEL})
    slope, by_prompt, prompts, judgments = _within(seen, labels)
    if len(orders) < 2 or prompts < 2:
        return None
    left_out = np.array([_within(seen[seen.order != each], labels)[0] for each in orders])
    spread = float(((left_out - left_out.mean()) ** 2).sum())
    by_order = (len(orders) - 1) / len(orders) * spread
    variance = by_prompt + by_order
    if variance < _NO_VARIANCE:
        return None
    freedom = variance**2 / (by_prompt**2 / (prompts - 1) + by_order**2 / (len(orders) - 1))
    reach = float(stdtrit(freedom, 0.975)) * math.sqrt(variance)
    return Trend(
        slope=slope,
        low=slope - reach,
        high=slope + reach,
        judgments=judgments,
        prompts=prompts,
        orders=len(orders),
    )


def _within(
    seen: MeasuredJudgments, labels: Mapping[float, float]
) -> tuple[float, float, int, int]:
    """Slope within judgments, its variance by prompt, and the numbers of prompts and judgments."""
    judgment, prompt, share, right = seen.means()
    x = np.array([math.log2(labels[each]) for each in share.tolist()])
    count = np.bincount(judgment)
    x -= (np.bincount(judgment, x) / np.maximum(count, 1))[judgment]
    xx, xy = np.bincount(prompt, x * x), np.bincount(prompt, x * right)
    total, prompts, judgments = float(xx.sum()), int((xx > 0).sum()), int((count > 1).sum())
    if prompts < 2:
        return 0.0, math.inf, prompts, judgments
    slope = float(xy.sum()) / total
    left = xy - slope * xx
    variance = prompts / (prompts - 1) * float(left @ left) / total**2
    return slope, variance, prompts, judgments


def forecast(found: Trend | None, labels: int) -> Forecast:
    """The gain in accuracy from `MORE_LABELS` labels in addition to `labels`."""
    if found is None:
        return Forecast(
            more=MORE_LABELS,
            says="there is no forecast: the curve has only one order so far, or its models are right "
            "about the same judgments",
        )
    if labels < MORE_LABELS:
        return Forecast(
            more=MORE_LABELS,
            trend=found,
            says=f"there is no forecast: {MORE_LABELS} more labels would more than double the {labels} "
            "labels, which is beyond the range of the curve",
        )
    doublings = math.log2(1 + MORE_LABELS / labels)
    gain, low, high = (doublings * each for each in (found.slope, found.low, found.high))
    says = _sentence(gain, low, high)
    return Forecast(more=MORE_LABELS, gain=gain, low=low, high=high, trend=found, says=says)


def expected_gain(found: Trend, *, measured: int, now: int, more: int) -> ExpectedGain | None:
    """The gain from `more` labels in addition to the `now` labels of today.

    The curve ends at `measured` labels.  All three count judgments that a model may learn from,
    without edits, which grow with them.  None if there are no more labels, or if they would more
    than double the curve, which is beyond its range.
    """
    if more <= 0 or now < measured or measured <= 0 or now + more > 2 * measured:
        return None
    doublings = math.log2(1 + more / now)
    gain, low, high = (doublings * each for each in (found.slope, found.low, found.high))
    return ExpectedGain(labels=more, gain=gain, low=low, high=high)


def _sentence(gain: float, low: float, high: float) -> str:
    between = f"{points(low)} to {points(high)}"
    if low > 0:
        return (
            f"the next {MORE_LABELS} labels would add {points(gain)} points of accuracy ({between})"
        )
    if high < 0.01:
        return f"the next {MORE_LABELS} labels would add less than a point of accuracy ({between})"
    return (
        f"it is uncertain whether the next {MORE_LABELS} labels would help: {points(gain)} points of "
        f"accuracy ({between})"
    )
