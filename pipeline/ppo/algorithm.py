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


Part = Literal["both", "policy", "value"]
"""Which terms of the loss a step trains."""


class PPOLoss(NamedTuple):
    """Loss of a micro-batch and its terms; all but `total` are detached.

    `policy` and `kl` are sums as `PolicyMean` weights them, `value` and `approx_kl` sums over tokens
    divided by the tokens of the whole minibatch; `clipped` and `value_clipped` count tokens.  Losses
    of micro-batches therefore add up.
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


def response_ratio(log_ratio: Tensor) -> Tensor:
    """π / π_old of each whole response, at each of its tokens: (B, T) of (B, T) log-ratios, 0 on padding.

    The response is then a single action, as in RLOO (Ahmadian et al. 2024, arXiv:2402.14740).
    """
    return log_ratio.sum(1, keepdim=True).exp().expand_as(log_ratio)


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


class MinibatchSize(NamedTuple):
    """Sampled tokens and responses of a whole minibatch, over all micro-batches and processes."""

    tokens: int
    responses: int


def policy_mean(x: Tensor, mask: Tensor, size: MinibatchSize, config: PPOConfig) -> Tensor:
    """A micro-batch's part of the mean of `x` (B, T) that `config.loss_mean` selects.

    token: every token counts alike, and long responses more (DAPO, arXiv:2503.14476, eq. 8).
    response: the mean over responses of the mean over their tokens, so a token of a long response
    counts less (GRPO, Shao et al. 2024, arXiv:2402.03300, eq. 3).  constant: like token, but the
    denominator does not depend on the sampled lengths (Dr. GRPO, Liu et al. 2025,
    arXiv:2503.20783).
    """
    if config.loss_mean == "token":
        return _mean(x, mask, size.tokens)
    if config.loss_mean == "constant":
        return _mean(x, mask, size.responses * config.max_new_tokens)
    return _mean(x / mask.sum(1, keepdim=True).clamp_min(1), mask, size.responses)


def policy_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    size: MinibatchSize,
    config: PPOConfig,
    importance_weights: Tensor | None = None,
    entropy: Tensor | None = None,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
) -> PPOLoss:
    """Clipped policy loss, minus the entropy bonus, plus β · KL.

    `old_logprobs` are from rollout time, without gradient; `entropy` and `kl` are per token, with
    gradient; `importance_weights` multiply each token's objective.  `size` is that of the whole
    minibatch, so that the losses of its micro-batches add up to the mean over it (`policy_mean`).
    (Schulman et al., "Proximal policy optimization algorithms", eq. 7 and 9.)
    """
    # Padding gets ratio 1, so that exp stays finite.
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0)
    ratio = log_ratio.exp()
    gain, clipped = surrogate(
        ratio=ratio if config.ratio_level == "token" else response_ratio(log_ratio),
        advantages=advantages,
        low=config.clip,
        high=config.clip_high or config.clip,
        dual=config.dual_clip,
        symmetric=config.negative_clip == "symmetric",
    )
    weighted = gain if importance_weights is None else importance_weights * gain
    policy = -policy_mean(weighted, mask, size, config)
    nothing = torch.zeros_like(policy)
    divergence = nothing if kl is None else policy_mean(kl, mask, size, config)
    bonus = nothing if entropy is None else policy_mean(entropy, mask, size, config)
    total = policy + kl_coef * divergence - config.entropy_weight * bonus
    with torch.no_grad():
        return PPOLoss(
            total=total,
            policy=policy.detach(),
            value=nothing,
            kl=divergence.detach(),
            approx_kl=_mean(ratio - 1 - log_ratio, mask, size.tokens),
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
