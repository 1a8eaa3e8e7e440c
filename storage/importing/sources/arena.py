"""Votes of the Chatbot Arena and of MT-Bench: two models' conversations and a winner.

Columns of lmsys/chatbot_arena_conversations, lmsys/mt_bench_human_judgments,
lmsys/lmsys-arena-human-preference-55k and lmarena-ai/arena-human-preference-140k.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from storage.importing.sources.source import Source, Translated, Values, outcome_of, split_last

_FLAGS = {"winner_model_a": "a", "winner_model_b": "b", "winner_tie": "tie"}


def _translate(row: Values, _names: Mapping[str, str]) -> Translated:
    vote: dict[str, Any] = {"outcome": _winner(row)}
    vote |= {name: row[name] for name in ("model_a", "model_b") if row.get(name)}
    if row.get("conversation_a") is not None:
        prompt, vote["response_a"] = split_last(row["conversation_a"])
        other, vote["response_b"] = split_last(row["conversation_b"])
    else:
        prompt, vote["response_a"] = split_last(_turns(row, "response_a"))
        other, vote["response_b"] = split_last(_turns(row, "response_b"))
    if prompt != other:
        raise ValueError("the two conversations differ before their last responses")
    vote["messages"] = prompt
    if judge := row.get("judge"):
        vote["annotator"] = " ".join(judge) if isinstance(judge, list) else judge
        # MT-Bench has votes of models as well.
        vote["annotator_kind"] = "model" if "gpt" in str(vote["annotator"]).lower() else "person"
    if isinstance(seconds := row.get("tstamp"), int | float):
        vote["created_at"] = datetime.fromtimestamp(seconds, UTC).isoformat()
    return Translated(judgments=[vote])


def _winner(row: Values) -> str:
    if any(name in row for name in _FLAGS):
        chosen = [
            outcome for name, outcome in _FLAGS.items() if str(row.get(name)) in ("1", "True")
        ]
        if len(chosen) != 1:
            raise ValueError(
                "not exactly one of winner_model_a, winner_model_b and winner_tie is 1"
            )
        return chosen[0]
    outcome = outcome_of(str(row.get("winner")), "model_a", "model_b", {})
    if outcome is None:
        raise ValueError(
            f"winner is {row.get('winner')!r} and must be model_a, model_b, tie or tie (bothbad)"
        )
    return outcome


def _turns(row: Values, column: str) -> list[dict[str, Any]]:
    """A conversation from a JSON list of questions and one of answers."""
    questions, answers = _texts(row, "prompt"), _texts(row, column)
    if len(questions) != len(answers):
        raise ValueError(f"prompt and {column} have different numbers of turns")
    return [
        {"role": role, "content": text}
        for pair in zip(questions, answers, strict=True)
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def _texts(row: Values, column: str) -> list[str]:
    value = row.get(column)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{column} is not a list of texts, one for each turn")
    return value


ARENA = Source(
    "Arena or MT-Bench votes",
    [
        ("winner", "winner_model_a"),
        ("conversation_a", "response_a"),
        ("conversation_b", "response_b"),
    ],
    _translate,
)
