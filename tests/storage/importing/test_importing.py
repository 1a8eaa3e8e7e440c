"""Importing judgments: what is taken, what is refused, all of a file or nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from storage.engine.database import Database
from storage.importing.imports import BadFile, import_judgments
from storage.records import Annotator
from tests.helpers.import_files import CHAT, ROW, everything, judgments, reasons, total


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_file_type_gives_the_same_judgments(db: Database, file: Any, ending: str) -> None:
    rows = [
        {**ROW, "strength": 3, "comment": "crisp, «été»\nsecond line"},
        {**ROW, "annotator": "bob", "outcome": "both_bad", "strength": None, "comment": None},
    ]
    report = import_judgments(db, file(rows, f"rows{ending}"))
    assert report.added == {
        "prompts": 1,
        "models": 1,
        "completions": 2,
        "comparisons": 1,
        "annotators": 2,
        "judgments": 2,
        "withdrawals": 0,
    }
    found = {row["annotator"]: row for row in judgments(db)}
    # Canonical order sorts the texts: Apple is first, so Pear on the left means shown swapped.
    assert (found["ann"]["first"], found["ann"]["second"]) == ("Apple", "Pear")
    assert found["ann"]["outcome"] == "second"
    assert found["ann"]["shown_swapped"] is True
    assert found["ann"]["strength"] == 3
    assert found["ann"]["comment"] == "crisp, «été»\nsecond line"
    assert found["bob"]["outcome"] == "both_bad"
    assert found["bob"]["strength"] is None
    assert found["bob"]["comment"] == ""


def test_imported_comparisons_are_of_iteration_0_and_annotators_have_no_password(
    db: Database, file: Any
) -> None:
    import_judgments(db, file([{**ROW, "model_a": "pearbot"}]))
    assert db.read("SELECT iteration, arm FROM comparisons") == [
        {"iteration": 0, "arm": "imported"}
    ]
    assert db.read("SELECT name, role, kind, password_hash FROM annotators") == [
        {"name": "ann", "role": "annotator", "kind": "person", "password_hash": None}
    ]
    names = {row["name"]: row["role"] for row in db.read("SELECT name, role FROM models")}
    assert names == {"pearbot": "external", "imported": "external"}


def test_the_same_two_responses_in_either_order_are_one_comparison(db: Database, file: Any) -> None:
    swapped = {**ROW, "response_a": "Apple", "response_b": "Pear", "annotator": "bob"}
    import_judgments(db, file([ROW, swapped]))
    assert everything(db)["comparisons"] == 1
    # ann chose Pear on the left, bob Apple on the left.
    assert {(r["annotator"], r["outcome"], r["shown_swapped"]) for r in judgments(db)} == {
        ("ann", "second", True),
        ("bob", "first", False),
    }


def test_items_keep_apart_what_texts_would_join(db: Database, file: Any) -> None:
    # Item 0 is an item: a falsy number is not a missing one.
    rows = [{**ROW, "item": 0}, {**ROW, "item": 1}, {**ROW, "item": 1, "annotator": "bob"}, ROW]
    import_judgments(db, file(rows))
    assert everything(db)["comparisons"] == 3
    items = [row["item"] for row in db.read("SELECT item FROM comparisons ORDER BY item")]
    assert items == ["0", "1", None]


def test_rows_of_one_item_must_be_one_pair(db: Database, file: Any) -> None:
    rows = [{**ROW, "item": 7}, {**ROW, "item": 7, "response_b": "Plum", "annotator": "bob"}]
    with pytest.raises(BadFile) as bad:
        import_judgments(db, file(rows))
    assert reasons(bad) == {
        2: "item 7 is another pair on line 1; rows of one item must have the same prompt and the "
        "same two responses"
    }


def test_importing_twice_adds_nothing(db: Database, file: Any) -> None:
    rows = [ROW, {**ROW, "outcome": "b"}, {**ROW, "annotator": "bob", "item": "x"}]
    assert total(import_judgments(db, file(rows))) > 0
    before = everything(db), judgments(db)
    assert total(import_judgments(db, file(rows))) == 0
    assert total(import_judgments(db, file(list(reversed(rows))))) == 0
    assert (everything(db), judgments(db)) == before


def test_a_later_judgment_of_the_same_pair_revises_the_earlier(db: Database, file: Any) -> None:
    late = {**ROW, "outcome": "b", "created_at": "2026-03-02T10:00:00Z"}
    early = {**ROW, "created_at": "2026-03-01T10:00:00+01:00"}
    report = import_judgments(db, file([late, early]))  # time decides, not the order of rows
    first, second = judgments(db)
    assert (first["outcome"], second["outcome"]) == ("second", "first")
    assert second["replaces"] == first["id"]
    assert [w.line for w in report.warnings] == [1]
    current = db.read("SELECT id, created_at FROM current_judgments")
    assert current == [{"id": second["id"], "created_at": datetime(2026, 3, 2, 10, tzinfo=UTC)}]
    # A further file goes on from there; one that is older than what holds is refused.
    import_judgments(db, file([{**ROW, "outcome": "tie"}], "more.jsonl"))
    assert [r["outcome"] for r in judgments(db)] == ["second", "first", "tie"]
    assert judgments(db)[2]["replaces"] == second["id"]
    older = {**ROW, "outcome": "both_bad", "created_at": "2026-01-01"}
    with pytest.raises(BadFile, match="judged this pair again later"):
        import_judgments(db, file([older], "older.jsonl"))


def test_a_repeated_row_counts_once(db: Database, file: Any) -> None:
    report = import_judgments(db, file([ROW, ROW]))
    assert report.added["judgments"] == 1
    assert [(w.line, w.reason) for w in report.warnings] == [
        (2, "repeats line 1 and was counted once")
    ]


def test_every_bad_row_is_reported_and_nothing_is_stored(db: Database, file: Any) -> None:
    rows = [
        ROW,
        {**ROW, "outcome": "c"},
        "{not json",
        "",
        {**ROW, "response_b": None},
        {**ROW, "annotator": " "},
        {**ROW, "strength": 4},
        {**ROW, "outcome": "tie", "strength": 2},
        {**ROW, "created_at": "yesterday"},
        {**ROW, "prompt": "  "},
        {**ROW, "response_a": {"text": "Pear"}},
        '"only text"',
        {**ROW, "prompt": CHAT[:3]},
        {**ROW, "criteria": {"taste": "a"}},
        {**ROW, "comment": "\ud800"},
        {**ROW, "created_at": "2999-01-01T00:00:00Z"},
        {**ROW, "annotator": "a\x1b[31mRED"},
        {**ROW, "annotator": "o\u200bwner"},
        {**ROW, "annotator": "z" * 101},
        '{"prompt": "one", "outcome": "a", "prompt": "two"}',
        {**ROW, "criteria": '{"helpful": "a", "helpful": "b"}'},
    ]
    with pytest.raises(BadFile) as bad:
        import_judgments(db, file(rows))
    found = reasons(bad)
    assert found[3].startswith("not JSON")
    del found[3]
    assert found == {
        2: "outcome is 'c' and must be one of a, b, tie, both_bad",
        5: "response_b is missing",
        6: "annotator is missing",
        7: "strength=4 must be 1, 2 or 3",
        8: "strength goes with a preference, not with a tie or both bad",
        9: 'created_at is "yesterday" and must be a time like 2026-09-30T14:05:00Z',
        10: "a prompt needs a user message that is not blank",
        11: 'response_a must be text, not {"text": "Pear"}',
        12: "not an object with named columns",
        13: "a prompt needs at least one message and must end with a user turn",
        14: "criterion='taste' must be one of 'helpful', 'truthful', 'harmless', 'clear'",
        15: "comment contains half of a surrogate pair (\\ud800 to \\udfff), which cannot be stored",
        16: 'created_at is "2999-01-01T00:00:00Z", which is in the future (a time without a zone '
        "is read as UTC)",
        17: "an annotator's name contains U+001B, which is invisible: 'a\\x1b[31mRED'",
        18: "an annotator's name contains U+200B, which is invisible: 'o\\u200bwner'",
        19: f"an annotator's name has at most 100 characters; {'z' * 40!r}… has 101",
        20: "has two columns prompt; rename or remove one of them",
        21: "criteria has helpful twice",
    }
    assert "19 bad rows" in str(bad.value)
    assert sum(everything(db).values()) == 0


def test_an_array_goes_on_behind_an_object_with_a_column_twice(db: Database, tmp_path: Path):
    rows = [json.dumps(ROW), '{"prompt": "one", "prompt": "two"}', json.dumps(ROW | {"item": "2"})]
    unread = '{"a": 1, "a": 2}'  # in a column that nobody reads
    rows.append(json.dumps(ROW | {"item": "3", "notes": {}}).replace("{}", unread))
    path = tmp_path / "votes.json"
    path.write_text(f"[{','.join(rows)}]")
    report = import_judgments(db, path, skip_bad=True)
    assert (report.rows, len(report.skipped), report.added["judgments"]) == (4, 1, 3)


def test_names_that_people_have_are_taken(db: Database, file: Any):
    names = ["山田　太郎", "Anne\u00a0Marie", "علی\u200cرضا", "👩\u200d💻", "o'Brien-Łoś"]
    import_judgments(db, file([ROW | {"annotator": name, "item": name} for name in names]))
    assert {row["annotator"] for row in judgments(db)} == set(names)
    # Whoever is here already may have any name: older imports took them all.
    db.write(lambda tx: tx.store(Annotator(id="old", name="tab\there")))
    assert import_judgments(db, file([ROW | {"annotator": "tab\there"}])).added["judgments"] == 1


def test_skip_bad_imports_the_rest_and_says_what_it_left_out(db: Database, file: Any) -> None:
    rows = [ROW, {**ROW, "outcome": "c"}, {**ROW, "annotator": "bob", "item": "1"}]
    conflicting = {**rows[2], "annotator": "eve", "response_a": "Plum"}
    report = import_judgments(db, file([*rows, conflicting]), skip_bad=True)
    assert report.rows == 4
    assert [row.line for row in report.skipped] == [2, 4]
    assert {row["annotator"] for row in judgments(db)} == {"ann", "bob"}


def test_odd_but_usable_values_are_kept_with_a_warning(db: Database, file: Any) -> None:
    rows = [
        {**ROW, "response_a": True, "response_b": ""},
        {**ROW, "response_a": 3.5, "annotator": 12},
        {**ROW, "response_a": "Apple", "comment": 7},
    ]
    report = import_judgments(db, file(rows))
    assert [(w.line, w.reason) for w in report.warnings] == [
        (1, "response_a is the boolean true, kept as text"),
        (1, "response_b is empty"),
        (2, "response_a is the number 3.5, kept as text"),
        (3, "comment is the number 7, kept as text"),
        (3, "the two responses are the same"),
    ]
    texts = {row["text"] for row in db.read("SELECT text FROM completions")}
    assert texts == {"true", "", "3.5", "Apple"}
    assert {row["annotator"] for row in judgments(db)} == {"ann", "12"}


def test_a_missing_column_is_named_once_and_an_unused_one_is_noted(db: Database, file: Any) -> None:
    rows = [{**{k: v for k, v in ROW.items() if k != "outcome"}, "outcomes": "a"}] * 3
    with pytest.raises(BadFile) as bad:
        import_judgments(db, file(rows))
    assert list(reasons(bad)) == [1]
    assert "no row has a column outcome (is it outcomes?)" in reasons(bad)[1]
    with pytest.raises(BadFile, match="no row has a column response_b; the columns are"):
        import_judgments(db, file([{k: v for k, v in ROW.items() if k != "response_b"}]))
    report = import_judgments(db, file([ROW, {**ROW, "strenght": 2, "annotator": "bob"}]))
    assert [(w.line, w.reason) for w in report.warnings] == [
        (2, "column strenght is not used; did you mean strength?")
    ]


def test_strength_and_criteria_in_words_follow_the_sides(db: Database, file: Any) -> None:
    row = {**ROW, "strength": "Much", "criteria": {"helpful": "a", "clear": "tie"}}
    import_judgments(db, file([row]))
    found = db.read("SELECT strength, criteria::VARCHAR AS criteria FROM judgments")[0]
    assert found["strength"] == 3
    # Pear, the canonical second, was a.
    assert json.loads(found["criteria"]) == {"helpful": "second", "clear": "tie"}


def test_tags_and_labels_follow_the_sides_and_make_another_row(db: Database, file: Any) -> None:
    row = {**ROW, "reasons": {"a": ["too long"], "b": []}, "safety": '{"a": "unsafe", "b": "safe"}'}
    import_judgments(db, file([row, {**ROW, "annotator": "bob", "reasons": None, "safety": {}}]))
    sql = "SELECT reasons::VARCHAR AS reasons, safety::VARCHAR AS safety FROM judgments ORDER BY 1"
    tagged, plain = db.read(sql)
    assert [json.loads(each) for each in plain.values()] == [{}, {}]
    # Pear, the canonical second, was a.
    assert json.loads(tagged["reasons"]) == {"second": ["too long"]}
    assert json.loads(tagged["safety"]) == {"second": "unsafe", "first": "safe"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"reasons": {"a": "too long"}}, "reasons: a must be a list of texts"),
        ({"reasons": {"c": ["x"]}}, "side='c' must be one of 'a', 'b'"),
        ({"reasons": {"a": ["x" * 61]}}, "has more than 60 characters"),
        ({"safety": {"a": "fine"}}, "must be one of 'safe', 'borderline', 'unsafe'"),
    ],
)
def test_a_bad_tag_or_label_is_a_bad_row(db: Database, file: Any, wrong, sentence) -> None:
    with pytest.raises(BadFile, match=sentence.replace("[", ".")):
        import_judgments(db, file([{**ROW, **wrong}]))


def test_marks_follow_the_sides_and_make_another_row(db: Database, file: Any) -> None:
    mark = {"reason": "wrong", "quote": "ea", "start": 1, "end": 3}
    marks = {"a": [mark], "b": []}
    import_judgments(db, file([{**ROW, "marks": marks}, {**ROW, "marks": json.dumps(marks)}]))
    import_judgments(db, file([{**ROW, "annotator": "bob", "marks": None}]))
    sql = "SELECT marks::VARCHAR AS marks FROM judgments ORDER BY marks::VARCHAR"
    marked, plain = (json.loads(row["marks"]) for row in db.read(sql))
    assert plain == {}
    # Pear, the canonical second, was a.
    assert list(marked) == ["second"]
    (stored,) = marked["second"]
    assert {name: stored[name] for name in mark} == mark
    assert (stored["prefix"], stored["rendered_start"]) == ("", None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start": 0, "end": 2}, "the response from 0 to 2 is not the quote"),
        ({"start": 1, "end": 99}, "end=99 is after the end of the response, which has 4 char"),
        ({"start": 3, "end": 1}, "its end must be after its start"),
        ({"start": None, "end": None}, "needs start and end, or rendered_start and rendered_end"),
        ({"quote": None}, "marks: quote is missing"),
        ({"reason": " "}, "must be printable text that is not blank"),
        ({"start": "1"}, "marks: start must be a whole number"),
        ({"color": "red"}, "marks: a mark has no 'color'"),
        ({"quote": "e" * 1001}, "must have 1 to 1,000 characters"),
    ],
)
def test_a_bad_mark_is_a_bad_row(db: Database, file: Any, change, sentence) -> None:
    mark = {"reason": "wrong", "quote": "ea", "start": 1, "end": 3} | change
    with pytest.raises(BadFile, match=sentence):
        import_judgments(db, file([{**ROW, "marks": {"a": [mark]}}]))


def test_marks_have_limits(db: Database, file: Any) -> None:
    def rows(count: int, quote: str) -> list[dict[str, Any]]:
        marks = [
            {"reason": str(n), "quote": quote, "start": 0, "end": len(quote)} for n in range(count)
        ]
        return [{**ROW, "response_a": quote, "marks": {"a": marks}}]

    for count, quote, sentence in (
        (21, "x", "21 marks in one response; the limit is 20"),
        (6, "x" * 1_000, "have 6,000 characters; the limit is 5,000"),
    ):
        with pytest.raises(BadFile, match=sentence):
            import_judgments(db, file(rows(count, quote)))
    for row in (rows(20, "x"), rows(5, "x" * 1_000)):
        assert import_judgments(db, file(row)).added["judgments"] == 1


def test_chats_with_a_system_message_are_prompts_everywhere(db: Database, file: Any) -> None:
    import_judgments(db, file([{**ROW, "prompt": CHAT}]))
    import_judgments(db, file([{**ROW, "prompt": json.dumps(CHAT), "annotator": "b"}], "c.csv"))
    assert everything(db)["prompts"] == 1
    stored = db.read("SELECT messages::VARCHAR AS messages FROM prompts")[0]["messages"]
    assert json.loads(stored) == CHAT


def test_names_find_people_who_are_already_there(db: Database, file: Any) -> None:
    db.write(lambda tx: tx.store(Annotator(id="a-1", name="ann", password_hash="x")))
    import_judgments(db, file([ROW]))
    assert db.read("SELECT id, password_hash FROM annotators") == [
        {"id": "a-1", "password_hash": "x"}
    ]


def test_an_id_column_names_the_judgment(db: Database, file: Any) -> None:
    import_judgments(db, file([{**ROW, "id": "vote-1"}]))
    assert total(import_judgments(db, file([{**ROW, "id": "vote-1"}]))) == 0
    with pytest.raises(BadFile, match="already in this workspace"):
        import_judgments(db, file([{**ROW, "id": "vote-1", "outcome": "b"}]))
    with pytest.raises(BadFile, match="was used on line 1 for other content"):
        import_judgments(
            db, file([{**ROW, "id": "vote-2", "annotator": "b"}, {**ROW, "id": "vote-2"}])
        )


def test_other_model_names_for_a_known_pair_are_said_not_taken(db: Database, file: Any) -> None:
    named = {**ROW, "model_a": "one", "model_b": "two"}
    report = import_judgments(db, file([named, {**named, "annotator": "b", "model_a": "other"}]))
    assert [w.line for w in report.warnings] == [2]
    assert {r["name"] for r in db.read("SELECT name FROM models")} == {"one", "two"}


def test_a_judgment_that_revises_itself_in_a_circle_is_bad(db: Database, file: Any) -> None:
    one, two, own = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2, 3))
    circle = [ROW | {"id": one, "replaces": two}, ROW | {"id": two, "replaces": one}]
    alone = ROW | {"prompt": "Name a bird", "id": own, "replaces": own}
    with pytest.raises(BadFile) as bad:
        import_judgments(db, file([*circle, alone]))
    assert reasons(bad) == {
        2: f"judgment {two} is revised by an earlier one or by itself",
        3: f"judgment {own} is revised by an earlier one or by itself",
    }
    assert everything(db)["judgments"] == 0


@pytest.mark.parametrize("odd", [-5, 604_800_001, 10**30, 1e300, 2.5, True])
def test_a_time_nobody_takes_is_bad(db: Database, file: Any, odd: Any) -> None:
    with pytest.raises(BadFile) as bad:
        import_judgments(db, file([ROW | {"milliseconds": odd}]))
    assert reasons(bad)[1].startswith("milliseconds is ")
    assert import_judgments(db, file([ROW | {"milliseconds": 604_800_000}])).rows == 1


def test_the_category_of_a_judgment_is_that_of_its_new_prompt(db: Database, file: Any) -> None:
    rows = [
        {**ROW, "category": "food"},
        {**ROW, "annotator": "bob", "category": "other"},  # the first row of a prompt counts
        {**ROW, "prompt": "Name a color", "category": None},
    ]
    report = import_judgments(db, file(rows))
    assert report.warnings == []
    found = db.read("SELECT category FROM prompts ORDER BY category")
    assert [row["category"] for row in found] == ["", "food"]
    import_judgments(db, file([{**ROW, "annotator": "eve", "category": "late"}], "late.jsonl"))
    assert db.read("SELECT category FROM prompts ORDER BY category") == found
