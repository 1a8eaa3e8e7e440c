"""The small state machines beside the weights: β, running moments, prompt order, learning rate."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.ppo.config import PPOConfig


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


class PromptSampler:
    """Deals prompt indices in shuffled rounds, each prompt once a round.

    A batch may span rounds, so it can be larger than the number of prompts.
    """

    def __init__(self, prompts: int, generator: torch.Generator) -> None:
        self.prompts = prompts
        self.generator = generator
        self.order: list[int] = []
        self.cursor = 0

    def draw(self, count: int) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < count:
            if self.cursor == len(self.order):
                self.order = torch.randperm(self.prompts, generator=self.generator).tolist()
                self.cursor = 0
            taken = self.order[self.cursor : self.cursor + count - len(drawn)]
            self.cursor += len(taken)
            drawn += taken
        return drawn

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.cursor = list(state["order"]), state["cursor"]


def learning_rate(config: PPOConfig, step: int) -> float:
    """Learning rate of update `step`, counted from 0: a pure function, so a resume needs no state."""
    if config.schedule == "constant":
        return config.lr
    return config.lr * (1 - step / config.updates)


def scale_scores(
    scores: Tensor, *, ended: Tensor, moments: RunningMoments, config: PPOConfig
) -> Tensor:
    """The (B,) scores that are paid: standardised, then clipped, then less the missing-EOS penalty.

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
