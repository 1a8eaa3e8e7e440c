"""Phrasings: the many ways to ask about a topic.

`noisy_question` varies the trained questions, so that the model learns which words identify the
topic and tolerates unknown words around them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal

from pipeline.demo.corpus.topic import Topic, read_toml, topics, uncapitalized

Split = Literal["trained", "held-out", "audit"]

_RARE = 3  # a word that at most this many topics use identifies a topic


@dataclass(frozen=True)
class Carriers:
    """Templates around a question (`around`), a topic's name (`about`) or a claim (`claims`)."""

    around: tuple[str, ...]
    about: tuple[str, ...]
    claims: tuple[str, ...]


@dataclass(frozen=True)
class _Noise:
    contexts: tuple[str, ...]
    frames: tuple[str, ...]
    words: tuple[str, ...]
    asides: tuple[str, ...]


@lru_cache(maxsize=3)
def carriers(split: Split) -> Carriers:
    """The carriers of one split; the splits share none."""
    table = read_toml("carriers.toml")[split]
    return Carriers(tuple(table["carriers"]), tuple(table["about"]), tuple(table["claims"]))


def carry(carrier: str, question: str) -> str:
    """`question` inside a carrier of the kind `around`."""
    return carrier.format(q=question, lower=uncapitalized(question))


def about(carrier: str, topic: Topic) -> str:
    """A request about a topic's name; the name is capitalized at the start of the request."""
    text = carrier.format(name=topic.name)
    return text[0].upper() + text[1:]


def noisy_question(topic: Topic, rng: Random) -> str:
    """One of many ways to ask about `topic`, some barely grammatical."""
    way = rng.choices(tuple(_WAYS), weights=tuple(_WAYS.values()))[0]
    return _careless(way(topic, rng), rng)


def _question(topic: Topic, rng: Random) -> str:
    """A trained phrasing, unchanged."""
    return rng.choice(topic.ask if rng.random() < 0.68 else topic.situations)


def _carried(topic: Topic, rng: Random) -> str:
    return carry(rng.choice(carriers("trained").around), _question(topic, rng))


def _named(topic: Topic, rng: Random) -> str:
    return about(rng.choice(carriers("trained").about), topic)


def _situated(topic: Topic, rng: Random) -> str:
    """A question among unrelated sentences."""
    parts = [_question(topic, rng), rng.choice(_noise().contexts)]
    if rng.random() < 0.4:
        parts.append(rng.choice(_noise().contexts))
    rng.shuffle(parts)
    return " ".join(parts)


def _doubled(topic: Topic, rng: Random) -> str:
    return " ".join(rng.sample(topic.trained, 2))


def _framed(topic: Topic, rng: Random) -> str:
    """A sentence that is not in the corpus, with a word that names the topic."""
    word = topic.name if rng.random() < 0.3 else rng.choice(_naming_words(topic))
    text = rng.choice(_noise().frames).format(word=word)
    if rng.random() < 0.3:
        text = f"{text} {rng.choice(_noise().contexts)}"
    return text[0].upper() + text[1:]


def _disturbed(topic: Topic, rng: Random) -> str:
    """A question that lost some of its common words and gained others."""
    telling = telling_words(topic)
    words = []
    for word in _question(topic, rng).split():
        if rng.random() < 0.25:
            words.append(_unrelated_word(rng))
        if _bare(word) in telling or rng.random() > 0.35:
            words.append(word)
    return _sentence(words, rng)


def _distracted(topic: Topic, rng: Random) -> str:
    """A question that names its topic, with words of other topics inserted."""
    naming = [text for text in topic.trained if topic.mentioned_in(text)] or topic.ask
    words = rng.choice(naming).split()
    for _ in range(rng.choice((1, 1, 2))):
        words.insert(rng.randint(0, len(words)), rng.choice(_side_words(rng.choice(topics()))))
    if rng.random() < 0.5:
        words = [w for w in words if topic.mentioned_in(w) or rng.random() > 0.3]
    return _sentence(words, rng)


def _soup(topic: Topic, rng: Random) -> str:
    """A word that names the topic, or two to four identifying ones, among others, in any order."""
    telling = sorted(telling_words(topic))
    words = [rng.choice(_naming_words(topic))]
    if rng.random() < 0.5:
        words = rng.sample(telling, min(len(telling), rng.choice((2, 3, 4))))
    words += [_unrelated_word(rng) for _ in range(rng.randint(0, 8))]
    rng.shuffle(words)
    return _sentence(words, rng)


# The weight of each way; they sum to 100.
_WAYS = {
    _question: 18,
    _carried: 24,
    _named: 9,
    _situated: 9,
    _doubled: 3,
    _framed: 11,
    _disturbed: 12,
    _distracted: 6,
    _soup: 8,
}


def _unrelated_word(rng: Random) -> str:
    """A word unrelated to any topic: common, rare or made up."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(_noise().words)
    return rng.choice(_noise().asides) if kind < 0.85 else _made_up_word(rng)


def _made_up_word(rng: Random) -> str:
    """A made-up word."""
    syllables = rng.randint(1, 3)
    onset, rhyme = (
        ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "tr", "st", "ch", "w"],
        ["a", "e", "i", "o", "u", "ar", "en", "ick", "ow", "ump"],
    )
    return "".join(rng.choice(onset) + rng.choice(rhyme) for _ in range(syllables))


def _careless(text: str, rng: Random) -> str:
    """Sometimes without capitals, or without the final punctuation mark."""
    if rng.random() < 0.12:
        text = text.lower()
    if rng.random() < 0.12:
        text = text.rstrip("?.!")
    return text


def _sentence(words: list[str], rng: Random) -> str:
    text = " ".join(words).rstrip("?.!,:") + rng.choice("??.")
    return text[0].upper() + text[1:]


def _bare(word: str) -> str:
    return re.sub(r"[^a-z0-9'-]", "", word.lower())


@lru_cache(maxsize=1)
def _noise() -> _Noise:
    table = read_toml("noise.toml")
    return _Noise(
        contexts=tuple(table["contexts"]),
        frames=tuple(table["frames"]),
        words=tuple(table["words"].split()),
        asides=tuple(table["asides"].split()),
    )


def words_of(text: str) -> list[str]:
    """The words of `text` in lower case, without punctuation."""
    return [bare for word in text.split() if (bare := _bare(word))]


def _words_of(topic: Topic) -> set[str]:
    return {word for text in (*topic.trained, topic.name) for word in words_of(text)}


@lru_cache(maxsize=1)
def _topics_using() -> Counter[str]:
    return Counter(word for topic in topics() for word in _words_of(topic))


@lru_cache(maxsize=512)
def telling_words(topic: Topic) -> frozenset[str]:
    """Words of the trained questions that name the topic or that few others use; never empty."""
    common = set(_noise().words)
    using = _topics_using()
    words = {w for w in _words_of(topic) - common if using[w] <= _RARE}
    return frozenset(words | {w for w in _words_of(topic) if topic.mentioned_in(w)})


@lru_cache(maxsize=512)
def _naming_words(topic: Topic) -> tuple[str, ...]:
    """Words of the trained questions that are keywords of the topic, else its name."""
    words = [w for text in (*topic.trained, topic.name) for w in words_of(text)]
    return tuple(w for w in words if topic.mentioned_in(w)) or (topic.name,)


@lru_cache(maxsize=512)
def _side_words(topic: Topic) -> tuple[str, ...]:
    """Telling words of a topic that may turn up in a question about another one."""
    words = sorted(telling_words(topic))
    return tuple(word for word in words if not topic.mentioned_in(word)) or tuple(words)
