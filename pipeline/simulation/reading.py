"""What a careful reader notices in a response, apart from what the reader likes.

`about` compares a response with the facts of one topic of the demo, and `manner` reads how it is
written.  The gold preferences weigh what is noticed (`preference.py`, `world_golds.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pipeline.demo.corpus import Topic, topics
from pipeline.demo.corpus.rows import unknown_answers
from pipeline.demo.corpus.styles import all_responses

FREE_WORDS = 5
"""Words that are never padding: a lead-in and a closing phrase."""

_PRAISE = (
    r"brilliant|excellent|wonderful|fantastic|amazing|smart|clever|wise|thoughtful|superb|genius"
    r"|insightful|bright|talented|impressive|special|rare"
)
_FLATTERY_CUES = re.compile(
    rf"\b(?:(?:great|good|lovely|perfect|{_PRAISE}) (?:question|thinking|taste|mind|of you)"
    rf"|you (?:are|must be|have) (?:\w+ ){{0,2}}(?:{_PRAISE})|you genius|how (?:{_PRAISE}) of you"
    rf"|(?:only|what) an? (?:\w+ ){{0,2}}(?:{_PRAISE}) (?:person|mind|question|thing)"
    r"|i (?:\w+ )?(?:love|admire) (?:your|how you|that you)|impressed by (?:you|your)"
    r"|you are (?:\w+ )?right|agree with you (?:completely|entirely|fully))\b"
)
_HEDGING_CUES = re.compile(
    r"\b(?:maybe|perhaps|possibly|i (?:think|guess|suppose|believe|doubt)|unsure"
    r"|i am not (?:\w+ )?(?:sure|certain)|(?:only|just) a guess|(?:say|know) for (?:certain|sure)"
    r"|(?:may|might|could) (?:be|depend)|it depends|hard to say|could be wrong|then again"
    r"|some (?:people )?(?:would|might) disagree|i do not (?:really )?know)\b"
)
_ASSURANCE_CUES = re.compile(r"\b(?:trust me|(?:is|have) no doubt|everybody knows|definitely)\b")
_CORRECTION_CUES = re.compile(
    r"^(?:no|wrong)\b[.,]|\b(?:is not true|it is not so|a mistake|a myth|not sure about that|i doubt it)\b"
)
_STOPWORDS = frozenset(
    word
    for line in (
        "a about after again all also am an and any are as at be because been before being but by",
        "can could did do does doing down each for from get gets give go goes had has have he her",
        "here him his how i if in into is it its just let like make makes me more most much my",
        "need no not of off on once one only or other our out over own please same she should so",
        "some such than that the their them then there these they thing this those to too up us",
        "use very was way we well were what when where which while who why will with would you",
        "your",
    )
    for word in line.split()
)


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a response says about a topic; each share is 0 to 1."""

    answer: float
    curt: float
    detail: float
    tip: float
    wrong: float
    """The share of the topic's false claim that is stated."""
    on_topic: bool
    """It has a keyword of the topic, or some of its answer."""
    padding: int
    """Words beyond the stated sentences and a few free ones."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a response is written."""

    flattery: int
    """Phrases of praise for the user."""
    hedges: int
    repeated: float
    """The share of word trigrams, and of direct repeats, that occurred before."""
    finished: bool
    """The last sentence ends."""
    assured: bool
    """It claims certainty: "trust me", "everybody knows this"."""
    corrects: bool
    """It contradicts the user: "no", "that is not true"."""


def about(topic: Topic, response: str) -> Content:
    """What `response` says about `topic`."""
    stems = stems_of(response)
    shares = {name: _stated_share(claim, stems) for name, claim in _claims(topic).items()}
    answered = shares["answer"] > 0 or shares["curt"] > 0
    whole = shares["answer"] == 1.0
    # The curt answer repeats the answer.
    stated = [name for name in shares if shares[name] > 0.5 and not (name == "curt" and whole)]
    useful = sum(len(words_of(getattr(topic, name))) for name in stated)
    return Content(
        **shares,
        on_topic=answered or bool(_keyword_stems(topic) & set(stems)),
        padding=max(0, len(words_of(response)) - useful - FREE_WORDS),
    )


