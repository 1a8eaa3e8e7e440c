"""`import --from`, `--map` and `--dry-run` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from tests.helpers.command_line import told
from tests.helpers.tiny import save_tiny

RECORD = {
    "id": "r1",
    "fields": {"task": "Name a fruit.", "old": "Pear", "new": "Apple"},
    "responses": {"choice": [{"value": "new", "user_id": "u-1"}]},
}
NAMES = ("--map", "prompt=task", "--map", "a=old", "--map", "b=new")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model")
    place = tmp_path / "place"
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    return place


def test_another_tools_file_is_tried_and_imported(workspace: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text(json.dumps([RECORD]))
    where = ("--workspace", workspace, "--json")
    command = ("import", "--judgments", file, "--from", "argilla", *NAMES)
    tried = told(*command, "--dry-run", *where)
    assert tried["added"]["judgments"] == 1
    assert tried["preview"][0]["outcome"] == "b"
    # The same is still missing, so the dry run stored nothing.
    assert told(*command, *where)["added"] == tried["added"]
    assert told(*command, *where)["known"] == 1


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--judgments", "x.json", "--map", "a=b"), "--map names fields of another tool; say which with --from"),
        (("--judgments", "x.json", "--from", "arena", "--map", "a"), "--map a must be NAME=FIELD"),
        (("--pairs", "x.json", "--from", "arena"), "are read with --judgments or --gold, not --pairs"),
        (("--judgments", "hf://datasets/x", "--from", "arena"), "must be hf://datasets/OWNER/NAME"),
    ],
)  # fmt: skip
def test_wrong_options_are_told(workspace: Path, more: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CliRunner().invoke(
            app, ["import", "--workspace", str(workspace), *more], catch_exceptions=False
        )
