"""What an export under pseudonyms tells of names: nothing, also to whoever tries names out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.engine.database import Database
from storage.exporting.exports import export
from storage.importing.imports import BadFile, import_judgments, import_preferences
from storage.labeling import model_judges
from tests.helpers.import_files import ROW, total

ROWS = [
    *({**ROW, "prompt": f"question {n}", "annotator": "Ann Example"} for n in range(8)),
    {**ROW, "prompt": "question 0", "annotator": "Ann Example", "outcome": "b"},
]


def raw(db: Database, path: Path) -> list[dict[str, Any]]:
    export(db, format="raw", out=path, history=True)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ids_and_their_order_do_not_follow_from_names(
    db: Database, file: Any, tmp_path: Path
) -> None:
    import_judgments(db, file(ROWS))
    rows = raw(db, tmp_path / "out.jsonl")
    stored = [row["id"] for row in db.read("SELECT id FROM judgments")]
    written = (tmp_path / "out.jsonl").read_text()
    assert len(stored) == len(rows) == 9
    assert not [id for id in stored if id.removeprefix("j-") in written]
    # All were imported at one time, and their stored ids tell the name: so does their order.
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert [row["id"] for row in raw(db, tmp_path / "again.jsonl")] == [r["id"] for r in rows]
    (revision,) = [row for row in rows if row["replaces"]]
    (revised,) = [row for row in rows if row["status"] == "revised"]
    assert revision["replaces"] == revised["id"]


def test_it_comes_back_once_elsewhere_and_not_at_home(
    db: Database, file: Any, tmp_path: Path
) -> None:
    import_judgments(db, file(ROWS))
    rows = raw(db, tmp_path / "out.jsonl")
    with Database.open(tmp_path / "other") as other:
        import_judgments(other, tmp_path / "out.jsonl")
        found = other.read(
            "SELECT j.id, j.replaces, j.outcome, a.name FROM judgments AS j"
            " JOIN annotators AS a ON a.id = j.annotator ORDER BY j.id"
        )
        # Pear, the canonical second, is a.
        assert found == [
            {
                "id": row["id"],
                "replaces": row["replaces"],
                "outcome": {"a": "second", "b": "first"}[row["outcome"]],
                "name": rows[0]["annotator"],
            }
            for row in rows
        ]
        raw(db, tmp_path / "again.jsonl")
        assert total(import_judgments(other, tmp_path / "again.jsonl")) == 0
    with pytest.raises(BadFile, match="is the pseudonym of an annotator in this workspace"):
        import_judgments(db, tmp_path / "out.jsonl")


def test_sides_do_not_follow_from_names(db: Database, file: Any, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"p{n}", "chosen": "x", "rejected": "y", "annotator": "Ann Example"}
        for n in range(64)
    ]
    with Database.open(tmp_path / "other") as other:
        sides: list[Any] = []
        for each in (db, other):
            import_preferences(each, file(rows))
            sides.append(
                each.read("SELECT comparison, shown_swapped FROM judgments ORDER BY comparison")
            )
        # The same name and pairs: 64 tosses of two coins fall alike once in 2 ** 64.
        assert sides[0] != sides[1]
        judges = [model_judges.judge_named(each, "ann") for each in (db, other, db)]
        assert judges[0].id == judges[2].id != judges[1].id
