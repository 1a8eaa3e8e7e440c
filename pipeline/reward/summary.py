"""What the reward stage reports, and stores with the reward model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.reward.audit import AuditFigures
from pipeline.reward.likelihood import BothBad, TieModel
from pipeline.reward.quality.calibration import CalibratedFigures
from pipeline.reward.stopping import EarlyStop
from storage.analysis.annotator_fit import AnnotatorFit
from storage.reports import Quality, to_json


@dataclass(frozen=True, kw_only=True)
class JudgmentCounts:
    """The likelihood, and the numbers of judgments by use."""

    theta: float | None
    """The threshold of ties; None if the tie model has none."""
    tie_model: TieModel
    both_bad: BothBad
    members: int
    pairs: int
    """Judgments that the model learned from."""
    held_out_pairs: int
    """Held-out judgments of the random stream."""
    held_out_preferences: int
    """Those of them with a preference."""
    apart_pairs: int
    """Judgments that decided when to stop."""
    ties: int
    """Judgments without a preference, of all."""


@dataclass(frozen=True, kw_only=True)
class Centering:
    """The rewards of the SFT model's responses."""

    mean: float
    """After centering."""
    std: float
    shift: float
    """What was added to all rewards."""


@dataclass(frozen=True, kw_only=True)
class RewardSpread:
    """The rewards of all judged responses."""

    length_correlation: float | None
    """Of rewards with lengths; None if either is constant."""
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
    """Of differences of rewards with differences of lengths; None if either is always 0."""
    centering: Centering | None
    """None without `reward.center`."""
    spread: RewardSpread
    quality: Quality
    predicted_pairs: int
    """Pairs of two policies that an older reward model scored."""

    def to_json(self) -> dict[str, Any]:
        """The content of result.json: the parts' fields side by side."""
        parts = (self.held_out, self.counts, self.centering, self.spread)
        flat = {name: value for part in parts if part for name, value in asdict(part).items()}
        annotators = to_json(self.annotators) if self.annotators else {"annotators": []}
        return (
            flat
            | annotators
            | {
                "kept": asdict(self.kept) if self.kept else None,
                "judged_by": {kind: dict(counts) for kind, counts in self.judged_by.items()},
                "audit": asdict(self.audit) if self.audit else None,
                "length_correlation_in_pairs": self.length_correlation_in_pairs,
                "quality": to_json(self.quality),
                "predicted_pairs": self.predicted_pairs,
            }
        )
