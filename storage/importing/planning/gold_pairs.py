"""Import of gold and practice pairs: pairs with a known answer, which measure annotators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from storage.engine.lookup import known_models
from storage.importing.files.cells import Cells
from storage.importing.files.row_notes import BadRow
from storage.importing.planning.plan import Plan
from storage.importing.planning.written_pairs import COLUMNS as PAIR_COLUMNS
from storage.importing.planning.written_pairs import WrittenPair, written_pair
from storage.labeling.gold import KnownKind, gold_records
from storage.records import Check, Comparison, PromptRole
from storage.tables.people.pseudonyms import random_bits

if TYPE_CHECKING:
    from storage.engine.lookup import Reader

COLUMNS = (*PAIR_COLUMNS, "answer")
PRACTICE_COLUMNS = (*COLUMNS, "explanation")

_KNOWN = """
    SELECT comparison AS id, answer FROM checks
    WHERE comparison IN (SELECT unnest($ids))
"""


@dataclass(frozen=True, kw_only=True)
class GoldRow:
    """One row: a pair, and whether the first of its sorted responses is the better one."""

    pair: WrittenPair
    first_wins: bool
    explanation: str = ""
    """Of a practice pair."""

    @property
    def content(self) -> str:
        return f"{self.pair.content} {self.first_wins}"


def gold_row(cells: Cells, *, role: PromptRole, source: str, kind: KnownKind = "gold") -> GoldRow:
    """The gold or practice pair in a row; ValueError if it cannot be judged or has no answer, or a
    practice pair no explanation."""
    answer = cells.choice("answer", ("a", "b"))
    pair = written_pair(cells, role=role, source=source)
    wins = cells.response(f"response_{answer}")
    explanation = cells.response("explanation") if kind == "practice" else ""
    return GoldRow(pair=pair, first_wins=pair.first.text == wins, explanation=explanation)


def plan_gold(
    reader: Reader,
    rows: Sequence[GoldRow],
    *,
    when: datetime,
    key: bytes,
    kind: KnownKind = "gold",
) -> Plan:
    """The new records of these pairs; a stored pair stays unchanged."""
    plan = Plan()
    answers = [answer for row in rows for answer in (row.pair.first, row.pair.second)]
    models = known_models(reader, {answer.policy for answer in answers})
    made = {row.pair.line: _records(row, when, key, kind) for row in rows}
    ids = [comparison.id for comparison, _ in made.values()]
    known = {row["id"]: row["answer"] for row in reader.rows(_KNOWN, ids=ids)}
    lines: dict[str, int] = {}
    for row in rows:
        comparison, check = made[row.pair.line]
        if comparison.id in known:
            plan.known += 1
            if known[comparison.id] != check.answer:
                plan.warn(
                    row.pair.line, f"the {kind} pair is stored with the other answer and keeps it"
                )
            continue
        if (other := lines.setdefault(comparison.id, row.pair.line)) != row.pair.line:
            problem = f"line {other} has the same pair with the other answer; remove one of them"
            plan.bad.append(BadRow(row.pair.line, problem))
            continue
        plan.prompts.setdefault(row.pair.prompt.id, row.pair.prompt)
        plan.add_pair(comparison, (row.pair.first, row.pair.second), models)
        plan.checks[comparison.id] = check
    return plan


def _records(row: GoldRow, when: datetime, key: bytes, kind: KnownKind) -> tuple[Comparison, Check]:
    pair = row.pair
    # An order by text would reveal that the pair was written elsewhere.
    turned = bool(random_bits(key, f"first of {kind} {pair.content}"))
    first, second = (pair.second, pair.first) if turned else (pair.first, pair.second)
    written = Comparison(
        id=pair.content,
        prompt=pair.prompt.id,
        first=first.completion_id(pair.prompt.id),
        second=second.completion_id(pair.prompt.id),
        iteration=0,
        arm="gold",
        created_at=when,
    )
    answer: Literal["first", "second"] = "first" if row.first_wins != turned else "second"
    return gold_records(
        key, written, answer=answer, when=when, source=None, kind=kind, explanation=row.explanation
    )
