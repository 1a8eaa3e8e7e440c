"""The arms of each part, and one arm of one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.demo_world import Fitted, People, World, judged_pair, trained
from benchmarks.reward_models.measures import Fresh, auc, measured
from pipeline.config.reward import RewardConfig
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair, annotator_ids
from pipeline.reward.likelihood import BOTH_BAD, TIE
from pipeline.reward.quality.reliability import reliability
from pipeline.simulation.annotators import PLAIN, SimulatedAnnotator, population
from pipeline.simulation.trials import TrialArm

BAD = 0.3


@dataclass(frozen=True, kw_only=True)
class Arm(TrialArm):
    """An arm's `settings` of [reward], its share of `bad` annotators, whether their judgments are
    left out, and whether clear pairs are `decided` faster."""

    bad: float = 0.0
    careful_only: bool = False
    decided: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """A comparison: its arms, of which `optional` ones run only on request, and the numbers of
    labels and annotators."""

    arms: Mapping[str, Arm]
    labels: int
    annotators: int
    optional: frozenset[str] = frozenset()


def _by_name(*arms: Arm) -> dict[str, Arm]:
    return {arm.name: arm for arm in arms}


PARTS = {
    "ties": Part(
        arms=_by_name(
            Arm(name="drop", settings={"tie_model": "drop"}),
            Arm(name="half", settings={"tie_model": "half"}),
            Arm(name="davidson", settings={"tie_model": "davidson"}),
            Arm(name="rao_kupper", settings={"tie_model": "rao_kupper"}),
            Arm(name="ordinal", settings={"tie_model": "ordinal"}),
            Arm(name="bad-as-tie", settings={"tie_model": "rao_kupper", "both_bad": "tie"}),
        ),
        labels=300,
        annotators=8,
    ),
    "annotators": Part(
        arms=_by_name(
            Arm(name="pooled-30", settings={"annotators": False}, bad=BAD),
            Arm(name="joint-30", settings={"annotators": True}, bad=BAD),
            Arm(name="oracle-30", settings={"annotators": False}, bad=BAD, careful_only=True),
            Arm(name="pooled-0", settings={"annotators": False}),
            Arm(name="joint-0", settings={"annotators": True}),
        ),
        labels=1500,
        annotators=20,
        optional=frozenset({"oracle-30"}),
    ),
    "times": Part(
        arms=_by_name(
            *(
                Arm(
                    name=f"{'times' if times else 'choices'}{strengths}{noise}",
                    settings={"response_times": times, **tie_model},
                    bad=0.25,
                    decided=not noise,
                )
                for strengths, tie_model in (("", {"tie_model": "rao_kupper"}), ("-strengths", {}))
                for noise in ("", "-noise")
                for times in (False, True)
            )
        ),
        labels=300,
        annotators=16,
    ),
}
DECIDED = replace(PLAIN, decision_ms=7000.0, reading_noise=0.3)
"""Annotators who need 7 s for a pair of equals, and less for a clear one."""


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
    like = DECIDED if arm.decided else PLAIN
    people = population(part.annotators, bad=arm.bad, seed=world.seed, like=like)
    pairs = judgments(world, people, labels, chat)
    if arm.careful_only:
        careful = {annotator.name for annotator in people if annotator.profile == "careful"}
        pairs = [pair for pair in pairs if pair.annotator in careful]
    fitted = Fitted.to(pairs, chat, config, seed=world.seed)
    said = Counter(pair.outcome for pair in pairs)
    found = measured(fitted, world, fresh) | {
        "learned": len(fitted.learned),
        "epochs": round(fitted.epochs, 2),
        "ties": (said[TIE] + said[BOTH_BAD]) / len(pairs),
        "both_bad": said[BOTH_BAD] / len(pairs),
        "cpu_seconds": fitted.cpu_seconds,
    }
    if fitted.model.network.annotators is not None and arm.bad:
        found |= separation(fitted, people, config, chat)
    return found


def judgments(
    world: World, people: Sequence[SimulatedAnnotator], labels: int, chat: ChatTokenizer
) -> list[JudgedPair]:
    """Judgments of random pairs by `people`."""
    asked = People(world, people)
    said = [asked.label(*pair) for pair in world.random_pairs(labels, chat)]
    return [judged_pair(world, label, place, chat) for place, label in enumerate(said)]


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
