"""Importance weights for tokens of a sampler whose arithmetic differs from the trainer's."""

import torch
from torch import Tensor

from pipeline.ppo.algorithm import kl_estimate, masked_mean


def importance_weights(
    *, sampler_logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, cap: float, foreign: bool
) -> tuple[Tensor | None, dict[str, float]]:
    """Weights (B, T) for tokens of a sampler μ other than the trainer's π, and metrics on them.

    For `foreign` samplers the weights are min(π/μ, `cap`) per token; otherwise None, which means 1
    (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; TRL
    and verl do the same).  The cap bounds the variance and adds a bias.  The weight of a whole
    response would be unbiased, but its variance grows exponentially with length.
    """
    # KL(μ‖π), because the tokens come from μ.
    kl = kl_estimate(sampler_logprobs - old_logprobs, "k3")
    metrics = {
        "rollout/mismatch_kl": masked_mean(kl, mask).item(),
        "rollout/importance_weight_clipped": 0.0,
    }
    if not foreign:
        return None, metrics
    ratio = torch.where(mask, old_logprobs - sampler_logprobs, 0).exp()
    metrics["rollout/importance_weight_clipped"] = masked_mean((ratio > cap).float(), mask).item()
    return ratio.clamp_max(cap), metrics
