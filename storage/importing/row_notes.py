"""Notes on the rows of an imported file: bad rows and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BadRow:
    """Why a row is bad, or a warning about it."""

    line: int
    reason: str


MAX_NOTES = 1_000
"""Notes that are kept; further ones are only counted."""
MAX_REASON_LENGTH = 1_000
"""Characters; a reason may quote a name as long as the file."""


class RowNotes:
    """`count` notes on the rows of a file, of which the `first` are kept."""

    def __init__(self, notes: Iterable[BadRow] = ()) -> None:
        self.first: list[BadRow] = []
        self.count = 0
        for note in notes:
            self.append(note)

    def append(self, note: BadRow) -> None:
        if len(self.first) < MAX_NOTES:
            self.first.append(_short(note))
        self.count += 1

    @classmethod
    def of(cls, *parts: RowNotes) -> RowNotes:
        """The notes of all parts, in order of lines."""
        together = cls(sorted((n for part in parts for n in part.first), key=lambda n: n.line))
        together.count = sum(part.count for part in parts)
        return together


def _short(note: BadRow) -> BadRow:
    if len(note.reason) <= MAX_REASON_LENGTH:
        return note
    return BadRow(note.line, f"{note.reason[: MAX_REASON_LENGTH - 1]}…")


class BadFile(ValueError):
    """A file was not imported: `count` bad rows, the first of them in `rows`, and a `summary`."""

    def __init__(self, path: Path, bad: RowNotes) -> None:
        self._made_of = path, bad
        self.rows, self.count = RowNotes.of(bad).first, bad.count
        shown = "".join(f"\n  line {row.line}: {row.reason}" for row in self.rows[:20])
        more = f"\n  … and {self.count - 20} more" if self.count > 20 else ""
        what = "1 bad row" if self.count == 1 else f"{self.count} bad rows"
        self.summary = f"nothing was imported from {path.name}, which has {what}"
        super().__init__(f"{self.summary}:{shown}{more}")

    def __reduce__(self) -> tuple[type[BadFile], tuple[Path, RowNotes]]:
        # Exceptions are pickled with their message only.
        return BadFile, self._made_of
