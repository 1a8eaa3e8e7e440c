"""Judgments as rows of a dataset: how each export format represents each outcome.

===================  =======================  =====================  =========================
outcome              trl, trl-conversational  trl-unpaired           raw
===================  =======================  =====================  =========================
one was preferred    chosen, rejected         chosen true,           outcome a or b
                                              rejected false
tie, ``drop``        left out                 left out               outcome tie
tie, ``split``       two rows, one each way   each response twice,   outcome tie
                                              true and false
tie, ``keep``        one row; a fair coin     both true              outcome tie
                     decides which is chosen;
                     column ``outcome`` = tie
both bad             as a tie                 both false             outcome both_bad
                     (``outcome``=both_bad)   (with any ``ties``)
===================  =======================  =====================  =========================

Raw rows have the outcome itself, so `ties` has no effect there.  Two formats have the responses that
people edited: `trl-edits` has the edit as chosen, once before the preferred response and once before
the other, and `sft` has the conversation with the edit.  Other judgments have no row in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from storage.records import (
    CRITERIA,
    PREFERENCES,
    AnnotatorKind,
    Message,
    Outcome,
    as_messages,
    digest,
)
from storage.sides import screen_outcome, screen_sides

Format = Literal["trl", "trl-conversational", "trl-unpaired", "trl-edits", "sft", "raw"]
EDIT_FORMATS: tuple[Format, ...] = ("trl-edits", "sft")
"""Formats of edited responses."""
Ties = Literal["drop", "split", "keep"]
DatasetRow = dict[str, Any]

_CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_TIME = pa.timestamp("us", tz="UTC")
_FLAG = pa.struct(
    [
        ("annotator", pa.string()),
        ("comment", pa.string()),
        ("state", pa.string()),
        ("created_at", _TIME),
        ("answers", pa.list_(pa.struct([("text", pa.string()), ("created_at", _TIME)]))),
    ]
)
_MARK = pa.struct(
    [
        *((name, pa.string()) for name in ("reason", "quote", "prefix", "suffix")),
        *((name, pa.int64()) for name in ("start", "end", "rendered_start", "rendered_end")),
    ]
)


@dataclass(frozen=True, kw_only=True)
class ExportedJudgment:
    """One judgment with its texts.

    `status` is current, revised or withdrawn; `annotator` is the published name.
    """

    id: str
    comparison: str
    messages: tuple[Message, ...]
    prompt_role: str
    first: str
    second: str
    first_model: str
    second_model: str
    annotator: str
    annotator_kind: AnnotatorKind
    outcome: Outcome
    shown_swapped: bool
    strength: int | None
    criteria: Mapping[str, Outcome]
    reasons: Mapping[str, list[str]]
    safety: Mapping[str, str]
    marks: Mapping[str, list[dict[str, Any]]]
    comment: str
    edit: str
    milliseconds: int | None
    guidelines: str | None
    created_at: datetime
    replaces: str | None
    withdrawn_at: datetime | None
    status: str
    excluded: bool
    """Whether a researcher excluded it."""
    exclusion_reason: str | None
    ruling: Outcome | None
    """The newest ruling of an adjudicator on the pair."""
    ruling_reason: str | None
    iteration: int
    arm: str
    item: str | None
    expected: Outcome | None = None
    """The answer of a gold or practice pair."""
    explanation: str | None = None
    """Of a practice pair."""
    repeats: str | None = None
    """The judgment that a re-ask repeats."""
    flags: list[dict[str, Any]] = field(default_factory=list)
    """Flags of the pair, by any annotator, with the researchers' answers."""
    conversation: str | None = None
    turn: int | None = None
    """The turn of a live conversation."""

    @property
    def decided(self) -> bool:
        return self.outcome in PREFERENCES

    def won_and_lost(self) -> tuple[str, str]:
        return (self.first, self.second) if self.outcome == "first" else (self.second, self.first)


