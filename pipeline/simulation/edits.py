"""Edits by simulated annotators: what a careful editor improves in the preferred response.

The editor leaves out a sentence, or its opening ("I am not sure, but …"), or in the demo puts the
topic's true answer in its place.  A change counts only if the gold preference gains by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from pipeline.demo.corpus import Topic
from pipeline.simulation.preference import GoldReward, scored, topic_asked

_MIN_GAIN = 0.2  # standard deviations of the gold preference; smaller faults are left alone
_MAX_CHANGES = 4
_OPENING = re.compile(r"^.*?(?:, but |: )(?=\S)")

# People compose 19 words per minute (Karat et al. 1999, CHI) and read 238 (annotators.py).
_MS_PER_TYPED_WORD, _MS_PER_READ_WORD, _MS_PER_CHANGE = 60_000 / 19, 252.0, 1500.0


def improved(prompt: str, response: str, gold: GoldReward) -> str | None:
    """The response after the best changes, one at a time; None if no change improves it."""
    topic = topic_asked(prompt)
    best, (reached,) = response, scored(gold, prompt, [response])
    for _ in range(_MAX_CHANGES):
        texts = list(_changes(best, topic))
        gained, text = max(zip(scored(gold, prompt, texts), texts, strict=True), default=(0.0, ""))
        if not text or gained < reached + _MIN_GAIN:
            break
        best, reached = text, gained
    return best if best != response else None


def editing_ms(before: str, after: str) -> float:
    """The time that an average person needs for an edit: reading the result, choosing each place and
    typing the new words."""
    old, new = before.split(), after.split()
    matched = SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    changes = [end - begin for kind, _, _, begin, end in matched if kind != "equal"]
    typing = sum(changes) * _MS_PER_TYPED_WORD
    return len(new) * _MS_PER_READ_WORD + len(changes) * _MS_PER_CHANGE + typing


def _changes(response: str, topic: Topic | None) -> Iterator[str]:
    """Every single change of a response."""
    sentences = re.split(r"(?<=[.!?])\s+", response.strip())
    for n, sentence in enumerate(sentences):
        rest = sentences[:n], sentences[n + 1 :]
        if len(sentences) > 1:
            yield _joined(*rest)
        if (body := _OPENING.sub("", sentence)) != sentence:
            yield _joined(rest[0], [body[0].upper() + body[1:]], rest[1])
        if topic and topic.answer not in response:
            yield _joined(rest[0], [topic.answer], rest[1])


def _joined(*parts: list[str]) -> str:
    return " ".join(sentence for part in parts for sentence in part)
