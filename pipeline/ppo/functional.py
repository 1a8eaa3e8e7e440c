"""The mathematics of PPO: pure functions of masked tensors.

Unless said otherwise every tensor is (B, T): B responses, T response tokens,
right-padded.  `mask` is True on sampled tokens, end-of-text included, and is
made from lengths, so that it is right even where padding equals end-of-text.
What stands under a False mask never changes a result.
"""

import torch
from torch import Tensor


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """(B, width) mask that is True on the first `lengths[b]` tokens of row b."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over True positions; a long response weighs more than a short one."""
    # where, not a product: 0 · inf under the mask would be NaN.
    return torch.where(mask, x, 0).sum() / mask.sum()


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance over True positions."""
    return masked_mean((x - masked_mean(x, mask)).square(), mask)


def whitening_scale(x: Tensor, mask: Tensor) -> Tensor:
    """What `whiten` multiplies by, a scalar: 1 / σ over True positions."""
    return torch.rsqrt(masked_var(x, mask) + 1e-8)


def whiten(x: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Scale to unit variance over True positions, 0 elsewhere.

    `shift_mean=False` keeps the mean where it was.  Rewards are whitened so:
    moving their mean would pay or charge for length.
    """
    mean = masked_mean(x, mask)
    white = (x - mean) * whitening_scale(x, mask)
    return torch.where(mask, white if shift_mean else white + mean, 0)


def kl_estimate(log_ratio: Tensor, estimator: str) -> Tensor:
    """Estimate of KL(π‖π_ref) from each sampled token's ρ = log π − log π_ref, nats, any shape.

    k1 = ρ, k2 = ρ²/2, k3 = e^−ρ − 1 + ρ, abs = |ρ|.  k1 and k3 are unbiased.  The mean gradient of
    k2, tokens held as they are, is that of the KL; no other's is.
    Nothing is clamped: k1 is negative at times and must be, to average right.
    (J. Schulman, "Approximating KL divergence", 2020; Liu et al., arXiv:2510.01555.)
    """
    match estimator:
        case "k1":
            return log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.expm1(-log_ratio) + log_ratio
        case "abs":
            return log_ratio.abs()
        case _:
            raise ValueError(f"no KL estimator {estimator!r} of the sampled token alone")


def full_kl(logits: Tensor, reference_logits: Tensor) -> Tensor:
    """KL(π‖π_ref) summed over the vocabulary: (..., V) logits to (...), nats."""
    logprobs = logits.log_softmax(-1)
    return (logprobs.exp() * (logprobs - reference_logits.log_softmax(-1))).sum(-1)


def next_token(x: Tensor, mask: Tensor) -> Tensor:
    """What stands at the token after each, (B, T); 0 after the last one."""
    return torch.nn.functional.pad(torch.where(mask, x, 0)[:, 1:], (0, 1))


def shape_rewards(*, scores: Tensor, kl: Tensor, mask: Tensor, kl_weight: float) -> Tensor:
    """Per-token rewards: −β · `kl` at every token, and the score (B,) once, at the last one.

    The last token is the end-of-text where it was sampled.  Paying the score at
    every token would inflate advantages T-fold.
    """
    rewards = torch.where(mask, -kl_weight * kl, 0)
    last = mask.sum(1, keepdim=True) - 1
    return rewards.scatter_add(1, last, scores.unsqueeze(1).to(rewards.dtype))


def gae(
    *,
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float,
    lam: float,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages Σ_k (γλ)^k δ_{t+k} and returns A_t + V_t, both 0 under the mask.

    δ_t = r_t + γ V_{t+1} − V_t.  `bootstrap` (B,) is the value after the last
    token and is 0 when absent: a response cut off at the length limit has been
    scored as it stands, so nothing that might have followed is owed to it.
    (Schulman et al., "High-dimensional continuous control using GAE", eq. 16.)
    """
    batch, width = rewards.shape
    values = torch.where(mask, values, 0)
    after_last = rewards.new_zeros(batch) if bootstrap is None else bootstrap
    advantages = torch.zeros_like(rewards)
    next_value, next_advantage = after_last, rewards.new_zeros(batch)
    for t in reversed(range(width)):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = mask[:, t]
        next_advantage = torch.where(here, delta + gamma * lam * next_advantage, 0)
        # Before the last token is reached, what follows it stays in hand.
        next_value = torch.where(here, values[:, t], after_last)
        advantages[:, t] = next_advantage
    return advantages, torch.where(mask, advantages + values, 0)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 − Var(R − V) / Var(R): 1 is perfect, 0 a constant guess, below 0 worse than one.

    Where returns do not vary there is nothing to explain, and it is 0.
    """
    variance = masked_var(returns, mask)
    unexplained = masked_var(returns - values, mask)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp_min(1e-30), 0.0)
