"""From texts to per-token rewards: the reward callable's scores, scaled, minus all penalties.

`Rewarder.score` calls the reward.  `Rewarder.shape` does everything after that, in this order:
scale the scores (`ppo.score_scaling`, default none), clip them (`ppo.score_clip`, off), subtract
the missing-EOS penalty (1), subtract the KL penalty (`ppo.kl_weight`), and whiten the per-token
rewards (`ppo.whiten_rewards`, off).  The formula is `shape_rewards` in algorithm.py; `KLController`
adapts the weight of the KL penalty, β.  Advantages are whitened later (`compute_advantages`, on by
default).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.ppo.algorithm import next_token, shape_rewards, whiten, whitening_scale
from pipeline.ppo.batch import Batch
from pipeline.ppo.checks import (
    MAX_SCORE,
    Reward,
    check_components,
    check_reward,
    check_weights,
    named_scores,
)
from pipeline.ppo.config import PPOConfig


class Decoder:
    """Turns response tokens into the text that the reward reads, without special tokens."""

    def __init__(self, tokenizer: Any, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_token_ids)
        self._unseen: dict[int, bool] = {}

    def text(self, tokens: Sequence[int]) -> str:
        """The text of one response."""
        return self._decode(self._body(tokens))

    def unseen_share(self, responses: Sequence[Sequence[int]]) -> float:
        """Share of sampled tokens that decode to nothing.

        An end-of-text that ends its response counts as a token that the reward sees.
        """
        unseen = sum(self._decodes_to_nothing(t) for r in responses for t in self._body(r))
        return unseen / sum(map(len, responses))

    def _body(self, tokens: Sequence[int]) -> list[int]:
        # A token that ends responses need not be a special token of the tokenizer.
        return list(tokens[:-1] if tokens[-1] in self._eos else tokens)

    def _decodes_to_nothing(self, token: int) -> bool:
        if token not in self._unseen:
            # The token is doubled, because some tokenizers drop a leading space.
            self._unseen[token] = not self._decode([token, token])
        return self._unseen[token]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


class RunningMoments:
    """Mean and standard deviation of all scores so far (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def update(self, x: Tensor) -> None:
        """Add a (B,) batch."""
        x = x.double()
        count = self.count + len(x)
        mean = x.mean().item()
        shift = mean - self.mean
        self.squares += (x - mean).square().sum().item()
        self.squares += shift**2 * self.count * len(x) / count
        self.mean += shift * len(x) / count
        self.count = count

    @property
    def std(self) -> float:
        return (self.squares / self.count) ** 0.5 if self.count else 1.0


def scale_scores(
    scores: Tensor, *, ended: Tensor, moments: RunningMoments, config: PPOConfig
) -> Tensor:
    """The (B,) scores: standardized, then clipped, then minus the missing-EOS penalty.

    The penalty comes last, so that neither the scale nor the clip changes it.  `ended` (B,) is
    True where end-of-text was sampled; `moments` include this batch.
    """
    if config.score_scaling == "batch":
        scores = (scores - scores.mean()) / (scores.std(correction=0) + 1e-8)
    elif config.score_scaling == "running":
        scores = (scores - moments.mean) / (moments.std + 1e-8)
    if config.score_clip:
        scores = scores.clamp(-config.score_clip, config.score_clip)
    return scores - config.missing_eos_penalty * (~ended)


@dataclass(frozen=True, kw_only=True)
class RewardScores:
    """Scores of B responses: the weighted total (B,), and each component's by name."""

    total: Tensor
    components: dict[str, list[float]]


class KLController:
    """β, fixed or adapted so that the KL to the reference approaches a target.

    After n responses with KL k: β ← β · (1 + clip(k / target − 1, ±.2) · n / horizon), within its
    bounds.  (Ziegler et al. 2019, "Fine-tuning language models from human preferences", 2.2.)
    """

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        self.kl_coef = config.kl_weight

    def update(self, kl: float, responses: int) -> None:
        config = self.config
        if config.kl_control == "fixed":
            return
        error = min(max(kl / config.kl_target - 1, -0.2), 0.2)
        kl_coef = self.kl_coef * (1 + error * responses / config.kl_horizon)
        self.kl_coef = min(max(kl_coef, config.kl_weight_min), config.kl_weight_max)


class Rewarder:
    """Owns the reward callable, β and the running moments of the scores."""

    def __init__(
        self,
        reward: Reward,
        config: PPOConfig,
        *,
        weights: Mapping[str, float] | None,
        device: torch.device,
    ) -> None:
        self.reward = reward
        self.config = config
        self.weights = check_weights(weights or {})
        self.components: list[str] | None = None
        self.device = device
        self.kl_controller = KLController(config)
        self.moments = RunningMoments()

    def check(self) -> None:
        """Call the reward once, to detect a broken one before sampling."""
        self._accept(check_reward(self.reward))

    def _accept(self, components: Mapping[str, Any]) -> None:
        check_components(self.weights, components, self.components)
        self.components = list(components)

    def score(self, prompts: Sequence[int], texts: list[str]) -> RewardScores:
        """Call the reward on the texts."""
        components = named_scores(self.reward(list(prompts), list(texts)), texts)
        self._accept(components)
        weighted = [
            torch.tensor(values, dtype=torch.float64) * self.weights.get(name, 1.0)
            for name, values in components.items()
        ]
        total = torch.stack(weighted).sum(0)
        if not (total.abs() <= MAX_SCORE).all():
            raise ValueError(
                "a weighted score is too large for float32; lower reward_weights or the scores"
            )
        return RewardScores(total=total.float().to(self.device), components=components)

    def shape(self, batch: Batch) -> None:
        """Add per-token rewards to a batch that has scores and log-probabilities.

        Normalizes the scores and subtracts the penalties.
        """
        config, mask, scores = self.config, batch.mask, batch.scores
        batch.log_ratio = torch.where(mask, batch.old_logprobs - batch.ref_logprobs, 0)
        # With estimator k2 the reward has k1, which is unbiased; k2 itself is in the loss.
        batch.kl = batch.log_ratio
        if batch.exact_kl is not None:
            batch.kl = torch.where(mask, batch.exact_kl, 0)
        # If a token's own divergence is in the loss, its reward has only the next token's.
        charged = (
            config.gamma * next_token(batch.kl, mask) if config.charges_kl_in_loss else batch.kl
        )
        self.moments.update(scores)
        ended = torch.tensor([reason == "stop" for reason in batch.finish_reasons])
        batch.token_rewards = shape_rewards(
            scores=scale_scores(
                scores, ended=ended.to(scores.device), moments=self.moments, config=config
            ),
            kl=charged,
            mask=mask,
            kl_coef=self.kl_controller.kl_coef,
        )
        batch.reward_scale = 1.0
        if config.whiten_rewards:
            batch.reward_scale = whitening_scale(batch.token_rewards, mask).item()
            batch.token_rewards = whiten(batch.token_rewards, mask, shift_mean=False)

    def outcomes(self, batch: Batch) -> Tensor:
        """(B,) what the responses of a group differ by: the score, before scaling, minus all penalties."""
        unfinished = torch.tensor([reason != "stop" for reason in batch.finish_reasons])
        log_ratio = torch.where(batch.mask, batch.old_logprobs - batch.ref_logprobs, 0)
        penalty = self.config.missing_eos_penalty * unfinished.to(batch.scores)
        return batch.scores - penalty - self.kl_controller.kl_coef * log_ratio.sum(1)

    def state_dict(self) -> dict[str, Any]:
        return {"kl_weight": self.kl_controller.kl_coef, "moments": vars(self.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl_controller.kl_coef = state["kl_weight"]
        vars(self.moments).update(state["moments"])
