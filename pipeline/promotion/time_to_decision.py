"""How many more judgments until the sequential test decides: the exact predictive distribution.

The test (pipeline/statistics/sequential_test.py) has one observation for each prompt: a win, a tie or
a loss.  Its chances have a Dirichlet prior, so a future observation follows Pólya's urn: its chances
are the counts so far plus those of the prior.  A tie multiplies every bet by 1, so log E depends only
on the wins and losses, and the test is a walk of their difference towards a boundary.  That walk is
followed exactly; nothing is drawn at random.  The ties between are Beta-binomial.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy.special import gammaln

from pipeline.statistics.sequential_test import LAMBDAS, LOG_E_THRESHOLD

PRIOR = (2.0, 1.0, 2.0)
"""Prior counts of wins, ties and losses, worth five judgments.

A share of wins near 0 or 1 is then unlikely.  With a uniform prior (1, 1, 1) the first judgments
promise decisions that do not come.  `python -m benchmarks autopilot` measures the coverage.
"""
HORIZON = 500
"""The most further prompts that a forecast looks at: about eight times those of an iteration."""
LEVEL = 0.9
"""Probability of the interval."""
_TAIL = (1 - LEVEL) / 2


@dataclass(frozen=True)
class Tally:
    """The first judgments of prompts: wins, ties and losses of the policy."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    def __post_init__(self) -> None:
        if min(self.wins, self.ties, self.losses) < 0:
            raise ValueError(f"wins, ties and losses must not be negative: {self}")

    @classmethod
    def of(cls, outcomes: Sequence[float]) -> Tally:
        """Count outcomes; ValueError for another outcome than 0 (loss), ½ (tie) or 1 (win)."""
        found = [sum(x == kind for x in outcomes) for kind in (1.0, 0.5, 0.0)]
        if sum(found) != len(outcomes):
            raise ValueError("an outcome must be 0 (a loss), 0.5 (a tie) or 1 (a win)")
        return cls(*found)


@dataclass(frozen=True)
class TimeToDecision:
    """`by[n]` is the probability that the test decides within n more prompts, n = 0 … HORIZON."""

    by: np.ndarray

    def within(self, prompts: int) -> float:
        """The probability that it decides within so many prompts, at most `HORIZON`."""
        return float(self.by[min(max(prompts, 0), HORIZON)])

    def quantile(self, share: float) -> int | None:
        """The least number of prompts that suffices with this probability; None beyond `HORIZON`."""
        n = int(np.searchsorted(self.by, share - 1e-12))
        return n if n <= HORIZON else None

    @property
    def interval(self) -> tuple[int | None, int | None]:
        """The 90% interval; None stands for more than `HORIZON`."""
        return self.quantile(_TAIL), self.quantile(1 - _TAIL)


@lru_cache(maxsize=256)
def time_to_decision(tally: Tally, prior: tuple[float, float, float] = PRIOR) -> TimeToDecision:
    """The forecast after these judgments, of which none has decided the test."""
    wins, ties, losses = (
        a + n for a, n in zip(prior, (tally.wins, tally.ties, tally.losses), strict=True)
    )
    decided = _decided_by(tally, wins, losses)
    return TimeToDecision(np.minimum(_decisive(wins + losses, ties) @ decided, 1.0))


def _decided_by(tally: Tally, wins: float, losses: float) -> np.ndarray:
    """(HORIZON + 1,) probability of a decision within j more wins and losses."""
    seen, lead = tally.wins + tally.losses, tally.wins - tally.losses
    needed = leads(seen + HORIZON)
    # going[w] is the probability of w further wins without a decision.
    going, by = np.ones(1), np.zeros(HORIZON + 1)
    for j in range(1, HORIZON + 1):
        more = np.arange(j)
        win = (wins + more) / (wins + losses + j - 1)
        after = np.zeros(j + 1)
        after[1:] = going * win
        after[:-1] += going * (1 - win)
        passed = np.abs(lead + 2 * np.arange(j + 1) - j) >= needed[seen + j]
        by[j] = by[j - 1] + after[passed].sum()
        going = np.where(passed, 0.0, after)
    return by


@cache
def leads(most: int) -> np.ndarray:
    """(most + 1,) the least |wins − losses| that decides the test after n wins and losses.

    E is the mean over λ > 0 of (1 − λ²/4)^(n/2) cosh(lead · artanh(λ/2)), because each bet stands
    beside its opposite; it grows with the lead.  A lead above n cannot occur.
    """
    sizes = LAMBDAS[: LAMBDAS.size // 2] / 2
    n, lead = np.arange(most + 1)[:, None], np.arange(most + 2)
    top = np.full((most + 1, most + 2), -np.inf)
    for size in sizes:
        gain = lead * np.arctanh(size) + np.log1p(np.exp(-2 * lead * np.arctanh(size))) - np.log(2)
        top = np.logaddexp(top, gain + n / 2 * np.log1p(-size * size))
    passed = top - np.log(sizes.size) > LOG_E_THRESHOLD
    passed[:, -1] = True
    return np.argmax(passed, axis=1)


def _decisive(decisive: float, ties: float) -> np.ndarray:
    """(HORIZON + 1, HORIZON + 1) probability that j of n further judgments are no ties."""
    n, j = np.arange(HORIZON + 1)[:, None], np.arange(HORIZON + 1)
    rest = np.maximum(n - j, 0)
    steps = np.arange(HORIZON + 1)
    log = gammaln(steps + 1)
    own, other, both = (gammaln(a + steps) - gammaln(a) for a in (decisive, ties, decisive + ties))
    chance = np.exp((log - both)[n] - (log - own)[j] - (log - other)[rest])
    return np.where(j <= n, chance, 0.0)


@dataclass(frozen=True)
class LabelsToDecision:
    """The same in labels, of which only some are judgments of a new prompt against SFT.

    `labels` is how many labels the queue still offers, in random order; `prompts` of them are the
    first judgments of the policy against SFT on a prompt.
    """

    forecast: TimeToDecision
    labels: int
    prompts: int

    def __post_init__(self) -> None:
        if not 0 <= self.prompts <= self.labels:
            raise ValueError(f"prompts={self.prompts} must be between 0 and labels={self.labels}")

    def within(self, labels: int) -> float:
        """The probability that the test decides within so many labels, at most those offered."""
        drawn = min(max(labels, 0), self.labels)
        other = self.labels - self.prompts
        n = np.arange(max(0, drawn - other), min(drawn, self.prompts) + 1)
        chance = np.exp(
            _log_choose(self.prompts, n)
            + _log_choose(other, drawn - n)
            - _log_choose(self.labels, drawn)
        )
        return float(min(1.0, chance @ self.forecast.by[np.minimum(n, HORIZON)]))

    def quantile(self, share: float) -> int | None:
        """The least number of labels that suffices with this probability; None beyond those offered."""
        found = bisect_left(range(self.labels + 1), share - 1e-12, key=self.within)
        return found if found <= self.labels else None

    @property
    def interval(self) -> tuple[int | None, int | None]:
        """The 90% interval; None stands for more labels than the queue offers."""
        return self.quantile(_TAIL), self.quantile(1 - _TAIL)


def _log_choose(of: int, n: np.ndarray | int) -> np.ndarray:
    """Logarithm of the number of ways to choose `n` of `of`."""
    return gammaln(of + 1) - gammaln(np.asarray(n) + 1) - gammaln(of - np.asarray(n) + 1)
