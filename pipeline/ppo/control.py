"""The small state machines beside the weights: β, running moments, prompt order, learning rate."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.metrics import reward_fell, samples_of_another

MISMATCHED = "sampler_mismatch"
"""The reason to stop that is a defect; the others end a run that is worth keeping."""

_SEPARATE_CRITIC_RATE = 10
"""How many times the policy's learning rate a separate critic takes unless told otherwise."""


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


class Rates(NamedTuple):
    """Learning rates of one update: of the policy, and of a separate critic or the value head."""

    policy: float
    critic: float


def learning_rates(config: PPOConfig, step: int) -> Rates:
    """Rates of update `step`, counted from 0: a pure function, so a resume needs no state."""
    times = _SEPARATE_CRITIC_RATE if config.critic == "separate" else 1
    peak = config.critic_lr or times * config.lr
    share = 1.0 if config.schedule == "constant" else 1 - step / config.updates
    return Rates(config.lr * share, peak * share)


def reason_to_stop(config: PPOConfig, history: Sequence[Mapping[str, float]]) -> str | None:
    """Why the run ends after the last of these updates, or None where it goes on."""
    metrics = history[-1]
    if samples_of_another(metrics["rollout/mismatch_kl"]):
        return MISMATCHED
    if config.kl_budget and metrics["kl/reference"] > config.kl_budget:
        return "kl_budget"
    if config.reward_collapse and reward_fell(history, config.reward_collapse):
        return "reward_collapse"
    return None


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
