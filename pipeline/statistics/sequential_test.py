"""A test of "neither policy is better" that is valid after every judgment.

Checking a 95% interval after each judgment until it excludes ½ errs in two of five runs.  An
e-process is a bet against the null hypothesis whose expected wealth E does not grow under the null.
By Ville's inequality (1939) E ever reaches 1/α with probability at most α (Ramdas et al. 2023,
"Game-theoretic statistics and safe anytime-valid inference", Stat. Sci. 38).

The gate (pipeline/promotion/gate.py) uses the test.  A decision is final, whatever the later
judgments.  There is no stop for futility: without a decision the result is "go on".
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from storage.gate_report import Decision

_SIZES = (0.1, 0.2, 0.35, 0.55, 0.8, 1.1)
LAMBDAS = np.array([*_SIZES, *(-size for size in _SIZES)])
"""The bets: the first half gains when the policy wins, the second when it loses."""

ALPHA = 0.05
"""Maximum probability of a false decision, whenever and however often the test is read."""
LOG_E_THRESHOLD = -math.log(ALPHA)
"""log E above which the test decides: log(1/α) = log 20, nats."""


@dataclass(frozen=True, kw_only=True)
class SequentialResult:
    """The state of the test.

    `log_e` (nats) is after the last prompt, `path` after each prompt.  `stopped_at` is the number of
    prompts at which log E first exceeded `LOG_E_THRESHOLD`, or None.  The decision is final there.
    """

    decision: Decision
    log_e: float
    prompts: int
    stopped_at: int | None
    path: tuple[float, ...]


def first_outcomes(outcomes: Sequence[float], prompts: Sequence[Hashable]) -> np.ndarray:
    """(C,) outcome of each prompt's first judgment, in the order of the judgments.

    Judgments of one prompt resemble each other, so a prompt is one observation.  Its mean would
    change with later judgments and reverse earlier decisions, and Ville's inequality would not hold
    (7.5% false decisions with six judgments on each of 100 prompts).  Raises ValueError for outcomes
    outside [0, 1].
    """
    x = np.asarray(outcomes, dtype=float)
    if x.size != len(prompts):
        raise ValueError(f"{x.size} outcomes need as many prompts, not {len(prompts)}")
    if not ((x >= 0) & (x <= 1)).all():
        raise ValueError("outcomes must lie between 0 (loss) and 1 (win)")
    firsts: dict[Hashable, float] = {}
    for prompt, outcome in zip(prompts, x.tolist(), strict=True):
        firsts.setdefault(prompt, outcome)
    return np.array([*firsts.values()])


def log_wealth(x: np.ndarray) -> np.ndarray:
    """(…, N, 12) log wealth of each bet after each of N observations in [0, 1].

    log E_λ = Σ log(1 + λ(x − ½)), nats: a fair bet if x averages ½ (Waudby-Smith and Ramdas 2024,
    "Estimating means of bounded random variables by betting", JRSS-B 86).
    """
    return np.cumsum(np.log1p((x[..., None] - 0.5) * LAMBDAS), axis=-2)


def log_e(wealth: np.ndarray) -> np.ndarray:
    """(…,) log of the mean wealth over the last axis: a mixture of bets is a bet."""
    top = wealth.max(-1)
    return top + np.log(np.exp(wealth - top[..., None]).mean(-1))


def favors_better(wealth: np.ndarray) -> np.ndarray:
    """Whether the bets on "better" (the first half of the last axis) hold more of the wealth."""
    half = LAMBDAS.size // 2
    return log_e(wealth[..., :half]) > log_e(wealth[..., half:])


def sequential_test(outcomes: Sequence[float], prompts: Sequence[Hashable]) -> SequentialResult:
    """The test on outcomes (1 win, ½ tie, 0 loss), in the order of the judgments."""
    x = first_outcomes(outcomes, prompts)
    if not x.size:
        return SequentialResult(decision="go on", log_e=0.0, prompts=0, stopped_at=None, path=())
    wealth = log_wealth(x)
    path = log_e(wealth)
    passed = np.flatnonzero(path > LOG_E_THRESHOLD)
    decision: Decision = "go on"
    if passed.size:
        decision = "better" if favors_better(wealth[passed[0]]) else "worse"
    return SequentialResult(
        decision=decision,
        log_e=float(path[-1]),
        prompts=x.size,
        stopped_at=int(passed[0]) + 1 if passed.size else None,
        path=tuple(path.tolist()),
    )
