"""Baselines other than the critic, for experiments: "return_to_go" and "category_mean"."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.ppo.algorithm import gae
from pipeline.ppo.batch import Batch
from pipeline.ppo.config import PPOConfig


class Baseline:
    """A baseline that replaces the critic's values."""

    def __init__(self, config: PPOConfig, categories: Sequence[str]) -> None:
        self.config = config
        self.categories = categories
        """The category of each prompt."""
        self.means: dict[str, list[float]] = {}
        """By category: [number of returns so far, their mean]."""

    def values(self, batch: Batch) -> Tensor:
        """(B, T) baseline at each token: 0, or the mean return so far of the prompt's category."""
        mask, rewards = batch.mask, batch.token_rewards
        zeros = torch.zeros_like(rewards)
        if self.config.baseline == "return_to_go":
            return zeros
        _, returns = gae(rewards=rewards, values=zeros, mask=mask, gamma=self.config.gamma, lam=1.0)
        categories = [self.categories[index] for index in batch.prompt_indices]
        return torch.where(mask, self.update(categories, returns[:, 0]).unsqueeze(1), 0)

    def update(self, categories: Sequence[str], returns: Tensor) -> Tensor:
        """Add (B,) returns to the means; return each row's mean before this batch, (B,).

        A category without earlier returns has the mean of this batch.
        """
        by_category: dict[str, list[float]] = {}
        for category, value in zip(categories, returns.tolist(), strict=True):
            by_category.setdefault(category, []).append(value)
        before: dict[str, float] = {}
        for name, values in by_category.items():
            count, mean = self.means.get(name, [0.0, 0.0])
            before[name] = mean if count else sum(values) / len(values)
            total = count + len(values)
            self.means[name] = [total, mean + (sum(values) - len(values) * mean) / total]
        return returns.new_tensor([before[category] for category in categories])
