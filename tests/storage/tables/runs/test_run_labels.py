"""Names and notes of runs: kept, journaled, noted in the audit log, searched."""

from __future__ import annotations

import pytest

from storage.audit_records import Actor, acting
from storage.browsing.runs import summaries
from storage.commands import Commands
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import Run
from storage.tables import audit
from storage.tables.runs import run_labels, runs


@pytest.fixture
def named(db: Database) -> Database:
    for id, stage, status, lr in (
        ("run-a", "policy", "failed", 1e-6), ("run-b", "policy", "succeeded", 3e-6),
        ("run-c", "reward", "succeeded", 3e-6),
    ):  # fmt: skip
        config = {"optimize": {"method": "dpo" if id == "run-b" else "ppo"}, "ppo": {"lr": lr}}
        runs.save(db, Run(id=id, stage=stage, iteration=1, status=status,
                          directory=f"runs/{id}", config=config))  # type: ignore[arg-type]  # fmt: skip
    return db


def test_a_name_and_a_note_change_apart_and_survive_a_restart(named: Database):
    run_labels.describe(named, "run-a", name="  low β ", researcher="ann")
    run_labels.describe(named, "run-a", note="diverged\nat once", researcher="ben")
    place = named.workspace
    named.close()
    with Database.open(place) as db:
        found = run_labels.of(db, "run-a")
        assert (found.name, found.note, found.researcher) == ("low β", "diverged\nat once", "ben")
        assert run_labels.of(db, "run-b").name == ""
        listed = {each.id: (each.name, each.note) for each in summaries(db)}
        assert listed == {
            "run-a": ("low β", "diverged\nat once"), "run-b": ("", ""), "run-c": ("", ""),
        }  # fmt: skip
        run_labels.describe(db, "run-a", name="")
        assert run_labels.of(db, "run-a").note == "diverged\nat once"
        assert run_labels.of(db, "run-a").name == ""


def test_what_is_noted_has_the_name_and_not_the_note(named: Database):
    with acting(Actor("", "command line")):
        run_labels.describe(named, "run-a", name="first", note="secret plan")
        run_labels.describe(named, "run-a", name="first", note="secret plan")  # changes nothing
        run_labels.describe(named, "run-a", note="")
    assert [(e.entry.action, e.subject, dict(e.entry.details)) for e in audit.listing(named)] == [
        ("run.described", "run-a", {"note": "removed"}),
        ("run.described", "run-a", {"name": "first", "note": "changed"}),
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "two\nlines"}, "must be one line of at most 100"),
        ({"name": "n" * 101}, "must be one line of at most 100"),
        ({"note": "n" * 5001}, "at most 5,000 characters"),
    ],
)
def test_texts_that_are_refused_leave_the_label(named: Database, given: dict[str, str], says: str):
    run_labels.describe(named, "run-a", name="kept")
    with pytest.raises(ValueError, match=says):
        run_labels.describe(named, "run-a", **given)
    assert run_labels.of(named, "run-a").name == "kept"
    with pytest.raises(NotFound, match="there is no run 'run-z'"):
        run_labels.describe(named, "run-z", name="x")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"search": "LOW β"}, ["run-a"]),
        ({"search": "careful"}, ["run-b"]),  # in a note
        ({"search": "dpo succeeded"}, ["run-b"]),
        ({"search": "ppo.lr=3e-06"}, []),  # no earlier run of the method to differ from
        ({"status": "succeeded"}, ["run-b", "run-c"]),
        ({"method": "ppo"}, ["run-a"]),
        ({"method": "dpo", "status": "failed"}, []),
    ],
)
def test_the_command_lists_the_runs_that_match(named: Database, filters, expected):
    run_labels.describe(named, "run-a", name="Low β")
    run_labels.describe(named, "run-b", note="a careful one")
    found = Commands(named).call("runs.list", filters)
    assert [each["id"] for each in found] == expected


def test_a_changed_setting_is_found(named: Database):
    config = {"optimize": {"method": "ppo"}, "ppo": {"lr": 5e-6}}
    again = Run(id="run-d", stage="policy", iteration=2, status="running", directory="runs/d", config=config)  # fmt: skip
    runs.save(named, again)
    found = Commands(named).call("runs.list", {"search": "ppo.lr=5e-06"})
    assert [each["id"] for each in found] == ["run-d"]