def prompt_text(messages: tuple[Message, ...]) -> str:
    """The prompt as text: a single turn unchanged, a longer chat as a transcript.

    Turns are separated by line breaks, across which tokenizers do not merge.
    """
    if len(messages) == 1:
        return messages[0].content
    turns = [f"{message.role.capitalize()}:\n{message.content}\n\n" for message in messages]
    return "".join([*turns, "Assistant:\n"])


def schema(format: Format, ties: Ties) -> pa.Schema:
    """The columns of a format; `ties` = keep adds `outcome` to the formats of pairs."""
    if format == "raw":
        return _RAW
    if format == "sft":
        return pa.schema([("messages", _CHAT)])
    if format == "trl-edits":
        return pa.schema([(name, _CHAT) for name in ("prompt", "chosen", "rejected")])
    if format == "trl-unpaired":
        return pa.schema(
            [("prompt", pa.string()), ("completion", pa.string()), ("label", pa.bool_())]
        )
    kind = _CHAT if format == "trl-conversational" else pa.string()
    columns = [("prompt", kind), ("chosen", kind), ("rejected", kind)]
    return pa.schema([*columns, ("outcome", pa.string())] if ties == "keep" else columns)


_RAW = pa.schema(
    [
        ("id", pa.string()),
        ("comparison", pa.string()),
        ("item", pa.string()),
        ("iteration", pa.int64()),
        ("arm", pa.string()),
        ("expected", pa.string()),
        ("explanation", pa.string()),
        ("repeats", pa.string()),
        ("conversation", pa.string()),
        ("turn", pa.int64()),
        ("prompt", pa.string()),
        ("messages", _CHAT),
        ("prompt_role", pa.string()),
        ("response_a", pa.string()),
        ("response_b", pa.string()),
        ("model_a", pa.string()),
        ("model_b", pa.string()),
        ("annotator", pa.string()),
        ("annotator_kind", pa.string()),
        ("outcome", pa.string()),
        ("strength", pa.int64()),
        ("criteria", pa.struct([(name, pa.string()) for name in CRITERIA])),
        ("reasons", pa.struct([(side, pa.list_(pa.string())) for side in "ab"])),
        ("safety", pa.struct([(side, pa.string()) for side in "ab"])),
        ("marks", pa.struct([(side, pa.list_(_MARK)) for side in "ab"])),
        ("comment", pa.string()),
        ("edit", pa.string()),
        ("flags", pa.list_(_FLAG)),
        ("milliseconds", pa.int64()),
        ("guidelines", pa.string()),
        ("shown_swapped", pa.bool_()),
        ("status", pa.string()),
        ("ruling", pa.string()),
        ("ruling_reason", pa.string()),
        ("excluded", pa.bool_()),
        ("exclusion_reason", pa.string()),
        ("replaces", pa.string()),
        ("withdrawn_at", _TIME),
        ("created_at", _TIME),
    ]
)


def row_maker(format: Format, ties: Ties) -> Callable[[ExportedJudgment], list[DatasetRow]]:
    """The function that turns one judgment into the rows of a format (see the module's table)."""
    if format == "raw":
        return _raw_rows
    if format == "sft":
        return _sft_rows
    if format == "trl-edits":
        return _edit_rows
    if format == "trl-unpaired":
        return lambda judged: _unpaired_rows(judged, ties)
    say = _chat_row if format == "trl-conversational" else _text_row
    return lambda judged: [say(judged, *pair) for pair in _pairs(judged, ties)]


def _pairs(judged: ExportedJudgment, ties: Ties) -> Iterable[tuple[str, str, str | None]]:
    """(chosen, rejected, outcome) once, twice or not at all; outcome only with `keep`."""
    first, second = judged.first, judged.second
    if judged.decided:
        yield *judged.won_and_lost(), "preference" if ties == "keep" else None
    elif ties == "split":
        yield from ((first, second, None), (second, first, None))
    elif ties == "keep":
        # A trainer that ignores `outcome` reads a preference, so it must be neutral on average.
        heads = int(digest("coin", judged.id), 16) % 2
        chosen, rejected = (first, second) if heads else (second, first)
        yield chosen, rejected, judged.outcome


