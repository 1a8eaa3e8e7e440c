"""Judgments of the reference's answers, read under the distribution of a policy.

The policy is best-of-4 of the reference under a reward model that learned from two thirds of the
labels.  Drawn with replacement from a prompt's four answers, the answer with rank k of 4 is chosen with
probability p(k) = (k⁴ − (k − 1)⁴) / 4⁴ (k = 4 is the best), so its density relative to the reference
is 4 p(k).  The other labels are pairs of the policy's answers.  OCRM (arXiv:2507.15507) weights earlier
judgments by these densities; here they are resampled with the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.demo_world import ANSWERS, Fitted, People, World, judged_pair
from benchmarks.reward_models.arms import Weighting
from benchmarks.reward_models.measures import best_of_four
from pipeline.config.reward import RewardConfig
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair
from pipeline.simulation.annotators import SimulatedAnnotator

EARLIER = 2 / 3
"""Share of the labels that are of the reference's answers."""


def after_a_policy(
    weighting: Weighting,
    people: Sequence[SimulatedAnnotator],
    world: World,
    config: RewardConfig,
    labels: int,
    chat: ChatTokenizer,
) -> dict[str, Any]:
    """Figures of a reward model that learned from judgments of the reference and of the policy."""
    asked = People(world, people)
    pairs = world.random_pairs(round(EARLIER * labels), chat)
    earlier = [
        judged_pair(world, asked.label(*pair), place, chat) for place, pair in enumerate(pairs)
    ]
    first = Fitted.to(earlier, chat, config, seed=world.seed)
    density = densities(first, world)
    drawn = policy_pairs(world, density, labels - len(earlier), set(pairs), chat)
    recent = [
        judged_pair(world, asked.label(*pair), len(earlier) + place, chat)
        for place, pair in enumerate(drawn)
    ]
    if weighting == "weighted":
        earlier = resampled(earlier, density, world.seed)
    learned = recent if weighting == "recent" else [*earlier, *recent]
    fitted = Fitted.to(learned, chat, config, seed=world.seed)
    return policy_figures(fitted, world, density) | {
        "epochs": round(fitted.epochs, 2),
        "cpu_seconds": fitted.cpu_seconds,
        "effective": effective_number(pairs, density),
    }


def densities(fitted: Fitted, world: World) -> np.ndarray:
    """(answers,) density of the policy relative to the reference."""
    rewards = np.array(fitted.model(world.conversations, world.texts)).reshape(-1, ANSWERS)
    rank = rewards.argsort(axis=1).argsort(axis=1) + 1
    return ((rank**ANSWERS - (rank - 1) ** ANSWERS) / ANSWERS ** (ANSWERS - 1)).ravel()


def policy_pairs(
    world: World,
    density: np.ndarray,
    count: int,
    known: set[tuple[int, int]],
    chat: ChatTokenizer,
) -> list[tuple[int, int]]:
    """`count` pairs of different answers that the policy gives, to labeled prompts in random order."""
    coin = np.random.default_rng([world.seed, 8])
    found: list[tuple[int, int]] = []
    for prompt in coin.permutation(world.held_out).tolist():
        open_pairs = [
            pair
            for pair in combinations(world.answers(prompt), 2)
            if pair not in known and world.differ(pair, chat)
        ]
        if open_pairs and len(found) < count:
            found.append(open_pairs[coin.choice(len(open_pairs), p=shares(open_pairs, density))])
    if len(found) < count:
        raise ValueError(f"there are only {len(found)} prompts to label, not {count}")
    return found


def shares(pairs: Sequence[tuple[int, int]], density: np.ndarray) -> np.ndarray:
    """(pairs,) the policy's probabilities of pairs of one prompt."""
    weights = np.array([density[a] * density[b] for a, b in pairs])
    return weights / weights.sum()


def resampled(pairs: Sequence[JudgedPair], density: np.ndarray, seed: int) -> list[JudgedPair]:
    """As many judgments, drawn with replacement by the density of their answers."""
    weights = shares([(int(pair.first), int(pair.second)) for pair in pairs], density)
    drawn = np.random.default_rng([seed, 9]).choice(len(pairs), size=len(pairs), p=weights)
    return [replace(pairs[n], judgment=f"{pairs[n].judgment}-{k}") for k, n in enumerate(drawn)]


def effective_number(pairs: Sequence[tuple[int, int]], density: np.ndarray) -> float:
    """(Σ w)² / Σ w²: the number of judgments that the weighted ones are worth (Kish 1965)."""
    return float(1 / np.square(shares(pairs, density)).sum())


def policy_figures(fitted: Fitted, world: World, density: np.ndarray) -> dict[str, float]:
    """Accuracy on held-out pairs of the reference and of the policy; gold of the best of four."""
    start = world.held_out_answers().start
    rewards = np.array(fitted.model(world.conversations[start:], world.texts[start:]))
    gold = world.gold[start:]
    right, weight = [], []
    for begin in range(0, len(gold), ANSWERS):
        for a, b in combinations(range(begin, begin + ANSWERS), 2):
            if abs(gold[a] - gold[b]) > 1e-9:
                agree = np.sign(rewards[a] - rewards[b]) * np.sign(gold[a] - gold[b])
                right.append((1 + agree) / 2)
                weight.append(density[start + a] * density[start + b])
    return {
        "accuracy": world.accuracy(rewards),
        "policy_accuracy": float(np.average(right, weights=weight)),
        "best_of_4": best_of_four(rewards, gold),
    }
