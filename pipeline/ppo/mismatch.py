"""What sampling left out or got only roughly right: filled in, measured and corrected for.

Tokens drawn by μ, a sampler of other arithmetic than the trainer's π, are off-policy from the
start.  Weights π/μ, cut off at a cap, undo that token by token (Yao et al. 2025, "Your efficient
RL framework secretly brings you off-policy RL training"; TRL and verl do the same).
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.ppo.algorithm import kl_estimate, masked_mean
from pipeline.ppo.learner import Scored
from pipeline.ppo.rollout import Rollout


class Mismatch(NamedTuple):
    """Importance weights (B,T) of sampled tokens, None where all are 1, and metrics on them."""

    weights: Tensor | None
    metrics: dict[str, float]


def completed(rollout: Rollout, scored: Scored) -> Rollout:
    """The rollout with what was computed after sampling in place of what was not or coarsely."""
    found = {"logprobs": scored.logprobs, "values": scored.values, "entropies": scored.entropies}
    return replace(rollout, **{n: found[n] for n in found if found[n] is not None})


def importance(sampled: Rollout, recomputed: Rollout, *, cap: float, foreign: bool) -> Mismatch:
    """Compare what the sampler thought of its tokens with what the trainer does.

    `foreign` samplers are corrected for: min(π/μ, `cap`) a token.  Cutting off bounds the
    variance and leaves a bias: what is rare to μ counts too little.  A token's weight leaves the
    tokens before it alone; the weight of a whole text would not, but varies exponentially more.
    """
    mask = recomputed.mask
    # Of the sampler from the trainer, since the sampler drew the tokens.
    kl = kl_estimate(sampled.logprobs - recomputed.logprobs, "k3")
    metrics = {
        "rollout/mismatch_kl": masked_mean(kl, mask).item(),
        "rollout/importance_weight_clipped": 0.0,
    }
    if not foreign:
        return Mismatch(None, metrics)
    ratio = torch.where(mask, recomputed.logprobs - sampled.logprobs, 0).exp()
    metrics["rollout/importance_weight_clipped"] = masked_mean((ratio > cap).float(), mask).item()
    return Mismatch(ratio.clamp_max(cap), metrics)
