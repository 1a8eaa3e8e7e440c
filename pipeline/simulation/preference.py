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
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import cast

from pipeline.config.plugins import load_function
from pipeline.demo.corpus import Topic, topic_of, topics
from pipeline.demo.corpus.rows import unknown_answers
from pipeline.demo.corpus.styles import all_responses

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
_FREE_WORDS = 5  # a lead-in and a closing phrase are not padding
_WORDS_OF_A_FULL_ANSWER = 80

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
    """The topic of the last message of a prompt, which may be a longer chat in the form of
    `clients.conversation`."""
    return topic_of(prompt.rpartition("\n\nuser: ")[2])


def parts(prompt: str, response: str) -> dict[str, float]:
    """The contribution of each part of the preference to the unscaled score, by name."""
    topic = topic_asked(prompt)
    if topic:
        return parts_about(topic, response)
    if not _words(response):
        return {"empty": _EMPTY}
    return _general(prompt, response) | _manner(response)


def parts_about(topic: Topic, response: str) -> dict[str, float]:
    """`parts` of a response to a prompt about `topic`, whatever its wording."""
    if not _words(response):
        return {"empty": _EMPTY}
    return _topical(topic, response) | _manner(response)


def _topical(topic: Topic, response: str) -> dict[str, float]:
    stems = _stems(response)
    shares = {name: _stated_share(claim, stems) for name, claim in _claims(topic).items()}
    fact = max(shares["answer"], _CURT_SHARE * shares["curt"])
    on_topic = fact > 0 or bool(_keyword_stems(topic) & set(stems))
    # The curt answer repeats the answer.
    stated = [name for name in shares if shares[name] > 0.5 and (name, fact) != ("curt", 1.0)]
    useful = sum(len(_words(getattr(topic, name))) for name in stated)
    padding = max(0, len(_words(response)) - useful - _FREE_WORDS)
    return {
        "fact": _FACT * fact,
        "detail": _DETAIL * shares["detail"],
        "tip": _TIP * shares["tip"],
        "wrong": _WRONG * shares["wrong"],
        "off_topic": 0.0 if on_topic else _OFF_TOPIC,
        "padding": max(_PADDING_FLOOR, _PER_PADDING_WORD * padding),
        "garbled": _GARBLED * min(1.0, 3 * unseen_bigram_rate(response)),
    }


def _general(prompt: str, response: str) -> dict[str, float]:
    asked, stems = set(_stems(prompt)), set(_stems(response))
    added = stems - asked
    # Ochiai's coefficient: additional words lower it as missing words do.
    shared = len(asked & stems) / math.sqrt(len(asked) * len(stems)) if asked and stems else 0.0
    words = len(_words(response))
    # In ordinary prose every third word is a content word; prose with fewer is padded.
    thin, long = words - 3 * len(stems) - _FREE_WORDS, words - _WORDS_OF_A_FULL_ANSWER
    padding = max(0, thin) + max(0, long) / 10
    return {
        "coverage": _COVERAGE * min(1.0, 2 * shared),
        "substance": _SUBSTANCE * min(1.0, len(added) / 2),
        "padding": max(_PADDING_FLOOR, _PER_PADDING_WORD * padding),
        "garbled": _GARBLED * min(1.0, 5 * _garbled_share(response)),
    }


def _manner(response: str) -> dict[str, float]:
    text = response.lower().replace("’", "'").replace("n't", " not").replace("'m", " am")
    text = text.replace("'re", " are")
    words = _words(response)
    flattery = len(_FLATTERY_CUES.findall(text))
    hedges = len(_HEDGING_CUES.findall(text))
    return {
        "flattery": _FLATTERY * min(flattery, 2) ** 0.5,
        "hedging": _HEDGING * min(hedges, 3) ** 0.5,
        "repetition": _REPETITION * _repeated_share(words),
        "unfinished": 0.0 if re.search(r"[.!?)\"'`\]}]\s*$", response) else _UNFINISHED,
    }


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


def _garbled_share(text: str) -> float:
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
    keywords, answer = _keyword_stems(topic), frozenset(_stems(topic.answer))
    return {
        "answer": _without(_stems(topic.answer), keywords),
        "curt": _without(_stems(topic.curt), keywords),
        "detail": _without(_stems(topic.detail), keywords | answer),
        "tip": _without(_stems(topic.tip), keywords | answer),
        "wrong": _without(_stems(topic.wrong), keywords | answer),
    }


def _without(stems: Sequence[str], common: frozenset[str]) -> tuple[str, ...]:
    rest = tuple(stem for stem in stems if stem not in common)
    return rest or tuple(stems)


@lru_cache(maxsize=4096)
def _keyword_stems(topic: Topic) -> frozenset[str]:
    return frozenset(stem for keyword in topic.keywords for stem in _stems(keyword))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.lower().replace("’", "'"))


def _stems(text: str) -> list[str]:
    """The stems of the content words: "minutes" and "minute" have the same stem."""
    return [_stem(word) for word in _words(text) if word not in _STOPWORDS]


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word.rstrip("e") or word
