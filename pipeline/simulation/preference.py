"""The hidden gold preference of simulated annotators; the pipeline does not read it.

`score` is a sum of parts (see `parts`) that a reader likes or dislikes in an answer to the prompt.
For a prompt of the embedded demo it knows the topic's facts:

    fact       + the answer is there, or most of it (in order: a word salad earns little)
    detail     + a supporting fact           tip       + the topic's useful tip
    wrong      − the topic's false claim     off_topic − neither its keywords nor its facts

For any other prompt it judges general quality:

    coverage   + the response has the prompt's content words and few others
    substance  + the response adds content words, so an echo earns nothing

and for both

    flattery   − praise of the user          hedging    − "perhaps", "I am not sure"
    padding    − words that say nothing      repetition − the same words again
    unfinished − no end to the sentence      garbled    − letters that are no words

Length itself has no effect: a tip raises the score, and padding lowers it.  The sum is standardized
so that ordinary responses have mean about 0 and standard deviation about 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

from pipeline.config.plugins import load_function
from pipeline.demo.corpus import Topic, topic_of
from pipeline.simulation import reading
from pipeline.simulation.reading import garbled_share, stems_of, unseen_bigram_rate, words_of
from pipeline.simulation.world_prompts import prompt_of

GoldReward = Callable[[str, str], float]
"""(prompt, response) → score of the response; higher is better."""

# Mean and standard deviation of the sum: over the demo's styles; over 1,100 human instructions.
_DEMO_MEAN, _DEMO_SD = 1.2, 1.45
_GENERAL_MEAN, _GENERAL_SD = 1.7, 0.5
_FACT, _DETAIL, _TIP, _WRONG, _OFF_TOPIC = 2.0, 0.3, 1.0, -1.7, -0.6
_CURT_SHARE = 0.75  # score of the shortest true answer, relative to the full one
_COVERAGE, _SUBSTANCE = 1.2, 1.2
_FLATTERY, _HEDGING, _PER_PADDING_WORD, _PADDING_FLOOR = -1.2, -0.6, -0.1, -1.6
_REPETITION, _UNFINISHED, _GARBLED, _EMPTY = -3.0, -0.7, -1.5, -4.0
_WORDS_OF_A_FULL_ANSWER = 80


def score(prompt: str, response: str) -> float:
    """How good `response` is as an answer to `prompt`: mean ≈ 0, sd ≈ 1 over ordinary ones."""
    raw = sum(parts(prompt, response).values())
    if topic_asked(prompt):
        return (raw - _DEMO_MEAN) / _DEMO_SD
    return (raw - _GENERAL_MEAN) / _GENERAL_SD


def longest(prompt: str, response: str) -> float:
    """The proxy "longer is better": number of words, scaled like `score`."""
    del prompt  # ignored on purpose
    return (len(response.split()) - 20) / 10


def load_gold(name: str) -> GoldReward:
    """The function named ``module:function``; ``ValueError`` says what is wrong with the name."""
    return cast(GoldReward, load_function(name, what="gold"))


def scored(gold: GoldReward, prompt: str, responses: Sequence[str]) -> tuple[float, ...]:
    """The gold scores of responses to a prompt; ``ValueError`` unless all are finite numbers."""
    scores = tuple(float(gold(prompt, response)) for response in responses)
    if not all(math.isfinite(score) for score in scores):
        raise ValueError(f"the gold preference gave {scores} on the prompt {prompt[:80]!r}")
    return scores


def topic_asked(prompt: str) -> Topic | None:
    """The topic of the last message of a prompt, if it is a prompt of the demo or of a world."""
    text = last_message(prompt)
    asked = prompt_of(text)
    return asked.topic if asked else topic_of(text)


def last_message(prompt: str) -> str:
    """The last message of a prompt, which may be a longer chat in the form of
    `clients.conversation`."""
    return prompt.rpartition("\n\nuser: ")[2]


def parts(prompt: str, response: str) -> dict[str, float]:
    """The contribution of each part of the preference to the unscaled score, by name."""
    topic = topic_asked(prompt)
    if topic:
        return parts_about(topic, response)
    if not words_of(response):
        return {"empty": _EMPTY}
    return _general(prompt, response) | _manner(response)


def parts_about(topic: Topic, response: str) -> dict[str, float]:
    """`parts` of a response to a prompt about `topic`, whatever its wording."""
    if not words_of(response):
        return {"empty": _EMPTY}
    return _topical(topic, response) | _manner(response)


def _topical(topic: Topic, response: str) -> dict[str, float]:
    said = reading.about(topic, response)
    return {
        "fact": _FACT * max(said.answer, _CURT_SHARE * said.curt),
        "detail": _DETAIL * said.detail,
        "tip": _TIP * said.tip,
        "wrong": _WRONG * said.wrong,
        "off_topic": 0.0 if said.on_topic else _OFF_TOPIC,
        "padding": max(_PADDING_FLOOR, _PER_PADDING_WORD * said.padding),
        "garbled": _GARBLED * min(1.0, 3 * unseen_bigram_rate(response)),
    }


def _general(prompt: str, response: str) -> dict[str, float]:
    asked, stems = set(stems_of(prompt)), set(stems_of(response))
    added = stems - asked
    # Ochiai's coefficient: additional words lower it as missing words do.
    shared = len(asked & stems) / math.sqrt(len(asked) * len(stems)) if asked and stems else 0.0
    words = len(words_of(response))
    # In ordinary prose every third word is a content word; prose with fewer is padded.
    thin, long = words - 3 * len(stems) - reading.FREE_WORDS, words - _WORDS_OF_A_FULL_ANSWER
    padding = max(0, thin) + max(0, long) / 10
    return {
        "coverage": _COVERAGE * min(1.0, 2 * shared),
        "substance": _SUBSTANCE * min(1.0, len(added) / 2),
        "padding": max(_PADDING_FLOOR, _PER_PADDING_WORD * padding),
        "garbled": _GARBLED * min(1.0, 5 * garbled_share(response)),
    }


def _manner(response: str) -> dict[str, float]:
    written = reading.manner(response)
    return {
        "flattery": _FLATTERY * min(written.flattery, 2) ** 0.5,
        "hedging": _HEDGING * min(written.hedges, 3) ** 0.5,
        "repetition": _REPETITION * written.repeated,
        "unfinished": 0.0 if written.finished else _UNFINISHED,
    }
