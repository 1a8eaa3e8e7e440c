"""A learning curve, read from the files of its models.  Does not import torch.

`pipeline.reward.report.curve_stage` trains the models and writes the files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from pipeline.reward.report.forecast import FULL_MODEL, MeasuredJudgments, forecast, trend
from pipeline.statistics.winrate import mean_share
from storage.reports import Curve, CurveLines, CurvePoint, Forecast

BLOCKS = 4
ORDERS = (0, 2, 1, 3)
"""First block of each order, in training order: the first two share no labels at 25 and 50%."""
TRAININGS = len(ORDERS) * sum(range(1, BLOCKS)) / BLOCKS
"""Cost of all models, in trainings of the reward model itself."""
_STEPS = 12
COLUMNS = ("judgment", "prompt", "order", "share", "labels", "right")
"""A row for each preference of the random stream that a model had not learned from.  `labels` is
the total number of judgments for a model of this share, including held-out ones, without edits."""


def file_of(outputs: Path, order: int, blocks: int) -> Path:
    """The results file of the model of `order` that learned from `blocks` blocks."""
    return outputs / f"{order}-{blocks}.parquet"


def measured(outputs: Path) -> tuple[MeasuredJudgments, dict[float, float]] | None:
    """The results of the reward model and of every complete order, and labels by share.

    None without a complete order, or if nothing was measured.
    """
    orders = [[file_of(outputs, order, n) for n in range(1, BLOCKS)] for order in ORDERS]
    files = [path for each in orders if all(p.exists() for p in each) for path in each]
    whole = file_of(outputs, FULL_MODEL, BLOCKS)
    if not files or not whole.exists():
        return None
    tables = [pd.read_parquet(path) for path in (whole, *files)]
    if all(table.empty for table in tables):
        return None
    rows = pd.concat([table for table in tables if not table.empty])
    by_share: dict[float, list[float]] = {}
    for row in rows.drop_duplicates(["share", "order"]).to_dict("records"):
        by_share.setdefault(row["share"], []).append(row["labels"])
    labels = {share: fmean(by_share[share]) for share in sorted(by_share)}
    columns = ["judgment", "prompt", "order", "share", "right"]
    return MeasuredJudgments.of(rows[columns].itertuples(index=False)), labels


def learning_curve(outputs: Path) -> Curve:
    """Points, trend and forecast; empty until one order is complete."""
    found = measured(outputs)
    if found is None:
        return Curve()
    seen, labels = found
    shown = points(seen, labels)
    ahead = forecast(trend(seen, labels), round(labels[max(labels)]))
    orders = len(set(seen.order.tolist()) - {FULL_MODEL})
    return Curve(points=shown, forecast=ahead, lines=lines(shown, ahead), orders=orders)


def points(seen: MeasuredJudgments, labels: dict[float, float]) -> tuple[CurvePoint, ...]:
    """Accuracy at each share of the labels, on the held-out judgments.

    Each judgment counts by its mean over orders.
    """
    judgment, prompt, share, right = seen.means()
    held_out = (np.bincount(judgment) == len(labels))[judgment]
    if not held_out.any():
        return ()
    found = []
    for each in sorted(labels):
        chosen = held_out & (share == each)
        rate = mean_share(right[chosen], prompt[chosen].tolist())
        found.append(
            CurvePoint(
                share=each,
                labels=labels[each],
                accuracy=rate.win_rate,
                low=rate.low,
                high=rate.high,
                judgments=rate.comparisons,
                prompts=rate.prompts,
            )
        )
    return tuple(found)


def lines(shown: Sequence[CurvePoint], ahead: Forecast) -> CurveLines | None:
    """The forecast as lines; None without a forecast.

    The trend has the fitted slope and the intercept that is closest to the points.  The band is the
    interval of the gain and begins at the current number of labels.
    """
    trend = ahead.trend
    if not shown or ahead.gain is None or trend is None:
        return None
    middle = fmean(math.log2(point.labels) for point in shown)
    level = fmean(point.accuracy for point in shown)
    least, now = shown[0].labels, shown[-1].labels

    def at(labels: float) -> float:
        return level + trend.slope * (math.log2(labels) - middle)

    past = [least + (now - least) * n / _STEPS for n in range(_STEPS)]
    future = [now + ahead.more * n / _STEPS for n in range(_STEPS + 1)]
    doublings = [math.log2(n / now) for n in future]
    return CurveLines(
        trend=tuple((n, at(n)) for n in (*past, *future)),
        band=tuple(
            (n, at(now) + trend.low * by, at(now) + trend.high * by)
            for n, by in zip(future, doublings, strict=True)
        ),
    )
