"""Every policy on one scale, from judgments between any two of them.

Bradley and Terry (1952): the first policy beats the second with probability σ(β_first − β_second);
a tie is half a win each.  Ratings β are in logits (nats), 0 for the anchor.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.statistics.winrate import cluster_numbers
from storage.analysis.intervals import student

PRIOR_TIES = 1.0
"""Virtual ties between every two policies that were compared, each as a prompt of its own.

The weakest prior that gives a policy which won (or lost) every time a finite rating, and doubt
about it; it moves a win rate seen in 60 judgments by less than one point.
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


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A policy's place.  `win_rate` is σ(rating): its chance against the anchor, with 95% interval.

    `rating` and what follows from it are None where no chain of judgments leads to the anchor:
    such a policy cannot be ranked.
    """

    policy: str
    judgments: int
    rating: float | None = None
    error: float | None = None
    win_rate: float | None = None
    low: float | None = None
    high: float | None = None


def leaderboard(matches: Sequence[Match], policies: Iterable[str], *, anchor: str) -> list[Rank]:
    """`policies` (the anchor among them) by rating, the best first; those without one last.

    Intervals are rating ± t · SE on the logit scale, mapped by σ; SE is the sandwich's, clustered by
    prompt (see `standard_errors`), t Student's at prompts − 1 degrees of freedom.
    """
    listed = list(dict.fromkeys([anchor, *policies]))
    linked = _linked(matches, anchor)
    counted = [m for m in matches if m.first in linked]
    judgments = {name: sum(name in (m.first, m.second) for m in matches) for name in listed}
    if len(linked) == 1:
        return [_rank(name, judgments[name], *([0.0, 0.0, 0.0] if name == anchor else [])) for name in listed]  # fmt: skip
    items = [anchor, *(name for name in listed if name in linked and name != anchor)]
    unlisted = linked - set(items)
    if unlisted:
        raise ValueError(f"judgments name {', '.join(sorted(unlisted))}, which is not listed")
    table = _Table.of(counted, items, prior_ties=PRIOR_TIES)
    ratings = table.ratings()
    errors = table.standard_errors(ratings)
    prompts = len({m.prompt for m in counted})
    t = student(prompts)
    found = {
        name: _rank(name, judgments[name], float(rating), float(error), t)
        for name, rating, error in zip(items, ratings, errors, strict=True)
    }
    ranked = sorted(found.values(), key=lambda rank: -(rank.rating or 0.0))
    return ranked + [_rank(name, judgments[name]) for name in listed if name not in found]


def bradley_terry(matches: Sequence[Match], items: Sequence[str]) -> np.ndarray:
    """(K,) maximum-likelihood ratings of K items, relative to the first, with no prior.

    Raises ValueError where there is no finite maximum: some group of items has neither lost to nor
    tied with the rest (Ford 1957, Am. Math. Monthly 64).
    """
    forward = {(m.first, m.second) for m in matches if m.outcome > 0}
    backward = {(m.second, m.first) for m in matches if m.outcome < 1}
    edges = forward | backward
    for chain in (edges, {(b, a) for a, b in edges}):
        missing = set(items) - _reached(chain, items[0])
        if missing:
            raise ValueError(
                f"{', '.join(sorted(missing))} cannot be ranked against {items[0]}: no chain of wins and ties connects them in both directions"
            )
    return _Table.of(matches, items, prior_ties=0.0).ratings()


@dataclass(frozen=True)
class _Table:
    """N judgments of K items as arrays: signs (N, K), outcomes, weights and clusters (N,)."""

    signs: np.ndarray
    outcomes: np.ndarray
    weights: np.ndarray
    clusters: np.ndarray

    @classmethod
    def of(cls, matches: Sequence[Match], items: Sequence[str], *, prior_ties: float) -> _Table:
        place = {name: i for i, name in enumerate(items)}
        pairs = [(place[m.first], place[m.second]) for m in matches]
        prompts: list[Hashable] = [("judged", m.prompt) for m in matches]
        outcomes, weights = [m.outcome for m in matches], [1.0] * len(matches)
        if prior_ties > 0:
            for pair in sorted({(min(pair), max(pair)) for pair in pairs}):
                pairs.append(pair)
                prompts.append(("prior", pair))
                outcomes.append(0.5)
                weights.append(prior_ties)
        signs = np.zeros((len(pairs), len(items)))
        for row, (first, second) in enumerate(pairs):
            signs[row, first], signs[row, second] = 1.0, -1.0
        return cls(signs, np.array(outcomes), np.array(weights), cluster_numbers(prompts))

    def ratings(self) -> np.ndarray:
        """(K,) maximum of Σ w [x log σ(d) + (1 − x) log σ(−d)], by Newton; the first item is 0."""
        found = np.zeros(self.signs.shape[1])
        for _ in range(_STEPS):
            step = np.linalg.solve(self._information(found), self._scores(found).sum(0)[1:])
            # A full step can overshoot where a policy nearly always won.
            found[1:] += step * min(1.0, 2.0 / np.abs(step).max(initial=2.0))
            if np.abs(step).max(initial=0.0) < _CONVERGED:
                return found
        raise RuntimeError("the leaderboard's ratings did not converge")

    def standard_errors(self, ratings: np.ndarray) -> np.ndarray:
        """(K,) of each rating against the first item's, 0 for that one; logits.

        √diag of H⁻¹ (C/(C−1) Σ_c g_c g_cᵀ) H⁻¹ with H the information and g_c the summed score of
        prompt c (White 1982, Econometrica 50; Liang and Zeger 1986, Biometrika 73).
        """
        scores = self._scores(ratings)[:, 1:]
        clusters = int(self.clusters.max()) + 1
        summed = np.zeros((clusters, scores.shape[1]))
        np.add.at(summed, self.clusters, scores)
        bread = np.linalg.inv(self._information(ratings))
        meat = clusters / max(clusters - 1, 1) * summed.T @ summed
        return np.sqrt(np.concatenate([[0.0], np.diag(bread @ meat @ bread)]))

    def _chances(self, ratings: np.ndarray) -> np.ndarray:
        return sigmoid(self.signs @ ratings)

    def _scores(self, ratings: np.ndarray) -> np.ndarray:
        """(N, K) gradient of each judgment's log-likelihood."""
        return (self.weights * (self.outcomes - self._chances(ratings)))[:, None] * self.signs

    def _information(self, ratings: np.ndarray) -> np.ndarray:
        """(K−1, K−1) without the anchor, whose rating is fixed."""
        p = self._chances(ratings)
        free = self.signs[:, 1:]
        return free.T @ ((self.weights * p * (1 - p))[:, None] * free)


def sigmoid(d: np.ndarray) -> np.ndarray:
    """1 / (1 + e⁻ᵈ) without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * d))


def _rank(
    name: str, judgments: int, rating: float | None = None, error: float = 0.0, t: float = 0.0
) -> Rank:
    if rating is None:
        return Rank(policy=name, judgments=judgments)
    half = t * error if error else 0.0  # the anchor's is 0 whatever t
    rate, low, high = sigmoid(np.array([rating, rating - half, rating + half])).tolist()
    return Rank(
        policy=name, judgments=judgments, rating=rating, error=error,
        win_rate=rate, low=low, high=high,
    )  # fmt: skip


def _linked(matches: Sequence[Match], anchor: str) -> set[str]:
    """Everything that a chain of judgments connects with the anchor, itself included."""
    edges = {(m.first, m.second) for m in matches}
    return _reached(edges | {(b, a) for a, b in edges}, anchor)


def _reached(edges: Iterable[tuple[str, str]], start: str) -> set[str]:
    following: dict[str, list[str]] = {}
    for a, b in edges:
        following.setdefault(a, []).append(b)
    found, waiting = {start}, [start]
    while waiting:
        for name in following.get(waiting.pop(), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found
