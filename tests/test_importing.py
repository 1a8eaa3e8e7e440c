"""The import rules: what is taken, what is refused, and that a file comes in whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storage.database import Database
from storage.importing import (
    BadFile,
    ImportReport,
    default_role,
    import_judgments,
    import_preferences,
    import_prompts,
    import_sft,
)
from storage.records import Annotator

ROW = {
    "prompt": "Name a fruit",
    "response_a": "Pear",
    "response_b": "Apple",
    "annotator": "ann",
    "outcome": "a",
}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Name a fruit"},
]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "workspace") as db:
        yield db


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """A function that writes rows to a file of the given ending."""

    def write(rows: list[Any], name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        if path.suffix == ".jsonl":
            lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
            path.write_text("\n".join(lines), encoding="utf-8")
        elif path.suffix == ".json":
            path.write_text(json.dumps(rows, indent=2), encoding="utf-8")
        elif path.suffix == ".csv":
            pd.DataFrame(rows).to_csv(path, index=False)
        else:
            pd.DataFrame(rows).to_parquet(path)
        return path

    return write


def judgments(db: Database) -> list[dict[str, Any]]:
    return db.read(
        "SELECT a.name AS annotator, f.text AS first, s.text AS second, j.outcome, j.shown_swapped,"
        " j.strength, j.comment, j.replaces, j.id FROM judgments AS j"
        " JOIN annotators AS a ON a.id = j.annotator JOIN comparisons AS c ON c.id = j.comparison"
        " JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second"
        " ORDER BY j.created_at, j.id"
    )


def everything(db: Database) -> dict[str, int]:
    tables = ("prompts", "completions", "comparisons", "judgments", "annotators", "models")
    return {t: db.read(f"SELECT count(*) AS n FROM {t}")[0]["n"] for t in tables}


def reasons(bad: pytest.ExceptionInfo[BadFile]) -> dict[int, str]:
    return {row.line: row.reason for row in bad.value.rows}


def total(report: ImportReport) -> int:
    return sum(report.added.values())


# --- judgments -------------------------------------------------------------------------------


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
        15: "comment holds half of a surrogate pair (\\ud800 to \\udfff), which no encoding can "
        "store",
    }
    assert "13 bad rows" in str(bad.value)
    assert sum(everything(db).values()) == 0


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


# --- files -----------------------------------------------------------------------------------


def test_line_numbers_are_those_of_the_file(db: Database, tmp_path: Path) -> None:
    csv = tmp_path / "rows.csv"
    # A quoted cell spans lines 2 and 3, so the bad outcome starts on line 4.
    csv.write_text(
        "prompt,response_a,response_b,annotator,outcome\n"
        '"two\nlines",x,y,ann,a\n'
        "p,x,y,ann,z\n"
        "p,x,y,ann\n"
    )
    with pytest.raises(BadFile) as bad:
        import_judgments(db, csv)
    assert reasons(bad) == {
        4: "outcome is 'z' and must be one of a, b, tie, both_bad",
        5: "has 4 cells where the header has 5",
    }
    array = tmp_path / "rows.json"
    array.write_text('[\n {"prompt": "fine"},\n\n {"prompt":\n  3, "role": "x"}, 5]')
    with pytest.raises(BadFile) as bad:
        import_prompts(db, array)
    assert reasons(bad) == {
        4: "role is 'x' and must be one of sft, train, held-out, audit",
        5: "not an object with named columns",
    }


def test_a_file_that_is_none_is_refused_in_a_sentence(db: Database, tmp_path: Path) -> None:
    files = [
        ("rows.txt", b"x", "must end in one of"),
        ("rows.jsonl", b"\n\n", "holds no rows"),
        ("rows.csv", b"prompt\n", "holds no rows"),
        ("rows.parquet", b"PAR1", "not a parquet file"),
        ("rows.csv", b"prompt\ncaf\xe9\n", "line 2: not UTF-8"),
        ("rows.jsonl", b'{"prompt": "x"}\n{"prompt": "caf\xe9"}', "line 2: not JSON"),
        ("rows.json", b'[{"prompt": "x"}', "line 1: not followed by a comma"),
        ("rows.jsonl", b'{"prompt": NaN}', "NaN is not a JSON value"),
    ]
    for name, content, message in files:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            import_prompts(db, path)
    with pytest.raises(ValueError, match="there is no file"):
        import_prompts(db, tmp_path / "absent.jsonl")
    assert everything(db)["prompts"] == 0


def test_a_byte_order_mark_and_line_separators_inside_text_are_no_trouble(
    db: Database, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    text = "one\u2028line"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"prompt": text}, ensure_ascii=False).encode())
    assert import_prompts(db, path).added["prompts"] == 1
    assert db.read("SELECT messages ->> '$[0].content' AS t FROM prompts") == [{"t": text}]


# --- prompts and demonstrations --------------------------------------------------------------


def test_prompts_without_a_role_are_split_by_hash(db: Database, file: Any) -> None:
    rows = [{"prompt": f"question {n}", "category": "q"} for n in range(1000)]
    assert import_prompts(db, file(rows)).added["prompts"] == 1000
    counts = {
        row["role"]: row["n"]
        for row in db.read("SELECT role, count(*) AS n FROM prompts GROUP BY role")
    }
    # 80 / 15 / 5 percent of 1000, give or take 4 standard deviations (12.6, 11.3 and 6.9 prompts).
    assert abs(counts["train"] - 800) < 51
    assert abs(counts["held-out"] - 150) < 46
    assert abs(counts["audit"] - 50) < 28
    stored = {row["id"]: row["role"] for row in db.read("SELECT id, role FROM prompts")}
    assert all(default_role(id) == role for id, role in stored.items())
    assert total(import_prompts(db, file(rows))) == 0


def test_a_role_is_taken_from_the_row_else_from_the_argument(db: Database, file: Any) -> None:
    rows = [{"prompt": "x", "role": "audit"}, {"prompt": "y"}, {"messages": CHAT}]
    import_prompts(db, file(rows), role="held-out")
    assert sorted(r["role"] for r in db.read("SELECT role FROM prompts")) == [
        "audit",
        "held-out",
        "held-out",
    ]
    report = import_prompts(db, file([{"prompt": "x"}]), role="train")
    assert report.added["prompts"] == 0
    assert "already here as audit" in report.warnings[0].reason


def test_demonstrations_in_every_form(db: Database, file: Any) -> None:
    forms = [
        {"prompt": CHAT, "response": "Pear"},
        {"prompt": CHAT, "completion": [{"role": "assistant", "content": "Pear"}]},
        {"messages": [*CHAT, {"role": "assistant", "content": "Pear"}]},
        {"messages": CHAT, "completion": "Pear"},
    ]
    for row in forms:
        for name in ("rows.jsonl", "rows.parquet"):
            assert import_sft(db, file([row], name)).rows == 1
    # All of them say the same, so one prompt and one completion are stored.
    found = db.read(
        "SELECT p.role, p.messages::VARCHAR AS messages, c.text, c.policy, m.role AS model"
        " FROM completions AS c JOIN prompts AS p ON p.id = c.prompt"
        " JOIN models AS m ON m.id = c.policy"
    )
    assert len(found) == 1
    assert json.loads(found[0].pop("messages")) == CHAT
    assert found == [
        {"role": "sft", "text": "Pear", "policy": "demonstrations", "model": "external"}
    ]


def test_instructions_with_input_are_demonstrations(db: Database, file: Any) -> None:
    rows = [
        {"instruction": "Fix the spelling.", "input": "freind", "output": "friend"},
        {"instruction": "Say hi.", "input": "", "output": "Hi."},
        {"instruction": "Say nothing.", "input": "", "output": ""},
    ]
    report = import_sft(db, file(rows))
    assert [(w.line, w.reason) for w in report.warnings] == [(3, "output is empty")]
    texts = [
        row["t"]
        for row in db.read("SELECT messages ->> '$[0].content' AS t FROM prompts ORDER BY 1")
    ]
    assert texts == ["Fix the spelling.\n\nfreind", "Say hi.", "Say nothing."]


def test_a_demonstration_without_an_answer_is_bad(db: Database, file: Any) -> None:
    with pytest.raises(BadFile, match="line 2: the answer is missing"):
        import_sft(db, file([{"prompt": "x", "response": "y"}, {"messages": CHAT}]))
    assert everything(db)["prompts"] == 0


# --- preference datasets ---------------------------------------------------------------------

USER = {"role": "user", "content": "What colour is the sky?"}
BLUE = {"role": "assistant", "content": "Blue."}
GREEN = {"role": "assistant", "content": "Green."}


def test_preferences_in_every_form_are_the_same_vote(db: Database, file: Any) -> None:
    forms = [
        {"prompt": USER["content"], "chosen": "Blue.", "rejected": "Green."},
        {"prompt": [USER], "chosen": [BLUE], "rejected": [GREEN]},
        {"chosen": [USER, BLUE], "rejected": [USER, GREEN]},
        {"prompt": USER["content"], "chosen": [USER, BLUE], "rejected": [USER, GREEN]},
        {"instruction": USER["content"], "input": "", "chosen": "Blue.", "rejected": "Green."},
    ]
    added = [import_preferences(db, file([row])).added["judgments"] for row in forms]
    assert added == [1, 0, 0, 0, 0]
    (found,) = judgments(db)
    assert (found["first"], found["second"], found["outcome"]) == ("Blue.", "Green.", "first")
    assert found["annotator"] == "imported"
    stored = db.read("SELECT messages::VARCHAR AS m, role FROM prompts")
    assert [(json.loads(r["m"]), r["role"]) for r in stored] == [([USER], "train")]


def test_an_implicit_prompt_in_text_ends_at_a_whole_word(db: Database, file: Any) -> None:
    import_preferences(db, file([{"chosen": "The sky is blue.", "rejected": "The sky is black."}]))
    (found,) = judgments(db)
    assert db.read("SELECT messages ->> '$[0].content' AS t FROM prompts") == [{"t": "The sky is"}]
    assert (found["first"], found["second"]) == (" black.", " blue.")
    assert found["outcome"] == "second"


def test_bad_preferences_are_named(db: Database, file: Any) -> None:
    rows = [
        {"chosen": "same", "rejected": "same"},
        {"chosen": "Yes", "rejected": "No"},
        {"chosen": [USER, BLUE], "rejected": [{**USER, "content": "Else?"}, GREEN]},
        {"prompt": "Other?", "chosen": [USER, BLUE], "rejected": [USER, GREEN]},
    ]
    with pytest.raises(BadFile) as bad:
        import_preferences(db, file(rows))
    assert list(reasons(bad)) == [1, 2, 3, 4]


def test_votes_on_one_pair_are_of_different_people(db: Database, file: Any) -> None:
    vote = {"prompt": "p", "chosen": "x", "rejected": "y"}
    other = {"prompt": "p", "chosen": "y", "rejected": "x"}
    import_preferences(db, file([vote, other, vote]))
    assert {(r["annotator"], r["outcome"]) for r in judgments(db)} == {
        ("imported", "first"),
        ("imported-2", "second"),
        ("imported-3", "first"),
    }
    assert total(import_preferences(db, file([vote, other, vote]))) == 0


def test_the_unknown_side_is_a_fair_coin(db: Database, file: Any) -> None:
    # Chosen always on the left would read as a side bias of the annotator.
    rows = [{"prompt": f"p{n}", "chosen": "x", "rejected": "y"} for n in range(400)]
    import_preferences(db, file(rows))
    swapped = sum(row["shown_swapped"] for row in judgments(db))
    assert abs(swapped - 200) < 40  # 4 standard deviations of 400 tosses
    assert {row["outcome"] for row in judgments(db)} == {"first"}


def test_labelled_completions_become_pairs(db: Database, file: Any) -> None:
    def row(prompt: str, completion: str, label: bool) -> dict[str, Any]:
        return {"prompt": prompt, "completion": completion, "label": label}

    rows = [
        row("p", "good", True),
        row("p", "bad", False),
        row("q", "bad 1", False),
        row("q", "bad 2", False),
        row("r", "fine 1", True),
        row("r", "fine 2", True),
        row("s", "alone", True),
    ]
    with pytest.raises(BadFile) as bad:
        import_preferences(db, file(rows))
    assert list(reasons(bad)) == [7]
    import_preferences(db, file(rows), skip_bad=True)
    assert {(r["first"], r["second"], r["outcome"]) for r in judgments(db)} == {
        ("bad", "good", "second"),
        ("bad 1", "bad 2", "both_bad"),
        ("fine 1", "fine 2", "tie"),
    }
