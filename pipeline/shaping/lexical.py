"""Components that count words."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path

from pipeline.ppo.metrics import repeated_ngrams

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def tokens(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


def words(text: str) -> int:
    """The number of words."""
    return len(tokens(text))


def overlong(text: str, *, limit: int, buffer: int) -> float:
    """1 beyond `limit + buffer` words, 0 up to `limit`, linear between.

    The soft overlong punishment of DAPO (Yu et al. 2025, eq. 13), as a positive quantity.
    """
    return min(max(words(text) - limit, 0) / buffer, 1.0)


def matches(text: str, pattern: str) -> float:
    """1 if the whole completion matches the regular expression, else 0."""
    return float(re.fullmatch(pattern, text) is not None)


def relevance(prompt: str, text: str) -> float:
    """Share of the prompt's content words whose stem is in the completion; 1 without content words."""
    wanted = content_stems(prompt)
    if not wanted:
        return 1.0
    return len(wanted & {stem(word) for word in tokens(text)}) / len(wanted)


def content_stems(text: str) -> set[str]:
    """The stems of a text's words without those of common words."""
    return {stem(word) for word in tokens(text)} - {stem(w) for w in _lexicon()["common"]}


def stem(word: str) -> str:
    """A word without its most common English ending."""
    for ending in ("ing", "edly", "ed", "ies", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word


def repetition(text: str) -> float:
    """Share of the word trigrams that occurred earlier in the text; 0 without trigrams."""
    return repeated_ngrams(tokens(text))


def sentiment(text: str) -> float:
    """(positive − negative) / (positive + negative) words, −1 to 1; 0 without such words."""
    text_words = tokens(text)
    good, bad = (
        sum(word in _lexicon()[kind] for word in text_words) for kind in ("positive", "negative")
    )
    return (good - bad) / (good + bad) if good + bad else 0.0


def toxicity(text: str) -> float:
    """Toxic words per ten words, at most 1."""
    return _rate(text, "toxic", per=10)


def buzzwords(text: str) -> float:
    """Marketing words per ten words, at most 1."""
    return _rate(text, "buzzwords", per=10)


def hedging(text: str) -> float:
    """Hedging phrases per sentence, at most 1."""
    sentences = max(1, len(re.findall(r"[.!?]+(?:\s|$)", text)))
    return min(phrases(text, "hedges") / sentences, 1.0)


def phrases(text: str, kind: str) -> int:
    """Number of phrases of a list of the lexicon in the text, as whole words."""
    padded = f" {' '.join(tokens(text))} "
    return sum(padded.count(f" {phrase} ") for phrase in _lexicon()[kind])


def _rate(text: str, kind: str, *, per: int) -> float:
    text_words = tokens(text)
    hits = sum(word in _lexicon()[kind] for word in text_words)
    return min(per * hits / len(text_words), 1.0) if text_words else 0.0


@lru_cache(maxsize=1)
def _lexicon() -> dict[str, frozenset[str]]:
    path = Path(__file__).with_name("lexicon.toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: frozenset(entries) for name, entries in table.items()}
