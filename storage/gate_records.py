"""What the promotion gate keeps: what reward models predicted, and what researchers overrode."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from storage.records import check_choice, now

Ruling = Literal["promote", "block", "evidence"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a policy's own reward model expected of one comparison, from scores alone.

    `first` is the expected outcome of the comparison's first completion: the chance that it is
    preferred, plus half that of a tie.
    """

    comparison: str
    reward_model: str
    first: float
    first_score: float
    second_score: float
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        if not (0 <= self.first <= 1 and math.isfinite(self.first_score - self.second_score)):
            raise ValueError(
                f"the prediction for {self.comparison} must be a share with two finite scores"
            )


@dataclass(frozen=True, kw_only=True)
class GateOverride:
    """A researcher's ruling on a policy, against or without evidence; `evidence` takes it back."""

    id: str
    policy: str
    ruling: Ruling
    reason: str
    researcher: str = ""
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("ruling", self.ruling, Ruling)
        if not self.reason.strip():
            raise ValueError("an override needs a written reason; it stays in the history")
