"""Ratings of all policies on one scale, from judgments between any two of them.

Bradley and Terry (1952): the first policy beats the second with probability σ(β_first − β_second);
a tie is half a win each.  Ratings β are in logits (nats), 0 for the anchor.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit

from pipeline.statistics.winrate import cluster_numbers
from storage.analysis.intervals import student_t
from storage.gate_report import Rank

PRIOR_TIES = 1.0
"""Virtual ties between every two policies that were compared, each on its own prompt.

This weak prior gives a policy that won (or lost) every time a finite rating and a wide interval.
It changes a win rate over 60 judgments by less than one percentage point.
"""

_STEPS = 100
_CONVERGED = 1e-10


@dataclass(frozen=True, kw_only=True)
class Match:
    """One judgment: `outcome` is 1 when `first` won, ½ for a tie, 0 when `second` won."""

    first: str
    second: str
    outcome: float
    prompt: Hashable

    def __post_init__(self) -> None:
        if self.first == self.second:
            raise ValueError(f"{self.first} cannot be ranked against itself")
        if self.outcome not in (0.0, 0.5, 1.0):
            raise ValueError("outcomes must be 1 (win), 0.5 (tie) or 0 (loss)")


def leaderboard(matches: Sequence[Match], policies: Iterable[str], *, anchor: str) -> list[Rank]:
    """`policies` (including the anchor) by rating, best first; policies without a rating last.

    Intervals are rating ± t · SE on the logit scale, mapped by σ.  SE is the sandwich estimator,
    clustered by prompt (see `standard_errors`), with t at prompts − 1 degrees of freedom.
    """
    listed = list(dict.fromkeys([anchor, *policies]))
    judgments = Counter(name for match in matches for name in (match.first, match.second))
    connected = linked(matches, anchor)
    counted = [match for match in matches if match.first in connected]
    if unlisted := connected - set(listed):
        raise ValueError(f"judgments name {', '.join(sorted(unlisted))}, which is not listed")
    items = [name for name in listed if name in connected]
    ratings, errors = np.zeros(1), np.zeros(1)
    if counted:
        table = _Table.of(counted, items)
        ratings = table.ratings()
        errors = table.standard_errors(ratings)
    t = student_t(len({match.prompt for match in counted}))
    ranked = []
    for name, rating, error in zip(items, ratings.tolist(), errors.tolist(), strict=True):
        half = t * error if error else 0.0  # the anchor's is 0 for any t, infinite ones included
        rate, low, high = expit([rating, rating - half, rating + half]).tolist()
        rank = Rank(
            policy=name, judgments=judgments[name], rating=rating, error=error,
            win_rate=rate, low=low, high=high,
        )  # fmt: skip
        ranked.append(rank)
    ranked.sort(key=lambda rank: -(rank.rating or 0.0))
    unranked = (name for name in listed if name not in connected)
    return ranked + [Rank(policy=name, judgments=judgments[name]) for name in unranked]


@dataclass(frozen=True)
class _Table:
    """N judgments of K items as arrays: signs (N, K), outcomes, weights and clusters (N,)."""

    items: int
    signs: csr_array
    outcomes: np.ndarray
    weights: np.ndarray
    clusters: np.ndarray

    @classmethod
    def of(cls, matches: Sequence[Match], items: Sequence[str]) -> _Table:
        place = {name: i for i, name in enumerate(items)}
        judged = [(place[m.first], place[m.second]) for m in matches]
        prior = sorted({(min(pair), max(pair)) for pair in judged})
        prompts = [*(("judged", m.prompt) for m in matches), *(("prior", pair) for pair in prior)]
        rows = np.arange(len(prompts)).repeat(2)
        ones = np.tile([1.0, -1.0], len(prompts))
        columns = np.array(judged + prior).ravel()
        return cls(
            len(items),
            csr_array((ones, (rows, columns)), shape=(len(prompts), len(items))),
            np.array([m.outcome for m in matches] + [0.5] * len(prior)),
            np.array([1.0] * len(matches) + [PRIOR_TIES] * len(prior)),
            cluster_numbers(prompts),
        )

    def ratings(self) -> np.ndarray:
        """(K,) maximum of Σ w [x log σ(d) + (1 − x) log σ(−d)], by Newton; the first item is 0."""
        found = np.zeros(self.items)
        for _ in range(_STEPS):
            scores = self.signs.T @ self._surprise(found)
            step = np.linalg.solve(self._information(found), scores[1:])
            # A full step can overshoot when a policy won nearly every time.
            found[1:] += step * min(1.0, 2.0 / np.abs(step).max(initial=2.0))
            if np.abs(step).max(initial=0.0) < _CONVERGED:
                return found
        raise RuntimeError("the leaderboard's ratings did not converge")

    def standard_errors(self, ratings: np.ndarray) -> np.ndarray:
        """(K,) standard errors of the ratings relative to the first item, logits; 0 for the first.

        √diag of H⁻¹ (C/(C−1) Σ_c g_c g_cᵀ) H⁻¹ with H the information and g_c the summed score of
        prompt c (White 1982, Econometrica 50; Liang and Zeger 1986, Biometrika 73).
        """
        clusters = int(self.clusters.max()) + 1
        of_cluster = csr_array(
            (self._surprise(ratings), (self.clusters, np.arange(len(self.clusters))))
        )
        summed = (of_cluster @ self.signs)[:, 1:]
        bread = np.linalg.inv(self._information(ratings))
        # A match and its prior: there are at least two clusters.
        meat = clusters / (clusters - 1) * csr_array(summed.T @ summed).toarray()
        return np.sqrt(np.concatenate([[0.0], np.diag(bread @ meat @ bread)]))

    def _surprise(self, ratings: np.ndarray) -> np.ndarray:
        """(N,) weighted outcomes less their expectations: times the signs, the gradients of each
        judgment's log-likelihood."""
        return self.weights * (self.outcomes - expit(self.signs @ ratings))

    def _information(self, ratings: np.ndarray) -> np.ndarray:
        """(K−1, K−1) without the anchor, whose rating is fixed."""
        p = expit(self.signs @ ratings)
        free = self.signs[:, 1:]
        return csr_array(free.T @ free.multiply((self.weights * p * (1 - p))[:, None])).toarray()


def linked(matches: Sequence[Match], anchor: str) -> set[str]:
    """The policies that a chain of judgments connects with the anchor, including the anchor."""
    opponents: dict[str, set[str]] = defaultdict(set)
    for match in matches:
        opponents[match.first].add(match.second)
        opponents[match.second].add(match.first)
    found, waiting = {anchor}, [anchor]
    while waiting:
        new = opponents[waiting.pop()] - found
        found |= new
        waiting += new
    return found
