"""How many judgments it takes to see that one policy is better than another.

A judgment is a win with probability w − t/2, a tie with t, a loss with 1 − w − t/2, so its outcome
(1, ½, 0) has mean w and variance w(1 − w) − t/4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from pipeline.statistics.sequential_test import LAMBDAS, LIMIT, log_e, winning

ALPHA = 0.05
CORRELATION = 0.3
"""Assumed correlation of two judgments of one prompt, where several are planned."""

NEAREST = 0.02
"""A win rate this near to ½ takes thousands of judgments; nearer ones are not planned for."""

MOST_PER_PROMPT = 100
_FEWEST_PROMPTS = 6
_RUNS = 2000
_HORIZON = 8
"""The e-process is followed for this many times the judgments of the fixed test."""
_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is assumed to be true.  `win_rate` counts a tie as half; `per_prompt` judgments each."""

    win_rate: float
    ties: float = 0.0
    per_prompt: int = 1
    correlation: float = CORRELATION

    def __post_init__(self) -> None:
        w, t = self.win_rate, self.ties
        if not (0 < w < 1 and abs(w - 0.5) >= NEAREST - 1e-9):
            raise ValueError(
                f"--win-rate {w:.9g} must lie between 0 and 1 and at least {NEAREST} from 0.5, where "
                "there is a difference to find"
            )
        if not 0 <= t <= 2 * min(w, 1 - w) or t >= 1:
            raise ValueError(
                f"--ties {t:g} does not go with a win rate of {w:g}: ties count half a win each, so "
                f"their share is between 0 and {2 * min(w, 1 - w):g}"
            )
        if not 1 <= self.per_prompt <= MOST_PER_PROMPT:
            raise ValueError(
                f"--per-prompt {self.per_prompt} must be between 1 and {MOST_PER_PROMPT}"
            )
        if not 0 <= self.correlation <= 1:
            raise ValueError(f"--correlation {self.correlation:g} must lie between 0 and 1")

    @property
    def chances(self) -> tuple[float, float, float]:
        """Of a win, a tie and a loss."""
        return self.win_rate - self.ties / 2, self.ties, 1 - self.win_rate - self.ties / 2

    def outcomes(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """(…, m) outcomes of the judgments of each of `shape` prompts.

        Each judgment is, with probability √ρ, what its prompt says to everybody, and otherwise a
        draw of its own: two judgments of a prompt then correlate by ρ.
        """
        values, edges = np.array([1.0, 0.5, 0.0]), np.cumsum(self.chances)[:2]
        own = values[np.searchsorted(edges, generator.random((*shape, self.per_prompt)))]
        if self.per_prompt == 1:
            return own
        shared = values[np.searchsorted(edges, generator.random((*shape, 1)))]
        same = generator.random(own.shape) < math.sqrt(self.correlation)
        return np.where(same, shared, own)


def fixed_size(scenario: Scenario, *, power: float) -> int:
    """Judgments of a test at a size fixed beforehand, two-sided at 5%, with this power.

        n = (z₀.₉₇₅ √v₀ + z_power √v₁)² / (w − ½)² · (1 + (m − 1)ρ)

    with v₀ = (1 − t)/4 under no difference, v₁ = w(1 − w) − t/4, and the design effect of m
    judgments a prompt that correlate by ρ (Fleiss, Levin and Paik 2003, ch. 4; Kish 1965).  Rounded
    up to whole prompts, of which at least six: five wins of five have p = 2 · ½⁵ = .0625.
    """
    if not 0 < power < 1:
        raise ValueError(f"--power {power:g} must lie between 0 and 1")
    w, t, m = scenario.win_rate, scenario.ties, scenario.per_prompt
    normal = NormalDist()
    null, alternative = (1 - t) / 4, max(0.0, w * (1 - w) - t / 4)
    reach = normal.inv_cdf(1 - ALPHA / 2) * math.sqrt(null)
    reach += normal.inv_cdf(power) * math.sqrt(alternative)
    judgments = (max(0.0, reach) / (w - 0.5)) ** 2 * (1 + (m - 1) * scenario.correlation)
    return m * max(_FEWEST_PROMPTS, math.ceil(judgments / m - 1e-9))


def stopping_times(
    scenario: Scenario, *, most_prompts: int, runs: int = _RUNS, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts at which `runs` simulated e-processes stopped, and whether they stopped for "better".

    The test reads the first judgment of a prompt.  A run that has not stopped after `most_prompts`
    has the time −1.
    """
    scenario = replace(scenario, per_prompt=1)
    generator = np.random.default_rng(seed)
    times, better = np.full(runs, -1), np.zeros(runs, dtype=bool)
    going, wealth = np.arange(runs), np.zeros((runs, 1, LAMBDAS.size))
    for done in range(0, most_prompts, _BLOCK):
        size = min(_BLOCK, most_prompts - done)
        gains = np.log1p((scenario.outcomes(generator, (going.size, size)) - 0.5) * LAMBDAS)
        wealth = wealth[:, -1:] + np.cumsum(gains, axis=1)
        passed = log_e(wealth) > LIMIT
        first = np.argmax(passed, axis=1)
        stopped = passed[np.arange(going.size), first]
        times[going[stopped]] = done + first[stopped] + 1
        better[going[stopped]] = winning(wealth[stopped, first[stopped]])
        going, wealth = going[~stopped], wealth[~stopped]
        if not going.size:
            break
    return times, better


def plan(scenario: Scenario, *, power: float = 0.8, seed: int = 0) -> dict[str, Any]:
    """What `launch.py plan` prints: judgments for the fixed test and for the e-process.

    ``fixed`` is the size of the fixed test.  ``e_process``: ``mean`` judgments until it stops,
    ``median``, and ``for_power``, by which a share `power` of runs has stopped on the right side;
    None where that is beyond what was simulated.  A run that never stopped counts with all its
    judgments, so ``mean`` is then too low; ``stopped`` says how many did stop.
    """
    m, fixed = scenario.per_prompt, fixed_size(scenario, power=power)
    most = max(400, _HORIZON * fixed // m)
    times, better = stopping_times(scenario, most_prompts=most, seed=seed)
    right = (times > 0) & (better == (scenario.win_rate > 0.5))
    ended = np.sort(np.where(right, times, np.iinfo(times.dtype).max))

    def by(share: float) -> int | None:
        """Judgments by which this share of all runs has stopped on the right side."""
        prompts = int(ended[math.ceil(share * ended.size) - 1])
        return m * prompts if prompts <= most else None

    return {
        "win_rate": scenario.win_rate,
        "ties": scenario.ties,
        "power": power,
        "per_prompt": m,
        "correlation": scenario.correlation if m > 1 else None,
        "fixed": fixed,
        "e_process": {
            "mean": round(m * float(np.where(times > 0, times, most).mean())),
            "median": by(0.5),
            "for_power": by(power),
            "stopped": float((times > 0).mean()),
            "runs": times.size,
            "seed": seed,
        },
    }


def _share(value: float) -> str:
    """As a percentage with as many places as it was given with: .999 is not 100%."""
    return f"{100 * value:.9g}%"


def format_plan(found: dict[str, Any]) -> str:
    """The plan in plain words."""
    sequential, m = found["e_process"], found["per_prompt"]
    ties = f", {found['ties']:.0%} of judgments ties" if found["ties"] else ", no ties"
    lines = [f"If the new policy truly wins {found['win_rate']:.1%} (a tie counts half{ties}):"]
    lines.append(
        f"  decided once, after a number fixed beforehand: {found['fixed']:,} judgments show it in "
        f"{_share(found['power'])} of cases"
    )
    shares = ((0.5, sequential["median"]), (found["power"], sequential["for_power"]))
    within = ", ".join(
        f"{_share(share)} within {n:,}" if n else f"{_share(share)} not within what was simulated"
        for share, n in shares
    )
    least = "" if sequential["stopped"] == 1 else "at least "
    lines.append(
        f"  stopping as soon as it is clear: {least}{sequential['mean']:,} judgments on average "
        f"({within})"
    )
    if m > 1:
        lines.append(
            f"  {m} judgments a prompt, assumed to correlate by {found['correlation']:g}; one a prompt "
            "needs fewer judgments, and the second way reads only the first of each"
        )
    lines.append(
        "Both call a policy that is no better a winner or a loser in at most 5% of cases; only the "
        "second may be looked at after every judgment."
    )
    return "\n".join(lines)
