"""Marked passages in the rows of a file of judgments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.importing.files.cells import Cells
from storage.importing.files.filetypes import DuplicateKeys
from storage.records import Mark, check_choice

_TEXTS = ("reason", "quote", "prefix", "suffix")
_NUMBERS = ("start", "end", "rendered_start", "rendered_end")


def marks_of(cells: Cells, texts: Mapping[str, str]) -> dict[str, tuple[Mark, ...]]:
    """The column `marks` by side; `texts` are the responses by side.  ValueError as in `Cells`."""
    found: dict[str, tuple[Mark, ...]] = {}
    for side, given in cells.objects("marks").items():
        check_choice("side of marks", side, ("a", "b"))
        found[side] = tuple(_mark(each, texts[side]) for each in given)
    return found


def _mark(given: Mapping[str, Any], text: str) -> Mark:
    """A mark whose place is known only in the response must be at that place."""
    if isinstance(given, DuplicateKeys):
        raise ValueError(f"marks: a mark has {given.twice} twice")
    values = {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        if name not in (*_TEXTS, *_NUMBERS):
            raise ValueError(f"marks: a mark has no {name!r}")
        if name in _TEXTS and not isinstance(value, str):
            raise ValueError(f"marks: {name} must be text")
        if name in _NUMBERS and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"marks: {name} must be a whole number")
    for name in ("reason", "quote"):
        if name not in values:
            raise ValueError(f"marks: {name} is missing")
    mark = Mark(**values)
    if mark.end is not None and mark.end > len(text):
        raise ValueError(
            f"marks: end={mark.end} is after the end of the response, which has {len(text):,} characters"
        )
    if mark.rendered_start is None and text[mark.start : mark.end] != mark.quote:
        raise ValueError(f"marks: the response from {mark.start} to {mark.end} is not the quote")
    return mark
