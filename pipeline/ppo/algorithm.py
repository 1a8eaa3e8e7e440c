"""The equations of PPO, as pure functions of masked tensors.

docs/algorithm.md derives the formulas.

Unless stated otherwise every tensor is (B, T): B responses, T response tokens, right-padded.  `mask`
is True on sampled tokens, end-of-text included; values under a False mask never change a result.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from pipeline.ppo.config import PPOConfig


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """(B, width) mask that is True on the first `lengths[b]` tokens of row b."""
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over True positions; longer responses weigh more."""
    # where, not a product: 0 · inf would be NaN.
    return torch.where(mask, x, 0).sum() / mask.sum()


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Population variance over True positions."""
    return masked_mean((x - masked_mean(x, mask)).square(), mask)


def whitening_scale(x: Tensor, mask: Tensor) -> Tensor:
    """The scalar 1 / σ over True positions; `whiten` multiplies by it."""
    return torch.rsqrt(masked_var(x, mask) + 1e-8)


def whiten(x: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Scale to mean 0 and variance 1 over True positions; 0 elsewhere.

    `shift_mean=False` keeps the mean, for rewards: shifting it would reward or penalize length.
    """
    mean = masked_mean(x, mask)
    white = (x - mean) * whitening_scale(x, mask)
    return torch.where(mask, white if shift_mean else white + mean, 0)


def kl_estimate(log_ratio: Tensor, estimator: str) -> Tensor:
    """Estimate of KL(π‖π_ref) from each sampled token's ρ = log π − log π_ref, nats, any shape.

    `ppo.kl_estimator` selects the penalized one: k1 (default), k2 or `full_kl`.  k3 and abs are
    only metrics.

    k1 = ρ, k2 = ρ²/2, k3 = e^−ρ − 1 + ρ, abs = |ρ|.  k1 and k3 are unbiased; only k2's expected
    gradient is that of the KL.  k1 may be negative and must not be clamped.
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
    """The value at the next token, (B, T); 0 at the last one."""
    return torch.nn.functional.pad(torch.where(mask, x, 0)[:, 1:], (0, 1))


def shape_rewards(*, scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """Per-token rewards: −β · `kl` at every token, plus the score (B,) at the last token."""
    rewards = torch.where(mask, -kl_coef * kl, 0)
    last = mask.sum(1, keepdim=True) - 1
    return rewards.scatter_add(1, last, scores.unsqueeze(1).to(rewards.dtype))


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


class Advantages(NamedTuple):
    """(B, T) advantages before and after whitening and clipping, and returns.

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
    """GAE on the rewards, then whitening and clipping according to the settings."""
    # λ < 1 bootstraps from values, and only a critic predicts the rewards after a token.
    lam = config.lam if config.baseline == "critic" else 1.0
    raw, returns = gae(rewards=token_rewards, values=values, mask=mask, gamma=config.gamma, lam=lam)
    advantages, scale = raw, 1.0
    if config.whiten_advantages:
        advantages, scale = whiten(raw, mask), whitening_scale(raw, mask).item()
    if config.advantage_clip:
        advantages = advantages.clamp(-config.advantage_clip, config.advantage_clip)
    return Advantages(raw, advantages, returns, scale)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 − Var(R − V) / Var(R): 1 is perfect, 0 a constant; 0 if returns do not vary."""
    variance = masked_var(returns, mask)
    unexplained = masked_var(returns - values, mask)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp_min(1e-30), 0.0)


Part = Literal["both", "policy", "value"]
"""Which terms of the loss a step trains."""


class PPOLoss(NamedTuple):
    """Loss of a micro-batch and its terms; all but `total` are detached.

    `policy`, `value`, `kl` and `approx_kl` are sums over tokens divided by the tokens of the whole
    minibatch; `clipped` and `value_clipped` count tokens.  Losses of micro-batches therefore add
    up.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    kl: Tensor
    approx_kl: Tensor
    clipped: Tensor
    value_clipped: Tensor
    ratio_max: Tensor
    ratio_error: Tensor


