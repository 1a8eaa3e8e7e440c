"""What a file contains, by its columns: the kind of import and the tool that wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from storage.importing.files.filetypes import Row, is_missing, rows_of
from storage.importing.sources.registry import SOURCES
from storage.importing.target import Target

ImportKind = Literal["prompts", "sft", "judgments", "preferences", "pairs", "gold", "practice"]
LOOKED_AT = 20
"""Rows whose columns are looked at."""
_SHOWN = 20
_PROMPT = ("prompt", "messages", "instruction")


@dataclass(frozen=True)
class Detected:
    """The kind of import, the tool or dataset for `--from` if it is not a file of own columns, and the
    columns that say so."""

    kind: ImportKind
    source: str | None
    because: str


def detect(_target: Target, file: Path, *, max_rows: int | None = None) -> Detected:
    """What the file contains.  Raises ``ValueError`` if its columns do not say it.

    The first parameter is that of the functions that `import_apart` calls.
    """
    rows = [
        {name: v for name, v in row.values.items() if not is_missing(v) and v != ""}
        for row in islice(rows_of(Path(file), max_rows), LOOKED_AT)
        if isinstance(row, Row)
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    found = _tool(rows, set(columns)) or _own(rows, set(columns))
    if found is None:
        shown = ", ".join(name[:60] for name in columns[:_SHOWN]) or "none that can be read"
        raise ValueError(
            f"the columns of {Path(file).name} do not say what it contains: {shown}. Choose what it "
            "contains and the tool that wrote it"
        )
    return found


def _tool(rows: Sequence[Mapping[str, Any]], columns: set[str]) -> Detected | None:
    """The tool whose columns the rows have."""
    for name, source in SOURCES.items():
        present = [next((n for n in group if n in columns), None) for group in source.needs]
        if not present or None in present:
            continue
        gold = name == "label-studio" and all(map(_only_ground_truths, rows))
        return Detected("gold" if gold else "judgments", name, ", ".join(filter(None, present)))
    if {"fields", "responses"} <= columns:
        return Detected("judgments", "argilla", "fields, responses")
    if answers := sorted(name for name in columns if name.endswith(".responses")):
        return Detected("judgments", "argilla", answers[0])
    return None


def _only_ground_truths(task: Mapping[str, Any]) -> bool:
    given = task.get("annotations")
    return isinstance(given, list) and all(
        isinstance(each, Mapping) and each.get("ground_truth") for each in given
    )


def _own(rows: Sequence[Mapping[str, Any]], columns: set[str]) -> Detected | None:
    """The kind whose columns the rows have; the most specific one comes first."""
    prompt = next((name for name in _PROMPT if name in columns), None)
    kinds: list[tuple[ImportKind, tuple[str, ...]]] = [
        ("preferences", ("chosen", "rejected")),
        ("preferences", ("completion", "label")),
        ("judgments", ("response_a", "response_b", "annotator", "outcome")),
        ("practice", ("response_a", "response_b", "answer", "explanation")),
        ("gold", ("response_a", "response_b", "answer")),
        ("pairs", ("response_a", "response_b")),
        ("sft", ("response",)),
        ("sft", ("completion",)),
        ("sft", ("output",)),
    ]
    for kind, needed in kinds:
        if columns.issuperset(needed) and (prompt or "chosen" in needed):
            return Detected(kind, None, ", ".join(needed))
    if prompt == "messages" and all(map(_ends_with_answer, rows)):
        return Detected("sft", None, "messages that end with an answer")
    return Detected("prompts", None, prompt) if prompt else None


def _ends_with_answer(row: Mapping[str, Any]) -> bool:
    turns = row.get("messages")
    last = turns[-1] if isinstance(turns, list) and turns else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"
