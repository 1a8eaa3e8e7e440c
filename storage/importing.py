"""Prompts, demonstrations, judgments and preference datasets from files.

Files are JSON lines, a JSON array, CSV or parquet.  A file is imported whole or not at all:
every bad row is reported at once, with its line, and nothing is stored; with `skip_bad` the good
rows are stored and the report says what was left out.  Ids follow from the content, so importing
the same file again adds nothing.  docs/data.md lists the columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar, cast, get_args

from storage.cells import Cells
from storage.database import Database, Transaction
from storage.desk import Reader
from storage.filetypes import BadFile, BadRow, read_rows
from storage.foresight import Foresight
from storage.import_plan import DEMONSTRATIONS, Plan, plan_demonstrations, plan_prompts, plan_votes
from storage.preferences import Labelled, labelled, pair_up, paired_vote, separate_voters
from storage.records import (
    LONGEST_LOOK,
    AnnotatorKind,
    Completion,
    Prompt,
    PromptRole,
    ScreenOutcome,
    digest,
    now,
)
from storage.transaction import Encoded
from storage.votes import Answer, Vote

__all__ = [
    "BadFile",
    "BadRow",
    "ImportReport",
    "default_role",
    "import_judgments",
    "import_preferences",
    "import_prompts",
    "import_sft",
]

T = TypeVar("T")
_SHARES: tuple[tuple[PromptRole, int], ...] = (("train", 80), ("held-out", 95), ("audit", 100))
_PROMPT = ("prompt", "messages", "instruction")
_STRENGTH_WORDS = {"slightly": 1, "clearly": 2, "much": 3}
_ABOUT_PROMPTS = ("role", "category", "source")
_JUDGMENT_COLUMNS = (
    *("prompt", "messages", "instruction", "input", "response_a", "response_b", "annotator"),
    *("outcome", "strength", "comment", "created_at", "model_a", "model_b", "item", "id"),
    *("comparison", "shown_swapped", "criteria", "milliseconds", "replaces", "withdrawn_at"),
    *("prompt_role", "annotator_kind"),
    # Written by a raw export for the reader; an import has no use for them.
    *("status", "iteration", "arm"),
)


@dataclass(frozen=True)
class ImportReport:
    """What an import did: `rows` in the file, new records by kind, and what was odd.

    `known` counts the prompts, demonstrations or judgments in the file that were stored before.
    `skipped` is empty unless bad rows were to be left out.
    """

    rows: int
    added: dict[str, int]
    known: int
    skipped: list[BadRow] = field(default_factory=list)
    warnings: list[BadRow] = field(default_factory=list)


def default_role(prompt: str) -> PromptRole:
    """The role of an imported prompt that names none: 80% train, 15% held-out, 5% audit.

    It follows from the prompt's id, so the same prompt never changes sides.
    """
    percentile = int(digest("role", prompt), 16) % 100
    return next(role for role, below in _SHARES if percentile < below)


def import_prompts(
    db: Database, file: Path, *, role: PromptRole | None = None, skip_bad: bool = False
) -> ImportReport:
    """Prompts to sample from: `prompt` (text or chat messages) or `messages` in each row.

    Optional columns: `role` (train, held-out, audit or sft), `category`, `source`.  A row
    without a role gets `role`, or one by `default_role`.  Raises `BadFile`.
    """
    sheet = _Sheet(file)
    sheet.expect([_PROMPT], known=(*_PROMPT, "input", *_ABOUT_PROMPTS))

    def parse(cells: Cells) -> tuple[int, Prompt]:
        made = Prompt.make(cells.prompt(), role=role or "train")
        chosen = cells.choice("role", get_args(PromptRole), role or default_role(made.id))
        return cells.line, Prompt(
            id=made.id,
            role=cast(PromptRole, chosen),
            messages=made.messages,
            category=cells.text("category", ""),
            source=cells.text("source", "") or Path(file).name,
        )

    found = sheet.parse(parse)

    return sheet.store(db, lambda reader, _: plan_prompts(reader, found), skip_bad=skip_bad)


def import_sft(db: Database, file: Path, *, skip_bad: bool = False) -> ImportReport:
    """Demonstrations for SFT: a prompt and the answer it should get, in each row.

    Either a prompt (`prompt`, `messages` or `instruction` + `input`) with `response`,
    `completion` or `output`; or `messages` alone, whose last turn is the answer.  Prompts get
    the role sft and the answers belong to the model "demonstrations".  Raises `BadFile`.
    """
    sheet = _Sheet(file)
    answers = ("response", "completion", "output")
    sheet.expect([_PROMPT], known=(*_PROMPT, "input", *answers, "category", "source"))
    when = now()

    def parse(cells: Cells) -> tuple[int, Prompt, Completion]:
        column = next((name for name in answers if cells.present(name)), None)
        messages = cells.prompt()
        if column is not None:
            answer = cells.response(column)
        elif messages[-1].role == "assistant":
            messages, answer = messages[:-1], messages[-1].content
        else:
            raise ValueError(
                "the answer is missing: a response, completion or output column, or messages "
                "that end with the assistant's turn"
            )
        prompt = Prompt.make(
            messages,
            role="sft",
            category=cells.text("category", ""),
            source=cells.text("source", "") or Path(file).name,
        )
        completion = Completion(
            id=f"r-{digest(prompt.id, DEMONSTRATIONS, answer)}",
            prompt=prompt.id,
            policy=DEMONSTRATIONS,
            text=answer,
            created_at=when,
        )
        return cells.line, prompt, completion

    found = sheet.parse(parse)

    return sheet.store(
        db, lambda reader, when: plan_demonstrations(reader, found, when=when), skip_bad=skip_bad
    )


def import_judgments(
    db: Database, file: Path, *, role: PromptRole | None = None, skip_bad: bool = False
) -> ImportReport:
    """Human judgments: `prompt, response_a, response_b, annotator, outcome` in each row.

    `outcome` is a, b, tie or both_bad; response_a is taken to have stood on the left.  Optional:
    `strength` (1 to 3), `comment`, `created_at`, `model_a`, `model_b`, `item`, and the columns
    of a raw export.  New prompts get `role` (default train); annotators are made by name, as
    people without a password.  Comparisons belong to iteration 0 and enter no queue.
    Raises `BadFile`.
    """
    sheet = _Sheet(file)
    sheet.expect(
        [_PROMPT, ("response_a",), ("response_b",), ("annotator",), ("outcome",)],
        known=_JUDGMENT_COLUMNS,
    )
    source = Path(file).name
    votes = sheet.parse(lambda cells: _judgment_vote(cells, role=role or "train", source=source))
    return sheet.store(
        db, lambda reader, when: plan_votes(reader, votes, when=when), skip_bad=skip_bad
    )


def import_preferences(
    db: Database, file: Path, *, role: PromptRole | None = None, skip_bad: bool = False
) -> ImportReport:
    """A TRL preference dataset, each row a vote of an unknown annotator.

    Rows are prompt / chosen / rejected (the prompt may be implicit) or prompt / completion /
    label, in plain text or chat messages; an `annotator` column is used where there is one.
    Raises `BadFile`.
    """
    sheet = _Sheet(file)
    source, role = Path(file).name, role or "train"
    if sheet.has("label") and not sheet.has("chosen"):
        sheet.expect(
            [_PROMPT, ("completion",), ("label",)],
            known=(*_PROMPT, "input", "completion", "label", "annotator"),
        )
        rows: list[Labelled] = sheet.parse(lambda c: labelled(c, role=role, source=source))
        votes, alone = pair_up(rows)
        sheet.bad += alone
    else:
        sheet.expect(
            [("chosen",), ("rejected",)],
            known=(*_PROMPT, "input", "chosen", "rejected", "outcome", "annotator"),
        )
        votes = sheet.parse(lambda c: paired_vote(c, role=role, source=source))

    def plan(reader: Reader, when: datetime) -> Plan:
        return plan_votes(reader, separate_voters(reader, votes), when=when)

    return sheet.store(db, plan, skip_bad=skip_bad)


class _Sheet:
    """A file on its way in: its rows, and everything wrong or odd with them so far."""

    def __init__(self, file: Path) -> None:
        self._path = Path(file)
        self._rows, self.bad = read_rows(self._path)
        self._warnings: list[BadRow] = []
        self._count = len(self._rows) + len(self.bad)
        self._columns = list(dict.fromkeys(name for row in self._rows for name in row.values))
        if not self._count:
            raise BadFile(self._path, [BadRow(1, "the file holds no rows")])

    def has(self, column: str) -> bool:
        return column in self._columns

    def expect(self, needed: Sequence[Sequence[str]], *, known: Sequence[str]) -> None:
        """Raise `BadFile` unless some row has one of each group of columns; note unused ones."""
        missing = [
            BadRow(
                self._rows[0].line,
                f"no row has a column {' or '.join(group)}{self._hint(group, known)}; the columns are "
                f"{', '.join(self._columns)}",
            )
            for group in needed
            if self._rows and not any(map(self.has, group))
        ]
        if missing:
            raise BadFile(self._path, [*missing, *self.bad])
        for column in self._columns:
            if column not in known:
                near = difflib.get_close_matches(column, known, 1)
                hint = f"; did you mean {near[0]}?" if near and not self.has(near[0]) else ""
                self._warnings.append(
                    BadRow(self._line_of(column), f"column {column} is not used{hint}")
                )

    def _hint(self, group: Sequence[str], known: Sequence[str]) -> str:
        unknown = [column for column in self._columns if column not in known]
        near = [m for name in group for m in difflib.get_close_matches(name, unknown, 1)]
        return f" (is it {near[0]}?)" if near else ""

    def _line_of(self, column: str) -> int:
        return next(row.line for row in self._rows if column in row.values)

    def parse(self, function: Callable[[Cells], T]) -> list[T]:
        """What `function` makes of each good row; the others join the bad ones."""
        made: list[T] = []
        for row in self._rows:
            cells = Cells(row)
            try:
                made.append(function(cells))
            except ValueError as problem:
                self.bad.append(BadRow(row.line, str(problem)))
            else:
                self._warnings += cells.warnings
        return made

    def store(
        self, db: Database, plan: Callable[[Reader, datetime], Plan], *, skip_bad: bool
    ) -> ImportReport:
        """Store a plan in one transaction; raises `BadFile` before anything is stored.

        The plan is made beside the writer thread, so that people's judgments need not wait for
        it.  Where something of what it rests on has changed meanwhile, it is made again in there.
        """
        when = now()
        foresight = Foresight(db)
        with db.snapshot():
            planned = plan(foresight, when)
        self._require_good(planned, skip_bad=skip_bad)
        encoded = planned.encoded()

        def operation(tx: Transaction) -> ImportReport:
            if foresight.holds(tx):
                return self._report(planned, tx, encoded)
            again = plan(tx, when)
            self._require_good(again, skip_bad=skip_bad)
            return self._report(again, tx, again.encoded())

        return db.write(operation)

    def _require_good(self, planned: Plan, *, skip_bad: bool) -> None:
        if (bad := self._bad_rows(planned)) and not skip_bad:
            raise BadFile(self._path, bad)

    def _bad_rows(self, planned: Plan) -> list[BadRow]:
        return sorted([*self.bad, *planned.bad], key=lambda row: row.line)

    def _report(self, planned: Plan, tx: Transaction, encoded: dict[str, Encoded]) -> ImportReport:
        added = {name: tx.store_encoded(records) for name, records in encoded.items()}
        warnings = sorted([*self._warnings, *planned.warnings], key=lambda row: row.line)
        bad = self._bad_rows(planned)
        return ImportReport(self._count, added, planned.known, bad, warnings)


def _judgment_vote(cells: Cells, *, role: PromptRole, source: str) -> Vote:
    return Vote(
        line=cells.line,
        prompt=Prompt.make(
            cells.prompt(),
            role=cast(PromptRole, cells.choice("prompt_role", get_args(PromptRole), role)),
            source=source,
        ),
        a=Answer(cells.response("response_a"), cells.name("model_a", "imported")),
        b=Answer(cells.response("response_b"), cells.name("model_b", "imported")),
        annotator=cells.name("annotator"),
        kind=_kind(cells),
        outcome=cast(ScreenOutcome, cells.choice("outcome", get_args(ScreenOutcome))),
        strength=_strength(cells),
        criteria=cells.mapping("criteria"),
        comment=cells.text("comment", ""),
        milliseconds=cells.integer("milliseconds", low=0, high=LONGEST_LOOK),
        created_at=cells.time("created_at"),
        item=cells.name("item", "") or None,
        id=cells.name("id", "") or None,
        comparison=cells.name("comparison", "") or None,
        swapped=cells.boolean("shown_swapped"),
        replaces=cells.name("replaces", "") or None,
        withdrawn_at=cells.time("withdrawn_at"),
    )


def _kind(cells: Cells) -> AnnotatorKind | None:
    if not cells.has("annotator_kind"):
        return None
    return cast(AnnotatorKind, cells.choice("annotator_kind", get_args(AnnotatorKind)))


def _strength(cells: Cells) -> int | None:
    word = cells.name("strength", "").lower()
    return _STRENGTH_WORDS.get(word) or cells.integer("strength")
