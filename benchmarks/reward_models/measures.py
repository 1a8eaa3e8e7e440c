"""Measures of a reward model on prompts that it did not learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch

from benchmarks.demo_world import ANSWERS, Fitted, People, World
from pipeline.models.text import ChatTokenizer
from pipeline.reward.likelihood import FIRST, TIE, preference_logit
from pipeline.reward.quality.metrics import expected_calibration_error
from pipeline.simulation.annotators import population

STRANGERS, JUDGMENTS = 50, 2
"""Number of careful annotators who judge held-out pairs, and judgments per pair."""
SCALES = np.geomspace(0.05, 5, 201)


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """Preferences on held-out pairs, (N,): indices of the answers, and whether the first won."""

    first: np.ndarray
    second: np.ndarray
    won: np.ndarray

    @classmethod
    def judged(cls, world: World, chat: ChatTokenizer) -> Fresh:
        """Preferences by careful annotators who labeled no training data."""
        start = world.held_out_answers().start
        careful = population(STRANGERS, bad=0.0, seed=1_000_000 + world.seed)
        pairs = [
            pair
            for prompt in range(world.held_out, len(world.texts) // ANSWERS)
            for pair in combinations(world.answers(prompt), 2)
            if world.differ(pair, chat)
        ]
        said = [
            People(world, careful, stream=10 + time).label(*pair)
            for time in range(JUDGMENTS)
            for pair in pairs
        ]
        stated = [label for label in said if label.outcome < TIE]
        return cls(
            first=np.array([label.first - start for label in stated]),
            second=np.array([label.second - start for label in stated]),
            won=np.array([float(label.outcome == FIRST) for label in stated]),
        )


def measured(fitted: Fitted, world: World, fresh: Fresh) -> dict[str, float]:
    """The figures of every arm, as described in `benchmarks.reward_models.__main__`."""
    start, network = world.held_out_answers().start, fitted.model.network
    rewards = np.array(fitted.model(world.conversations[start:], world.texts[start:]))
    gold = world.gold[start:]
    means, gold_means = (each.reshape(-1, ANSWERS).mean(1) for each in (rewards, gold))
    d = rewards[fresh.first] - rewards[fresh.second]
    theta = network.ties().item()
    stated = preferred(network, d, theta)
    trained = preferred(network, d / fitted.scale, theta / fitted.threshold_scale)
    best = min(
        SCALES, key=lambda factor: log_loss(preferred(network, factor * d, theta), fresh.won)
    )
    return {
        "accuracy": world.accuracy(rewards),
        "log_loss": log_loss(stated, fresh.won),
        "ece": expected_calibration_error(stated.tolist(), fresh.won.tolist()),
        "trained_log_loss": log_loss(trained, fresh.won),
        "trained_ece": expected_calibration_error(trained.tolist(), fresh.won.tolist()),
        "scale": fitted.scale,
        "best_scale": float(best) * fitted.scale,
        "correlation": float(np.corrcoef(rewards, gold)[0, 1]),
        "prompt_correlation": float(np.corrcoef(means, gold_means)[0, 1]),
        "best_of_4": best_of_four(rewards, gold),
    }


def best_of_four(rewards: np.ndarray, gold: np.ndarray) -> float:
    """Gold of each prompt's answer with the highest reward, over the mean of its four answers."""
    best = rewards.reshape(-1, ANSWERS).argmax(1)
    by_prompt = gold.reshape(-1, ANSWERS)
    return float((by_prompt[np.arange(len(best)), best] - by_prompt.mean(1)).mean())


def preferred(network: Any, d: np.ndarray, theta: float) -> np.ndarray:
    """(N,) probabilities that a preference is for the first, from (N,) reward differences."""
    logit = preference_logit(torch.from_numpy(d), theta, network.likelihood.tie_model)
    return torch.sigmoid(logit).numpy()


def log_loss(stated: np.ndarray, won: np.ndarray) -> float:
    """Mean negative log-probability of the outcomes, nats."""
    return float(-np.log(np.where(won == 1, stated, 1 - stated)).mean())


def auc(merits: Mapping[str, float], profiles: Mapping[str, str]) -> float:
    """The probability that a careful annotator ranks above a bad one; ties count half."""
    careful, bad = (
        np.array([merit for id, merit in merits.items() if (profiles[id] == "careful") == wanted])
        for wanted in (True, False)
    )
    more = careful[:, None] - bad
    return float(((more > 0) + (more == 0) / 2).mean())
