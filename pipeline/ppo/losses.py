"""The PPO loss: clipped surrogate, clipped value error, entropy bonus and KL as a loss.

Tensors are (B, T) as in `functional`: what stands under a False mask never changes a result.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from pipeline.ppo.config import PPOConfig

Part = Literal["both", "policy", "value"]
"""Which terms a step trains: all, all but the value error, or that alone."""


class PPOLoss(NamedTuple):
    """Loss of a micro-batch and what it was made of; all but `total` are detached.

    `policy`, `value`, `kl` and `approx_kl` are sums over tokens divided by `tokens`;
    `clipped` and `value_clipped` count tokens.  So each of them may be added over the
    micro-batches of a minibatch.
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
    """Gain A·ρ of each token, bounded, and where a bound holds it (no gradient passes there).

    The pessimistic bound takes whichever of A·ρ and A·clamp(ρ, 1 − low, 1 + high) promises
    less (Schulman et al. 2017, eq. 7).  For A < 0 it lets a large ρ lose without limit; `dual`
    > 1 stops that at dual · A (Ye et al. 2020, "Mastering complex control", eq. 5).
    `symmetric` takes the larger for A < 0 instead: then nothing stops ρ from falling to 0.
    """
    gain = advantages * ratio
    held = advantages * ratio.clamp(1 - low, 1 + high)
    bounded = torch.minimum(gain, held)
    if symmetric:
        bounded = torch.where(advantages < 0, torch.maximum(gain, held), bounded)
    elif dual:
        bounded = torch.where(advantages < 0, torch.maximum(bounded, dual * advantages), bounded)
    return bounded, bounded != gain


def value_error(
    *, values: Tensor, old_values: Tensor, returns: Tensor, clip: float, huber: float
) -> tuple[Tensor, Tensor]:
    """Half the squared error of each value, and where the clipped error was the worse one.

    With `clip`, the worse of the error as it is and of the error had the value moved at most
    `clip` from its rollout value.  With `huber`, errors beyond it count linearly.
    """

    def error(guess: Tensor) -> Tensor:
        if huber:
            return huber_loss(guess, returns, reduction="none", delta=huber)
        return (guess - returns).square() / 2

    free = error(values)
    if not clip:
        return free, torch.zeros_like(free, dtype=torch.bool)
    moved = values - old_values
    held = error(old_values + moved.clamp(-clip, clip))
    # Rounding alone makes the held value differ, hence the first condition.
    return torch.maximum(free, held), (moved.abs() > clip) & (held > free)


def policy_loss(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    tokens: int,
    config: PPOConfig,
    importance: Tensor | None = None,
    entropy: Tensor | None = None,
    kl: Tensor | None = None,
    kl_weight: float = 0.0,
) -> PPOLoss:
    """Clipped policy objective, less the entropy bonus, plus β · KL.

    `old_logprobs` were recorded at rollout time and carry no gradient; `entropy` and `kl` are
    per token and carry one; `importance` weighs each token's gain.  `tokens` is the number of
    sampled tokens in the whole minibatch, of which this may be a part: dividing by it makes the
    sum over parts the mean over all tokens, where a mean of means would weigh a token by the
    company it keeps.
    (Schulman et al., "Proximal policy optimization algorithms", eq. 7 and 9.)
    """
    # Padding carries no log-probability; a ratio of 1 there keeps exp finite.
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
    policy = -_mean(gain if importance is None else importance * gain, mask, tokens)
    nothing = torch.zeros_like(policy)
    divergence = nothing if kl is None else _mean(kl, mask, tokens)
    bonus = nothing if entropy is None else _mean(entropy, mask, tokens)
    total = policy + kl_weight * divergence - config.entropy_weight * bonus
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
    """Clipped value error times its weight; `old_values` were recorded at rollout time."""
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


def joined(policy: PPOLoss, value: PPOLoss) -> PPOLoss:
    """One loss of the two."""
    return policy._replace(
        total=policy.total + value.total, value=value.value, value_clipped=value.value_clipped
    )


def _mean(x: Tensor, mask: Tensor, tokens: int) -> Tensor:
    return torch.where(mask, x, 0).sum() / tokens
