"""What a file contains, by its columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from storage.importing.detect import detect
from storage.importing.target import Target

TARGET = cast(Target, None)  # the columns need no database
PAIR = {"prompt": "p", "response_a": "x", "response_b": "y"}
TURNS = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "x"}]
CASES: list[tuple[dict[str, Any], str, str | None]] = [
    ({"prompt": "p"}, "prompts", None),
    ({"messages": TURNS[:1]}, "prompts", None),
    ({"messages": TURNS}, "sft", None),
    ({"prompt": "p", "completion": "x"}, "sft", None),
    ({"instruction": "p", "input": "", "output": "x"}, "sft", None),
    ({"prompt": "p", "chosen": "x", "rejected": "y", "messages": TURNS}, "preferences", None),
    ({"chosen": "x", "rejected": "y"}, "preferences", None),
    ({"prompt": "p", "completion": "x", "label": True}, "preferences", None),
    (PAIR, "pairs", None),
    (PAIR | {"annotator": "ann", "outcome": "a"}, "judgments", None),
    (PAIR | {"answer": "a"}, "gold", None),
    (PAIR | {"answer": "a", "explanation": "why"}, "practice", None),
    # An empty cell is no explanation.
    (PAIR | {"answer": "a", "explanation": ""}, "gold", None),
    ({"conversation_a": TURNS, "conversation_b": TURNS, "winner": "model_a"}, "judgments", "arena"),
    ({"prompt": "[]", "response_a": "[]", "response_b": "[]", "winner_model_a": 1}, "judgments", "arena"),
    ({"fields": {}, "responses": {}}, "judgments", "argilla"),
    ({"task": "p", "choice.responses": ["a"]}, "judgments", "argilla"),
    ({"data": {}, "annotations": [{"ground_truth": False}]}, "judgments", "label-studio"),
    ({"data": {}, "annotations": [{"ground_truth": True}]}, "gold", "label-studio"),
    ({"context": TURNS[:1], "response1": "x", "response2": "y", "overall_preference": 1}, "judgments", "helpsteer3"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "kind", "source"), CASES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_the_kind_and_the_tool_follow_from_the_columns(
    tmp_path: Path, row: dict[str, Any], kind: str, source: str | None
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    found = detect(TARGET, file)
    assert (found.kind, found.source) == (kind, source)


@pytest.mark.parametrize("content", ['{"question": "p"}', "not JSON", '{"response_a": "x"}'])
def test_columns_that_say_nothing_are_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    with pytest.raises(
        ValueError, match=r"do not say what it contains: .* Choose what it contains"
    ):
        detect(TARGET, file)
