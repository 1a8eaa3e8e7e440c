"""Agreement from a table of rating patterns, and its bootstrap.  Pure functions.

A pattern is how many annotators gave each outcome to an item: (second, tie, first, both_bad).
Items of one pattern contribute equally, so a bootstrap sample of the items is one multinomial draw
over the table.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from storage.analysis.intervals import NORMAL

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

FIGURES = ("percent", "alpha", "alpha_ordinal")
MIN_ITEMS = 10
"""The minimum number of items for an interval."""
_DRAWS = 2000
_SEED = 20


def agreement(counts: Counts, items: Counts) -> dict[str, float | None]:
    """The figures of `FIGURES`; None if undefined.

    `counts` is (patterns, 4): how many annotators said second, tie, first and both_bad, at least
    two in each row.  `items` is (patterns,): how many items have the pattern.

    Percent agreement and alpha weigh all ratings equally, so an item with many ratings weighs more.
    Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability": nominal with four
    categories, ordinal with three levels, where both_bad counts as tie.
    """
    values = _figures(items[None, :] @ _contributions(counts))[0]
    return {
        name: None if np.isnan(value) else float(value)
        for name, value in zip(FIGURES, values, strict=True)
    }


def intervals(
    counts: Counts, items: Counts, *, draws: int = _DRAWS, seed: int = _SEED
) -> dict[str, list[float] | None]:
    """95% percentile intervals of the figures, from `draws` bootstrap samples of the items.

    None if the figure is None, if there are fewer than `MIN_ITEMS` items, and if all samples give
    the same value (every item agreed), so that the bootstrap has no spread.  Recent results are
    cached.
    """
    return dict(_intervals(counts.tobytes(), items.tobytes(), draws, seed))


@lru_cache(maxsize=16)
def _intervals(
    table: bytes, numbers: bytes, draws: int, seed: int
) -> dict[str, list[float] | None]:
    counts = np.frombuffer(table, dtype=np.int64).reshape(-1, 4)
    items = np.frombuffer(numbers, dtype=np.int64)
    total = int(items.sum())
    if total < MIN_ITEMS:
        return dict.fromkeys(FIGURES)
    drawn = np.random.default_rng(seed).multinomial(total, items / total, size=draws)
    sampled = _figures(drawn @ _contributions(counts))
    known = agreement(counts, items)
    return {
        name: None if known[name] is None else _percentiles(sampled[:, column])
        for column, name in enumerate(FIGURES)
    }


def kappas(confusions: Counts) -> tuple[list[float | None], list[list[float] | None]]:
    """Cohen's kappa of each of (pairs, 4, 4) confusion matrices, and its 95% interval.

    Cohen (1960), "A Coefficient of Agreement for Nominal Scales".  Kappa is None if both always
    used the same category.  The interval uses the large-sample standard error (Fleiss, Cohen and
    Everitt 1969) instead of one bootstrap per pair; it is None as in `intervals`.
    """
    totals = confusions.sum(axis=(1, 2))
    shares = confusions / np.maximum(totals, 1)[:, None, None]
    rows, columns = shares.sum(axis=2), shares.sum(axis=1)
    hits = np.diagonal(shares, axis1=1, axis2=2)
    seen, chance = hits.sum(axis=1), (rows * columns).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        kappa = np.where(chance < 1, (seen - chance) / (1 - chance), np.nan)
        missed = 1 - kappa
        same = (hits * (1 - (rows + columns) * missed[:, None]) ** 2).sum(axis=1)
        crossed = shares * (columns[:, :, None] + rows[:, None, :]) ** 2
        apart = crossed.sum(axis=(1, 2)) - np.diagonal(crossed, axis1=1, axis2=2).sum(axis=1)
        variance = same + missed**2 * apart - (kappa - chance * missed) ** 2
        reach = NORMAL * np.sqrt(np.maximum(variance, 0) / totals) / (1 - chance)
    known = (totals >= MIN_ITEMS) & (reach > 1e-12)  # NaN is not
    spread = np.stack([kappa - reach, kappa + reach], axis=1).clip(-1, 1).tolist()
    return (
        [None if np.isnan(value) else float(value) for value in kappa],
        [bounds if has else None for bounds, has in zip(spread, known, strict=True)],
    )


def _percentiles(values: Floats) -> list[float] | None:
    # Alpha is NaN in samples whose ratings are all equal.
    low, high = np.nanquantile(values, [0.025, 0.975])
    return None if high - low < 1e-12 else [float(low), float(high)]


def _contributions(counts: Counts) -> Floats:
    """What one item of each pattern adds to the sums, (patterns, 9).

    Ratings, agreement, ratings of each of the four outcomes, and the disagreement second-tie,
    tie-first and second-first.  A pair of ratings counts 1 / (m − 1) in an item of m ratings.
    """
    second, tie, first, both_bad = counts.T.astype(np.float64)
    neither = tie + both_bad
    ratings = counts.sum(axis=1).astype(np.float64)
    agreeing = (counts * (counts - 1)).sum(axis=1)
    crossed = np.stack([agreeing, 2 * second * neither, 2 * neither * first, 2 * second * first])
    agreed, *apart = crossed / (ratings - 1)
    return np.stack([ratings, agreed, second, tie, first, both_bad, *apart], axis=1)


def _figures(sums: Floats) -> Floats:
    """(samples, 9) sums of contributions to (samples, 3) figures, NaN where undefined."""
    n, agreed = sums.T[:2]
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = agreed / n
    return np.stack([percent, *krippendorff_alpha(sums)], axis=1)


def krippendorff_alpha(sums: Floats) -> tuple[Floats, Floats]:
    """(samples,) nominal and (samples,) ordinal alpha, NaN where undefined.

    `sums` is (samples, 9): `_contributions` summed over the items of a sample.
    """
    n, agreed, second, tie, first, both_bad, *apart = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        outcomes = np.stack([second, tie, first, both_bad])
        by_chance = 1 - (outcomes * (outcomes - 1)).sum(axis=0) / (n * (n - 1))
        nominal = 1 - (1 - agreed / n) / by_chance
        neither = tie + both_bad
        # Squared ordinal distances: the ratings between two levels, plus half of those at each end.
        distances = (
            ((second + neither) / 2) ** 2,
            ((neither + first) / 2) ** 2,
            (second / 2 + neither + first / 2) ** 2,
        )
        chances = (second * neither, neither * first, second * first)
        seen = sum(o * d for o, d in zip(apart, distances, strict=True)) / n
        expected = sum(2 * c * d for c, d in zip(chances, distances, strict=True)) / (n * (n - 1))
        ordinal = 1 - seen / expected
    return np.where(by_chance > 0, nominal, np.nan), np.where(expected > 0, ordinal, np.nan)
