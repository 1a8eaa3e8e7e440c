"""A judged pair as the reward stage reads it."""

from __future__ import annotations

from typing import Any

from pipeline.reward.data import JudgedPair


def pair(outcome: int, *, prompt: str = "p", name: str = "j", **others: Any) -> JudgedPair:
    usual: dict[str, Any] = {
        "judgment": name, "prompt": prompt, "first": "f", "second": "s", "first_ids": [5],
        "second_ids": [6], "first_length": 1, "second_length": 1, "outcome": outcome,
        "strength": 0, "annotator": "a-1", "side": 1,
    }  # fmt: skip
    return JudgedPair(**(usual | others))
