"""`BestOfN`: a policy that samples N responses of the reference and takes the one with the highest
reward.  No weights change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.models.best_of_n import REWARD_MODEL, Manifest, manifest_of
from pipeline.models.devices import inference_dtype
from pipeline.models.generate import Response, Sampler
from pipeline.models.loading import load_weights
from pipeline.models.text import ChatTokenizer, Messages
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job


class BestOfN(Sampler):
    """A `Sampler` whose answers are the best of `manifest.n` by a reward model."""

    def __init__(
        self, model: Any, chat: ChatTokenizer, reward: RewardModel, manifest: Manifest
    ) -> None:
        super().__init__(model, chat)
        self.reward = reward
        self.manifest = manifest

    def candidates(
        self,
        conversations: Sequence[Messages],
        *,
        on_batch: Callable[[list[Response]], Any] = lambda _: None,
        **sampling: Any,
    ) -> list[tuple[list[Response], list[float]]]:
        """N responses to each conversation, with their rewards; `sampling` as for `Sampler.sample`."""
        n = self.manifest.n
        asked = [messages for messages in conversations for _ in range(n)]
        drawn = super().sample(asked, on_batch=on_batch, **sampling)
        rewards = self.reward(asked, [response.text for response in drawn])
        starts = range(0, len(drawn), n)
        return [(drawn[i : i + n], rewards[i : i + n]) for i in starts]

    def sample(
        self,
        conversations: Sequence[Messages],
        *,
        on_batch: Callable[[list[Response]], Any] = lambda _: None,
        **sampling: Any,
    ) -> list[Response]:
        """The best response to each conversation; `on_batch` gets as many as there are answers."""
        left = 0

        def count(batch: list[Response]) -> None:
            nonlocal left
            left += len(batch)
            on_batch(batch[: left // self.manifest.n])
            left %= self.manifest.n

        found = self.candidates(conversations, on_batch=count, **sampling)
        return [responses[best(rewards)] for responses, rewards in found]

    def search(self, *_: Any, **__: Any) -> list[Response]:
        """Beam search has no samples to choose from: ValueError."""
        raise ValueError(
            "beam search finds one response, and a best-of-N policy chooses among samples; set "
            "evaluate.beams=1"
        )


def best(rewards: Sequence[float]) -> int:
    """The place of the highest reward, the first one of equal ones."""
    return max(range(len(rewards)), key=rewards.__getitem__)


def load_sampler(path: str, *, device: torch.device, dtype: torch.dtype) -> Sampler:
    """The policy in a directory, best-of-N or not; raises ModelUnavailable."""
    manifest = manifest_of(path)
    if manifest is None:
        return Sampler.load(path, device=device, dtype=dtype)
    return BestOfN(
        load_weights(path, device=device, dtype=dtype),
        ChatTokenizer.load(path),
        RewardModel.load(Path(path) / REWARD_MODEL, device=device),
        manifest,
    )


def sampler_of_job(job: Job, path: str, device: torch.device) -> Sampler:
    """`load_sampler` in the precision that the job's settings name."""
    return load_sampler(path, device=device, dtype=inference_dtype(job.config.model, device))
