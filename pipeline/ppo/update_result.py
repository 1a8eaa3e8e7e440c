"""What an update returns to the caller, and the errors that end training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipeline.ppo.batch import Batch
from pipeline.ppo.metrics import Flag, red_flags


class TrainingDiverged(RuntimeError):
    """A number became NaN or infinite; the message names the checkpoint to resume from."""


class SamplerMismatch(RuntimeError):
    """Another model than the policy sampled the responses of an update."""

    @classmethod
    def of(cls, history: Sequence[Mapping[str, float]]) -> Self:
        """The error for the flag of the last of these updates."""
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
    """Path of this update's checkpoint, None when none is due.  It is written when the caller asks
    for the next update, so it contains what the caller has put into `trainer.extra` by then."""


def samples_of(batch: Batch) -> list[Sample]:
    """Every response of a batch that was scored and rewarded."""
    columns = zip(
        batch.prompt_indices,
        batch.texts,
        batch.scores.tolist(),
        batch.log_ratio.sum(1).tolist(),
        batch.lengths.tolist(),
        batch.finish_reasons,
        strict=True,
    )
    return [
        Sample(
            prompt_index=prompt, text=text, score=score, kl=kl, length=length, finish_reason=reason
        )
        for prompt, text, score, kl, length, reason in columns
    ]
