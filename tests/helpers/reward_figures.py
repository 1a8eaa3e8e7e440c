"""Figures of a reward model and its learning curve as the pipeline makes them, for pages and reports."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.reward.report.forecast import FULL_MODEL
from pipeline.reward.report.learning_curve import BLOCKS, COLUMNS, ORDERS, file_of
from pipeline.reward.report.report import RewardReports, curve_place
from storage.engine.database import Database
from storage.tables import models


def share(value: float, low: float, high: float, judgments: int) -> dict[str, Any]:
    return {"accuracy": value, "low": low, "high": high, "judgments": judgments}


def rate(value: float, low: float, high: float) -> dict[str, Any]:
    return {"win_rate": value, "low": low, "high": high, "comparisons": 90, "prompts": 60}


def quality(**changes: Any) -> dict[str, Any]:
    """A good reward model's, as `pipeline.reward.quality.figures.quality` returns them."""
    bins = [
        (0.5, 0.56, share(0.55, 0.36, 0.72, 26)), (0.6, 0.65, share(0.68, 0.47, 0.84, 22)),
        (0.7, 0.75, share(0.74, 0.51, 0.89, 19)), (0.8, 0.84, share(0.86, 0.58, 0.97, 14)),
        (0.9, 0.94, share(1.0, 0.66, 1.0, 9)),
    ]  # fmt: skip
    margins = [
        (0.02, 0.31, share(0.52, 0.32, 0.71, 23)), (0.33, 0.78, share(0.68, 0.46, 0.84, 22)),
        (0.8, 1.4, share(0.77, 0.56, 0.9, 22)), (1.5, 3.2, share(0.91, 0.71, 0.98, 23)),
    ]  # fmt: skip
    found: dict[str, Any] = {
        "judgments": 108,
        "decisive": 90,
        "prompts": 60,
        "accuracy": rate(0.72, 0.63, 0.79),
        "log_loss": 0.842,
        "coin_log_loss": 0.987,
        "calibration": {
            "ece": 0.06,
            "ece_by_chance": 0.14,
            "overconfidence": {"value": 0.02, "low": -0.06, "high": 0.1},
            "bins": [{"from": a, "to": a + 0.1, "stated": b} | row for a, b, row in bins],
        },
        "by_margin": [{"from": a, "to": b, "stated": 0.7} | row for a, b, row in margins],
        "by_agreement": [
            {"group": "unanimous"} | share(0.9, 0.6, 0.98, 12),
            {"group": "split"} | share(0.5, 0.2, 0.8, 6),
            {"group": "single"} | share(0.71, 0.6, 0.79, 72),
        ],
        "ceiling": {
            "value": 0.84, "low": 0.8, "high": 0.89, "least": 0.78, "most": 0.87,
            "agreement": rate(0.78, 0.71, 0.84), "expected": 0.83,
        },
        "overlap": 96,
        "length": {
            "correlation": {"value": 0.18, "low": -0.05, "high": 0.39},
            "rule": rate(0.56, 0.46, 0.66),
            "reward": rate(0.6, 0.5, 0.7),
        },
        "share_of_ceiling": {"value": 0.857, "low": 0.75, "high": 0.96},
    }  # fmt: skip
    return found | changes


def write_curve(outputs: Path, *, labels: int = 400, orders: int = len(ORDERS)) -> None:
    """What a curve's models say of 90 held-out judgments and of those they had not learned from."""
    coin = random.Random(3)
    outputs.mkdir(parents=True, exist_ok=True)
    level = {n: coin.random() for n in range(labels)}
    models = [(order, blocks) for order in ORDERS[:orders] for blocks in range(1, BLOCKS)]
    for order, blocks in (*models, (FULL_MODEL, BLOCKS)):
        learned = {(order + k) % BLOCKS for k in range(blocks)}
        rows = [
            {
                "judgment": f"j-{n}",
                "prompt": f"p-{n // 2}",
                "order": order,
                "share": blocks / BLOCKS,
                "labels": labels * blocks / BLOCKS,
                "right": float(level[n] < 0.62 + 0.025 * blocks + coin.gauss(0, 0.08)),
            }
            for n in range(labels)
            if n < 90 or (order != FULL_MODEL and n // 2 % BLOCKS not in learned)
        ]
        pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(file_of(outputs, order, blocks))


def make_curve(db: Database, model: str) -> Path:
    """A learning curve that is done; the folder of its run."""
    found = next(each for each in models.reward_models(db) if each.model == model)
    folder = curve_place(db.workspace, model, found.directory).path
    write_curve(folder / "outputs")
    for name in ("job.json", "result.json"):
        (folder / name).write_text("{}")
    return folder


class RecordingReports(RewardReports):
    """The real reports; what would start or stop a worker is remembered by `loop` instead."""

    def __init__(self, loop: Any, db: Database | None) -> None:
        super().__init__(
            db.workspace if db else Path(),
            lambda: models.reward_models(db) if db else [],
            str,
        )
        self._loop = loop

    def start_curve(self, model: str) -> None:
        if self._loop.reason:
            raise ValueError(self._loop.reason)
        self._loop.asked.append(("start_curve", model))

    def cancel_curve(self, model: str) -> None:
        self._loop.asked.append(("cancel_curve", model))
