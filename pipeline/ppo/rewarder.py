"""What a response is paid: the callable's scores, scaled, less penalties and the KL charge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
from pipeline.ppo.functional import kl_per_token, shape_rewards, whiten
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
    """Rewards (B, T), with the log-ratio and the KL estimate they are made from; 0 on padding."""

    rewards: Tensor
    log_ratio: Tensor
    kl: Tensor


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
        kl = scored.kl
        if kl is None:
            kl = kl_per_token(
                logprobs=rollout.logprobs,
                reference_logprobs=scored.reference_logprobs,
                estimator=config.kl_estimator,
            )
        self.moments.update(scores)
        ended = torch.tensor([reason == "stop" for reason in rollout.finish_reasons])
        paid = scale_scores(
            scores, ended=ended.to(scores.device), moments=self.moments, config=config
        )
        in_reward = self.kl_controller.weight if config.kl_in == "reward" else 0.0
        rewards = shape_rewards(scores=paid, kl=kl, mask=mask, kl_weight=in_reward)
        if config.whiten_rewards:
            rewards = whiten(rewards, mask, shift_mean=False)
        log_ratio = rollout.logprobs - scored.reference_logprobs
        return Paid(
            rewards=rewards,
            log_ratio=torch.where(mask, log_ratio, 0),
            kl=torch.where(mask, kl, 0),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"kl_weight": self.kl_controller.weight, "moments": vars(self.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl_controller.weight = state["kl_weight"]
        vars(self.moments).update(state["moments"])
