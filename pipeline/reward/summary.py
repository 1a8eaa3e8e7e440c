"""The summary of the reward stage, which is stored with the reward model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import model_serializer

from pipeline.reward.audit import AuditFigures
from pipeline.reward.likelihood import BothBad, TieModel
from pipeline.reward.quality.calibration import CalibratedFigures
from pipeline.reward.stopping import EarlyStop
from storage.analysis.annotator_fit import AnnotatorFit
from storage.reports import Quality


@dataclass(frozen=True, kw_only=True)
class JudgmentCounts:
    """The likelihood, and the numbers of judgments by use."""

    theta: float | None
    """The tie threshold; None if the tie model has none."""
    tie_model: TieModel
    both_bad: BothBad
    members: int
    pairs: int
    """Judgments that the model learned from."""
    held_out_pairs: int
    """Held-out judgments of the random stream."""
    held_out_preferences: int
    """Held-out judgments of the random stream with a preference."""
    apart_pairs: int
    """Judgments that decided when to stop."""
    learned_by: Mapping[str, int]
    """Judgments that the model learned from, by annotator, without edits."""
    ties: int
    """Judgments without a preference, out of all judgments."""


@dataclass(frozen=True, kw_only=True)
class Centering:
    """The rewards of the SFT model's responses."""

    mean: float
    """After centering."""
    std: float
    shift: float
    """The constant that was added to all rewards."""


@dataclass(frozen=True, kw_only=True)
class RewardSpread:
    """The rewards of all judged responses."""

    length_correlation: float | None
    """Correlation of rewards with lengths; None if either is constant."""
    judged_mean: float
    judged_std: float


@dataclass(frozen=True, kw_only=True)
class RewardSummary:
    """The summary of a reward stage."""

    held_out: CalibratedFigures
    counts: JudgmentCounts
    kept: EarlyStop | None
    """The state that early stopping kept; None without early stopping."""
    judged_by: Mapping[str, Mapping[str, int]]
    """Numbers of judgments by kind of annotator, ``used`` and ``left_out``."""
    audit: AuditFigures | None
    """None if there were too few judgments for an audit model."""
    annotators: AnnotatorFit | None
    """None if annotators were not distinguished."""
    length_correlation_in_pairs: float | None
    """Correlation of reward differences with length differences; None if either is always 0."""
    centering: Centering | None
    """None without `reward.center`."""
    spread: RewardSpread
    quality: Quality
    predicted_pairs: int
    """Pairs of two policies that the policy's own reward model scored (predictions.py)."""

    @model_serializer(mode="wrap")
    def _flat(self, fields: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Put the fields of these parts at the top level of result.json."""
        found = fields(self)
        found |= found.pop("annotators") or {"annotators": []}
        for part in ("held_out", "counts", "centering", "spread"):
            found |= found.pop(part) or {}
        return found
