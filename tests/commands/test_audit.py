"""`launch.py audit`: what the command line did, filtered, as JSON and as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from storage.engine.database import Database
from storage.tables import prompts
from tests.helpers.command_line import run, told
from tests.helpers.storage_world import fill
from tests.helpers.tiny import save_tiny


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    save_tiny(tmp_path / "model")
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    with Database.open(place) as db:
        fill(db, 3)
    return place


def test_what_the_command_line_does_is_noted_and_found_again(workspace: Path, tmp_path: Path):
    where = ("--workspace", workspace)
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "How are you?"}) + "\n")
    run("import", "--prompts", file, *where)
    run("import", "--prompts", file, *where)  # adds nothing, and is not noted
    token = told("users", "add", "Eve", "--token", "--json", *where)["token"]
    run("users", "disable", "Eve", *where)
    run("backup", tmp_path / "copy", *where)
    run("status", *where)
    run("audit", *where)  # reading is not noted
    found = told("audit", "--json", *where)
    assert {(each["actor"], each["via"]) for each in found} == {("operator", "command line")}
    assert [(each["action"], each["subject"]) for each in reversed(found)] == [
        ("import", "prompts"), ("account.added", "Eve"), ("token.issued", "Eve"),
        ("token.revoked", "Eve"), ("account.disabled", "Eve"), ("backup", "copy"),
    ]  # fmt: skip
    assert found[-1]["details"] == {"file": "prompts.jsonl", "added": {"prompts": 1}}
    assert token not in json.dumps(found)
    with Database.open(workspace) as db:
        assert sum(prompts.counts(db).values()) == 4

    one = told("audit", "--action", "account", "--search", "disabled", "--json", *where)
    assert [each["action"] for each in one] == ["account.disabled"]
    assert told("audit", "--actor", "Nobody", "--json", *where) == []
    assert told("audit", "--until", "2020-01-01", "--json", *where) == []
    assert len(told("audit", "--limit", "2", "--json", *where)) == 2
    assert "account.disabled" in run("audit", *where)

    out = tmp_path / "log.jsonl"
    assert told("audit", "--out", out, "--action", "account", "--json", *where)["entries"] == 2
    assert len(out.read_text().splitlines()) == 2


def test_an_action_that_was_refused_is_not_noted(workspace: Path):
    where = ["--workspace", str(workspace)]
    for command in (["users", "disable", "Nobody"], ["cancel"], ["resume"], ["label-more"]):
        assert CliRunner().invoke(app, [*command, *where]).exit_code == 1
    assert told("audit", "--json", *where) == []
    refused = CliRunner().invoke(app, ["audit", "--since", "last week", *where])
    assert "'last week' is not a date or time" in str(refused.exception)
