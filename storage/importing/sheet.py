"""A file during its import: its rows, notes on them, and the batches that store it."""

from __future__ import annotations

import difflib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from storage.engine.database import Database
from storage.errors import Conflict, StorageUnavailable
from storage.importing.batches import batches, stored_keys
from storage.importing.files.cells import Cells
from storage.importing.files.filetypes import read_rows
from storage.importing.files.long_rows import LengthCheck, LongRow
from storage.importing.files.row_notes import BadFile, BadRow, RowNotes
from storage.importing.planning.plan import Plan
from storage.importing.preview import ROWS, shown
from storage.importing.sources.registry import Origin
from storage.importing.sources.source import Kind
from storage.importing.target import Target, target_of
from storage.records import now

T = TypeVar("T")

_MAX_PLANS = 5
_MAX_COLUMNS_LISTED = 50
_MAX_NAME_LENGTH = 100
"""Characters of a column's name that are compared: in a hostile file it may have megabytes."""


@dataclass(frozen=True)
class ImportReport:
    """The result of an import: `rows` in the file, records `added` by kind, and notes.

    `known` counts the prompts, demonstrations, pairs or judgments that were stored before.
    `skipped` has the bad rows that were left out.  `skipped` and `warnings` are limited to the
    first `MAX_NOTES`; the fields `…_in_all` count all of them.
    """

    rows: int
    added: dict[str, int]
    known: int
    skipped: list[BadRow] = field(default_factory=list)
    warnings: list[BadRow] = field(default_factory=list)
    skipped_in_all: int = 0
    warnings_in_all: int = 0
    long_in_all: int = 0
    """Skipped rows that exceed the model's context."""
    left_out_in_all: int = 0
    """Skipped rows that another tool does not count, such as drafts."""
    preview: list[dict[str, Any]] = field(default_factory=list)
    """Of a dry run: the first rows as they were understood."""


_WANTED: dict[Kind, str] = {
    "judgments": "judgments",
    "pairs": "pairs that wait for a judgment",
    "gold": "gold pairs",
}
"""What an import from another tool looks for."""


class ImportInterrupted(ValueError):
    """An import stopped after it had stored some records."""