def _text_row(
    judged: ExportedJudgment, chosen: str, rejected: str, outcome: str | None
) -> DatasetRow:
    row = {"prompt": prompt_text(judged.messages), "chosen": chosen, "rejected": rejected}
    return row if outcome is None else row | {"outcome": outcome}


def _chat_row(
    judged: ExportedJudgment, chosen: str, rejected: str, outcome: str | None
) -> DatasetRow:
    row: DatasetRow = {
        "prompt": _chat(judged.messages),
        "chosen": _chat([Message("assistant", chosen)]),
        "rejected": _chat([Message("assistant", rejected)]),
    }
    return row if outcome is None else row | {"outcome": outcome}


def _unpaired_rows(judged: ExportedJudgment, ties: Ties) -> list[DatasetRow]:
    first, second = judged.first, judged.second
    labels: list[tuple[str, bool]] = []
    if judged.decided:
        won, lost = judged.won_and_lost()
        labels = [(won, True), (lost, False)]
    elif judged.outcome == "both_bad":
        labels = [(first, False), (second, False)]
    elif ties == "split":
        labels = [(first, True), (second, False), (second, True), (first, False)]
    elif ties == "keep":
        # The annotator could have said "both bad" and did not.
        labels = [(first, True), (second, True)]
    prompt = prompt_text(judged.messages)
    return [{"prompt": prompt, "completion": text, "label": label} for text, label in labels]


def _sft_rows(judged: ExportedJudgment) -> list[DatasetRow]:
    if not judged.edit:
        return []
    return [{"messages": _chat([*judged.messages, Message("assistant", judged.edit)])}]


def _edit_rows(judged: ExportedJudgment) -> list[DatasetRow]:
    if not judged.edit:
        return []
    return [_chat_row(judged, judged.edit, text, None) for text in judged.won_and_lost()]


def _raw_rows(judged: ExportedJudgment) -> list[DatasetRow]:
    left, right = (judged.first, judged.first_model), (judged.second, judged.second_model)
    if judged.shown_swapped:
        left, right = right, left
    on_screen = partial(screen_outcome, shown_swapped=judged.shown_swapped)
    row = vars(judged) | {
        "prompt": prompt_text(judged.messages),
        "messages": _chat(judged.messages),
        "response_a": left[0],
        "response_b": right[0],
        "model_a": left[1],
        "model_b": right[1],
        "outcome": on_screen(judged.outcome),
        "expected": on_screen(judged.expected) if judged.expected else None,
        "ruling": on_screen(judged.ruling) if judged.ruling else None,
        "criteria": {
            name: on_screen(judged.criteria[name]) if name in judged.criteria else None
            for name in CRITERIA
        },
        "reasons": _both(judged.reasons, judged.shown_swapped),
        "safety": _both(judged.safety, judged.shown_swapped),
        "marks": _both(judged.marks, judged.shown_swapped),
    }
    return [{name: row[name] for name in _RAW.names}]


def _both(values: Mapping[str, Any], shown_swapped: bool) -> dict[str, Any]:
    """Values by a and b, None for a side without one: columns are the same in all rows."""
    return dict.fromkeys("ab") | screen_sides(values, shown_swapped=shown_swapped)


def _chat(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def judged_from(
    row: Mapping[str, Any], *, annotator: str, flags: list[dict[str, Any]]
) -> ExportedJudgment:
    """An `ExportedJudgment` from a row of the export query; `annotator` is the published name, and
    `flags` are those of the pair."""
    values: dict[str, Any] = {**row, "flags": flags}
    values["messages"] = as_messages(json.loads(values["messages"]))
    for name in ("criteria", "reasons", "safety", "marks"):
        values[name] = json.loads(values[name] or "{}") or {}
    values["annotator"] = annotator
    return ExportedJudgment(**values)
