"""Exports while people judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.analysis.agreement import Agreement
from storage.engine.database import Database
from storage.exporting import exports
from storage.labeling import judgments, queue
from storage.records import Annotator
from storage.tables.people import annotators
from tests.helpers.storage_world import fill


def say(db: Database, annotator: str, outcome: Any) -> None:
    queue.lease(db, annotator, 1)
    judgments.judge(
        db, id=f"{annotator}-1", comparison="c1-0", annotator=annotator, outcome=outcome
    )


def test_who_judges_first_while_an_export_starts_is_in_none_of_it(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(db, 1, wanted=3, people=("ann", "bob"))
    say(db, "ann", "tie")
    say(db, "bob", "tie")
    measure = exports.agreement

    def overtaken(db: Database, **options: Any) -> Agreement:
        found = measure(db, **options)
        annotators.add(db, Annotator(id="new", name="new"))
        say(db, "new", "both_bad")
        return found

    monkeypatch.setattr(exports, "agreement", overtaken)
    report = exports.export(db, format="raw", out=tmp_path / "out.jsonl", names=True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(row["annotator"] for row in rows) == ["ann", "bob"]
    card = Path(report.card).read_text()
    assert "2 rows from 2 of 2 judgments: on 1 pair of" in card
    assert "Percent agreement 100.0%" in card
    monkeypatch.undo()
    # 1 of 3 pairs of judgments agree.
    later = exports.export(db, format="raw", out=tmp_path / "out.jsonl", names=True)
    assert later.rows == 3
    assert "Percent agreement 33.3%" in Path(later.card).read_text()


def test_a_thread_reads_one_moment_and_then_the_present(db: Database) -> None:
    count = "SELECT count(*) AS n FROM annotators"
    with db.snapshot():
        annotators.add(db, Annotator(id="ann", name="ann"))
        assert db.read(count) == [{"n": 0}]
    assert db.read(count) == [{"n": 1}]
    with pytest.raises(ZeroDivisionError), db.snapshot():
        _ = 1 / 0
    annotators.add(db, Annotator(id="bob", name="bob"))
    assert db.read(count) == [{"n": 2}]