class Sheet:
    """A file during its import: its rows, and the notes on them so far."""

    def __init__(
        self,
        file: Path,
        length: LengthCheck,
        *,
        max_rows: int | None = None,
        origin: Origin | None = None,
        kind: Kind = "judgments",
    ) -> None:
        """Read the file; with `origin`, as rows of `kind` that another tool wrote."""
        self._path = Path(file)
        self._length = length
        self._skipped, self._warnings = RowNotes(), RowNotes()
        rows, self.bad = read_rows(self._path, max_rows=max_rows)
        if origin:
            rows, bad, self._skipped, self._warnings = origin.rows(self._path, rows, kind)
            self.bad = RowNotes.of(self.bad, bad)
        self._rows = deque(rows)
        self._parsed: list[Any] = []  # the first rows
        self._count = len(self._rows) + self.bad.count
        self._columns: dict[str, int] = {}  # the line on which each column first occurs
        for row in rows:
            for name in row.values:
                self._columns.setdefault(name, row.line)
        if not self._count:
            has = f"has no {_WANTED[kind] if origin else 'rows'}"
            if not self._skipped.count:
                raise ValueError(f"nothing was imported from {self._path.name}, which {has}")
            note = BadRow(1, f"the file {has}")
            raise BadFile(self._path, RowNotes.of(RowNotes([note]), self._skipped))

    def has(self, column: str) -> bool:
        return column in self._columns

    def expect(self, needed: Sequence[Sequence[str]], *, known: Sequence[str]) -> None:
        """Raise `BadFile` if a group has no column in any row; warn about unknown columns."""
        missing = [
            BadRow(
                self._rows[0].line,
                f"no row has a column {' or '.join(group)}{self._hint(group, known)}; the columns "
                f"are {', '.join(islice(self._columns, _MAX_COLUMNS_LISTED))}",
            )
            for group in needed
            if self._rows and not any(map(self.has, group))
        ]
        if missing:
            raise BadFile(self._path, RowNotes.of(RowNotes(missing), self.bad))
        for column in self._unknown(known):
            near = difflib.get_close_matches(column[:_MAX_NAME_LENGTH], known, 1)
            hint = f"; did you mean {near[0]}?" if near and not self.has(near[0]) else ""
            self._warnings.append(
                BadRow(self._columns[column], f"column {column} is not used{hint}")
            )

    def _hint(self, group: Sequence[str], known: Sequence[str]) -> str:
        unknown = self._unknown(known)
        near = [m for name in group for m in difflib.get_close_matches(name, unknown, 1)]
        return f" (is it {near[0]}?)" if near else ""

    def _unknown(self, known: Sequence[str]) -> list[str]:
        """The first unknown columns; in JSON every row may have different ones."""
        unknown = (name for name in self._columns if name not in known)
        return list(islice(unknown, _MAX_COLUMNS_LISTED))

    def parse(
        self,
        function: Callable[[Cells], T],
        *,
        strict: bool = False,
        key: Callable[[T], str] | None = None,
    ) -> list[T]:
        """The results of `function` for the good rows; a row for which it raises ValueError is bad.

        If results have the same `key`, the first is kept, and each of the others gives a warning.
        Rows are freed as they are read, so this can be called only once.
        """
        made: list[T] = []
        bad = RowNotes()
        lines: dict[str, int] = {}
        while self._rows:
            row = self._rows.popleft()
            cells = Cells(row, strict=strict)
            try:
                one = function(cells)
            except LongRow as problem:
                kept_from = self._skipped if self._length.skip else bad
                kept_from.append(BadRow(row.line, str(problem), "long"))
                continue
            except ValueError as problem:
                bad.append(BadRow(row.line, str(problem)))
                continue
            if key is not None and (first := lines.setdefault(key(one), row.line)) != row.line:
                cells.warn(f"repeats line {first} and was imported once")
            else:
                made.append(one)
            for warning in cells.warnings:
                self._warnings.append(warning)
        self.bad = RowNotes.of(self.bad, bad)
        self._parsed = list(made[:ROWS])
        return made

    def store(
        self,
        db: Database | Target,
        plan: Callable[[Target, datetime], Plan],
        *,
        skip_bad: bool,
        dry_run: bool = False,
    ) -> ImportReport:
        """Store a plan in batches; raises `BadFile` before anything is stored.

        A dry run stores nothing and reports what would be added.

        If others change what the plan depends on, the rest of the file is planned again.  Raises
        ``ImportInterrupted`` if this happens `_MAX_PLANS` times, or if a batch is refused after
        others were stored.
        """
        when = now()
        added: Counter[str] = Counter()
        first: Plan | None = None
        with target_of(db) as target:
            for _ in range(_MAX_PLANS):
                planned, stored = self._planned(target, plan, when)
                bad = RowNotes.of(self.bad, planned.bad)
                if bad.count and not skip_bad:
                    if not added:
                        raise BadFile(self._path, bad)
                    raise self._interrupted(
                        added, f"line {bad.first[0].line}: {bad.first[0].reason}"
                    )
                first = first or planned
                if dry_run:
                    added.update(_new(planned, stored))
                    return replace(
                        self._report(first, bad, added), preview=[shown(r) for r in self._parsed]
                    )
                try:
                    if _store_batches(target, planned, stored, added):
                        return self._report(first, bad, added)
                except (StorageUnavailable, Conflict) as error:
                    if added:
                        raise self._interrupted(added, str(error)) from error
                    raise
        raise self._interrupted(added, "annotators in the file keep judging its pairs here")

    def _planned(
        self, target: Target, plan: Callable[[Target, datetime], Plan], when: datetime
    ) -> tuple[Plan, dict[str, set[str]]]:
        """A plan, and the keys of its records that are stored, from one snapshot."""
        target.start_reading()
        try:
            planned = plan(target, when)
            return planned, stored_keys(target, planned.groups())
        finally:
            target.stop_reading()

    def _interrupted(self, added: Counter[str], reason: str) -> ImportInterrupted:
        return ImportInterrupted(
            f"{self._path.name} was imported in part ({added.total():,} records): {reason}. Import "
            "the file again; what is stored is not stored twice"
        )

    def _report(self, first: Plan, bad: RowNotes, added: Counter[str]) -> ImportReport:
        """The report, from the first plan: later ones know what it has stored."""
        warnings = RowNotes.of(self._warnings, first.warnings)
        skipped = RowNotes.of(bad, self._skipped)
        return ImportReport(
            self._count, {name: added[name] for name in first.groups()}, first.known,
            skipped.first, warnings.first,
            skipped_in_all=skipped.count, warnings_in_all=warnings.count,
            long_in_all=skipped.long, left_out_in_all=skipped.left_out,
        )  # fmt: skip


def _new(planned: Plan, stored: dict[str, set[str]]) -> dict[str, int]:
    groups = planned.groups()
    return {name: len(records) - len(stored.get(name, ())) for name, records in groups.items()}


def _store_batches(
    target: Target, planned: Plan, stored: dict[str, set[str]], added: Counter[str]
) -> bool:
    """Store the records of a plan and count the new ones; False once the plan is outdated."""
    people = planned.people()
    target.storing(sum(map(len, planned.groups().values())))
    for batch in batches(planned.groups(), stored):
        while (answer := target.store(batch, people)).added is None:
            if any(map(planned.is_changed_by, answer.by_others)):
                return False
        added.update(answer.added)
    return True
