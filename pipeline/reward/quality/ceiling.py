"""The noise ceiling: the accuracy of a perfect reward model on noisy human judgments.

Let p be the probability that a person prefers the first response of an item.  The best reward model
predicts the likelier answer and is right with probability q = max(p, 1 − p), so the ceiling is
E[q].  Items judged by two people measure how often they agree, A = E[q² + (1 − q)²], and

    A  ≤  E[q]  ≤  (1 + √(2A − 1)) / 2

The lower bound holds if every item is either clear or decided by chance, the upper if all are equally
clear; these are the bounds of Cover and Hart (1967, IEEE Trans. Inf. Theory 13).  The estimate
assumes log-odds of p that are normal over items with mean 0, as in Bradley and Terry's model with
normal rewards; A determines their standard deviation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from pipeline.statistics.winrate import win_rate
from storage.analysis.intervals import WinRate
from storage.reports import Ceiling, Interval

if TYPE_CHECKING:
    from pipeline.reward.data import JudgedPair

MIN_OVERLAP = 20
"""Minimum pairs of preferences for a ceiling; with fewer, agreement is uncertain by over ± .2."""


def noise_ceiling(agreement: WinRate, *, expected: float | None = None) -> Ceiling:
    """The ceiling, from how often a second person agrees with the first; ½ at chance agreement.

    `expected` is the agreement that a fitted model predicts for the same judgments.
    """
    a = agreement.win_rate
    return Ceiling(
        value=ceiling_of(a),
        low=ceiling_of(agreement.low),
        high=ceiling_of(agreement.high),
        least=max(a, 0.5),
        most=(1 + max(2 * a - 1, 0.0) ** 0.5) / 2,
        agreement=agreement,
        expected=None if expected is None else ceiling_of(expected),
    )


def ceiling_of(agreement: float) -> float:
    """E[q] for normal log-odds of p, with the standard deviation that gives this agreement."""
    agreed, best = _table()
    return float(np.interp(agreement, agreed, best))


@cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    """Agreement and ceiling for standard deviations from 0 to ∞; both rise from ½ to 1."""
    z = np.linspace(0, 8, 2001)  # by symmetry; the normal's mass beyond 8 is 1e-15
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum() - (weight[0] + weight[-1]) / 2
    weight[[0, -1]] /= 2
    spread = np.geomspace(0.02, 200, 600)[:, None]
    q = 1 / (1 + np.exp(-spread * z))
    agreed, best = (q**2 + (1 - q) ** 2) @ weight, q @ weight
    return np.array([0.5, *agreed, 1.0]), np.array([0.5, *best, 1.0])


def items_of(pairs: Iterable[JudgedPair]) -> dict[frozenset[str], list[JudgedPair]]:
    """Judgments by their two responses, in either order."""
    found: dict[frozenset[str], list[JudgedPair]] = {}
    for pair in pairs:
        found.setdefault(frozenset((pair.first, pair.second)), []).append(pair)
    return found


def preferred(pair: JudgedPair) -> str | None:
    """The response that the judgment prefers; None for a tie."""
    return (pair.first, pair.second)[pair.outcome] if pair.decisive else None


def agreement(pairs: Sequence[JudgedPair]) -> WinRate | None:
    """How often a second person agrees with the first, if both prefer a response.

    Averages over all pairs of people who judged the same item, clustered by prompt.  Uses only the
    random stream: pairs chosen by a reward model are closer, and their ceiling would be too low.
    Pairs with a tie are left out, which biases the ceiling upward.  None without such a pair.
    """
    agreed: list[float] = []
    prompts: list[Hashable] = []
    for item in items_of(pair for pair in pairs if pair.random_stream).values():
        for one, other in combinations(item, 2):
            if one.annotator != other.annotator and one.decisive and other.decisive:
                agreed.append(float(preferred(one) == preferred(other)))
                prompts.append(one.prompt)
    return win_rate(agreed, prompts) if agreed else None


def agreement_group(item: Sequence[JudgedPair]) -> str:
    """``single`` if one person judged the item, else ``unanimous`` or ``split``."""
    if len({pair.annotator for pair in item}) < 2:
        return "single"
    return "unanimous" if len({preferred(pair) for pair in item}) == 1 else "split"


def share_of_ceiling(accuracy: WinRate, ceiling: Ceiling) -> Interval:
    """Accuracy divided by the ceiling.

    The interval combines both by the method of variance estimates recovery on the logarithms (Zou
    and Donner 2008, Stat. Med. 27), as if they came from different judgments.  The ceiling is from
    all overlap, the accuracy from held-out judgments.
    """
    a, a_low, a_high = np.log(np.maximum((accuracy.win_rate, accuracy.low, accuracy.high), 1e-6))
    c, c_low, c_high = np.log([ceiling.value, ceiling.low, ceiling.high])
    low = a - c - np.hypot(a - a_low, c_high - c)
    high = a - c + np.hypot(a_high - a, c - c_low)
    return Interval(value=float(np.exp(a - c)), low=float(np.exp(low)), high=float(np.exp(high)))
