"""The result and metrics of an update (see `metrics.METRICS`), and errors that end training."""

import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Self

import torch
from torch import Tensor

from pipeline.ppo.advantages import explained_variance
from pipeline.ppo.algorithm import kl_estimate, masked_mean, masked_var
from pipeline.ppo.batch import Batch
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import (
    Flag,
    length_correlation,
    red_flags,
    repeated_ngrams,
    unique_share,
)


class TrainingDiverged(RuntimeError):
    """A value became NaN or infinite; the message names the checkpoint to resume from."""


class SamplerMismatch(RuntimeError):
    """The responses of an update were not sampled from the policy."""

    @classmethod
    def of(cls, history: Sequence[Mapping[str, float]]) -> Self:
        """The error for the sampler_mismatch flag of the last update in `history`."""
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
    """The result of one update."""

    step: int
    """Updates made so far, this one included."""
    metrics: dict[str, float]
    flags: list[Flag]
    samples: list[Sample]
    """Every response of the update, in sampling order."""
    checkpoint: Path | None
    """Path of this update's checkpoint; None if none is due.  The checkpoint is written when the
    caller asks for the next update, so it contains what the caller has put into `trainer.extra` by
    then."""


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


def summarize(batch: Batch, advantages: Tensor, config: PPOConfig) -> dict[str, float]:
    """Metrics of the responses and rewards of an update; `advantages` are not scaled or whitened."""
    assert batch.entropies is not None
    assert batch.values is not None
    mask, scores = batch.mask, batch.scores
    lengths = batch.lengths.float()
    responses = batch.token_lists()
    tensors = {
        "reward/mean": scores.mean(),
        "reward/std": scores.std(correction=0),
        "reward/min": scores.min(),
        "reward/max": scores.max(),
        "reward/total": batch.token_rewards.sum(1).mean(),
        "kl/reference": batch.log_ratio.sum(1).mean(),
        "kl/penalty": batch.kl.sum(1).mean(),
        "policy/entropy": masked_mean(batch.entropies, mask),
        "value/explained_variance": explained_variance(batch.values, batch.returns, mask),
        "value/mean": masked_mean(batch.values, mask),
        "returns/mean": masked_mean(batch.returns, mask),
        "returns/var": masked_var(batch.returns, mask),
        "advantages/std": masked_var(advantages, mask).sqrt(),
        "completion/length_mean": lengths.mean(),
        "completion/length_std": lengths.std(correction=0),
    }
    for estimator in ("k2", "k3", "abs"):
        estimate = kl_estimate(batch.log_ratio, estimator)  # 0 on padding, where ρ is 0
        tensors[f"kl/{estimator}"] = estimate.sum(1).mean()
    metrics = {name: tensor.item() for name, tensor in tensors.items()}
    correlation = length_correlation(scores.tolist(), lengths.tolist())
    metrics["reward/length_correlation"] = correlation or 0.0
    deviations = scores.view(-1, config.group_size).std(1, correction=0)
    alone = config.group_size == 1
    metrics["reward/group_std"] = deviations.mean().item()
    metrics["reward/frac_zero_std"] = 0.0 if alone else (deviations == 0).float().mean().item()
    if config.has_group_baseline:  # not a prediction of the return
        metrics["value/explained_variance"] = 0.0
    metrics |= {f"reward/{name}": fmean(v) for name, v in batch.components.items()}
    count = len(responses)
    metrics["completion/eos_rate"] = batch.finish_reasons.count("stop") / count
    metrics["completion/unique"] = unique_share(responses)
    metrics["completion/repeated_ngrams"] = sum(map(repeated_ngrams, responses)) / count
    return metrics


class Stopwatch:
    """Times the phases of an update and reads its peak memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start = time.perf_counter()
        self.laps: dict[str, float] = {}
        self.sampled = 0
        """Tokens sampled so far."""
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # else this phase's work counts in the next one
        self.laps[name] = self.laps.get(name, 0.0) + time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        """Speed and memory metrics."""
        seconds = time.perf_counter() - self.start
        return self.laps | {
            "speed/tokens_per_second": self.sampled / seconds,
            "memory/peak_mb": self._peak_bytes() / 1e6,
        }

    def _peak_bytes(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
