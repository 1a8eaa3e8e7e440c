"""How often a perfect reward model could be right about one noisy human judgment.

Of two people who judge the same two responses, let p be the probability that a preference goes to
the first.  The best any reward model can do is to name the likelier answer, and is then right with
probability q = max(p, 1 − p): the ceiling is E[q].  Overlap tells how often two people agree,
A = E[q² + (1 − q)²], and with that the ceiling lies between

    A  ≤  E[q]  ≤  (1 + √(2A − 1)) / 2

(the lower end where every item is either clear or a coin flip, the upper where all are equally
clear).  These are Cover and Hart's (1967, IEEE Trans. Inf. Theory 13) bounds: a second person is a
nearest neighbour without distance, who errs with 1 − A, and the perfect model errs with the Bayes
rate.  In between, the estimate takes log-odds of p that are normal over items with mean 0, as
Bradley and Terry's model has them where rewards are normal: their spread follows from A.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from pipeline.statistics.winrate import WinRate, win_rate

if TYPE_CHECKING:
    from pipeline.reward.data import JudgedPair

FEWEST = 20
"""Pairs of preferences below which no ceiling is told: the agreement is then known to ± .2 at best."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The best possible accuracy, with its 95% interval.

    `agreement` is what it follows from, `least` and `most` are the bounds whatever the items.
    `expected` is the ceiling by the agreement that the fitted annotator model expects of the same
    pairs of judgments, where there is one.
    """

    value: float
    low: float
    high: float
    least: float
    most: float
    agreement: WinRate
    expected: float | None = None


def noise_ceiling(agreement: WinRate, *, expected: float | None = None) -> Ceiling:
    """The ceiling by how often a second person sides with the first; ½ where that is chance.

    `expected` is the agreement that a fitted model expects of the same judgments.
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
    """E[q] where log-odds of p are normal with the spread that makes two people agree so often."""
    agreed, best = _table()
    return float(np.interp(agreement, agreed, best))


@cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    """Agreement and ceiling for spreads from none to endless, both rising from ½ to 1."""
    z = np.linspace(0, 8, 2001)  # by symmetry; beyond it a normal has 1e-15
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum() - (weight[0] + weight[-1]) / 2
    weight[[0, -1]] /= 2
    spread = np.geomspace(0.02, 200, 600)[:, None]
    q = 1 / (1 + np.exp(-spread * z))
    agreed, best = (q**2 + (1 - q) ** 2) @ weight, q @ weight
    return np.array([0.5, *agreed, 1.0]), np.array([0.5, *best, 1.0])


def items_of(pairs: Iterable[JudgedPair]) -> dict[frozenset[str], list[JudgedPair]]:
    """Judgments by the two responses they are of, whichever stood first."""
    found: dict[frozenset[str], list[JudgedPair]] = {}
    for pair in pairs:
        found.setdefault(frozenset((pair.first, pair.second)), []).append(pair)
    return found


def preferred(pair: JudgedPair) -> str | None:
    """The response that the judgment prefers; None for a tie."""
    return (pair.first, pair.second)[pair.outcome] if pair.decisive else None


def agreement(pairs: Sequence[JudgedPair]) -> WinRate | None:
    """How often a second person sides with the first, where both prefer a response.

    Over all pairs of people who judged the same item, clustered by prompt.  Of judgments of the
    random stream alone: chosen pairs are closer, and a ceiling from them would be too low.  Pairs
    with a tie are left out, so items on which people are decided weigh more, the ceiling errs on
    the high side and a reward model's share of it on the low one.  None without such a pair.
    """
    agreed: list[float] = []
    prompts: list[Hashable] = []
    for item in items_of(pair for pair in pairs if pair.random_stream).values():
        for one, other in combinations(item, 2):
            if one.annotator != other.annotator and one.decisive and other.decisive:
                agreed.append(float(preferred(one) == preferred(other)))
                prompts.append(one.prompt)
    return win_rate(agreed, prompts) if agreed else None


def said_alike(item: Sequence[JudgedPair]) -> str:
    """``single`` where one person judged the item, else ``unanimous`` or ``split``."""
    if len({pair.annotator for pair in item}) < 2:
        return "single"
    return "unanimous" if len({preferred(pair) for pair in item}) == 1 else "split"


def share_of_ceiling(
    accuracy: tuple[float, float, float], ceiling: Ceiling
) -> tuple[float, float, float]:
    """(value, low, high) of accuracy / ceiling, from (value, low, high) of the accuracy.

    The interval combines both by the method of variance estimates recovery on the logarithms (Zou
    and Donner 2008, Stat. Med. 27), as if they came of different judgments.  The ceiling rests on
    all overlap, the accuracy on held-out judgments.
    """
    a, a_low, a_high = np.log(np.maximum(accuracy, 1e-6))
    c, c_low, c_high = np.log([ceiling.value, ceiling.low, ceiling.high])
    low = a - c - np.hypot(a - a_low, c_high - c)
    high = a - c + np.hypot(a_high - a, c - c_low)
    return float(np.exp(a - c)), float(np.exp(low)), float(np.exp(high))
