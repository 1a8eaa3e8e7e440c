"""Notes on the rows of an imported file: bad rows and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from storage.wording import plural

Why = Literal["bad", "long", "left out"]
"""Why a row was not imported: it is bad, it exceeds the model's context, or its tool does not count it."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Why a row is bad, or a warning about it."""

    line: int
    reason: str
    why: Why = "bad"
    """Of a row that was not imported."""


MAX_NOTES = 1_000
"""Notes that are kept; further ones are only counted.  `keeping` changes it."""
MAX_REASON_LENGTH = 1_000
"""Characters; a reason may quote a name as long as the file."""


_KEPT: ContextVar[int] = ContextVar("kept", default=MAX_NOTES)


@contextmanager
def keeping(most: int) -> Iterator[None]:
    """Keep the first `most` notes of the files that the block imports."""
    before = _KEPT.set(most)
    try:
        yield
    finally:
        _KEPT.reset(before)


class RowNotes:
    """`count` notes on the rows of a file, of which the `first` are kept.  `long` and `left_out`
    count those that say so."""

    def __init__(self, notes: Iterable[BadRow] = ()) -> None:
        self.first: list[BadRow] = []
        self.count = self.long = self.left_out = 0
        for note in notes:
            self.append(note)

    def append(self, note: BadRow) -> None:
        if len(self.first) < _KEPT.get():
            self.first.append(_short(note))
        self.count += 1
        self.long += note.why == "long"
        self.left_out += note.why == "left out"

    @classmethod
    def of(cls, *parts: RowNotes) -> RowNotes:
        """The notes of all parts, in order of lines."""
        together = cls(sorted((n for part in parts for n in part.first), key=lambda n: n.line))
        together.count = sum(part.count for part in parts)
        together.long = sum(part.long for part in parts)
        together.left_out = sum(part.left_out for part in parts)
        return together


def _short(note: BadRow) -> BadRow:
    if len(note.reason) <= MAX_REASON_LENGTH:
        return note
    return replace(note, reason=f"{note.reason[: MAX_REASON_LENGTH - 1]}…")


_REASONS_SHOWN = 20


def _by_reason(rows: Sequence[BadRow]) -> tuple[str, int]:
    """A line for each of the first reasons, with its rows, and the number of those rows."""
    lines: dict[str, list[int]] = {}
    for row in rows:
        lines.setdefault(row.reason, []).append(row.line)
    shown = list(lines.items())[:_REASONS_SHOWN]
    text = "".join(f"\n  {lines_in_words(found)}: {reason}" for reason, found in shown)
    return text, sum(len(found) for _, found in shown)


def lines_in_words(lines: Sequence[int]) -> str:
    """``line 3``, ``lines 1 to 3``, or ``lines 1, 4, 9 and 12 more``; `lines` are in order."""
    first, last = lines[0], lines[-1]
    if len(lines) == 1:
        return f"line {first}"
    if last - first == len(lines) - 1:
        return f"lines {first} to {last}" if len(lines) > 2 else f"lines {first} and {last}"
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return f"lines {', '.join(map(str, lines[:3]))}{more}"


class BadFile(ValueError):
    """A file was not imported: `count` bad rows, the first of them in `rows`, and a `summary`."""

    def __init__(self, path: Path, bad: RowNotes) -> None:
        self._made_of = path, bad
        self.rows, self.count, self.long = RowNotes.of(bad).first, bad.count, bad.long
        shown, told = _by_reason(self.rows)
        more = f"\n  … and {self.count - told} more" if self.count > told else ""
        self.summary = (
            f"nothing was imported from {path.name}, which has {plural(self.count, 'bad row')}"
        )
        skip = (
            "\n  --skip-long leaves out rows that exceed the model's context" if self.long else ""
        )
        super().__init__(f"{self.summary}:{shown}{more}{skip}")

    def shortened(self) -> BadFile:
        """The same with the rows that are kept by now, after `keeping` kept more of them."""
        path, bad = self._made_of
        return BadFile(path, RowNotes.of(bad))

    def __reduce__(self) -> tuple[type[BadFile], tuple[Path, RowNotes]]:
        # Exceptions are pickled with their message only.
        return BadFile, self._made_of
