"""From rewards to what an update learns from: values or another baseline, GAE, whitening."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.ppo.algorithm import gae, whiten, whitening_scale
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.control import CategoryMeans
from pipeline.ppo.experience import Experience
from pipeline.ppo.learner import Scored
from pipeline.ppo.rollout import Rollout


class Advantaged(NamedTuple):
    """What an update learns from.

    `raw` are the (B, T) advantages before whitening.  `scale` is what whitening multiplied them by,
    1 without: a divergence in the loss has to be multiplied by it too, or β changes its unit.
    """

    experience: Experience
    raw: Tensor
    scale: float


class Advantages:
    """Computes advantages; owns the running means of the prompts' categories."""

    def __init__(self, config: PPOConfig, categories: Sequence[str]) -> None:
        self.config = config
        self.categories = categories
        self.category_means = CategoryMeans()

    def __call__(
        self,
        batch: Sequence[int],
        rollout: Rollout,
        scored: Scored,
        rewards: Tensor,
        importance: Tensor | None = None,
    ) -> Advantaged:
        """Advantages of the (B, T) `rewards`, with what else the update reads at each token."""
        config, mask = self.config, rollout.mask
        values = self._values(batch, rollout, rewards)
        # A baseline that is no value function cannot stand in for what follows a token.
        lam = config.lam if config.baseline == "critic" else 1.0
        raw, returns = gae(rewards=rewards, values=values, mask=mask, gamma=config.gamma, lam=lam)
        advantages = whiten(raw, mask) if config.whiten_advantages else raw
        if config.advantage_clip:
            advantages = advantages.clamp(-config.advantage_clip, config.advantage_clip)
        experience = Experience(
            logprobs=rollout.logprobs,
            reference_logprobs=scored.reference_logprobs,
            values=values,
            advantages=advantages,
            returns=returns,
            importance=importance,
        )
        scale = whitening_scale(raw, mask).item() if config.whiten_advantages else 1.0
        return Advantaged(experience, raw, scale)

    def _values(self, batch: Sequence[int], rollout: Rollout, rewards: Tensor) -> Tensor:
        """(B, T) what each token's return is compared with."""
        config, mask = self.config, rollout.mask
        if config.baseline == "critic":
            assert rollout.values is not None
            return rollout.values
        nothing = torch.zeros_like(rewards)
        if config.baseline == "return_to_go":
            return nothing
        _, returns = gae(rewards=rewards, values=nothing, mask=mask, gamma=config.gamma, lam=1.0)
        categories = [self.categories[index] for index in batch]
        means = self.category_means.baseline(categories, returns[:, 0])
        return torch.where(mask, means.unsqueeze(1), 0)
