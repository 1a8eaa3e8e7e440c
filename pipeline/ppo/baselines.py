"""Baselines other than the critic: the group of responses to a prompt, its category, or nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.ppo.advantages import gae, group_mean, leave_one_out
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
        """(B, T) baseline of what follows each token; 0 on padding."""
        if self.config.baseline == "return_to_go":
            return torch.zeros_like(batch.token_rewards)
        if self.config.baseline == "category_mean":
            return self._of_categories(batch)
        return self._of_groups(batch)

    def _of_groups(self, batch: Batch) -> Tensor:
        """The part of the group's reward that is left: the baseline minus the rewards before the token.

        GAE with λ = 1 then gives every token of a response the same advantage, the response's reward
        minus the baseline, as in the papers.  If the loss contains each token's own divergence, a
        response's reward is not that of each of its tokens: a token's advantage is what follows it
        minus the baseline.
        """
        rewards, size = batch.token_rewards, self.config.group_size
        baseline = leave_one_out if self.config.baseline == "leave_one_out" else group_mean
        expected = baseline(rewards.sum(1), size).unsqueeze(1)
        if not self.config.charges_kl_in_loss:
            expected = expected - (rewards.cumsum(1) - rewards)
        return torch.where(batch.mask, expected, 0)

    def _of_categories(self, batch: Batch) -> Tensor:
        """The mean return so far of the prompt's category."""
        mask, rewards = batch.mask, batch.token_rewards
        zeros = torch.zeros_like(rewards)
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
