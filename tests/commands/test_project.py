"""`launch.py guidelines`, `form` and `practice`: what annotators are given, from a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from storage.engine.database import Database
from storage.tables import settings
from tests.helpers.command_line import told
from tests.helpers.tiny import save_tiny


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    save_tiny(tmp_path / "model")
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    return place


def refused(*arguments: object) -> str:
    return str(CliRunner().invoke(app, [str(each) for each in arguments]).exception)


def test_guidelines_are_saved_from_a_file_and_printed(workspace: Path, tmp_path: Path) -> None:
    where = ("--workspace", workspace, "--json")
    default = told("guidelines", "show", *where)
    (tmp_path / "short.md").write_text(
        "Prefer the *shorter* answer: ≤ 3 lines.\n", encoding="utf-8"
    )
    version = told("guidelines", "save", tmp_path / "short.md", *where)["version"]
    now = told("guidelines", "show", *where)
    assert (now["text"], now["version"]) == ("Prefer the *shorter* answer: ≤ 3 lines.\n", version)
    assert [each["text"] for each in now["saved"]] == [default["text"], now["text"]]
    (tmp_path / "de.md").write_text("Lieber kurz.")
    told("guidelines", "save", tmp_path / "de.md", "--language", "de", *where)
    assert told("guidelines", "show", "--language", "de", *where)["text"] == "Lieber kurz."
    printed = CliRunner().invoke(app, ["guidelines", "show", "--workspace", str(workspace)])
    assert printed.stdout.rstrip() == now["text"].rstrip()
    (tmp_path / "empty.md").write_text("\n")
    assert "the guidelines are empty" in refused(
        "guidelines", "save", tmp_path / "empty.md", "--workspace", workspace
    )
    assert "language is 'xx'" in refused(
        "guidelines", "show", "--language", "xx", "--workspace", workspace
    )


def test_the_form_keeps_what_is_not_named(workspace: Path) -> None:
    where = ("--workspace", workspace, "--json")
    before = told("form", "show", *where)
    after = told(
        "form",
        "set",
        "--safety",
        "required",
        "--reason",
        "rude",
        "--reason",
        "wrong",
        "--marks",
        *where,
    )
    assert after == before | {"safety": "required", "reasons": ["rude", "wrong"], "marks": True}
    with Database.open(workspace) as db:
        assert settings.judgment_form(db).safety == "required"
    after = told("form", "set", "--reason", "none", "--criterion", "none", *where)
    assert (after["reasons"], after["criteria"]) == ([], [])
    assert "name what to change" in refused("form", "set", "--workspace", workspace)
    assert "safety is 'maybe'" in refused(
        "form", "set", "--safety", "maybe", "--workspace", workspace
    )


def test_practice_is_asked_for_and_no_longer(workspace: Path) -> None:
    where = ("--workspace", workspace, "--json")
    assert told("practice", *where) == {"asked": False, "pairs": 0}
    assert told("practice", "--ask", *where)["asked"]
    with Database.open(workspace) as db:
        assert settings.check_plan_of(db).practice
    assert not told("practice", "--no-ask", *where)["asked"]
