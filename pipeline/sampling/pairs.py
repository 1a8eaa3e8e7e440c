"""Drafts of comparisons during sampling, and the detection of near-duplicates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from pipeline.models.generate import Response
from storage.records import Message

Tokens = Callable[[str], list[int]]


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """A prompt of the sampling plan."""

    prompt: str
    """Its id."""
    messages: tuple[Message, ...]
    arm: str
    pairs: int
    """Pairs wanted; 0 for a spare prompt."""


@dataclass
class Side:
    """One of a pair's completions, before and after it is sampled."""

    model: str
    temperature: float
    id: str
    seed: int = 0
    response: Response | None = None

    @property
    def text(self) -> str:
        assert self.response is not None
        return self.response.text


@dataclass
class Draft:
    """A future pair: the policy's side and the side that it is compared with."""

    prompt: str
    messages: tuple[Message, ...]
    arm: str
    sides: tuple[Side, Side]
    duplicate: bool = field(default=False)

    def canonical(self) -> tuple[str, str]:
        """The sides' ids in an order that does not depend on the models."""
        first, second = sorted(side.id for side in self.sides)
        return first, second


@dataclass
class Pool:
    """A prompt's completions, of which a reward model may choose two; `pairs` is 0 for a spare prompt."""

    prompt: str
    messages: tuple[Message, ...]
    arm: str
    sides: tuple[Side, ...]
    pairs: int


def are_near_duplicates(a: str, b: str, tokens: Tokens, threshold: float) -> bool:
    """Whether the similarity of two texts, ignoring case and spacing, is at least `threshold`.

    It is twice the matching tokens over all tokens (Ratcliff and Obershelp), from 0 to 1; 1 for two
    empty texts.
    """
    one, two = (tokens(" ".join(text.casefold().split())) for text in (a, b))
    # autojunk would ignore tokens that are frequent in a long text.
    matcher = SequenceMatcher(None, one, two, autojunk=False)
    # The first two are fast upper bounds on the ratio.
    quick = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    return all(ratio() >= threshold for ratio in quick)
