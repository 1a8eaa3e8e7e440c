"""A simulated model judge, which is asked in both orders, as `launch.py judge` asks."""

from __future__ import annotations

import numpy as np

from benchmarks.demo_world import Label, World
from benchmarks.reward_models.arms import JudgeModel
from pipeline.reward.likelihood import FIRST, SECOND, TIE, UNSTATED
from pipeline.simulation.annotators import PLAIN, SimulatedAnnotator

NAME = "judge"
_STREAM = 7


def judged(judge: JudgeModel, world: World, first: int, second: int) -> Label:
    """The judge's label of a pair; contradictory answers in the two orders are a tie."""
    answers = {_answer(judge, world, first, second), -_answer(judge, world, second, first)}
    outcome = (
        {1: FIRST, -1: SECOND}[answers.pop()] if len(answers) == 1 and 0 not in answers else TIE
    )
    return Label(
        first=first, second=second, outcome=outcome, strength=UNSTATED, annotator=NAME, side=1
    )  # fmt: skip


def _answer(judge: JudgeModel, world: World, left: int, right: int) -> int:
    """1 for the left, −1 for the right, 0 for a tie."""
    words = np.array([len(world.texts[n].split()) for n in (left, right)])
    longer = judge.verbosity * words / word_spread(world) if judge.verbosity else np.zeros(2)
    mind = SimulatedAnnotator(
        name=NAME, profile="careful", slope=1.0, tie=PLAIN.tie, left_bias=judge.left_bias
    )
    said = mind.judge(
        left=judge.slope * world.gold[left] + longer[0],
        right=judge.slope * world.gold[right] + longer[1],
        words=int(words.sum()),
        rng=np.random.default_rng([world.seed, _STREAM, left, right]),
    )
    return {"a": 1, "b": -1}.get(said.outcome, 0)


def word_spread(world: World) -> float:
    """Standard deviation of the number of words over all answers."""
    return float(np.std([len(text.split()) for text in world.texts]))
