"""The optimizer of policy and values."""

import torch

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.control import learning_rates
from pipeline.ppo.model import ActorCritic


def make_optimizer(model: ActorCritic, config: PPOConfig) -> torch.optim.Optimizer:
    """AdamW over two groups in the order of `Rates`: the policy, and what says the values."""
    policy = set(model.policy.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [[p for p in trained if p in policy], [p for p in trained if p not in policy]]
    return torch.optim.AdamW(
        [
            {"params": group, "lr": lr}
            for group, lr in zip(groups, learning_rates(config, 0), strict=True)
        ],
        eps=config.adam_eps,
        weight_decay=0.0,
        fused=True,
    )
