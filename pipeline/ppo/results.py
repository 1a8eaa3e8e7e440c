"""What the trainer hands to its caller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipeline.ppo.metrics import Flag, red_flags


class TrainingDiverged(RuntimeError):
    """A number became NaN or infinite; says where the run can be taken up again."""


class SamplerMismatch(RuntimeError):
    """The responses of an update were sampled by another model than the policy."""

    @classmethod
    def of(cls, history: Sequence[Mapping[str, float]]) -> Self:
        """What the flag on the last of these updates says."""
        (flag,) = (flag for flag in red_flags(history) if flag.name == "sampler_mismatch")
        return cls(f"update {len(history)}: {flag.seen} {flag.why} {flag.remedy}")


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
