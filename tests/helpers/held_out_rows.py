"""Held-out judgments as the reward model's report reads them."""

from __future__ import annotations

import math
from typing import Any

from pipeline.reward.quality.figures import quality
from storage.reports import Quality


def row(
    d: float, outcome: str, *, name: str = "", prompt: str = "", arm: str = "random", **more: Any
) -> dict[str, Any]:
    """A held-out judgment by Bradley and Terry's model, of a pair of equal length."""
    first = 1 / (1 + math.exp(-d))
    usual: dict[str, Any] = {
        "judgment": name or f"j-{d}-{outcome}", "prompt": prompt or f"p-{d}-{outcome}",
        "arm": arm, "outcome": outcome, "d": d, "p_first": first, "p_second": 1 - first,
        "first_length": 5, "second_length": 5,
    }  # fmt: skip
    return usual | more


def figures(rows: list[dict[str, Any]], **more: Any) -> Quality:
    usual: dict[str, Any] = {
        "groups": {each["judgment"]: "single" for each in rows}, "log_loss": 0.6,
        "coin_log_loss": 0.7, "agreed": None, "expected": None,
    }  # fmt: skip
    return quality(rows, **(usual | more))
