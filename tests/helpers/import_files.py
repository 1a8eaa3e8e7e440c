"""Files to import, and what came of them; shared by the tests of the import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storage.engine.database import Database
from storage.importing.imports import BadFile, ImportReport

ROW = {
    "prompt": "Name a fruit",
    "response_a": "Pear",
    "response_b": "Apple",
    "annotator": "ann",
    "outcome": "a",
}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Name a fruit"},
]


def write_rows(path: Path, rows: list[Any]) -> Path:
    """A file of the type that its name says; strings among the rows go into JSON lines as they are."""
    if path.suffix == ".jsonl":
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    elif path.suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        pd.DataFrame(rows).to_parquet(path)
    return path


def judgments(db: Database) -> list[dict[str, Any]]:
    return db.read(
        "SELECT a.name AS annotator, f.text AS first, s.text AS second, j.outcome, j.shown_swapped,"
        " j.strength, j.comment, j.replaces, j.id FROM judgments AS j"
        " JOIN annotators AS a ON a.id = j.annotator JOIN comparisons AS c ON c.id = j.comparison"
        " JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second"
        " ORDER BY j.created_at, j.id"
    )


def everything(db: Database) -> dict[str, int]:
    tables = ("prompts", "completions", "comparisons", "judgments", "annotators", "models")
    return {t: db.read(f"SELECT count(*) AS n FROM {t}")[0]["n"] for t in tables}


def reasons(bad: pytest.ExceptionInfo[BadFile]) -> dict[int, str]:
    return {row.line: row.reason for row in bad.value.rows}


def total(report: ImportReport) -> int:
    return sum(report.added.values())
