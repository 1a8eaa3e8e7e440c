"""How many judgments are needed to show that one policy is better than another.

A judgment is a win with probability w − t/2, a tie with t, a loss with 1 − w − t/2, so its outcome
(1, ½, 0) has mean w and variance w(1 − w) − t/4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from pipeline.statistics.sequential_test import LAMBDAS, LOG_E_THRESHOLD, favors_better, log_e

ALPHA = 0.05
CORRELATION = 0.3
"""Default correlation of two judgments of one prompt."""

MIN_DISTANCE = 0.02
"""Smallest supported distance of the win rate from ½: it already takes thousands of judgments."""

MAX_PER_PROMPT = 100
_MIN_PROMPTS = 6
_RUNS = 2000
_HORIZON = 8
"""The sequential test is simulated for this many times the judgments of the fixed test."""
_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Assumptions: `win_rate` counts a tie as half; each prompt gets `per_prompt` judgments."""

    win_rate: float
    ties: float = 0.0
    per_prompt: int = 1
    correlation: float = CORRELATION

    def __post_init__(self) -> None:
        w, t = self.win_rate, self.ties
        if not (0 < w < 1 and abs(w - 0.5) >= MIN_DISTANCE - 1e-9):
            raise ValueError(
                f"--win-rate {w:.9g} must lie between 0 and 1 and at least {MIN_DISTANCE} from 0.5"
            )
        if not 0 <= t <= 2 * min(w, 1 - w) or t >= 1:
            raise ValueError(
                f"--ties {t:g} is impossible with a win rate of {w:g}: a tie counts as half a win, so "
                f"the share of ties is between 0 and {2 * min(w, 1 - w):g}"
            )
        if not 1 <= self.per_prompt <= MAX_PER_PROMPT:
            raise ValueError(
                f"--per-prompt {self.per_prompt} must be between 1 and {MAX_PER_PROMPT}"
            )
        if not 0 <= self.correlation <= 1:
            raise ValueError(f"--correlation {self.correlation:g} must lie between 0 and 1")

    @property
    def chances(self) -> tuple[float, float, float]:
        """The probabilities of a win, a tie and a loss."""
        return self.win_rate - self.ties / 2, self.ties, 1 - self.win_rate - self.ties / 2

    def outcomes(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """(…, m) outcomes of the judgments of each of `shape` prompts.

        A judgment has its prompt's shared outcome with probability √ρ and an independent one
        otherwise, so two judgments of a prompt correlate by ρ.
        """
        values, edges = np.array([1.0, 0.5, 0.0]), np.cumsum(self.chances)[:2]
        own = values[np.searchsorted(edges, generator.random((*shape, self.per_prompt)))]
        if self.per_prompt == 1:
            return own
        shared = values[np.searchsorted(edges, generator.random((*shape, 1)))]
        same = generator.random(own.shape) < math.sqrt(self.correlation)
        return np.where(same, shared, own)


def fixed_size(scenario: Scenario, *, power: float) -> int:
    """Judgments of a test of fixed size, two-sided at 5%, with this power.

        n = (z₀.₉₇₅ √v₀ + z_power √v₁)² / (w − ½)² · (1 + (m − 1)ρ)

    with v₀ = (1 − t)/4 under no difference, v₁ = w(1 − w) − t/4, and the design effect of m
    judgments per prompt that correlate by ρ (Fleiss, Levin and Paik 2003, ch. 4; Kish 1965).  Rounded
    up to whole prompts, at least six: five wins of five have p = 2 · ½⁵ = .0625.
    """
    if not 0 < power < 1:
        raise ValueError(f"--power {power:g} must lie between 0 and 1")
    w, t, m = scenario.win_rate, scenario.ties, scenario.per_prompt
    normal = NormalDist()
    null, alternative = (1 - t) / 4, max(0.0, w * (1 - w) - t / 4)
    reach = normal.inv_cdf(1 - ALPHA / 2) * math.sqrt(null)
    reach += normal.inv_cdf(power) * math.sqrt(alternative)
    judgments = (max(0.0, reach) / (w - 0.5)) ** 2 * (1 + (m - 1) * scenario.correlation)
    return m * max(_MIN_PROMPTS, math.ceil(judgments / m - 1e-9))


def stopping_times(
    scenario: Scenario, *, most_prompts: int, runs: int = _RUNS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(runs,) prompts at which each simulated test stopped, and whether it said "better".

    The test uses the first judgment of each prompt.  A run that has not stopped after
    `most_prompts` has the time −1.
    """
    scenario = replace(scenario, per_prompt=1)
    generator = np.random.default_rng(seed)
    times, better = np.full(runs, -1), np.zeros(runs, dtype=bool)
    going, wealth = np.arange(runs), np.zeros((runs, 1, LAMBDAS.size))
    for done in range(0, most_prompts, _BLOCK):
        size = min(_BLOCK, most_prompts - done)
        gains = np.log1p((scenario.outcomes(generator, (going.size, size)) - 0.5) * LAMBDAS)
        wealth = wealth[:, -1:] + np.cumsum(gains, axis=1)
        passed = log_e(wealth) > LOG_E_THRESHOLD
        first = np.argmax(passed, axis=1)
        stopped = passed[np.arange(going.size), first]
        times[going[stopped]] = done + first[stopped] + 1
        better[going[stopped]] = favors_better(wealth[stopped, first[stopped]])
        going, wealth = going[~stopped], wealth[~stopped]
        if not going.size:
            break
    return times, better


@dataclass(frozen=True, kw_only=True)
class SequentialPlan:
    """Judgments of the sequential test, from `runs` simulations with `seed`.

    `mean` is the number until the test stops; it is too low if `stopped`, the share of runs that
    stopped, is below 1.  `median` and `for_power` are the numbers by which half, or a share
    `power`, of the runs stopped with the right decision; None beyond the simulated number.
    """

    mean: int
    median: int | None
    for_power: int | None
    stopped: float
    runs: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class JudgmentPlan:
    """The size of a `fixed` test and of the sequential test, as `launch.py plan` prints them.

    `correlation` is None with one judgment per prompt.
    """

    win_rate: float
    ties: float
    power: float
    per_prompt: int
    correlation: float | None
    fixed: int
    e_process: SequentialPlan


def plan(scenario: Scenario, *, power: float = 0.8, seed: int = 0) -> JudgmentPlan:
    """How many judgments the fixed test and the sequential test need in a scenario."""
    m, fixed = scenario.per_prompt, fixed_size(scenario, power=power)
    most = max(400, _HORIZON * fixed // m)
    times, better = stopping_times(scenario, most_prompts=most, seed=seed)
    right = (times > 0) & (better == (scenario.win_rate > 0.5))
    ended = np.sort(np.where(right, times, np.iinfo(times.dtype).max))

    def by(share: float) -> int | None:
        prompts = int(ended[math.ceil(share * ended.size) - 1])
        return m * prompts if prompts <= most else None

    return JudgmentPlan(
        win_rate=scenario.win_rate,
        ties=scenario.ties,
        power=power,
        per_prompt=m,
        correlation=scenario.correlation if m > 1 else None,
        fixed=fixed,
        e_process=SequentialPlan(
            mean=round(m * float(np.where(times > 0, times, most).mean())),
            median=by(0.5),
            for_power=by(power),
            stopped=float((times > 0).mean()),
            runs=times.size,
            seed=seed,
        ),
    )


def _share(value: float) -> str:
    """A percentage with all its digits, so that .999 does not become 100%."""
    return f"{100 * value:.9g}%"


def format_plan(found: JudgmentPlan) -> str:
    """The plan as text."""
    sequential, m = found.e_process, found.per_prompt
    ties = f", {found.ties:.0%} of judgments are ties" if found.ties else ", no ties"
    within = ", ".join(
        f"{_share(share)} within {n:,}" if n else f"{_share(share)} not within the simulated number"
        for share, n in ((0.5, sequential.median), (found.power, sequential.for_power))
    )
    least = "" if sequential.stopped == 1 else "at least "
    lines = [
        f"If the true win rate of the new policy is {found.win_rate:.1%} (a tie counts as half{ties}):",
        f"  with a number fixed in advance: {found.fixed:,} judgments show it in "
        f"{_share(found.power)} of cases",
        f"  with the sequential test: {least}{sequential.mean:,} judgments on average ({within})",
    ]
    if m > 1:
        lines.append(
            f"  {m} judgments per prompt, with assumed correlation {found.correlation:g}; one per "
            "prompt needs fewer judgments; the sequential test uses only the first of each"
        )
    lines.append(
        "Both tests are wrong about a policy that is no better in at most 5% of cases.  Only the "
        "sequential test may be read after every judgment."
    )
    return "\n".join(lines)
