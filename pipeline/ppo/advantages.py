"""From per-token rewards to advantages: GAE with a critic, or the rewards of a group of responses.

Every tensor of a batch is (B, T), as in algorithm.py; the responses to one prompt are adjacent rows.

    PPO                    critic, GAE                    whitened over the batch
    RLOO                   leave_one_out                  as they are
    GRPO                   group_mean                     divided by the group's deviation
    Dr. GRPO               group_mean                     as they are
    REINFORCE++            return_to_go, no baseline      whitened over the batch
    REINFORCE++-baseline   group_mean                     whitened over the batch
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.ppo.algorithm import masked_var, whiten, whitening_scale
from pipeline.ppo.config import PPOConfig


def gae(
    *,
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Advantages Σ_k (γλ)^k δ_{t+k} and returns A_t + V_t, both 0 under the mask.

    δ_t = r_t + γ V_{t+1} − V_t.  V is 0 after the last token, even if the response was cut off,
    because the score is that of the truncated response.
    (Schulman et al., "High-dimensional continuous control using GAE", eq. 16.)
    """
    values = torch.where(mask, values, 0)
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(mask[:, t], delta + gamma * lam * next_advantage, 0)
        next_value = values[:, t]
        advantages[:, t] = next_advantage
    return advantages, torch.where(mask, advantages + values, 0)


def leave_one_out(rewards: Tensor, size: int) -> Tensor:
    """(B,) mean reward of the other responses to the same prompt; each `size` rows are a group.

    RLOO (Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al. 2024,
    arXiv:2402.14740).
    """
    groups = rewards.view(-1, size)
    return ((groups.sum(1, keepdim=True) - groups) / (size - 1)).flatten()


def group_mean(rewards: Tensor, size: int) -> Tensor:
    """(B,) mean reward of all responses to the same prompt; each `size` rows are a group.

    GRPO (Shao et al. 2024, arXiv:2402.03300), Dr. GRPO (Liu et al. 2025, arXiv:2503.20783) and
    REINFORCE++-baseline (Hu et al. 2025, arXiv:2501.03262).
    """
    return rewards.view(-1, size).mean(1).repeat_interleave(size)


def group_std(rewards: Tensor, size: int) -> Tensor:
    """(B,) sample standard deviation (n − 1) of the rewards of each row's group."""
    return rewards.view(-1, size).std(1).repeat_interleave(size)


class Advantages(NamedTuple):
    """(B, T) advantages before and after scaling, whitening and clipping, and returns.

    `scale` is the factor of whitening, 1 without.  A KL in the loss is also multiplied by it, so
    that β keeps its unit.
    """

    raw: Tensor
    advantages: Tensor
    returns: Tensor
    scale: float


def compute_advantages(
    *, token_rewards: Tensor, values: Tensor, mask: Tensor, config: PPOConfig
) -> Advantages:
    """GAE on the rewards, then scaling, whitening and clipping according to the settings.

    Dividing by the standard deviation of the group: GRPO (Shao et al. 2024, arXiv:2402.03300, 4.1.2).
    """
    # λ < 1 bootstraps from values, and only a critic predicts the rewards after a token.
    lam = config.lam if config.baseline == "critic" else 1.0
    raw, returns = gae(rewards=token_rewards, values=values, mask=mask, gamma=config.gamma, lam=lam)
    advantages, scale = raw, 1.0
    if config.group_scaling == "std":
        advantages = raw / (group_std(token_rewards.sum(1), config.group_size)[:, None] + 1e-4)
    if config.whiten_advantages:
        scale = whitening_scale(advantages, mask).item()
        advantages = whiten(advantages, mask)
    if config.advantage_clip:
        advantages = advantages.clamp(-config.advantage_clip, config.advantage_clip)
    return Advantages(raw, advantages, returns, scale)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 − Var(R − V) / Var(R): 1 is perfect, 0 a constant; 0 if returns do not vary."""
    variance = masked_var(returns, mask)
    unexplained = masked_var(returns - values, mask)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp_min(1e-30), 0.0)
