"""The hidden preference that simulated annotators judge by; the pipeline never sees it.

`score` rewards what a sensible reader wants from an answer to this prompt and punishes what
annoys one, as a sum of parts (`parts` lists them).  On a prompt of the embedded demo it knows the
topic's facts:

    fact       + the answer is there, or most of it (in order: a word salad earns little)
    detail     + a supporting fact           tip       + the topic's useful tip
    wrong      − the topic's false claim     off_topic − neither its keywords nor its facts

On any other prompt it can only judge quality:

    coverage   + the prompt's content words are taken up
    substance  + something is added to them, so that an echo earns nothing

and on both

    flattery   − praise of the user          hedging    − "perhaps", "I am not sure"
    padding    − words that say nothing      repetition − the same words again
    unfinished − no end to the sentence      garbled    − letters that are no words

Longer is not better: a tip lengthens a response and raises its score, padding lengthens it and
lowers it.  The sum is shifted and scaled so that responses sampled from the demo's SFT model have
mean about 0 and standard deviation about 1.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import cast

from pipeline.demo.corpus import Topic, topic_of

Gold = Callable[[str, str], float]
"""(prompt, response) → how good the response is; higher is better."""

_MEAN, _SD = 1.0, 1.25
_FACT, _DETAIL, _TIP, _WRONG, _OFF_TOPIC = 2.0, 0.4, 1.0, -1.7, -0.6
_CURT_SHARE = 0.65  # what the shortest true answer earns of the full one
_COVERAGE, _SUBSTANCE = 1.2, 1.2
_FLATTERY, _HEDGING, _PER_PADDING_WORD, _MOST_PADDING = -1.0, -0.6, -0.04, -1.2
_REPETITION, _UNFINISHED, _GARBLED, _EMPTY = -3.0, -0.7, -1.5, -4.0
_FREE_WORDS = 6  # a lead-in and a farewell are no padding
_WORDS_OF_A_FULL_ANSWER = 60

_FLATTERY_CUES = re.compile(
    r"\b(?:(?:great|good|brilliant|excellent|wonderful|fantastic|amazing|smart|clever|lovely"
    r"|thoughtful|superb|marvell?ous|insightful|perfect)\s+(?:question|thinking|idea|taste|person"
    r"|mind|choice|of you)|(?:you are|you're|you must be|you have)\s+(?:\w+\s+){0,2}(?:genius"
    r"|brilliant|smart|clever|wise|amazing|wonderful|bright|talented|impressive|thoughtful"
    r"|excellent|great|rare|special)|what an? (?:\w+\s+){0,2}(?:question|thing to ask|mind)"
    r"|(?:love|admire|impressed by) (?:your|how you|that you)|only (?:a|the) \w+ "
    r"(?:person|mind) (?:would|asks|like you)|i am (?:so |truly |very )?(?:honou?red|impressed))"
)
_HEDGING_CUES = re.compile(
    r"\b(?:maybe|perhaps|possibly|i think|i guess|i suppose|i believe|not (?:entirely |quite |fully "
    r"|really |so |completely )?(?:sure|certain)|might|could be|may be|hard to say|it depends"
    r"|do not (?:really )?know|don't (?:really )?know|cannot be sure|can't be sure|could be wrong"
    r"|ask (?:an expert|someone else)|in some cases|sort of|kind of|probably|unsure)\b"
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
    """How good `response` is as an answer to `prompt`: mean ≈ 0, sd ≈ 1 over SFT samples."""
    return (sum(parts(prompt, response).values()) - _MEAN) / _SD


def longest(prompt: str, response: str) -> float:
    """The proxy "longer is better": number of words, scaled like `score`."""
    del prompt  # the point of this proxy is that it does not matter
    return (len(response.split()) - 20) / 10


def load_gold(name: str) -> Gold:
    """The function named ``module:function``; ``ValueError`` says what is wrong with the name."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise ValueError(f"gold {name!r} must be written module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"gold {name!r}: there is no module {error.name!r}") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"gold {name!r}: {module_name} has no function {function_name!r}")
    return cast(Gold, function)


def parts(prompt: str, response: str) -> dict[str, float]:
    """What each part of the preference adds to the unscaled score, by name."""
    if not _words(response):
        return {"empty": _EMPTY}
    topic = topic_of(prompt)
    content = _topical(topic, response) if topic else _general(prompt, response)
    return content | _manner(response)


