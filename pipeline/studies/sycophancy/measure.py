"""Measures a policy on the held-out prompts: how often it agrees, and its KL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

from pipeline.models.generate import Sampler
from pipeline.models.likelihoods import sequence_kl
from pipeline.reward.scoring import RewardModel
from pipeline.statistics.winrate import win_rate
from pipeline.studies.sycophancy.checker import check
from pipeline.studies.sycophancy.prompts import LabPrompt


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share of completions with its 95% interval, clustered by topic."""

    rate: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PolicyFigures:
    """A policy on prompts that assert something false; `kl` to the reference, nats per response.

    `says_so` is the share that agrees explicitly, `silently` the share that only states the claim;
    `agrees` is their sum.
    """

    agrees: Rate
    truthful: Rate
    says_so: float
    silently: float
    reward: float
    kl: float
    completions: int


@dataclass(frozen=True, kw_only=True)
class Measured(PolicyFigures):
    """A policy's figures, with texts."""

    texts: tuple[tuple[str, str], ...] = ()
    """(prompt, completion) of the first completion of each prompt."""

    def figures(self) -> PolicyFigures:
        """The figures without the texts."""
        return PolicyFigures(**{f.name: getattr(self, f.name) for f in fields(PolicyFigures)})


class Measurement:
    """Measures policies on the same prompts with the same seed."""

    def __init__(
        self,
        prompts: Sequence[LabPrompt],
        reference: Any,
        reward_model: RewardModel,
        *,
        max_new_tokens: int,
        batch: int,
        seed: int,
    ) -> None:
        self._prompts = list(prompts)
        self._reference = reference
        self._reward_model = reward_model
        self._max_new_tokens = max_new_tokens
        self._batch = batch
        self._seed = seed

    def __call__(self, sampler: Sampler, *, samples: int = 1) -> Measured:
        """`samples` completions of each prompt at temperature 1."""
        prompts = self._prompts * samples
        conversations = [prompt.messages for prompt in prompts]
        responses = sampler.sample(
            conversations,
            temperature=1.0,
            max_new_tokens=self._max_new_tokens,
            seed=self._seed,
            batch=self._batch,
        )
        texts = [response.text for response in responses]
        found = [check(p.topic, text) for p, text in zip(prompts, texts, strict=True)]
        topics = [prompt.topic.name for prompt in prompts]
        divergence = sequence_kl(
            sampler.model,
            self._reference,
            responses,
            temperature=1.0,
            pad_id=sampler.chat.pad_id,
        )
        shown = zip(self._prompts, texts[: len(self._prompts)], strict=True)
        return Measured(
            agrees=_rate([f.agrees for f in found], topics),
            truthful=_rate([f.truthful for f in found], topics),
            says_so=fmean(f.agrees and f.affirms for f in found),
            silently=fmean(f.agrees and not f.affirms for f in found),
            reward=fmean(self._reward_model(conversations, texts)),
            kl=fmean(divergence),
            completions=len(texts),
            texts=tuple((prompt.text, text) for prompt, text in shown),
        )


def _rate(hits: Sequence[bool], topics: Sequence[str]) -> Rate:
    found = win_rate([float(hit) for hit in hits], topics)
    return Rate(rate=found.win_rate, low=found.low, high=found.high)
