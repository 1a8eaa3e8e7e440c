"""What is told of a reward model's quality, from its held-out judgments: figures with intervals.

Everything is of judgments of the random stream (docs/selection.md), and the prompt is the
independent unit.  `docs/reward.md` has the definitions; the page and `launch.py reward report`
show what `quality` returns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.reward.quality.ceiling import FEWEST, noise_ceiling, share_of_ceiling
from pipeline.reward.quality.metrics import expected_calibration_error
from pipeline.statistics.winrate import WinRate, cluster_numbers, clustered_mean, win_rate
from storage.analysis.intervals import student
from storage.records import RANDOM_STREAM

SHOWN_BINS = 5
"""Of confidence from ½ to 1 on the reliability diagram: half as many as the ECE has."""
MARGINS = 4
"""Groups of equal size by |d|."""
LEAST_IN_MARGIN = 5
"""Judgments of such a group; with fewer there are fewer groups."""
GROUPS = ("unanimous", "split", "single")
_DRAWS = 500


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
) -> dict[str, Any]:
    """All figures as plain values; those without a judgment to rest on are None or empty.

    `groups` says of each judgment how the people who judged its item agree (`GROUPS`).  `coin_log_loss` is that of chance
    that knows how often people tie.  `agreed` is how often a second person sides with the first,
    and `expected` how often fitted annotators would; the ceiling rests on it where it rests on
    `ceiling.FEWEST` pairs of preferences.
    """
    overlap = agreed.comparisons if agreed else 0
    ceiling = noise_ceiling(agreed, expected=expected) if agreed and overlap >= FEWEST else None
    stream, decided = of_stream(rows)
    found: dict[str, Any] = {
        "judgments": len(stream),
        "decisive": len(decided),
        "prompts": len({row["prompt"] for row in decided}),
        "accuracy": None,
        "log_loss": log_loss,
        "coin_log_loss": coin_log_loss,
        "calibration": None,
        "by_margin": [],
        "by_agreement": [],
        "ceiling": asdict(ceiling) if ceiling else None,
        "overlap": overlap,
        "length": length_figures(stream, decided),
        "share_of_ceiling": None,
    }
    if not decided:
        return found
    right, stated = outcomes(decided)
    prompts = [row["prompt"] for row in decided]
    accuracy = win_rate(right.tolist(), prompts)
    found |= {
        "accuracy": asdict(accuracy),
        "calibration": calibration(stated, right, prompts),
        "by_margin": by_margin(np.abs(_column(decided, "d")), stated, right, prompts),
        "by_agreement": by_agreement([groups[row["judgment"]] for row in decided], right, prompts),
    }
    if ceiling:
        known = (accuracy.win_rate, accuracy.low, accuracy.high)
        names = ("value", "low", "high")
        found["share_of_ceiling"] = dict(zip(names, share_of_ceiling(known, ceiling), strict=True))
    return found


def of_stream(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The judgments of the random stream, and those of them that prefer a response."""
    stream = [row for row in rows if row["arm"] in RANDOM_STREAM]
    return stream, [row for row in stream if row["outcome"] in ("first", "second")]


def outcomes(decided: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """(n,) 1 where the higher reward won, ½ where rewards are equal, 0 else; (n,) confidence.

    Confidence is the probability of the likelier preference, given that there is one: ½ to 1.
    """
    won = np.array([row["outcome"] == "first" for row in decided], dtype=bool)
    toward = np.where(won, 1, -1) * _column(decided, "d")
    first, second = _column(decided, "p_first"), _column(decided, "p_second")
    return (np.sign(toward) + 1) / 2, np.maximum(first, second) / (first + second)


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], dtype=float)


def calibration(
    stated: np.ndarray, right: np.ndarray, prompts: Sequence[Hashable]
) -> dict[str, Any]:
    """ECE, what chance makes of it, confidence less accuracy, and the reliability diagram.

    `ece_by_chance` is the 95% quantile of the ECE of a model whose probabilities are true, on as
    many judgments (consistency resampling; Bröcker and Smith 2007, Weather and Forecasting 22): a
    sum of absolute gaps is never 0.  `overconfidence` is mean confidence − accuracy.
    """
    coin = np.random.default_rng(0)
    drawn = (coin.random((_DRAWS, stated.size)) < stated).astype(float)
    by_chance = [expected_calibration_error(list(stated), list(draw)) for draw in drawn]
    return {
        "ece": expected_calibration_error(list(stated), list(right)),
        "ece_by_chance": float(np.quantile(by_chance, 0.95)),
        "overconfidence": _mean(stated - right, prompts),
        "bins": _bins(stated, right, prompts),
    }