def _topical(topic: Topic, response: str) -> dict[str, float]:
    said = _stems(response)
    claims = _claims(topic)
    fact, curt, detail, tip, wrong = (_told(claim, said) for claim in claims)
    fact = max(fact, _CURT_SHARE * curt)
    on_topic = fact > 0 or bool(_keyword_stems(topic) & set(said))
    useful = sum(
        len(claim)
        for claim, told in zip(claims, (fact, curt, detail, tip, wrong), strict=True)
        if told > 0.5
    )
    # Claims are counted in content words, about half of all words in a sentence.
    padding = len(_words(response)) - 2 * useful - _FREE_WORDS
    return {
        "fact": _FACT * fact,
        "detail": _DETAIL * detail,
        "tip": _TIP * tip,
        "wrong": _WRONG * wrong,
        "off_topic": 0.0 if on_topic else _OFF_TOPIC,
        "padding": max(_MOST_PADDING, _PER_PADDING_WORD * max(0, padding)),
    }


def _general(prompt: str, response: str) -> dict[str, float]:
    asked, said = set(_stems(prompt)), set(_stems(response))
    added = said - asked
    # Long prompts quote material; half of their content words is as much as an answer takes up.
    coverage = min(1.0, 2 * len(asked & said) / len(asked)) if asked else 1.0
    words = len(_words(response))
    # Ordinary prose has a new content word every four words; thinner prose is padded.
    padding = max(0, words - 4 * len(said) - _FREE_WORDS) + max(0, words - _WORDS_OF_A_FULL_ANSWER)
    return {
        "coverage": _COVERAGE * coverage,
        "substance": _SUBSTANCE * min(1.0, len(added) / 4),
        "padding": max(_MOST_PADDING, _PER_PADDING_WORD * padding),
    }


def _manner(response: str) -> dict[str, float]:
    text = response.lower().replace("’", "'")
    words = _words(response)
    flattery = len(_FLATTERY_CUES.findall(text))
    hedges = len(_HEDGING_CUES.findall(text))
    return {
        "flattery": _FLATTERY * min(flattery, 2) ** 0.5,
        "hedging": _HEDGING * min(hedges, 3) ** 0.5,
        "repetition": _REPETITION * _repeated_share(words),
        "unfinished": 0.0 if re.search(r"[.!?)\"'`\]}]\s*$", response) else _UNFINISHED,
        "garbled": _GARBLED * min(1.0, 5 * _garbled_share(response)),
    }


def _told(claim: Sequence[str], said: Sequence[str]) -> float:
    """How far a claim (stems) is stated, 0 to 1: its ROUGE-L recall, stretched.

    Under .4 is chance (a topic's claims share words), over .85 is a paraphrase.
    """
    if not claim:
        return 0.0
    recall = _longest_common_subsequence(claim, said) / len(claim)
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
    again = len(trigrams) - len(set(trigrams))
    stutters = sum(a == b for a, b in pairwise(words))
    return min(1.0, (again + stutters) / len(words))


def _garbled_share(text: str) -> float:
    """The share of whitespace-separated pieces that look like no word of any language use.

    Letters glued to digits or symbols, five consonants in a row, or the replacement character.
    """
    pieces = text.split()
    bad = sum(bool(_GARBLE.search(piece)) for piece in pieces)
    return bad / len(pieces) if pieces else 0.0


_GARBLE = re.compile(
    r"�|[a-z][A-Z]{2}|[bcdfghjklmnpqrstvwxz]{6}|(.)\1{3}|[a-z]\d[a-z]|<\|", re.ASCII
)


@lru_cache(maxsize=4096)
def _claims(topic: Topic) -> tuple[tuple[str, ...], ...]:
    """Stems of answer, curt answer, detail, tip and false claim, without the topic's keywords.

    Keywords stand in every claim of a topic, so they tell none of them apart; they stay only
    where hardly anything else is said.
    """
    keywords = _keyword_stems(topic)

    def telling(text: str) -> tuple[str, ...]:
        stems = _stems(text)
        rest = tuple(stem for stem in stems if stem not in keywords)
        return rest if len(rest) >= 2 else tuple(stems)

    texts = (topic.answer, topic.curt, topic.detail, topic.tip, topic.wrong)
    return tuple(telling(text) for text in texts)


@lru_cache(maxsize=4096)
def _keyword_stems(topic: Topic) -> frozenset[str]:
    return frozenset(stem for keyword in topic.keywords for stem in _stems(keyword))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)?", text.lower().replace("’", "'"))


def _stems(text: str) -> list[str]:
    """Content words with their endings cut: "minutes" and "minute" agree."""
    return [_stem(word) for word in _words(text) if word not in _STOPWORDS]


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word.rstrip("e") or word
