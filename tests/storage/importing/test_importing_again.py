"""Files that say again, or otherwise, what is stored already."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from storage.engine.database import Database
from storage.importing import imports
from storage.importing.imports import (
    BadFile,
    import_judgments,
    import_preferences,
    import_prompts,
    import_sft,
)
from storage.records import Annotator
from storage.tables.people import annotators
from tests.helpers.import_files import ROW, everything, judgments, reasons, total


def preferred(prompt: str, chosen: str, rejected: str) -> dict[str, str]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_a_second_file_is_of_other_people_and_revises_nobody(db: Database, file: Any) -> None:
    # x is the canonical first of each pair.
    one = file([preferred("q1", "x", "y"), preferred("q2", "x", "y")], "one.jsonl")
    two = file([preferred("q1", "y", "x"), preferred("q2", "x", "y")], "two.jsonl")
    assert (first := import_preferences(db, one)).added["judgments"] == 2
    assert first.known == 0
    second = import_preferences(db, two)
    assert (second.added["judgments"], second.known, second.warnings) == (1, 1, [])
    current = db.read(
        "SELECT a.name, j.outcome, j.replaces FROM current_judgments AS j"
        " JOIN annotators AS a ON a.id = j.annotator ORDER BY a.name, j.outcome"
    )
    assert current == [
        {"name": "imported", "outcome": "first", "replaces": None},
        {"name": "imported", "outcome": "first", "replaces": None},
        {"name": "imported-2", "outcome": "second", "replaces": None},
    ]
    for again in (one, two):
        report = import_preferences(db, again)
        assert (total(report), report.known) == (0, 2)


def test_a_file_that_has_a_vote_more_often_adds_what_is_missing(db: Database, file: Any) -> None:
    for_x, for_y, tie = (
        preferred("q", "x", "y"),
        preferred("q", "y", "x"),
        preferred("q", "y", "x") | {"outcome": "tie"},
    )
    import_preferences(db, file([for_x, for_y], "one.jsonl"))
    report = import_preferences(db, file([for_y, for_x, for_x, tie, for_y], "two.jsonl"))
    assert (report.added["judgments"], report.known) == (3, 2)
    # The first for y and the first for x are those of one.jsonl; the others follow in their order.
    assert {(row["annotator"], row["outcome"]) for row in judgments(db)} == {
        ("imported", "first"),
        ("imported-2", "second"),
        ("imported-3", "first"),
        ("imported-4", "tie"),
        ("imported-5", "second"),
    }
    # A tie prefers neither, whichever is called chosen.
    again = import_preferences(db, file([for_x | {"outcome": "tie"}], "three.jsonl"))
    assert (total(again), again.known) == (0, 1)


def test_a_named_voter_of_such_a_name_is_nobody_else(db: Database, file: Any) -> None:
    named = preferred("q", "x", "y") | {"annotator": "imported-2"}
    rows = [preferred("q", "x", "y"), preferred("q", "y", "x"), named]
    import_preferences(db, file(rows))
    assert {(row["annotator"], row["outcome"]) for row in judgments(db)} == {
        ("imported", "first"),
        ("imported-3", "second"),
        ("imported-2", "first"),
    }


def test_a_report_says_what_was_known(db: Database, file: Any) -> None:
    shown = [{"prompt": "p", "response": "r"}, {"prompt": "p", "response": "s"}]
    files = [
        (import_prompts, [{"prompt": "x"}], [{"prompt": "x"}, {"prompt": "y"}], 1),
        (import_sft, shown[:1], shown, 1),
        (import_judgments, [ROW], [ROW, {**ROW, "annotator": "bob"}], 1),
    ]
    for take, rows, more, known in files:
        assert take(db, file(rows)).known == 0
        assert take(db, file(more)).known == known
        assert take(db, file(more)).known == 2


def test_a_models_answers_never_pass_for_a_persons(db: Database, file: Any) -> None:
    db.write(lambda tx: tx.store(Annotator(id="a-ann", name="ann"), Annotator(id="a-b", name="b")))
    by_model = {**ROW, "annotator_kind": "model"}
    rows = [
        by_model,
        {**ROW, "annotator_kind": "Person"},
        {**by_model, "annotator": "new", "item": 1},
        {**ROW, "annotator": "new", "annotator_kind": "person", "item": 2},
        {**ROW, "annotator": "new", "item": 3},
    ]
    with pytest.raises(BadFile) as bad:
        import_judgments(db, file(rows))
    said = "give one of them another name"
    assert reasons(bad) == {
        1: f"annotator_kind is model, and ann is a person in this workspace; {said}",
        4: f"annotator_kind is person, and new is a model on line 3; {said}",
    }
    import_judgments(db, file(rows), skip_bad=True)
    found = db.read(
        "SELECT a.name, a.kind, count(*) AS n FROM judgments AS j"
        " JOIN annotators AS a ON a.id = j.annotator GROUP BY ALL ORDER BY a.name"
    )
    assert found == [
        {"name": "ann", "kind": "person", "n": 1},
        {"name": "new", "kind": "model", "n": 2},
    ]
    # Nor what is stored already, under the judgment's own id.
    (stored,) = [row["id"] for row in judgments(db) if row["annotator"] == "ann"]
    with pytest.raises(BadFile, match="ann is a person in this workspace"):
        import_judgments(db, file([{**by_model, "id": stored}]))


def test_whoever_says_it_first_in_the_file_says_what_a_new_annotator_is(
    db: Database, file: Any
) -> None:
    early = {**ROW, "annotator": "new", "created_at": "2026-01-01", "item": 1}
    late = {**early, "annotator_kind": "simulated", "created_at": "2026-01-02", "item": 2}
    import_judgments(db, file([early, late]))
    assert db.read("SELECT name, kind FROM annotators") == [{"name": "new", "kind": "simulated"}]


def test_a_withdrawal_of_a_stored_judgment_is_taken(db: Database, file: Any) -> None:
    first = {**ROW, "id": "j1", "created_at": "2026-03-01T10:00:00Z"}
    import_judgments(db, file([first]))
    taken_back = {**first, "withdrawn_at": "2026-03-02T10:00:00Z"}
    later = {**ROW, "id": "j2", "outcome": "b", "created_at": "2026-03-03T10:00:00Z"}
    report = import_judgments(db, file([taken_back, later, taken_back], "history.jsonl"))
    assert (report.added["withdrawals"], report.added["judgments"], report.known) == (1, 1, 2)
    assert report.warnings == []
    assert db.read("SELECT replaces, created_at FROM withdrawals") == [
        {"replaces": "j1", "created_at": datetime(2026, 3, 2, 10, tzinfo=UTC)}
    ]
    # j1 counts no more, so j2 stands alone and revises nothing.
    assert db.read("SELECT id, replaces FROM current_judgments") == [{"id": "j2", "replaces": None}]
    assert total(import_judgments(db, file([taken_back, later], "again.jsonl"))) == 0
    # The older file does not bring it back.
    assert total(import_judgments(db, file([first], "old.jsonl"))) == 0


def test_a_withdrawal_of_what_was_revised_here_is_a_warning(db: Database, file: Any) -> None:
    first = {**ROW, "id": "j1", "created_at": "2026-03-01T10:00:00Z"}
    revision = {**ROW, "id": "j2", "outcome": "b", "created_at": "2026-03-03T10:00:00Z"}
    import_judgments(db, file([first, revision]))
    taken_back = {**first, "withdrawn_at": "2026-03-02T10:00:00Z"}
    report = import_judgments(db, file([taken_back], "history.jsonl"))
    assert [w.reason for w in report.warnings] == [
        "this judgment was revised here, so its withdrawal was not imported"
    ]
    assert db.read("SELECT id FROM current_judgments") == [{"id": "j2"}]


@pytest.mark.parametrize("lines", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_revisions_of_one_moment_come_back_in_any_order(
    db: Database, file: Any, lines: tuple[int, ...]
) -> None:
    moment = {**ROW, "created_at": "2026-03-01T10:00:00Z"}
    chain = [
        {**moment, "id": "j1"},
        {**moment, "id": "j2", "outcome": "b", "replaces": "j1"},
        {**moment, "id": "j3", "outcome": "tie", "replaces": "j2"},
    ]
    import_judgments(db, file([chain[line] for line in lines]))
    assert db.read("SELECT id, replaces FROM judgments ORDER BY id") == [
        {"id": "j1", "replaces": None},
        {"id": "j2", "replaces": "j1"},
        {"id": "j3", "replaces": "j2"},
    ]


def test_an_import_is_planned_beside_writes_and_stored_as_things_are(
    db: Database, file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody gets an account while a file that names him is planned."""
    plan = imports.plan_votes

    def overtaken(reader: Any, *arguments: Any, **options: Any) -> Any:
        planned = plan(reader, *arguments, **options)
        if not annotators.by_name(db, "ann"):  # raises where it would wait for itself
            annotators.add(db, Annotator(id="a-1", name="ann", kind="simulated"))
        return planned

    monkeypatch.setattr(imports, "plan_votes", overtaken)
    stated = {**ROW, "annotator_kind": "person"}
    with pytest.raises(BadFile, match="ann is a simulated in this workspace"):
        import_judgments(db, file([stated]))
    assert everything(db)["judgments"] == 0
    report = import_judgments(db, file([ROW]))
    assert (report.added["annotators"], report.added["judgments"]) == (0, 1)
    assert db.read("SELECT annotator FROM judgments") == [{"annotator": "a-1"}]
