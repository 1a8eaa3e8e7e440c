"""Rows of supervised fine-tuning: noisy questions with responses in seven styles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from random import Random

from pipeline.demo.corpus.phrasings import carriers, noisy_question
from pipeline.demo.corpus.shipped import shipped_texts
from pipeline.demo.corpus.styles import Asked, respond
from pipeline.demo.corpus.topic import Topic, read_toml, topics

Messages = list[dict[str, str]]

_UNKNOWN, _CLAIM = 0.04, 0.09  # shares of the rows
_SYSTEM, _EARLIER_TURN = 0.05, 0.04


def examples(rows: int = 20_000, seed: int = 0) -> Iterator[tuple[Messages, str, str]]:
    """Yield `rows` tuples (messages, response, style), always the same for one `seed`.

    Every row draws a new topic, phrasing and style.  4% of the rows ask something that the demo
    does not know (style "unsure"); some assert something false; some have a system message or an
    earlier turn.  No row's question is the text of a shipped prompt.
    """
    rng = Random(seed)
    shipped = shipped_texts()
    made = 0
    while made < rows:
        messages, response, style = _row(rng)
        if messages[-1]["content"] in shipped:
            continue
        made += 1
        yield messages, response, style


def _row(rng: Random) -> tuple[Messages, str, str]:
    if rng.random() < _UNKNOWN:
        unknown = _unknown()
        question, response, style = rng.choice(unknown[0]), rng.choice(unknown[1]), "unsure"
    else:
        topic = rng.choice(topics())
        asked: Asked = "claim" if rng.random() < _CLAIM else "question"
        question = _question(topic, asked, rng)
        response, style = respond(topic, asked, rng)
    return [*_before(rng), {"role": "user", "content": question}], response, style


def _question(topic: Topic, asked: Asked, rng: Random) -> str:
    if asked == "question":
        return noisy_question(topic, rng)
    return rng.choice(carriers("trained").claims).format(wrong=topic.wrong)


def _before(rng: Random) -> Messages:
    """The messages before the question; usually none."""
    messages = []
    if rng.random() < _SYSTEM:
        messages.append({"role": "system", "content": rng.choice(_systems())})
    if rng.random() < _EARLIER_TURN:
        earlier = rng.choice(topics())
        messages.append({"role": "user", "content": rng.choice(earlier.ask)})
        messages.append({"role": "assistant", "content": respond(earlier, "question", rng)[0]})
    return messages


def unknown_answers() -> tuple[str, ...]:
    """How the demo says that it does not know."""
    return _unknown()[1]


@lru_cache(maxsize=1)
def _systems() -> tuple[str, ...]:
    return tuple(read_toml("noise.toml")["systems"])


@lru_cache(maxsize=1)
def _unknown() -> tuple[tuple[str, ...], tuple[str, ...]]:
    table = read_toml("unknown.toml")
    return tuple(table["questions"]), tuple(table["answers"])
