"""One arm of one seed: label, train as the reward stage does, and measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.demo_world import Fitted, Label, People, World, judged_pair, trained
from benchmarks.reward_models import judges
from benchmarks.reward_models.arms import Arm, Part
from benchmarks.reward_models.measures import Fresh, auc, measured
from benchmarks.reward_models.pessimism import train_further
from benchmarks.reward_models.shift import after_a_policy
from pipeline.config.reward import RewardConfig
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair, annotator_ids
from pipeline.reward.likelihood import BOTH_BAD, TIE
from pipeline.reward.quality.reliability import reliability
from pipeline.simulation.annotators import SimulatedAnnotator, population


def run_arm(
    part: Part,
    arm: Arm,
    world: World,
    fresh: Fresh,
    config: RewardConfig,
    labels: int,
    chat: ChatTokenizer,
) -> dict[str, Any]:
    """Label, train as the reward stage does, and measure."""
    config = replace(config, **arm.settings)
    people = population(part.annotators, bad=arm.bad, seed=world.seed, like=arm.like)
    if arm.weighting:
        return after_a_policy(arm.weighting, people, world, config, labels, chat)
    pairs = judgments(arm, world, people, labels, chat)
    fitted = Fitted.to(pairs, chat, config, seed=world.seed)
    if arm.pessimism is not None:
        train_further(fitted, world, config, arm.pessimism, chat)
    said = Counter(pair.outcome for pair in pairs)
    found = measured(fitted, world, fresh) | {
        "learned": len(fitted.learned),
        "epochs": round(fitted.epochs, 2),
        "ties": (said[TIE] + said[BOTH_BAD]) / len(pairs),
        "both_bad": said[BOTH_BAD] / len(pairs),
        "cpu_seconds": fitted.cpu_seconds,
    }
    learned = fitted.model.network.annotators
    if learned is not None and arm.judge:
        slopes = dict(zip(learned.ids, (1 + learned.delta).tolist(), strict=True))
        found |= {"judge_slope": slopes.get(judges.NAME)}
    if learned is not None and part.separates and arm.bad:
        found |= separation(fitted, people, config, chat)
    return found


def judgments(
    arm: Arm,
    world: World,
    people: Sequence[SimulatedAnnotator],
    labels: int,
    chat: ChatTokenizer,
) -> list[JudgedPair]:
    """Judgments of random pairs by `people`, and by the arm's judge."""
    asked = People(world, people)
    pairs = world.random_pairs(labels, chat)
    by_people = round(arm.people * labels)
    by_judge: list[Label] = []
    if arm.judge:
        answers = [judges.judged(arm.judge, world, *pair) for pair in pairs]
        if arm.routed:  # the sort is stable, so the others stay in random order
            order = sorted(range(labels), key=lambda n: answers[n].outcome < TIE)
            pairs, answers = [pairs[n] for n in order], [answers[n] for n in order]
        by_judge = answers[by_people:]
    said = [asked.label(*pair) for pair in pairs[:by_people]] + by_judge
    found = [judged_pair(world, label, place, chat) for place, label in enumerate(said)]
    if not arm.joint:
        found = [replace(pair, judge=pair.annotator == judges.NAME) for pair in found]
    if arm.careful_only:
        careful = {annotator.name for annotator in people if annotator.profile == "careful"}
        found = [pair for pair in found if pair.annotator in careful]
    return found


def separation(
    fitted: Fitted, people: Sequence[SimulatedAnnotator], config: RewardConfig, chat: ChatTokenizer
) -> dict[str, Any]:
    """How well estimates separate bad from careful annotators, and the estimates of each.

    As in the reward stage, the model measures judgments that it did not learn from; an audit model
    trained on those measures the others.
    """
    profiles = {annotator.name: annotator.profile for annotator in people}
    network, known = fitted.model.network, fitted.model.network.annotators
    effects = zip(known.ids, known.delta.tolist(), known.bias.tolist(), strict=True)
    learned = {id: {"learned_slope": 1 + d, "learned_side_bias": b} for id, d, b in effects}
    audit, _ = trained(
        fitted.unseen, chat, replace(config, members=1, epochs=fitted.epochs), seed=0
    )
    pairs = [*fitted.learned, *fitted.unseen]
    reported = reliability(
        [(fitted.unseen, fitted.model), (fitted.learned, audit)],
        annotator_ids(pairs),
        Counter(pair.annotator for pair in pairs),
        likelihood=network.likelihood,
        ties=network.ties.values(),
    ).annotators
    merits = {
        each.annotator: (each.weight or 0.0) * (1 if each.slope > 0 else -1) for each in reported
    }
    return {
        "auc": auc(merits, profiles),
        "auc_of_slopes": auc({id: each["learned_slope"] for id, each in learned.items()}, profiles),
        "people": [
            asdict(each) | {"profile": profiles[each.annotator]} | learned.get(each.annotator, {})
            for each in reported
        ],
    }
