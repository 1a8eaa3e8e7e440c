"""The quality of a reward model on held-out judgments: figures with intervals.

All figures use judgments of the random stream (docs/selection.md), with the prompt as the
independent unit.  docs/reward.md defines them; the page and `launch.py reward report` show them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.reward.quality.ceiling import MIN_OVERLAP, noise_ceiling, share_of_ceiling
from pipeline.statistics.calibration_error import expected_calibration_error
from pipeline.statistics.winrate import cluster_numbers, clustered_mean, win_rate
from storage.analysis.intervals import WinRate, student_t
from storage.records import PREFERENCES, RANDOM_STREAM
from storage.reports import (
    Accuracy,
    AccuracyBin,
    AccuracyByAgreement,
    Calibration,
    Interval,
    LengthBias,
    Quality,
)

SHOWN_BINS = 5
"""Bins of confidence from ½ to 1 in the reliability diagram; the ECE has twice as many."""
MARGINS = 4
"""Groups of equal size by |d|."""
MIN_IN_MARGIN = 5
"""Minimum judgments per group; with few judgments there are fewer groups."""
GROUPS = ("unanimous", "split", "single")
_DRAWS = 500
_LEAST = 1e-12
"""The least probability in a log-loss."""

Row = Mapping[str, Any]
"""A held-out judgment, by `held_out.COLUMNS`."""


def quality(
    rows: Sequence[Row],
    *,
    groups: Mapping[str, str],
    log_loss: float | None,
    coin_log_loss: float | None,
    agreed: WinRate | None,
    expected: float | None,
) -> Quality:
    """All figures.

    `groups` maps each judgment to how the people who judged its item agree (`GROUPS`).  `agreed` is
    how often a second person agrees with the first, and `expected` how often fitted annotators
    would.  The ceiling needs `ceiling.MIN_OVERLAP` pairs of preferences.
    """
    overlap = agreed.comparisons if agreed else 0
    ceiling = (
        noise_ceiling(agreed, expected=expected) if agreed and overlap >= MIN_OVERLAP else None
    )
    stream, decided = of_stream(rows)
    prompts = [row["prompt"] for row in decided]
    right, stated = outcomes(decided)
    accuracy = win_rate(right.tolist(), prompts) if decided else None
    margins = np.abs(_column(decided, "d"))
    return Quality(
        judgments=len(stream),
        decisive=len(decided),
        prompts=len(set(prompts)),
        accuracy=accuracy,
        log_loss=log_loss,
        coin_log_loss=coin_log_loss,
        calibration=calibration(stated, right, prompts) if decided else None,
        by_margin=by_margin(margins, stated, right, prompts) if decided else (),
        by_agreement=by_agreement([groups[row["judgment"]] for row in decided], right, prompts),
        ceiling=ceiling,
        overlap=overlap,
        length=length_bias(stream, decided),
        share_of_ceiling=share_of_ceiling(accuracy, ceiling) if accuracy and ceiling else None,
    )


def of_stream(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The judgments of the random stream, and those of them that prefer a response."""
    stream = [row for row in rows if row["arm"] in RANDOM_STREAM]
    return stream, [row for row in stream if row["outcome"] in PREFERENCES]


def outcomes(decided: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """(n,) 1 if the higher reward won, ½ if rewards are equal, else 0; (n,) confidence.

    Confidence is the probability of the likelier preference, given a preference: ½ to 1.
    """
    won = np.array([row["outcome"] == "first" for row in decided], dtype=bool)
    toward = np.where(won, 1, -1) * _column(decided, "d")
    first, second = _column(decided, "p_first"), _column(decided, "p_second")
    return (np.sign(toward) + 1) / 2, np.maximum(first, second) / (first + second)


def row_log_loss(row: Row, tie_model: str) -> float:
    """−log P(outcome), nats; *both bad* is a tie, which under ``half`` is half a win each."""
    first, second = (-math.log(max(row[name], _LEAST)) for name in ("p_first", "p_second"))
    if row["outcome"] in PREFERENCES:
        return first if row["outcome"] == "first" else second
    if tie_model == "half":
        return (first + second) / 2
    return -math.log(max(1 - row["p_first"] - row["p_second"], _LEAST))


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], dtype=float)


def calibration(stated: np.ndarray, right: np.ndarray, prompts: Sequence[Hashable]) -> Calibration:
    """ECE, the ECE by chance, overconfidence, and the reliability diagram.

    The ECE by chance is from consistency resampling (Bröcker and Smith 2007, Weather and
    Forecasting 22): even true probabilities have a positive ECE in a finite sample.
    """
    rng = np.random.default_rng(0)
    drawn = (rng.random((_DRAWS, stated.size)) < stated).astype(float)
    by_chance = [expected_calibration_error(list(stated), list(draw)) for draw in drawn]
    number = np.minimum(((stated - 0.5) * 2 * SHOWN_BINS).astype(int), SHOWN_BINS - 1)
    width = 0.5 / SHOWN_BINS
    return Calibration(
        ece=expected_calibration_error(list(stated), list(right)),
        ece_by_chance=float(np.quantile(by_chance, 0.95)),
        overconfidence=_mean(stated - right, prompts),
        bins=tuple(
            AccuracyBin(
                start=round(0.5 + n * width, 6),
                end=round(0.5 + (n + 1) * width, 6),
                stated=float(stated[number == n].mean()),
                **vars(_accuracy(number == n, right, prompts)),
            )
            for n in np.unique(number).tolist()
        ),
    )


