"""Marked passages: stored by side, journaled, and used by no model."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.labeling.own_judgments import own_judgment
from storage.records import Mark
from storage.worker_files import write_judgments_input
from tests.helpers.desk_world import add_person, workspace

MARK = Mark(reason="wrong", quote="answer", prefix="first ", start=6, end=12)


def test_marks_are_stored_by_side_and_survive_a_rebuild(tmp_path: Path) -> None:
    with workspace(tmp_path / "w") as db:
        people = [add_person(db, f"Ann {n}") for n in range(8)]
        sides = set()
        for person in people[:6]:
            (pair,) = queue.lease(db, person.id, 1).pairs
            stored = judgments.judge(
                db, id=person.id, comparison=pair.comparison.id, annotator=person.id,
                outcome="a", marks={"a": [MARK], "b": []},
            )  # fmt: skip
            assert stored.marks == {stored.outcome: (MARK,)}  # a was preferred
            assert own_judgment(db, person.id, person.id).marks == {"a": [MARK]}
            sides.add(stored.outcome)
        assert sides == {"first", "second"}
        before = db.read("SELECT id, marks::VARCHAR AS marks FROM judgments ORDER BY id")
    rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as db:
        assert db.read("SELECT id, marks::VARCHAR AS marks FROM judgments ORDER BY id") == before
        assert all(len(json.loads(row["marks"])) == 1 for row in before)


def test_models_get_no_marks(tmp_path: Path) -> None:
    secret = Mark(reason="wrong", quote="a secret of the marks", start=0, end=21)
    with workspace(tmp_path / "w") as db:
        person = add_person(db, "Ann")
        (pair,) = queue.lease(db, person.id, 1).pairs
        judgments.judge(
            db, id="j-1", comparison=pair.comparison.id, annotator=person.id,
            outcome="a", marks={"b": [secret]},
        )  # fmt: skip
        inputs = tmp_path / "inputs"
        inputs.mkdir()
        write_judgments_input(db, inputs, iteration=1)
    written = [pd.read_parquet(path).to_csv() for path in inputs.glob("*.parquet")]
    written += [path.read_text() for path in inputs.glob("*.json")]
    assert "j-1" in "".join(written)
    assert secret.quote not in "".join(written)
