"""What the trainer hands to its caller."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.ppo.metrics import Flag


class TrainingDiverged(RuntimeError):
    """A number became NaN or infinite; says where the run can be taken up again."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A response of an update."""

    prompt_index: int
    text: str
    score: float
    """Weighted score as returned, before scaling, clipping, KL and penalties."""
    kl: float
    """Σ (log π − log π_ref) over its tokens, nats."""
    length: int
    """Tokens, end-of-text included."""
    finish_reason: str
    """"stop" or "length"."""


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What one update did."""

    step: int
    """Updates made so far, this one included."""
    metrics: dict[str, float]
    flags: list[Flag]
    samples: list[Sample]
    """Every response of the update, in sampling order."""
    checkpoint: Path | None
    """Where this update's checkpoint goes, written when the next update is asked for:
    so what the caller puts in `trainer.extra` on seeing this result is inside.  None
    when no checkpoint is due."""