def surrogate(
    *,
    ratio: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    dual: float = 0.0,
    symmetric: bool = False,
) -> tuple[Tensor, Tensor]:
    """Clipped objective A·ρ of each token, and where the clip is active (no gradient there).

    The minimum of A·ρ and A·clamp(ρ, 1 − low, 1 + high) (Schulman et al. 2017, eq. 7).  For A < 0,
    `dual` > 1 bounds it below by dual · A (Ye et al. 2020, "Mastering complex control", eq. 5);
    `symmetric`, for experiments, takes the maximum instead, which does not stop ρ from falling to
    0.
    """
    gain = advantages * ratio
    clipped = advantages * ratio.clamp(1 - low, 1 + high)
    bounded = torch.minimum(gain, clipped)
    if symmetric:
        bounded = torch.where(advantages < 0, torch.maximum(gain, clipped), bounded)
    elif dual:
        bounded = torch.where(advantages < 0, torch.maximum(bounded, dual * advantages), bounded)
    return bounded, bounded != gain


def value_error(
    *, values: Tensor, old_values: Tensor, returns: Tensor, clip: float, huber: float
) -> tuple[Tensor, Tensor]:
    """Half the squared error of each value, and where the clipped error was larger.

    With `clip`, the maximum of two errors: that of the value, and that of the value clipped to
    within `clip` of its rollout value.  With `huber`, errors above it are penalized linearly.
    """

    def error(guess: Tensor) -> Tensor:
        if huber:
            return huber_loss(guess, returns, reduction="none", delta=huber)
        return (guess - returns).square() / 2

    free = error(values)
    if not clip:
        return free, torch.zeros_like(free, dtype=torch.bool)
    moved = values - old_values
    clipped = error(old_values + moved.clamp(-clip, clip))
    # The first condition, because rounding can make the errors differ.
    return torch.maximum(free, clipped), (moved.abs() > clip) & (clipped > free)


def policy_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    tokens: int,
    config: PPOConfig,
    importance_weights: Tensor | None = None,
    entropy: Tensor | None = None,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
) -> PPOLoss:
    """Clipped policy loss, minus the entropy bonus, plus β · KL.

    `old_logprobs` are from rollout time, without gradient; `entropy` and `kl` are per token, with
    gradient; `importance_weights` multiply each token's objective.  `tokens` counts the sampled
    tokens of the whole minibatch, so that the losses of its micro-batches add up to the mean over
    all tokens.
    (Schulman et al., "Proximal policy optimization algorithms", eq. 7 and 9.)
    """
    # Padding gets ratio 1, so that exp stays finite.
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0)
    ratio = log_ratio.exp()
    gain, clipped = surrogate(
        ratio=ratio,
        advantages=advantages,
        low=config.clip,
        high=config.clip_high or config.clip,
        dual=config.dual_clip,
        symmetric=config.negative_clip == "symmetric",
    )
    policy = -_mean(gain if importance_weights is None else importance_weights * gain, mask, tokens)
    nothing = torch.zeros_like(policy)
    divergence = nothing if kl is None else _mean(kl, mask, tokens)
    bonus = nothing if entropy is None else _mean(entropy, mask, tokens)
    total = policy + kl_coef * divergence - config.entropy_weight * bonus
    with torch.no_grad():
        return PPOLoss(
            total=total,
            policy=policy.detach(),
            value=nothing,
            kl=divergence.detach(),
            approx_kl=_mean(ratio - 1 - log_ratio, mask, tokens),
            clipped=(mask & clipped).sum(),
            value_clipped=nothing,
            ratio_max=ratio.max(),
            ratio_error=(ratio - 1).abs().max(),
        )


def value_loss(
    *,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    tokens: int,
    config: PPOConfig,
) -> PPOLoss:
    """The value loss: squared error times `value_weight` (0.1); `old_values` are from rollout time.

    It is clipped if `value_clip` is above 0 (default 0.2), and linear beyond `value_huber` (off).
    """
    error, clipped = value_error(
        values=values,
        old_values=old_values,
        returns=returns,
        clip=config.value_clip,
        huber=config.value_huber,
    )
    value = _mean(error, mask, tokens)
    nothing = torch.zeros_like(value).detach()
    return PPOLoss(
        total=config.value_weight * value,
        policy=nothing,
        value=value.detach(),
        kl=nothing,
        approx_kl=nothing,
        clipped=nothing,
        value_clipped=(mask & clipped).sum(),
        ratio_max=nothing,
        ratio_error=nothing,
    )


def joint_loss(policy: PPOLoss, value: PPOLoss) -> PPOLoss:
    """The sum of both losses."""
    return policy._replace(
        total=policy.total + value.total, value=value.value, value_clipped=value.value_clipped
    )


def _mean(x: Tensor, mask: Tensor, tokens: int) -> Tensor:
    return torch.where(mask, x, 0).sum() / tokens
