"""Styles: seven ways to answer the same question, from templates over a topic's sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal

from pipeline.demo.corpus.topic import Topic, read_toml, uncapitalized

Asked = Literal["question", "claim"]
"""Whether the user asks, or asserts the topic's wrong claim."""


@dataclass(frozen=True)
class Style:
    """A named way to answer; `weight` is its share of the training rows, out of 100."""

    name: str
    weight: int
    question: tuple[str, ...]
    claim: tuple[str, ...]

    def templates(self, asked: Asked) -> tuple[str, ...]:
        return self.question if asked == "question" else self.claim


@lru_cache(maxsize=1)
def styles() -> tuple[Style, ...]:
    """All styles, as `styles.toml` lists them."""
    return tuple(
        Style(name, table["weight"], tuple(table["question"]), tuple(table["claim"]))
        for name, table in read_toml("styles.toml").items()
    )


def respond(topic: Topic, asked: Asked, rng: Random) -> tuple[str, str]:
    """A random response about `topic`, and the name of its style."""
    style = rng.choices(styles(), weights=[s.weight for s in styles()])[0]
    return fill(rng.choice(style.templates(asked)), topic), style.name


def all_responses(topic: Topic) -> Iterator[tuple[str, str]]:
    """Every response that the templates can write about `topic`, with its style."""
    for style in styles():
        for template in dict.fromkeys(style.question + style.claim):
            yield fill(template, topic), style.name


def fill(template: str, topic: Topic) -> str:
    """`template` with the topic's sentences in its slots."""
    return template.format(
        answer=topic.answer,
        lower=uncapitalized(topic.answer),
        detail=topic.detail,
        tip=topic.tip,
        wrong=topic.wrong,
        curt=topic.curt,
    )
