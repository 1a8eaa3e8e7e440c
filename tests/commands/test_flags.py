"""`launch.py flags`: listed, answered and cleared from a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.labeling.flag_answers import mark_read, own_answers
from tests.helpers.command_line import told
from tests.helpers.storage_world import fill
from tests.helpers.tiny import save_tiny


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    save_tiny(tmp_path / "model")
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    with Database.open(place) as db:
        fill(db, 3)
        for id, pair in zip(("f1", "f2"), queue.lease(db, "ann", 2).pairs, strict=True):
            comparison = pair.comparison.id
            judgments.flag(db, id=id, comparison=comparison, annotator="ann", comment=f"bad {id}")
    return place


def test_flags_are_listed_answered_and_cleared(workspace: Path) -> None:
    where = ("--workspace", workspace, "--json")
    first, second = told("flags", "list", *where)
    assert (first["id"], first["annotator"], first["comment"]) == ("f1", "ann", "bad f1")
    assert (first["state"], first["answers"], second["id"]) == ("open", [], "f2")
    answer = told("flags", "answer", "f1", "Fixed.", "--clear", *where)
    assert (answer["flag"], answer["text"], answer["read_at"]) == ("f1", "Fixed.", None)
    assert told("flags", "clear", "f2", *where)["id"] == "f2"
    assert told("flags", "list", *where) == []
    with Database.open(workspace) as db:
        assert [each.text for each in own_answers(db, "ann")] == ["Fixed."]
        mark_read(db, "ann", [answer["id"]])
    first, second = told("flags", "list", "--all", *where)
    assert (first["state"], second["state"], second["answers"]) == ("cleared", "cleared", [])
    [given] = first["answers"]
    assert (given["text"], given["researcher"]) == ("Fixed.", None)
    assert given["read_at"] > given["created_at"]


def test_a_refused_answer_says_why(workspace: Path) -> None:
    for id, text, says in (("f9", "Hm.", "there is no flag 'f9'"), ("f1", " ", "needs a text")):
        done = CliRunner().invoke(app, ["flags", "answer", id, text, "--workspace", str(workspace)])
        assert says in str(done.exception)
