"""An arm of a part, and a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.simulation.annotators import PLAIN, Population
from pipeline.simulation.trials import TrialArm

Weighting = Literal["all", "weighted", "recent"]
"""What `shift` learns from: all judgments alike, earlier ones by their density under the policy, or
only those of the policy's answers."""


@dataclass(frozen=True, kw_only=True)
class JudgeModel:
    """A simulated model judge: an annotator whose answers do not get tired, but are biased.

    It has the slope `slope` on gold plus `verbosity` times the standardized number of words, and
    prefers the left by `left_bias`, in logits.
    """

    slope: float
    verbosity: float = 0.0
    left_bias: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Arm(TrialArm):
    """An arm's `settings` of [reward], and how its judgments are made.

    The share `bad` of the annotators is bad; `careful_only` leaves their judgments out.  People
    label the share `people` of the pairs, and `judge` labels the others, if there is one.  `joint`:
    the judge's slope is learned with the rewards, as a person's is.  `routed`: people label the pairs
    that the judge is least sure of.  `weighting` belongs to `shift`, `pessimism` to the part of that
    name: the weight with which the finished reward model is trained further, None if it is not.
    """

    bad: float = 0.0
    like: Population = field(default_factory=lambda: PLAIN)
    careful_only: bool = False
    people: float = 1.0
    judge: JudgeModel | None = None
    joint: bool = False
    routed: bool = False
    weighting: Weighting | None = None
    pessimism: float | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A comparison: its arms, of which `optional` ones run only on request, and the numbers of
    labels and annotators.  `separates`: it measures how estimates separate bad annotators."""

    arms: Mapping[str, Arm]
    labels: int
    annotators: int
    optional: frozenset[str] = frozenset()
    separates: bool = False
