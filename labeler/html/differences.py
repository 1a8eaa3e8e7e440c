"""The words that differ between two versions of a text, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from labeler.html.components import Markup

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_PRODUCT = 1_000_000
"""Words of a changed passage before × after; longer passages are shown as replaced entirely, because
the comparison takes quadratic time."""


def differences(before: str, after: str) -> Markup:
    """`after` with the words that it has gained in ``<ins>`` and those that it lost in ``<del>``."""
    pieces = [
        Markup("<{0}>{1}</{0}>").format(tag, text) if tag else Markup("{}").format(text)
        for tag, text in _joined(_changes(before, after))
    ]
    return Markup('<div class="ks-differences" dir="auto">{}</div>').format(Markup("").join(pieces))


def count(before: str, after: str) -> tuple[int, int]:
    """How many words were added and how many removed."""
    found = {"ins": 0, "del": 0, "": 0}
    for tag, text in _changes(before, after):
        found[tag] += len(re.findall(r"\w+", text))
    return found["ins"], found["del"]


def _changes(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Pieces of both texts in order, each with "ins", "del" or ""."""
    # Lines first: most of them are equal.
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for equal, gone, come in _blocks(old, new):
        one, other = "".join(gone), "".join(come)
        if equal:
            yield "", one
            continue
        words, others = _WORDS.findall(one), _WORDS.findall(other)
        if len(words) * len(others) > _MAX_PRODUCT:
            yield "del", one
            yield "ins", other
            continue
        for same, removed, added in _blocks(words, others):
            if same:
                yield "", "".join(removed)
            else:
                yield "del", "".join(removed)
                yield "ins", "".join(added)


def _blocks(
    old: Sequence[str], new: Sequence[str]
) -> Iterator[tuple[bool, Sequence[str], Sequence[str]]]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        yield tag == "equal", old[i:j], new[k:m]


def _joined(pieces: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbors of one kind together, without empty pieces."""
    found: list[tuple[str, str]] = []
    for tag, text in pieces:
        if found and found[-1][0] == tag:
            found[-1] = tag, found[-1][1] + text
        elif text:
            found.append((tag, text))
    return found
