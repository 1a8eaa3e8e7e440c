"""What a response is paid: the callable's scores, scaled, less penalties and the KL charge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.ppo.algorithm import next_token, shape_rewards, whiten, whitening_scale
from pipeline.ppo.checks import (
    LARGEST,
    Reward,
    check_components,
    check_reward,
    check_weights,
    named_scores,
)
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.control import KLController, RunningMoments, scale_scores
from pipeline.ppo.learner import Scored
from pipeline.ppo.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Weighted scores (B,) of the responses, each component's, and the texts scored."""

    total: Tensor
    components: dict[str, list[float]]
    texts: list[str]


@dataclass(frozen=True, kw_only=True)
class Paid:
    """Rewards (B, T), with the log-ratio and the KL they are made from; 0 on padding.

    `scale` is what whitening multiplied the rewards by, 1 without.
    """

    rewards: Tensor
    log_ratio: Tensor
    kl: Tensor
    scale: float


class Rewarder:
    """Owns the reward callable, β and the moments of all scores seen."""

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
        """Call the reward once, so that a broken one is found before anything is sampled."""
        self._accept(check_reward(self.reward))

    def _accept(self, components: Mapping[str, Any]) -> None:
        check_components(self.weights, components, self.components)
        self.components = list(components)

    def score(self, prompts: Sequence[int], texts: list[str]) -> Scores:
        """Ask the reward what each text is worth."""
        components = named_scores(self.reward(list(prompts), list(texts)), texts)
        self._accept(components)
        weighted = [
            torch.tensor(values, dtype=torch.float64) * self.weights.get(name, 1.0)
            for name, values in components.items()
        ]
        total = torch.stack(weighted).sum(0)
        if not (total.abs() <= LARGEST).all():
            raise ValueError(
                "a weighted score is too large for float32; lower reward_weights or the scores"
            )
        return Scores(
            total=total.float().to(self.device),
            components=components,
            texts=texts,
        )

    def pay(self, rollout: Rollout, scored: Scored, scores: Tensor) -> Paid:
        """Turn (B,) scores into rewards per token."""
        config, mask = self.config, rollout.mask
        log_ratio = torch.where(mask, rollout.logprobs - scored.reference_logprobs, 0)
        # The divergence itself, exact or by its unbiased estimate k1: what k2 estimates without
        # bias is its gradient, and that is in the loss.
        kl = log_ratio if scored.kl is None else torch.where(mask, scored.kl, 0)
        self.moments.update(scores)
        ended = torch.tensor([reason == "stop" for reason in rollout.finish_reasons])
        paid = scale_scores(
            scores, ended=ended.to(scores.device), moments=self.moments, config=config
        )
        rewards = shape_rewards(
            scores=paid,
            # The loss charges a token's own divergence: its reward holds only what follows it.
            kl=config.gamma * next_token(kl, mask) if config.charges_kl_in_loss else kl,
            mask=mask,
            kl_weight=self.kl_controller.weight,
        )
        scale = 1.0
        if config.whiten_rewards:
            scale = whitening_scale(rewards, mask).item()
            rewards = whiten(rewards, mask, shift_mean=False)
        return Paid(rewards=rewards, log_ratio=log_ratio, kl=kl, scale=scale)

    def state_dict(self) -> dict[str, Any]:
        return {"kl_weight": self.kl_controller.weight, "moments": vars(self.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl_controller.weight = state["kl_weight"]
        vars(self.moments).update(state["moments"])
