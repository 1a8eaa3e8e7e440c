"""From texts to rewards: the callable's scores, scaled, less penalties and the KL penalty.

Beside the weights a run keeps a few numbers, all of them here: β, the moments of all scores, the
mean returns of prompt categories.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.ppo.algorithm import gae, next_token, shape_rewards, whiten, whitening_scale
from pipeline.ppo.batch import Batch, RewardScores, TokenRewards
from pipeline.ppo.checks import (
    LARGEST,
    Reward,
    check_components,
    check_reward,
    check_weights,
    named_scores,
)
from pipeline.ppo.config import PPOConfig


class Decoder:
    """Turns response tokens into the text that the reward reads.

    Special tokens are left out, as is the one that ends the response.
    """

    def __init__(self, tokenizer: Any, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_token_ids)
        self._unseen: dict[int, bool] = {}

    def text(self, tokens: Sequence[int]) -> str:
        """The text of one response."""
        return self._decode(self._body(tokens))

    def unseen_share(self, responses: Sequence[Sequence[int]]) -> float:
        """Share of sampled tokens that leave nothing in the text.

        An end-of-text that ended its response counts among the sampled tokens, and as seen: the
        response's length and `finish_reason` tell of it.
        """
        unseen = sum(self._leaves_nothing(t) for r in responses for t in self._body(r))
        return unseen / sum(map(len, responses))

    def _body(self, tokens: Sequence[int]) -> list[int]:
        # An id that ends a response need not be special to the tokenizer.
        return list(tokens[:-1] if tokens[-1] in self._eos else tokens)

    def _leaves_nothing(self, token: int) -> bool:
        if token not in self._unseen:
            # Twice, since some tokenizers drop a space at the beginning of a text.
            self._unseen[token] = not self._decode([token, token])
        return self._unseen[token]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


class KLController:
    """β, fixed or steered so that the KL to the reference approaches a target.

    After n responses with KL k: β ← β · (1 + clip(k / target − 1, ±.2) · n / horizon),
    held within its bounds.  (Ziegler et al. 2019, "Fine-tuning language models
    from human preferences", section 2.2.)
    """

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        self.weight = config.kl_weight

    def update(self, kl: float, responses: int) -> None:
        config = self.config
        if config.kl_control == "fixed":
            return
        error = min(max(kl / config.kl_target - 1, -0.2), 0.2)
        weight = self.weight * (1 + error * responses / config.kl_horizon)
        self.weight = min(max(weight, config.kl_weight_min), config.kl_weight_max)


class RunningMoments:
    """Mean and population variance of all scores seen so far (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0

    def update(self, x: Tensor) -> None:
        """Take in a (B,) batch."""
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
    """The (B,) scores as they are rewarded: standardised, then clipped, then less the missing-EOS penalty.

    The penalty comes last, so that it means the same at every scale and a clip
    cannot hide it.  `ended` (B,) is True where end-of-text was sampled; `moments` has
    taken in this batch already.
    """
    match config.score_scaling:
        case "batch":
            scores = (scores - scores.mean()) / (scores.std(correction=0) + 1e-8)
        case "running":
            scores = (scores - moments.mean) / (moments.std + 1e-8)
        case _:
            pass
    if config.score_clip:
        scores = scores.clamp(-config.score_clip, config.score_clip)
    return scores - config.missing_eos_penalty * (~ended)


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

    def score(self, prompts: Sequence[int], texts: list[str]) -> RewardScores:
        """Call the reward on the texts."""
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
        return RewardScores(
            total=total.float().to(self.device),
            components=components,
            texts=texts,
        )

    def shape(self, batch: Batch) -> TokenRewards:
        """Turn (B,) scores into rewards per token."""
        config, mask, scores = self.config, batch.mask, batch.scores.total
        log_ratio = torch.where(mask, batch.old_logprobs - batch.ref_logprobs, 0)
        # The divergence itself, exact or by its unbiased estimate k1: what k2 estimates without
        # bias is its gradient, and that is in the loss.
        kl = log_ratio if batch.exact_kl is None else torch.where(mask, batch.exact_kl, 0)
        self.moments.update(scores)
        ended = torch.tensor([reason == "stop" for reason in batch.finish_reasons])
        token_rewards = shape_rewards(
            scores=scale_scores(
                scores, ended=ended.to(scores.device), moments=self.moments, config=config
            ),
            # The loss charges a token's own divergence: its reward holds only what follows it.
            kl=config.gamma * next_token(kl, mask) if config.charges_kl_in_loss else kl,
            mask=mask,
            kl_weight=self.kl_controller.weight,
        )
        scale = 1.0
        if config.whiten_rewards:
            scale = whitening_scale(token_rewards, mask).item()
            token_rewards = whiten(token_rewards, mask, shift_mean=False)
        return TokenRewards(token_rewards=token_rewards, log_ratio=log_ratio, kl=kl, scale=scale)

    def state_dict(self) -> dict[str, Any]:
        return {"kl_weight": self.kl_controller.weight, "moments": vars(self.moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl_controller.weight = state["kl_weight"]
        vars(self.moments).update(state["moments"])


class CategoryMeans:
    """Running mean return of each prompt category: a baseline that knows the prompt's kind only."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}
        """Category to [how many returns, their mean]."""

    def baseline(self, categories: Sequence[str], returns: Tensor) -> Tensor:
        """(B,) means before this batch; a category seen first has that of this batch."""
        fresh: dict[str, list[float]] = {}
        for category, value in zip(categories, returns.tolist(), strict=True):
            fresh.setdefault(category, []).append(value)
        before = {
            name: self.sums[name][1] if name in self.sums else sum(values) / len(values)
            for name, values in fresh.items()
        }
        for name, values in fresh.items():
            count, mean = self.sums.get(name, [0.0, 0.0])
            total = count + len(values)
            self.sums[name] = [total, mean + (sum(values) - len(values) * mean) / total]
        return returns.new_tensor([before[category] for category in categories])


class Baseline:
    """What returns are compared with; owns the running means of the prompts' categories."""

    def __init__(self, config: PPOConfig, categories: Sequence[str]) -> None:
        self.config = config
        self.categories = categories
        self.category_means = CategoryMeans()

    def __call__(self, batch: Batch) -> Tensor:
        """(B, T) the critic's values, or what stands in for them at each token."""
        if self.config.baseline == "critic":
            assert batch.values is not None
            return batch.values
        mask, rewards = batch.mask, batch.rewards.token_rewards
        zeros = torch.zeros_like(rewards)
        if self.config.baseline == "return_to_go":
            return zeros
        _, returns = gae(rewards=rewards, values=zeros, mask=mask, gamma=self.config.gamma, lam=1.0)
        categories = [self.categories[index] for index in batch.prompt_indices]
        means = self.category_means.baseline(categories, returns[:, 0])
        return torch.where(mask, means.unsqueeze(1), 0)
