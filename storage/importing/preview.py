"""The first rows of an import as they are understood, for people who check a file before it."""

from __future__ import annotations

from typing import Any

from storage.importing.planning.gold_pairs import GoldRow
from storage.importing.planning.preferences import Labeled
from storage.importing.planning.votes import Vote
from storage.importing.planning.written_pairs import WrittenPair
from storage.records import Prompt

ROWS = 5


def shown(row: object) -> dict[str, Any]:
    """A parsed row with the columns of docs/data.md; a value that it does not have is left out."""
    found = _columns(row)
    return {name: value for name, value in found.items() if value not in (None, "", "imported", {})}


def _columns(row: Any) -> dict[str, Any]:
    if isinstance(row, Vote):
        known = row.sides_known
        pair = {"response_a": row.a.text, "response_b": row.b.text}
        if not known:
            pair = {"chosen": row.a.text, "rejected": row.b.text}
        names = ("model_a", "model_b") if known else ("chosen model", "rejected model")
        models = dict(zip(names, (row.a.model, row.b.model), strict=True))
        return (
            {"line": row.line, **_prompt(row.prompt), **pair}
            | {
                "annotator": row.annotator,
                "outcome": row.outcome if known or row.outcome != "a" else None,
            }
            | {
                "strength": row.strength,
                "comment": row.comment,
                "created_at": _time(row.created_at),
            }
            | models
        )
    if isinstance(row, GoldRow):
        answer = row.pair.first.text if row.first_wins else row.pair.second.text
        return _columns(row.pair) | {"better response": answer, "explanation": row.explanation}
    if isinstance(row, WrittenPair):
        pair = {"first response": row.first.text, "second response": row.second.text}
        return {"line": row.line, **_prompt(row.prompt), **pair}
    if isinstance(row, Labeled):
        return {"line": row.line, **_prompt(row.prompt), "completion": row.text, "label": row.good}
    line, prompt = row[:2]
    answer = {"response": row[2].text} if len(row) == 3 else {}  # a demonstration
    return {"line": line, **_prompt(prompt), "role": prompt.role} | answer


def _prompt(prompt: Prompt) -> dict[str, Any]:
    if len(prompt.messages) == 1:
        return {"prompt": prompt.messages[0].content, "category": prompt.category}
    turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
    return {"messages": turns, "category": prompt.category}


def _time(moment: Any) -> str | None:
    return moment.isoformat() if moment else None
