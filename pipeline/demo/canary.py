"""The canary of the embedded demo: ordinary questions, each about another topic.

Every second topic is asked about in words that nothing else of the demo uses: no row of SFT and no
shipped prompt.  An answer passes if it is

* on topic: it contains a keyword of the topic;
* well-formed: all its words are words of the corpus, no sentence and no four words in a row occur
  twice (three do in good answers: "on a long drive"), and its last sentence ends.

These rules read the text alone, not the gold preference of simulated annotators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from pipeline.canary import CanaryCheck
from pipeline.demo.corpus import topics
from pipeline.demo.corpus.rows import unknown_answers
from pipeline.demo.corpus.styles import all_responses

_FRAMES = ("A question before lunch. {q}", "Here is one for you. {q}", "{q} Take your time.")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?]+\s*")
_EVERY = 2  # topics: twice as many prompts would take twice as long


def checks() -> list[CanaryCheck]:
    """Two checks for each prompt."""
    found = []
    for number, topic in enumerate(topics()[::_EVERY]):
        question = topic.ask[number % len(topic.ask)]
        prompt = _FRAMES[number % len(_FRAMES)].format(q=question)
        found.append(CanaryCheck("on topic", prompt, topic.mentioned_in))
        found.append(CanaryCheck("well-formed", prompt, is_well_formed))
    return found


def is_well_formed(answer: str) -> bool:
    """Whether an answer's last sentence ends, nothing is repeated, and all words are known."""
    words = list(_words(answer))
    runs = list(zip(*(words[start:] for start in range(4)), strict=False))
    sentences = [tuple(_words(each)) for each in _SENTENCE_END.split(answer) if each]
    ends = answer.rstrip().endswith((".", "!", "?"))
    repeats = len({*runs}) < len(runs) or len({*sentences}) < len(sentences)
    return ends and not repeats and _vocabulary().issuperset(words)


def _words(text: str) -> Iterator[str]:
    return (word.lower() for word in _WORD.findall(text))


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    """All words of all responses of the corpus."""
    responses = (text for topic in topics() for text, _ in all_responses(topic))
    return frozenset(word for text in (*responses, *unknown_answers()) for word in _words(text))
