"""A reward model's estimates about annotators: stored by the reward stage, shown on the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter


@dataclass(frozen=True, kw_only=True)
class AnnotatorEstimate:
    """One annotator (docs/reward.md); None for a figure that an earlier version did not store."""

    annotator: str
    slope: float
    """1 for judgments that follow the rewards as the average does, 0 for random ones, below 0 for
    opposite ones."""
    slope_sd: float | None = None
    """Standard error."""
    side_bias: float | None = None
    """In units of reward, above 0 for the left."""
    side_bias_sd: float | None = None
    """Standard error."""
    weight: float | None = None
    """Weight of their judgments in the fit."""
    judgments: int | None = None
    measured: int | None = None
    """Judgments on which the estimates are based."""
    decided: int = 0
    """Those that prefer one response."""
    with_model: float | None = None
    """Share of `decided` for the response with the higher reward; None without any."""
    with_model_expected: float | None = None
    """The share that slope and side bias predict."""


@dataclass(frozen=True, kw_only=True)
class AnnotatorFit:
    """All annotators, and how often two of them agree.

    Agreement is measured on `overlapping_items`: several annotators judged them, and the model was
    not trained on them.  Both bad counts as a tie.  None without such an item.
    """

    annotators: tuple[AnnotatorEstimate, ...]
    expected_agreement: float | None = None
    """The probability that two annotators agree, by their slopes and side biases."""
    observed_agreement: float | None = None
    expected_alpha: float | None = None
    """Krippendorff's nominal α."""
    observed_alpha: float | None = None
    overlapping_items: int = 0
    expected_preference_agreement: float | None = None
    """The probability that two annotators agree if both prefer a response."""

    @cached_property
    def by_annotator(self) -> Mapping[str, AnnotatorEstimate]:
        return {each.annotator: each for each in self.annotators}


_ADAPTER = TypeAdapter(AnnotatorFit)


def read_annotator_fit(summary: Mapping[str, Any]) -> AnnotatorFit | None:
    """The fit in a reward model's stored summary; None if it has none.

    Raises pydantic's ValidationError, a ValueError, for values of another type.
    """
    if not summary.get("annotators"):
        return None
    known = {name: value for name, value in summary.items() if value is not None}
    return _ADAPTER.validate_python(known)
