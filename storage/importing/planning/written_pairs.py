"""Import of pairs to be judged here: comparisons of the arm `written`.

They belong to no iteration, are in the queue in every phase, and are excluded from all measurements
on the loop's own samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from storage.engine.lookup import known_models, prompt_roles
from storage.importing.files.cells import Cells
from storage.importing.files.row_notes import BadRow
from storage.importing.planning.plan import STORED_PAIRS, Plan
from storage.importing.planning.votes import Answer
from storage.records import KEPT_APART, WRITTEN, Arm, Comparison, Prompt, PromptRole, digest
from storage.tables.people.pseudonyms import random_bits, written_id

if TYPE_CHECKING:
    from storage.engine.lookup import Reader

COLUMNS = (
    *("prompt", "messages", "instruction", "input", "response_a", "response_b"),
    *("model_a", "model_b", "arm", "category", "id"),
)


@dataclass(frozen=True, kw_only=True)
class WrittenPair:
    """One row: two different responses to a prompt, ordered by their texts."""

    line: int
    prompt: Prompt
    first: Answer
    second: Answer
    id: str | None

    @property
    def content(self) -> str:
        """The comparison id that a vote on the pair would have; an id in the file is part of it.

        Earlier versions used it as the id of a written pair.
        """
        item = [] if self.id is None else ["item", self.id]
        return f"c-{digest(*item, self.prompt.id, self.first.text, self.second.text)}"


def written_pair(cells: Cells, *, role: PromptRole, source: str) -> WrittenPair:
    """The pair in a row; ValueError if it cannot be judged."""
    category = cells.text("category", "")
    prompt = Prompt.make(cells.prompt(), role=role, category=category, source=source)
    a = Answer(cells.response("response_a"), cells.name("model_a", "imported"))
    b = Answer(cells.response("response_b"), cells.name("model_b", "imported"))
    if a.text.strip() == b.text.strip():
        raise ValueError("response_a and response_b are the same, so there is nothing to compare")
    arm = cells.choice("arm", get_args(Arm), WRITTEN)
    if arm != WRITTEN:
        cells.warn(f"arm {arm} is for pairs that the loop samples; this one is stored as {WRITTEN}")
    first, second = sorted((a, b), key=lambda answer: answer.text)
    id = cells.name("id", "") or None
    return WrittenPair(line=cells.line, prompt=prompt, first=first, second=second, id=id)


_ITEMS = """
    SELECT item, id FROM comparisons
    WHERE arm = 'written' AND item IN (SELECT unnest($items))
"""


def plan_pairs(reader: Reader, pairs: Sequence[WrittenPair], *, when: datetime, key: bytes) -> Plan:
    """The new records of these pairs; a stored pair stays unchanged.

    Ids, positions in the queue and the order of responses follow from the workspace's `key`.
    """
    return _Planner(reader, pairs, when, key).plan(pairs)


class _Planner:
    def __init__(
        self, reader: Reader, pairs: Sequence[WrittenPair], when: datetime, key: bytes
    ) -> None:
        self._when = when
        self._key = key
        self._plan = Plan()
        contents = [pair.content for pair in pairs]
        ids = [*contents, *(written_id(key, content) for content in contents)]
        self._known = {row["id"]: row for row in reader.rows(STORED_PAIRS, ids=ids)}
        items = [pair.id for pair in pairs if pair.id]
        self._items: dict[str | None, tuple[str, str]] = {
            row["item"]: (row["id"], "in this workspace")
            for row in reader.rows(_ITEMS, items=items)
        }
        prompts = list({pair.prompt.id for pair in pairs})
        self._roles = prompt_roles(reader, prompts)
        answers = [answer for pair in pairs for answer in (pair.first, pair.second)]
        self._models = known_models(reader, {answer.policy for answer in answers})
        self._lines: dict[str, int] = {}

    def plan(self, pairs: Sequence[WrittenPair]) -> Plan:
        for pair in pairs:
            try:
                self._add(pair)
            except ValueError as problem:
                self._plan.bad.append(BadRow(pair.line, str(problem)))
        return self._plan

    def _add(self, pair: WrittenPair) -> None:
        content = pair.content
        id = written_id(self._key, content)
        if pair.id is not None:
            other, where = self._items.setdefault(pair.id, (id, f"on line {pair.line}"))
            if other not in (id, content):
                raise ValueError(f"id {pair.id} belongs to another pair {where}; give it a new one")
        if known := self._known.get(id) or self._known.get(content):
            self._plan.known += 1
            self._warn_of_known(pair, known)
        elif id in self._lines:
            self._plan.warn(pair.line, f"repeats line {self._lines[id]} and was imported once")
        else:
            self._lines[id] = pair.line
            self._keep(pair, id)

    def _warn_of_known(self, pair: WrittenPair, known: dict[str, Any]) -> None:
        if known["arm"] != WRITTEN:
            self._plan.warn(
                pair.line,
                "this pair was imported with judgments, so it is not in the queue; give it an id to "
                "have it judged here too",
            )
        elif (known["first_model"], known["second_model"]) != tuple(
            a.model for a in self._order(pair, known["id"])
        ):
            kept = f"{known['first_model']} against {known['second_model']}"
            self._plan.warn(
                pair.line, f"the pair is already known as {kept}; these names were kept"
            )

    def _order(self, pair: WrittenPair, id: str) -> tuple[Answer, Answer]:
        """The answers in the order of the comparison with this id.

        It depends on the key: annotators can sort texts and compute sides, so an order by text
        would reveal that a pair was written elsewhere.
        """
        swapped = id != pair.content and random_bits(self._key, f"first of {id}")
        return (pair.second, pair.first) if swapped else (pair.first, pair.second)

    def _keep(self, pair: WrittenPair, id: str) -> None:
        self._keep_prompt(pair)
        first, second = self._order(pair, id)
        made = Comparison(
            id=id,
            prompt=pair.prompt.id,
            first=first.completion_id(pair.prompt.id),
            second=second.completion_id(pair.prompt.id),
            iteration=0,
            arm=WRITTEN,
            # Random, so that these pairs are mixed with the loop's own pairs.
            position=random_bits(self._key, f"position of {id}", bits=62),
            item=pair.id,
            created_at=self._when,
        )
        self._plan.add_pair(made, (first, second), self._models)

    def _keep_prompt(self, pair: WrittenPair) -> None:
        known = self._roles.setdefault(pair.prompt.id, pair.prompt.role)
        self._plan.prompts.setdefault(pair.prompt.id, pair.prompt)
        if known != pair.prompt.role or known in KEPT_APART:
            learns = {"held-out": "; no reward model learns from judgments on it"}
            learns["audit"] = "; only the audit model learns from judgments on it"
            self._plan.warn(
                pair.line, f"the prompt has the role {known}{learns.get(known, ' and keeps it')}"
            )
