"""A file during its import: its rows, notes on them, and the transaction that stores it."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

from storage.engine.database import Database
from storage.engine.lookup import Reader
from storage.engine.transaction import Encoded, Transaction
from storage.importing.cells import Cells
from storage.importing.filetypes import read_rows
from storage.importing.long_rows import LengthCheck, LongRow
from storage.importing.optimistic_reads import OptimisticReads
from storage.importing.plan import Plan
from storage.importing.row_notes import BadFile, BadRow, RowNotes
from storage.records import now

T = TypeVar("T")

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


class Sheet:
    """A file during its import: its rows, and the notes on them so far."""

    def __init__(self, file: Path, length: LengthCheck, *, max_rows: int | None = None) -> None:
        self._path = Path(file)
        self._length = length
        self._skipped = RowNotes()
        rows, self.bad = read_rows(self._path, max_rows=max_rows)
        self._rows = deque(rows)
        self._warnings = RowNotes()
        self._count = len(self._rows) + self.bad.count
        self._columns: dict[str, int] = {}  # the line on which each column first occurs
        for row in rows:
            for name in row.values:
                self._columns.setdefault(name, row.line)
        if not self._count:
            raise BadFile(self._path, RowNotes([BadRow(1, "the file has no rows")]))

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
                kept_from.append(BadRow(row.line, str(problem)))
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
        return made

    def store(
        self, db: Database, plan: Callable[[Reader, datetime], Plan], *, skip_bad: bool
    ) -> ImportReport:
        """Store a plan in one transaction; raises `BadFile` before anything is stored.

        The plan is made outside the writer thread, so that judgments do not wait for it.  If the
        data that it read have changed meanwhile, the writer thread makes it again.
        """
        when = now()
        reads = OptimisticReads(db)
        with db.snapshot():
            planned = plan(reads, when)
        self._require_good(planned, skip_bad=skip_bad)
        encoded = planned.encoded()

        def operation(tx: Transaction) -> ImportReport:
            if reads.still_valid(tx):
                return self._report(planned, tx, encoded)
            again = plan(tx, when)
            self._require_good(again, skip_bad=skip_bad)
            return self._report(again, tx, again.encoded())

        return db.write(operation)

    def _require_good(self, planned: Plan, *, skip_bad: bool) -> None:
        bad = RowNotes.of(self.bad, planned.bad)
        if bad.count and not skip_bad:
            raise BadFile(self._path, bad)

    def _report(self, planned: Plan, tx: Transaction, encoded: dict[str, Encoded]) -> ImportReport:
        added = {name: tx.store_encoded(records) for name, records in encoded.items()}
        warnings = RowNotes.of(self._warnings, planned.warnings)
        skipped = RowNotes.of(self.bad, planned.bad, self._skipped)
        return ImportReport(
            self._count, added, planned.known, skipped.first, warnings.first,
            skipped_in_all=skipped.count, warnings_in_all=warnings.count,
        )  # fmt: skip
