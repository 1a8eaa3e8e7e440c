"""Simulated worlds: what people like, who the annotators are, and which prompts they answer.

Ingredients of the loop that were tuned in one world may fit only that world.  Therefore:

    plain      the demo's prompts and the built-in gold; most benchmarks use it
    workshop   for choosing ingredients and settings: the request in the prompt decides which style is liked
    exam       for final figures only: choose nothing by it.  Other prompts, weights and annotators; the
               subject and haste decide which style is liked

In the last two, annotators also differ by taste, ties and strong preferences are common, and clear
pairs are decided faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.simulation import annotators, preference, world_golds
from pipeline.simulation.annotators import Population, SimulatedAnnotator
from pipeline.simulation.preference import GoldReward
from pipeline.simulation.world_prompts import WorldName, WorldPrompt, world_prompts


@dataclass(frozen=True, kw_only=True)
class World:
    """A gold preference with the annotators who judge by it."""

    name: str
    gold: GoldReward
    population: Population
    prompts_of: WorldName | None = None
    """The world's own prompts; None: those of the workspace."""
    features: Callable[[str, str], Mapping[str, float]] | None = None
    """(prompt, response) → the features that the annotators' tastes are about."""

    @property
    def gold_name(self) -> str:
        """The gold as ``module:function``, as settings name it."""
        return f"{self.gold.__module__}:{self.gold.__qualname__}"

    def prompts(self) -> tuple[WorldPrompt, ...]:
        """The world's own prompts, or none."""
        return world_prompts(self.prompts_of) if self.prompts_of else ()

    def as_seen_by(self, annotator: SimulatedAnnotator, gold: GoldReward) -> GoldReward:
        """The scores by which an annotator judges: `gold`, changed by the annotator's taste."""
        features = self.features
        if features is None or not annotator.tastes:
            return gold

        def seen(prompt: str, response: str) -> float:
            found = features(prompt, response)
            liked = sum(worth * found.get(name, 0.0) for name, worth in annotator.tastes.items())
            return gold(prompt, response) + liked

        return seen


WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        World(name="plain", gold=preference.score, population=annotators.PLAIN),
        World(
            name="workshop",
            gold=world_golds.workshop,
            population=Population(
                slope=1.1,
                tie=0.5,
                gaps=(0.7, 1.1),
                standard=-1.3,
                sharpness=3.0,
                spread=0.35,
                speed_spread=0.4,
                reading_noise=0.3,
                decision_ms=7000.0,
                tastes={"detail": 0.3, "tip": 0.3, "length": 0.015, "flattery": 0.3, "hedging": 0.25},
                bad_profiles=("noisy", "careless", "side-biased", "careless"),
            ),
            prompts_of="workshop",
            features=world_golds.features_for,
        ),
        World(
            name="exam",
            gold=world_golds.exam,
            population=Population(
                slope=1.2,
                tie=0.65,
                gaps=(0.8, 1.0),
                standard=-1.6,
                sharpness=5.0,
                spread=0.28,
                speed_spread=0.3,
                reading_noise=0.45,
                decision_ms=5000.0,
                tastes={
                    "curt": 0.25, "detail": 0.4, "tip": 0.4, "flattery": 0.4, "hedging": 0.35,
                    "assurance": 0.4,
                },
                bad=0.3125,
                bad_profiles=("inverted", "noisy", "careless", "noisy", "side-biased"),
            ),
            prompts_of="exam",
            features=world_golds.features_for,
        ),
    )
}  # fmt: skip


def world_named(name: str) -> World:
    """The world of that name; ``ValueError`` lists the names."""
    if name not in WORLDS:
        raise ValueError(f"there is no world {name!r}; there are {', '.join(WORLDS)}")
    return WORLDS[name]