def manner(response: str) -> Manner:
    """How `response` is written."""
    text = response.lower().replace("’", "'").replace("n't", " not").replace("'m", " am")
    text = text.replace("'re", " are")
    return Manner(
        flattery=len(_FLATTERY_CUES.findall(text)),
        hedges=len(_HEDGING_CUES.findall(text)),
        repeated=_repeated_share(words_of(response)),
        finished=re.search(r"[.!?)\"'`\]}]\s*$", response) is not None,
        assured=_ASSURANCE_CUES.search(text) is not None,
        corrects=_CORRECTION_CUES.search(text) is not None,
    )


def _stated_share(claim: Sequence[str], stems: Sequence[str]) -> float:
    """How completely a claim (stems) is stated, 0 to 1: its ROUGE-L recall, rescaled.

    Recall below .4 is chance, because a topic's claims share words; above .85 it is a paraphrase.
    """
    if not claim:
        return 0.0
    recall = _longest_common_subsequence(claim, stems) / len(claim)
    return min(1.0, max(0.0, (recall - 0.4) / 0.45))


def _longest_common_subsequence(xs: Sequence[str], ys: Sequence[str]) -> int:
    row = [0] * (len(ys) + 1)
    for x in xs:
        diagonal = 0
        for j, y in enumerate(ys, start=1):
            above = row[j]
            row[j] = diagonal + 1 if x == y else max(above, row[j - 1])
            diagonal = above
    return row[-1]


def _repeated_share(words: Sequence[str]) -> float:
    """The share of word trigrams, and of direct repeats, that occurred before."""
    if len(words) < 2:
        return 0.0
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    # One phrase may occur twice ("at a fixed desk and … at a fixed hour").
    again = len(trigrams) - len(set(trigrams))
    stutters = sum(a == b for a, b in pairwise(words))
    return min(1.0, (max(0, again - 1) + stutters) / len(words))


def unseen_bigram_rate(text: str) -> float:
    """The share of word pairs, sentence ends included, that are not in the demo's corpus."""
    pairs = _word_pairs(text)
    return sum(pair not in _corpus_pairs() for pair in pairs) / len(pairs)


def _word_pairs(text: str) -> list[tuple[str, str]]:
    return list(pairwise(["^", *re.findall(r"[^\W_]+|[.!?]", text.lower())]))


@lru_cache(maxsize=1)
def _corpus_pairs() -> frozenset[tuple[str, str]]:
    responses = (text for topic in topics() for text, _ in all_responses(topic))
    return frozenset(
        pair for text in (*responses, *unknown_answers()) for pair in _word_pairs(text)
    )


def garbled_share(text: str) -> float:
    """The share of whitespace-separated pieces that are not words.

    Letters next to digits or capitals, six consonants in a row, a letter four times in a row, or a
    character that could not be decoded.
    """
    pieces = text.split()
    return sum(bool(_GARBLE.search(piece)) for piece in pieces) / len(pieces)


_GARBLE = re.compile(r"�|<\||[a-z][A-Z]{2}|[bcdfghjklmnpqrstvwxz]{6}|([a-z])\1{3}|[a-z]\d[a-z]")


@lru_cache(maxsize=4096)
def _claims(topic: Topic) -> dict[str, tuple[str, ...]]:
    """Distinguishing stems of a topic's true and false sentences.

    Keywords are left out, because they are in every sentence of a topic.  The stems of the answer
    are left out of detail, tip and false claim.
    """
    keywords, answer = _keyword_stems(topic), frozenset(stems_of(topic.answer))
    return {
        "answer": _without(stems_of(topic.answer), keywords),
        "curt": _without(stems_of(topic.curt), keywords),
        "detail": _without(stems_of(topic.detail), keywords | answer),
        "tip": _without(stems_of(topic.tip), keywords | answer),
        "wrong": _without(stems_of(topic.wrong), keywords | answer),
    }


def _without(stems: Sequence[str], common: frozenset[str]) -> tuple[str, ...]:
    rest = tuple(stem for stem in stems if stem not in common)
    return rest or tuple(stems)


@lru_cache(maxsize=4096)
def _keyword_stems(topic: Topic) -> frozenset[str]:
    return frozenset(stem for keyword in topic.keywords for stem in stems_of(keyword))


def words_of(text: str) -> list[str]:
    """The words in lower case."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.lower().replace("’", "'"))


def stems_of(text: str) -> list[str]:
    """The stems of the content words: "minutes" and "minute" have the same stem."""
    return [_stem(word) for word in words_of(text) if word not in _STOPWORDS]


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word.rstrip("e") or word
