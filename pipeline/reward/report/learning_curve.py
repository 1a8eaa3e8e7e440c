"""A learning curve as it lies on the disk, and its points.  Loads no torch.

`pipeline.reward.report.curve` trains the models and writes a file for each; here they are read.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from pipeline.reward.report.forecast import THE_MODEL, Seen, forecast, trend
from pipeline.statistics.winrate import mean_share

BLOCKS = 4
ORDERS = (0, 2, 1, 3)
"""Blocks that the orders begin with, as they are trained: the first two share nothing up to a half."""
TRAININGS = len(ORDERS) * sum(range(1, BLOCKS)) / BLOCKS
"""What all its models cost together, in trainings of the reward model itself."""
_STEPS = 12
COLUMNS = ("judgment", "prompt", "order", "share", "labels", "right")
"""A row for each judgment with a preference, of the random stream, that a model had not learned
from.  `labels` are all that there were for a model of this share, the held-out ones included."""


def file_of(outputs: Path, order: int, blocks: int) -> Path:
    """What the model of an order that learned from so many blocks says."""
    return outputs / f"{order}-{blocks}.parquet"


def measured(outputs: Path) -> tuple[Seen, dict[float, float]] | None:
    """What the reward model itself and the models of every complete order say, and labels by share.

    None without a complete order, or where nothing was measured.
    """
    orders = [[file_of(outputs, order, n) for n in range(1, BLOCKS)] for order in ORDERS]
    files = [path for each in orders if all(p.exists() for p in each) for path in each]
    whole = file_of(outputs, THE_MODEL, BLOCKS)
    if not files or not whole.exists():
        return None
    rows: list[dict[str, Any]] = []
    for path in (whole, *files):
        rows += pd.read_parquet(path).to_dict("records")
    if not rows:
        return None
    counts: dict[float, dict[int, float]] = {}
    for row in rows:
        counts.setdefault(row["share"], {})[row["order"]] = row["labels"]
    seen = Seen.of((r["judgment"], r["prompt"], r["order"], r["share"], r["right"]) for r in rows)
    return seen, {share: fmean(counts[share].values()) for share in sorted(counts)}


def figures(outputs: Path) -> dict[str, Any] | None:
    """Points, trend and forecast as plain values; None where no order is complete yet."""
    found = measured(outputs)
    if found is None:
        return None
    seen, labels = found
    shown = points(seen, labels)
    ahead = forecast(trend(seen, labels), round(labels[max(labels)]))
    return {
        "points": shown,
        "forecast": ahead,
        "lines": lines(shown, ahead),
        "orders": len(set(seen.order.tolist()) - {THE_MODEL}),
    }


def points(seen: Seen, labels: dict[float, float]) -> list[dict[str, Any]]:
    """Accuracy at each share of the labels, on the judgments that all shares were measured on.

    Those are the held-out ones.  Each counts by its mean over orders; intervals are clustered by
    prompt.
    """
    judgment, prompt, share, right = seen.means()
    held_out = (np.bincount(judgment) == len(labels))[judgment]
    if not held_out.any():
        return []
    found = []
    for each in sorted(labels):
        chosen = held_out & (share == each)
        rate = mean_share(right[chosen], prompt[chosen].tolist())
        found.append(
            {"share": each, "labels": labels[each]}
            | {"accuracy": rate.win_rate, "low": rate.low, "high": rate.high}
            | {"judgments": rate.comparisons, "prompts": rate.prompts}
        )
    return found


def lines(
    shown: list[dict[str, Any]], ahead: dict[str, Any]
) -> dict[str, list[list[float]]] | None:
    """What to draw of a forecast: `trend`, pairs (labels, accuracy), and `band`, (labels, low, high).

    The trend is the line of the fitted slope that lies best to the points.  The band begins where it
    stands now: it is the interval of the gain.  None where nothing is forecast.
    """
    if not shown or ahead["gain"] is None:
        return None
    found = ahead["trend"]
    middle = fmean(math.log2(point["labels"]) for point in shown)
    level = fmean(point["accuracy"] for point in shown)
    least, now = shown[0]["labels"], shown[-1]["labels"]
    then = now + ahead["more"]

    def at(labels: float) -> float:
        return level + found["slope"] * (math.log2(labels) - middle)

    steps = [now + (then - now) * n / _STEPS for n in range(_STEPS + 1)]
    return {
        "trend": [
            [n, at(n)]
            for n in (*(least + (now - least) * k / _STEPS for k in range(_STEPS)), *steps)
        ],
        "band": [
            [n, *(at(now) + found[end] * math.log2(n / now) for end in ("low", "high"))]
            for n in steps
        ],
    }
