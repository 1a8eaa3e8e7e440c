"""Held-out and audit prompts: what is said of them is kept, and trained on by nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import launch
from storage import handover
from storage.database import Database
from storage.importing import import_prompts, import_sft

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
    later = "; its demonstration is kept and will not be trained on"
    assert [(w.line, w.reason) for w in report.warnings] == [
        (1, "this prompt is already here as train, and stays so"),
        (2, f"this prompt is already here as held-out, and stays so{later}"),
        (3, f"this prompt is already here as audit, and stays so{later}"),
    ]
    assert handover.give_demonstrations(db, tmp_path) == 2
    learned = pd.read_parquet(tmp_path / "examples.parquet")["response"]
    assert sorted(learned) == ["answer: asked", "answer: shown"]


def test_demonstrations_of_prompts_kept_apart_alone_are_none(db: Database, file: Any) -> None:
    import_prompts(db, file(PROMPTS[1:]))
    import_sft(db, file(DEMONSTRATIONS[1:3], "sft.jsonl"))
    assert not handover.has_demonstrations(db)
    import_sft(db, file(DEMONSTRATIONS[3:], "more.jsonl"))
    assert handover.has_demonstrations(db)


def test_serve_tells_what_was_odd_about_its_files_once(
    tmp_path: Path, file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = file([{"prompt": n, "role": "train"} for n in range(5)], "odd.jsonl")
    launch.prepare(tmp_path / "studio", None, [], [])
    Database.open(tmp_path / "studio").close()
    with launch.connect(tmp_path / "studio") as studio:
        assert isinstance(studio, launch.Studio)
        launch.bring_in(studio, "prompts", rows)
        first = capsys.readouterr().err.splitlines()
        launch.bring_in(studio, "prompts", rows)
        assert capsys.readouterr().err == ""
    assert first == [
        "odd.jsonl, line 1: prompt is the number 0, kept as text",
        "odd.jsonl, line 2: prompt is the number 1, kept as text",
        "odd.jsonl, line 3: prompt is the number 2, kept as text",
        "odd.jsonl: 2 more warnings; `import --prompts … --json` lists them",
    ]