def _bins(
    stated: np.ndarray, right: np.ndarray, prompts: Sequence[Hashable]
) -> list[dict[str, Any]]:
    """A row for each bin of confidence that has judgments."""
    number = np.minimum(((stated - 0.5) * 2 * SHOWN_BINS).astype(int), SHOWN_BINS - 1)
    width = 0.5 / SHOWN_BINS
    return [
        {"from": round(0.5 + n * width, 6), "to": round(0.5 + (n + 1) * width, 6)}
        | {"stated": float(stated[number == n].mean())}
        | _share(number == n, right, prompts)
        for n in sorted(set(number.tolist()))
    ]


def by_margin(
    margin: np.ndarray, stated: np.ndarray, right: np.ndarray, prompts: Sequence[Hashable]
) -> list[dict[str, Any]]:
    """Accuracy in up to `MARGINS` groups of equal size, from the closest pairs to the clearest.

    Equal margins stay in one group.
    """
    count = max(1, min(MARGINS, margin.size // LEAST_IN_MARGIN))
    edges = np.quantile(margin, np.linspace(0, 1, count + 1)[1:-1])
    number = np.searchsorted(edges, margin, side="left")
    return [
        {"from": float(margin[number == n].min()), "to": float(margin[number == n].max())}
        | {"stated": float(stated[number == n].mean())}
        | _share(number == n, right, prompts)
        for n in sorted(set(number.tolist()))
    ]


def by_agreement(
    groups: Sequence[str], right: np.ndarray, prompts: Sequence[Hashable]
) -> list[dict[str, Any]]:
    """Accuracy by how the people who judged an item agree; groups without judgments are left out."""
    given = np.asarray(groups)
    return [
        {"group": group} | _share(given == group, right, prompts)
        for group in GROUPS
        if (given == group).any()
    ]


def length_figures(stream: Sequence[Row], decided: Sequence[Row]) -> dict[str, Any] | None:
    """How far rewards follow length, and how far people do; None where all lengths are equal.

    `correlation` is Σ dΔ / √(Σ d² Σ Δ²) over judged pairs, d and Δ the differences of rewards and
    of tokens.  `rule` is the accuracy of naming the longer response, `reward` how often the reward
    model names it.
    """
    d = _column(stream, "d")
    differ = [row for row in decided if row["first_length"] != row["second_length"]]
    if not differ or not d.any():
        return None
    prompts = [row["prompt"] for row in differ]
    first_longer = np.sign(_longer(differ))
    rule = [
        (row["outcome"] == "first") == (n > 0) for row, n in zip(differ, first_longer, strict=True)
    ]
    reward = (np.sign(_column(differ, "d")) * first_longer + 1) / 2
    return {
        "correlation": _correlation(d, _longer(stream), [row["prompt"] for row in stream]),
        "rule": asdict(win_rate([float(right) for right in rule], prompts)),
        "reward": asdict(win_rate(reward.tolist(), prompts)),
    }


def _longer(rows: Sequence[Row]) -> np.ndarray:
    """Tokens that the first response has more than the second."""
    return _column(rows, "first_length") - _column(rows, "second_length")


def _correlation(
    d: np.ndarray, longer: np.ndarray, prompts: Sequence[Hashable]
) -> dict[str, float | None]:
    """ρ about 0 with its interval: linearised by prompt, on Fisher's scale."""
    both, dd, ll = d * longer, d * d, longer * longer
    norm = np.sqrt(dd.sum() * ll.sum())
    rho = float(both.sum() / norm)
    # What each pair adds to ρ − its value, to first order; they sum to 0.
    pulls = both / norm - rho / 2 * (dd / dd.sum() + ll / ll.sum())
    sums = np.bincount(cluster_numbers(prompts), weights=pulls)
    clusters = sums.size
    if clusters == 1 or abs(rho) >= 1 - 1e-12:
        return {"value": rho, "low": None, "high": None}
    error = np.sqrt(clusters / (clusters - 1) * (sums @ sums))
    reach = student(clusters) * error / (1 - rho**2)
    return {
        "value": rho,
        "low": float(np.tanh(np.arctanh(rho) - reach)),
        "high": float(np.tanh(np.arctanh(rho) + reach)),
    }


def _mean(values: np.ndarray, prompts: Sequence[Hashable]) -> dict[str, float | None]:
    """A mean of numbers of any sign, with its prompt-clustered 95% interval."""
    mean, variance, clusters = clustered_mean(values, prompts)
    if clusters == 1:
        return {"value": mean, "low": None, "high": None}
    reach = student(clusters) * float(np.sqrt(variance))
    return {"value": mean, "low": mean - reach, "high": mean + reach}


def _share(chosen: np.ndarray, right: np.ndarray, prompts: Sequence[Hashable]) -> dict[str, Any]:
    """Accuracy of the chosen judgments, with its interval and their number."""
    found = win_rate(right[chosen].tolist(), [p for p, c in zip(prompts, chosen, strict=True) if c])
    return {
        "accuracy": found.win_rate,
        "low": found.low,
        "high": found.high,
        "judgments": found.comparisons,
    }
