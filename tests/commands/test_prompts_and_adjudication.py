"""`launch.py prompts` and `launch.py adjudicate` from a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from storage.engine.database import Database
from storage.records import Annotator, Prompt
from storage.tables.people import annotators
from tests.helpers.browsed import fill
from tests.helpers.command_line import run, told
from tests.helpers.tiny import save_tiny


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    save_tiny(folder / "model")
    where = ["--workspace", str(folder / "w"), "--model", str(folder / "model")]
    CliRunner().invoke(app, ["init", *where])
    with Database.open(folder / "w") as db:
        fill(db)
        annotators.add(db, Annotator(id="adam", name="Adam", role="adjudicator"))
    return folder / "w"


BIRD = Prompt.make("Name a bird.", role="train").id


def test_prompts_are_listed_added_retired_and_categorized(workspace) -> None:
    where = ("--workspace", workspace, "--json")
    found = told("prompts", "list", "--category", "facts", *where)
    assert {row["id"] for row in found["rows"]} >= {BIRD}
    [bird] = told("prompts", "list", "--text", "bird", *where)["rows"]
    assert (bird["pairs"], bird["judgments"], bird["retired"]) == (1, 2, False)
    made = told(
        "prompts", "add", "What is rain?", "--role", "held-out", "--category", "facts", *where
    )
    assert (made["role"], made["category"]) == ("held-out", "facts")
    assert told("prompts", "retire", BIRD, *where)["retired"] is True
    assert told("prompts", "category", BIRD, "animals", *where)["category"] == "animals"
    printed = run("prompts", "list", "--retired", "--workspace", workspace)
    assert "Name a bird." in printed
    assert "roles: train 1" in printed
    assert "categories: animals 1" in printed
    assert told("prompts", "restore", BIRD, *where)["retired"] is False


def test_a_role_is_not_changed_by_adding_the_prompt_again(workspace) -> None:
    again = ["prompts", "add", "Name a bird.", "--role", "held-out", "--workspace", str(workspace)]
    assert "a role never changes" in str(CliRunner().invoke(app, again).exception)


def test_pairs_are_sent_shown_blind_and_ruled_on(workspace) -> None:
    where = ("--workspace", workspace, "--json")
    found = told("adjudicate", "list", *where)
    assert [pair["comparison"] for pair in found["waiting"]] == ["c-1"]
    told("adjudicate", "send", "c-2", *where)
    shown = told("adjudicate", "show", "c-2", "--name", "Adam", *where)
    assert set(shown) == {"comparison", "messages", "a", "b", "sent"}
    left = "first" if shown["a"] == "A number with two divisors." else "second"
    ruled = told(
        "adjudicate", "rule", "c-2", "a", "--reason", "exact", "--name", "Adam", *where
    )  # fmt: skip
    assert (ruled["outcome"], ruled["adjudicator"], ruled["reason"]) == (left, "Adam", "exact")
    assert ruled["votes"] == [{"annotator": "ann", "outcome": "second"}]
    printed = run("adjudicate", "list", "--workspace", workspace)
    assert "How do I boil rice?" in printed
    assert "ann: second" in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rule", "c-1", "a", "--reason", "r", "--name", "bob"], "may not rule"),
        (["rule", "c-4", "a", "--reason", "r"], "does not wait"),
        (["rule", "c-1", "left", "--reason", "r"], "outcome is 'left'"),
        (["send", "c-99"], "no comparison 'c-99'"),
    ],
)
def test_a_refusal_says_why(workspace, arguments, says) -> None:
    done = CliRunner().invoke(app, ["adjudicate", *arguments, "--workspace", str(workspace)])
    assert says in str(done.exception)
