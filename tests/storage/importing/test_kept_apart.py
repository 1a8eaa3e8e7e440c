"""Held-out and audit prompts: what is said of them is kept, and trained on by nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storage import worker_files
from storage.engine.database import Database
from storage.exporting.exports import export
from storage.importing.imports import (
    import_judgments,
    import_preferences,
    import_prompts,
    import_sft,
)
from tests.helpers.import_files import ROW, total

PROMPTS = [
    {"prompt": "asked", "role": "train"},
    {"prompt": "held out", "role": "held-out"},
    {"prompt": "audited", "role": "audit"},
]
DEMONSTRATIONS = [
    {"prompt": text, "response": f"answer: {text}"}
    for text in ("asked", "held out", "audited", "shown")
]


def test_demonstrations_of_prompts_kept_apart_are_not_trained_on(
    db: Database, file: Any, tmp_path: Path
) -> None:
    import_prompts(db, file(PROMPTS))
    report = import_sft(db, file(DEMONSTRATIONS, "sft.jsonl"))
    later = "; its demonstration is stored, but not used for training"
    assert [(w.line, w.reason) for w in report.warnings] == [
        (1, "this prompt is already stored with the role train and keeps it"),
        (2, f"this prompt is already stored with the role held-out and keeps it{later}"),
        (3, f"this prompt is already stored with the role audit and keeps it{later}"),
    ]
    assert worker_files.write_demonstrations_input(db, tmp_path) == 2
    learned = pd.read_parquet(tmp_path / "examples.parquet")["response"]
    assert sorted(learned) == ["answer: asked", "answer: shown"]


def test_demonstrations_of_prompts_kept_apart_alone_are_none(db: Database, file: Any) -> None:
    import_prompts(db, file(PROMPTS[1:]))
    import_sft(db, file(DEMONSTRATIONS[1:3], "sft.jsonl"))
    assert not worker_files.has_demonstrations(db)
    import_sft(db, file(DEMONSTRATIONS[3:], "more.jsonl"))
    assert worker_files.has_demonstrations(db)


LEARNS = {
    "held-out": "no reward model learns from the judgment",
    "audit": "only the audit model learns from the judgment",
}
JUDGMENTS = [{**ROW, "prompt": row["prompt"]} for row in (*PROMPTS, {"prompt": "new"})]


def test_an_import_of_judgments_on_prompts_kept_apart_says_so(db: Database, file: Any) -> None:
    import_prompts(db, file(PROMPTS))
    report = import_judgments(db, file(JUDGMENTS, "judgments.jsonl"))
    assert [(w.line, w.reason) for w in report.warnings] == [
        (line, f"this prompt is already stored with the role {role} and keeps it; {LEARNS[role]}")
        for line, role in ((2, "held-out"), (3, "audit"))
    ]
    votes = [{"prompt": "held out", "chosen": "Pear", "rejected": "Plum"}]
    said = import_preferences(db, file(votes, "votes.jsonl"))
    assert [w.line for w in said.warnings] == [1]
    stated = [{**ROW, "prompt": "asked", "prompt_role": "held-out", "annotator": "bob"}]
    warnings = import_judgments(db, file(stated, "stated.jsonl")).warnings
    assert [w.reason for w in warnings] == [
        "this prompt is already stored with the role train and keeps it"
    ]


def test_trl_formats_leave_out_prompts_kept_apart_and_raw_names_them(
    db: Database, file: Any, tmp_path: Path
) -> None:
    import_prompts(db, file(PROMPTS))
    import_judgments(db, file(JUDGMENTS, "judgments.jsonl"))
    for format, rows in (("trl", 2), ("trl-conversational", 2), ("trl-unpaired", 4)):
        report = export(db, format=format, out=tmp_path / "out.jsonl")
        assert (report.rows, report.judgments) == (rows, 4)
        assert report.left_out == {"on held-out prompts": 1, "on audit prompts": 1}
        assert report.notes == [
            "1 on audit prompts, 1 on held-out prompts left out, which are not trained on; "
            "the raw format contains all"
        ]
        written = (tmp_path / "out.jsonl").read_text()
        assert "asked" in written
        assert "held out" not in written
        assert "audited" not in written
        assert "1 on audit prompts, 1 on held-out prompts" in Path(report.card).read_text()
    raw = export(db, format="raw", out=tmp_path / "raw.csv", names=True)
    assert (raw.rows, raw.left_out) == (4, {})
    roles = pd.read_csv(tmp_path / "raw.csv").set_index("prompt")["prompt_role"]
    expected = {"asked": "train", "held out": "held-out", "audited": "audit", "new": "train"}
    assert roles.to_dict() == expected
    with Database.open(tmp_path / "other") as other:
        assert import_judgments(other, tmp_path / "raw.csv").warnings == []
        stored = other.read("SELECT messages ->> '$[0].content' AS text, role FROM prompts")
        assert {row["text"]: row["role"] for row in stored} == expected
        assert total(import_judgments(other, tmp_path / "raw.csv")) == 0


def test_an_export_of_nothing_but_prompts_kept_apart_is_an_error(
    db: Database, file: Any, tmp_path: Path
) -> None:
    import_prompts(db, file(PROMPTS))
    import_judgments(db, file(JUDGMENTS[1:2], "judgments.jsonl"))
    with pytest.raises(ValueError, match="nothing is left to export: 1 on held-out prompts left"):
        export(db, format="trl", out=tmp_path / "out.jsonl")
    import_judgments(db, file(JUDGMENTS, "judgments.jsonl"))
    with pytest.raises(
        ValueError, match=r"the other \d judgments have no edit; .* on held-out prompts"
    ):
        export(db, format="sft", out=tmp_path / "out.jsonl")