def by_margin(
    margin: np.ndarray, stated: np.ndarray, right: np.ndarray, prompts: Sequence[Hashable]
) -> tuple[AccuracyBin, ...]:
    """Accuracy in up to `MARGINS` groups of equal size, from the closest pairs to the clearest.

    Equal margins are in the same group.
    """
    count = max(1, min(MARGINS, margin.size // MIN_IN_MARGIN))
    edges = np.quantile(margin, np.linspace(0, 1, count + 1)[1:-1])
    number = np.searchsorted(edges, margin, side="left")
    return tuple(
        AccuracyBin(
            start=float(margin[number == n].min()),
            end=float(margin[number == n].max()),
            stated=float(stated[number == n].mean()),
            **vars(_accuracy(number == n, right, prompts)),
        )
        for n in np.unique(number).tolist()
    )


def by_agreement(
    groups: Sequence[str], right: np.ndarray, prompts: Sequence[Hashable]
) -> tuple[AccuracyByAgreement, ...]:
    """Accuracy by how the people who judged an item agree, without empty groups."""
    given = np.asarray(groups, dtype=str)
    return tuple(
        AccuracyByAgreement(group=group, **vars(_accuracy(given == group, right, prompts)))
        for group in GROUPS
        if (given == group).any()
    )


def length_bias(stream: Sequence[Row], decided: Sequence[Row]) -> LengthBias | None:
    """How strongly rewards and people follow length; None if all compared lengths are equal."""
    d = _column(stream, "d")
    differ = [row for row in decided if row["first_length"] != row["second_length"]]
    if not differ or not d.any():
        return None
    prompts = [row["prompt"] for row in differ]
    first_longer = np.sign(_longer(differ))
    people = [
        float((row["outcome"] == "first") == (n > 0))
        for row, n in zip(differ, first_longer, strict=True)
    ]
    reward = (np.sign(_column(differ, "d")) * first_longer + 1) / 2
    return LengthBias(
        correlation=_correlation(d, _longer(stream), [row["prompt"] for row in stream]),
        rule=win_rate(people, prompts),
        reward=win_rate(reward.tolist(), prompts),
    )


def _longer(rows: Sequence[Row]) -> np.ndarray:
    """By how many tokens the first response is longer."""
    return _column(rows, "first_length") - _column(rows, "second_length")


def _correlation(d: np.ndarray, longer: np.ndarray, prompts: Sequence[Hashable]) -> Interval:
    """ρ = Σ dΔ / √(Σ d² Σ Δ²), with its interval: linearized by prompt, on Fisher's scale."""
    both, dd, ll = d * longer, d * d, longer * longer
    norm = np.sqrt(dd.sum() * ll.sum())
    rho = float(both.sum() / norm)
    # The influence of each pair on ρ, to first order; they sum to 0.
    pulls = both / norm - rho / 2 * (dd / dd.sum() + ll / ll.sum())
    sums = np.bincount(cluster_numbers(prompts), weights=pulls)
    clusters = sums.size
    if clusters == 1 or abs(rho) >= 1 - 1e-12:
        return Interval(value=rho, low=None, high=None)
    error = np.sqrt(clusters / (clusters - 1) * (sums @ sums))
    reach = student_t(clusters) * error / (1 - rho**2)
    low, high = np.tanh(np.arctanh(rho) + np.array([-reach, reach]))
    return Interval(value=rho, low=float(low), high=float(high))


def _mean(values: np.ndarray, prompts: Sequence[Hashable]) -> Interval:
    """The mean of unbounded values, with its interval."""
    mean, variance, clusters = clustered_mean(values, prompts)
    if clusters == 1:
        return Interval(value=mean, low=None, high=None)
    reach = student_t(clusters) * float(np.sqrt(variance))
    return Interval(value=mean, low=mean - reach, high=mean + reach)


def _accuracy(chosen: np.ndarray, right: np.ndarray, prompts: Sequence[Hashable]) -> Accuracy:
    """Accuracy on the chosen judgments."""
    found = win_rate(right[chosen].tolist(), [p for p, c in zip(prompts, chosen, strict=True) if c])
    return Accuracy(
        accuracy=found.win_rate, low=found.low, high=found.high, judgments=found.comparisons
    )
