"""What further labels would bring: the trend of a learning curve, and how sure it is.

Accuracy is taken to grow by the same amount with each doubling of the labels, as Stiennon et al.
(2020, *Learning to summarize from human feedback*, section 4.3) found for reward models of human
preferences.  Of forms with a limit, such as a − b·n^−c, four points cannot tell the three numbers
apart.  Where accuracy levels off, the true gain is smaller than the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from scipy.special import stdtrit

from pipeline.statistics.winrate import cluster_numbers

_NO_VARIANCE = 1e-12  # what rounding leaves of a sum that is zero
MORE = 100
"""Labels that the forecast looks ahead."""
THE_MODEL = -1
"""Stands for an order at the share 1: the reward model itself, which learned from all."""


@dataclass(frozen=True)
class Seen:
    """What models say of judgments that they had not learned from, one row each; all (N,).

    `judgment` and `prompt` are numbers from 0, `order` is the model's or `THE_MODEL`, `share` how
    much of the labels it learned from, `right` 1, ½ or 0.
    """

    judgment: np.ndarray
    prompt: np.ndarray
    order: np.ndarray
    share: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[tuple[Hashable, Hashable, int, float, float]]) -> Seen:
        """From (judgment, prompt, order, share, right)."""
        judgments, prompts, orders, shares, right = zip(*rows, strict=True)
        return cls(
            judgment=cluster_numbers(judgments),
            prompt=cluster_numbers(prompts),
            order=np.array(orders),
            share=np.array(shares, dtype=float),
            right=np.array(right, dtype=float),
        )

    def __getitem__(self, chosen: np.ndarray) -> Seen:
        """Some of the rows."""
        return Seen(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def means(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Judgments, their prompts, shares and mean over orders, one row for each of both (M,)."""
        shares, place = np.unique(self.share, return_inverse=True)
        cell = self.judgment * shares.size + place
        _, first, number = np.unique(cell, return_index=True, return_inverse=True)
        mean = np.bincount(number, self.right) / np.bincount(number)
        return self.judgment[first], self.prompt[first], self.share[first], mean


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Points of accuracy (.01 is one) that a doubling of the labels brings, with a 95% interval.

    Over `judgments` of `prompts` prompts and models trained in `orders` orders.
    """

    slope: float
    low: float
    high: float
    judgments: int
    prompts: int
    orders: int


def trend(seen: Seen, labels: Mapping[float, float]) -> Trend | None:
    """The slope over log2 of the labels, within judgments.

    `labels` are the labels at each share.  Each judgment has a level of its own: it
    is compared with itself at other shares, so those that the reward model learned from serve too,
    at the shares whose models had not learned from them.  The variance is clustered two ways
    (Cameron, Gelbach and Miller 2011, J. Bus. Econ. Stat. 29), without the term for both at once,
    which makes it too large rather than too small: by prompt (Arellano 1987), and by order
    (jackknife), because another draw of the labels trains other models.  Student's t has
    Satterthwaite's degrees of freedom.  None without two orders and prompts, or where no judgment
    tells the shares apart.
    """
    orders = sorted({int(order) for order in seen.order} - {THE_MODEL})
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


def _within(seen: Seen, labels: Mapping[float, float]) -> tuple[float, float, int, int]:
    """Slope within judgments, its variance by prompt, and the prompts and judgments it rests on."""
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


def forecast(found: Trend | None, labels: int) -> dict[str, Any]:
    """What `MORE` labels on top of `labels` would bring, as plain values and in a sentence.

    `gain` is None where nothing can be said; `says` is then why.
    """
    nothing: dict[str, Any] = {"more": MORE, "gain": None, "low": None, "high": None, "trend": None}
    if found is None:
        return nothing | {
            "says": "nothing can be said of the next labels: the curve has only one order so far, or "
            "its models are right about the same judgments"
        }
    nothing["trend"] = asdict(found)
    if labels < MORE:
        return nothing | {
            "says": f"nothing can be said of the next labels: {MORE} more than double the {labels} "
            "there are, which is further than the curve reaches"
        }
    doublings = math.log2(1 + MORE / labels)
    gain, low, high = (doublings * each for each in (found.slope, found.low, found.high))
    return nothing | {"gain": gain, "low": low, "high": high, "says": _says(gain, low, high)}


def _says(gain: float, low: float, high: float) -> str:
    between = f"{_points(low)} to {_points(high)}"
    if low > 0:
        return f"the next {MORE} labels would bring {_points(gain)} points of accuracy ({between})"
    if high < 0.01:
        return f"the next {MORE} labels would bring less than a point of accuracy ({between})"
    return (
        f"whether the next {MORE} labels would help cannot be told: {_points(gain)} points of "
        f"accuracy, but anything from {between} fits"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")
