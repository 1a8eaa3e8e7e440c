"""Where a marked passage is: its place in the response, and in the text that the page shows.

A client gives the place in one of both texts.  The other one is computed here, so that researchers
can use offsets in the stored response although annotators select rendered text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from labeler.html.text import text_of
from storage.records import Mark

CONTEXT = 32
"""Characters of `prefix` and `suffix`."""

NOT_THERE = "A marked passage is not at this place in the response. Mark it again."

# Markup and white space: what rendering adds, removes or replaces.  Numbers of lists and the languages
# of code blocks are markup too.
_MARKUP = re.compile(r"^[ \t>]*(?:\d{1,9}[.)](?=[ \t])|(?:`{3,}|~{3,})[^\n]*)|[\W_]", re.MULTILINE)


class Searched:
    """A text in which passages are searched, with and without its markup."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def kept(self) -> list[int]:
        """The positions of the characters that are no markup."""
        found: list[int] = []
        at = 0
        for markup in _MARKUP.finditer(self.text):
            found += range(at, markup.start())
            at = markup.end()
        return [*found, *range(at, len(self.text))]

    @cached_property
    def bare(self) -> str:
        """The text without its markup."""
        return "".join(map(self.text.__getitem__, self.kept))


def located(given: Sequence[Mapping[str, Any]], text: str, html: str) -> list[Mark]:
    """The marks with both places, as far as they are known, and the characters around the quote.

    `text` is the response and `html` the same rendered.  A mark has `reason`, `quote`, and the offsets
    in one of both texts.  Raises ValueError if the quote is not there.
    """
    source, rendered = Searched(text), Searched(text_of(html))
    moved = 'class="notes"' in html  # footnotes are at the end of the rendered text
    return [_located(mark, source, rendered, moved) for mark in given]


def _located(given: Mapping[str, Any], source: Searched, rendered: Searched, moved: bool) -> Mark:
    is_rendered = given["rendered_start"] is not None
    start = given["rendered_start"] if is_rendered else given["start"]
    end = given["rendered_end"] if is_rendered else given["end"]
    own, other = (rendered, source) if is_rendered else (source, rendered)
    if own.text[start:end] != given["quote"]:
        raise ValueError(NOT_THERE)
    place = counterpart(own, start, end, other, moved=moved) or (None, None)
    in_source, in_rendered = (place, (start, end)) if is_rendered else ((start, end), place)
    return Mark(
        reason=given["reason"],
        quote=given["quote"],
        prefix=own.text[max(0, start - CONTEXT) : start],
        suffix=own.text[end : end + CONTEXT],
        start=in_source[0],
        end=in_source[1],
        rendered_start=in_rendered[0],
        rendered_end=in_rendered[1],
    )


def counterpart(
    own: Searched, start: int, end: int, other: Searched, *, moved: bool
) -> tuple[int, int] | None:
    """The place in `other` of the passage of `own` from `start` to `end`, or None if it is not certain.

    The passage is found literally, or else by its letters and digits, with any markup between them.
    If it occurs several times, it must occur equally often in both texts, and their order must be the
    same: parts of one must not be `moved`.
    """
    quote = own.text[start:end]
    place = _same_occurrence(own.text, quote, start, other.text, moved)
    if place is not None:
        return place, place + len(quote)
    first, after = bisect_left(own.kept, start), bisect_left(own.kept, end)
    if first == after:
        return None
    place = _same_occurrence(own.bare, own.bare[first:after], first, other.bare, moved)
    if place is None:
        return None
    last = place + after - first - 1
    begin, stop = other.kept[place], other.kept[last] + 1
    # Signs at the borders, such as a full stop, belong to the passage if they are there too.
    before = own.text[start : own.kept[first]].strip()
    behind = own.text[own.kept[after - 1] + 1 : end].strip()
    sign = other.text.rfind(before, other.kept[place - 1] + 1 if place else 0, begin)
    if before and sign >= 0:
        begin = sign
    following = other.kept[last + 1] if last + 1 < len(other.kept) else len(other.text)
    sign = other.text.find(behind, stop, following)
    if behind and sign >= 0:
        stop = sign + len(behind)
    return begin, stop


def _same_occurrence(own: str, part: str, start: int, other: str, moved: bool) -> int | None:
    here, there = _occurrences(own, part), _occurrences(other, part)
    if len(here) != len(there) or (moved and len(here) > 1):
        return None
    return there[here.index(start)]


def _occurrences(text: str, part: str) -> list[int]:
    """Every position of `part`, also where it overlaps itself."""
    found: list[int] = []
    at = text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found
