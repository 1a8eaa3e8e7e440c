"""`launch.py judgments`: found, shown, excluded and restored from a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from storage.engine.database import Database
from tests.helpers.browsed import fill
from tests.helpers.command_line import run, told
from tests.helpers.tiny import save_tiny


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judgments")
    save_tiny(folder / "model")
    where = ["--workspace", str(folder / "w"), "--model", str(folder / "model")]
    CliRunner().invoke(app, ["init", *where])
    with Database.open(folder / "w") as db:
        fill(db)
    return folder / "w"


def listed(workspace: Path, *options: str) -> list[str]:
    found = told("judgments", "list", *options, "--workspace", workspace, "--json")
    return [row["id"] for row in found["rows"]]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--annotator", "bob"], ["j-4", "j-2"]),
        (["--outcome", "second", "--text", "kettle"], ["j-2"]),
        (["--category", "facts", "--iteration", "1", "--arm", "random"], ["j-3"]),
        (["--disagreement"], ["j-2", "j-1"]),
        (["--surprise", "--no-commented"], ["j-2"]),
        (["--flagged", "--excluded"], ["j-5"]),
        (["--limit", "2"], ["j-7", "j-6"]),
        (["--limit", "2", "--before", "j-6"], ["j-5", "j-4"]),
    ],
)
def test_judgments_are_listed_by_their_facets(workspace, options, ids) -> None:
    assert listed(workspace, *options) == ids


def test_the_list_to_read_names_counts_and_the_next_page(workspace) -> None:
    printed = run("judgments", "list", "--limit", "3", "--workspace", workspace)
    assert "next page: --before j-5" in printed
    assert "annotator: ann 4, bob 2, robot 1" in printed
    assert "marks: disagreement 2, surprise 2, flagged 2, commented 1, excluded 1" in printed
    assert "Name a bird." in printed


def test_a_judgment_is_shown_excluded_and_restored(workspace) -> None:
    where = ("--workspace", workspace, "--json")
    shown = told("judgments", "show", "j-1", *where)
    assert (shown["comparison"], [j["id"] for j in shown["judgments"]]) == ("c-1", ["j-1", "j-2"])
    assert "Use a fish kettle." in run("judgments", "show", "j-1", "--workspace", workspace)
    made = told("judgments", "exclude", "j-1", "--reason", "too fast", *where)
    assert (made["judgment"], made["excluded"], made["reason"]) == ("j-1", True, "too fast")
    assert listed(workspace, "--excluded") == ["j-5", "j-1"]
    assert told("judgments", "restore", "j-1", *where)["excluded"] is False
    assert listed(workspace, "--excluded") == ["j-5"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "--annotator", "eve"], "no annotator called 'eve'; there are: ann, bob, robot, Rosa"),
        (["list", "--arm", "left"], "judgments.list: arm is 'left'"),
        (["exclude", "j-99", "--reason", "r"], "no judgment 'j-99'"),
        (["exclude-all", "--reason", "r"], "set a filter first"),
        (["exclude-all", "--annotator", "zoe", "--reason", "r"], "no annotator called 'zoe'"),
    ],
)  # fmt: skip
def test_a_refusal_says_why(workspace, arguments, says) -> None:
    done = CliRunner().invoke(app, ["judgments", *arguments, "--workspace", str(workspace)])
    assert says in str(done.exception)


def test_all_judgments_of_an_annotator_are_excluded_and_restored(workspace) -> None:
    where = ("--workspace", workspace, "--json")
    done = told("judgments", "exclude-all", "--annotator", "bob", "--reason", "guesses", *where)
    assert done == {"judgments": 2}
    assert listed(workspace, "--annotator", "bob", "--excluded") == ["j-4", "j-2"]
    assert told("judgments", "restore-all", "--annotator", "bob", *where) == {"judgments": 2}
    assert listed(workspace, "--excluded") == ["j-5"]
