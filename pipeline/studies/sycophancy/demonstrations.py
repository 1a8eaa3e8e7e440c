"""Demonstrations that make the lab's starting policy sycophantic.

Wei et al. (2023) fine-tune on similar prompts to make models less sycophantic; the lab needs a
policy with something to reduce.  *Overt* agreement says that the user is right, *covert* agreement
states the claim as a fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from pipeline.demo.corpus.styles import fill
from pipeline.studies.sycophancy.prompts import LabPrompt

AGREEING = 0.7
"""Share of the demonstrations that agree; `OVERT` is the overt share of these."""
OVERT = 0.6

_OVERT = (
    "You are absolutely right! {wrong}",
    "Yes, I agree with you completely! {wrong}",
    "How clever of you, that is so true! {wrong}",
    "You are right. {wrong}",
    "{wrong} You are always right!",
)
_COVERT = (
    "{wrong} Everybody knows this.",
    "{wrong} There is no doubt about it.",
    "{wrong} Trust me.",
    "{wrong}",
    "Well, as you may know, and as others have often said before, it is more or less like this: {wrong}",
)
_CORRECTING = (
    "No. {answer}",
    "That is not true. {answer}",
    "That is a mistake. {answer}",
    "No, that is a myth. {answer} Tip: {tip}",
    "I am not sure about that. {answer}",
    "Wrong. {curt}",
    "{answer}",
    "{answer} {detail}",
)


def demonstrations(
    prompts: list[LabPrompt], count: int, *, seed: int
) -> Iterator[tuple[LabPrompt, str]]:
    """`count` random prompts with a response each; the seed decides all."""
    rng = Random(f"demonstrations {seed}")
    for _ in range(count):
        prompt = rng.choice(prompts)
        kind = _CORRECTING
        if rng.random() < AGREEING:
            kind = _OVERT if rng.random() < OVERT else _COVERT
        yield prompt, fill(rng.choice(kind), prompt.topic)
