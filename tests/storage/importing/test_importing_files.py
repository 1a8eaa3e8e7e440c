"""Importing files of every kind: prompts, demonstrations and preference datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.engine.database import Database
from storage.importing.files.filetypes import read_rows
from storage.importing.imports import (
    BadFile,
    default_role,
    import_judgments,
    import_pairs,
    import_preferences,
    import_prompts,
    import_sft,
)
from tests.helpers.import_files import CHAT, everything, judgments, reasons, total

# --- files -----------------------------------------------------------------------------------


def test_row_numbers_are_lines_and_in_a_json_array_elements(db: Database, tmp_path: Path) -> None:
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
        2: "role is 'x' and must be one of sft, train, held-out, audit",
        3: "not an object with named columns",
    }


def test_a_file_that_is_none_is_refused_in_a_sentence(db: Database, tmp_path: Path) -> None:
    files = [
        ("rows.txt", b"x", "must end in one of"),
        ("rows.jsonl", b"\n\n", "^nothing was imported from rows.jsonl, which has no rows$"),
        ("rows.csv", b"prompt\n", "has no rows"),
        ("rows.parquet", b"PAR1", "not a parquet file"),
        ("rows.json", b'[{"prompt": "x"}', "line 1: not followed by a comma"),
        (
            "rows.json",
            b'{\n "items": [{"prompt": "x"}],\n "total": 1\n}',
            "one JSON object.*save the list in items as",
        ),
        ("rows.json", b'{\n "prompt": "x"\n}', "one JSON object.*save them as"),
        ("rows.jsonl", b'{"prompt": NaN}', "NaN is not a JSON value"),
        ("rows.jsonl", bytes(range(256)) * 40, "rows.jsonl is a binary file or UTF-16"),
        ("rows.csv", '{"prompt": "x"}'.encode("utf-16"), "save it as UTF-8"),
        ("rows.jsonl", b"\n" * 9000 + b'{"prompt": "\0"}', "line 9001: not JSON: Invalid control"),
    ]
    for name, content, message in files:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            import_prompts(db, path)
    with pytest.raises(ValueError, match="there is no file"):
        import_prompts(db, tmp_path / "absent.jsonl")
    assert everything(db)["prompts"] == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", "prompt\nnever\ncaf\xe9\nth\xe9\n"),
        ("rows.jsonl", '{"prompt": "a"}\n\n{"prompt": "caf\xe9"}\n{"prompt": "th\xe9"}\n'),
        ("rows.json", '[{"prompt": "a"},\n\n{"prompt": "caf\xe9"}]'),
    ],
)
def test_latin_1_is_refused_whole_with_its_first_line(
    db: Database, tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    for skip_bad in (False, True):
        with pytest.raises(ValueError) as refused:
            import_prompts(db, path, skip_bad=skip_bad)
        assert str(refused.value) == f"{name} is not UTF-8 (see line 3); save it as UTF-8"
    path.write_text(text, encoding="utf-8")
    assert import_prompts(db, path).added["prompts"] > 1


def test_a_line_that_is_not_utf_8_is_found_behind_the_first_part(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"prompt\n" + b"0123456\n" * 200_000 + b"caf\xe9\n")  # 1.6 MB
    with pytest.raises(ValueError, match=r"see line 200002\)"):
        read_rows(path)


@pytest.mark.parametrize(("separator", "word"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_csv_with_another_separator_is_one_sentence(
    db: Database, tmp_path: Path, separator: str, word: str
) -> None:
    path = tmp_path / "rows.csv"
    text = "prompt,response_a,response_b\ntea?,yes,no\n"
    path.write_text(text.replace(",", separator) + "milk, or none?;some;none\n")
    with pytest.raises(ValueError) as refused:
        import_pairs(db, path)
    assert str(refused.value) == f"rows.csv seems to be separated by {word}; save it with commas"
    path.write_text(text)
    assert import_pairs(db, path).added["comparisons"] == 1


def test_one_column_of_a_csv_may_hold_semicolons(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt\nTea; or coffee?\n")
    assert import_prompts(db, path).added["prompts"] == 1


def test_a_byte_order_mark_and_line_separators_inside_text_are_no_trouble(
    db: Database, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    text = "one\u2028line"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"prompt": text}, ensure_ascii=False).encode())
    assert import_prompts(db, path).added["prompts"] == 1
    assert db.read("SELECT messages ->> '$[0].content' AS t FROM prompts") == [{"t": text}]


@pytest.mark.parametrize(
    ("name", "content"),
    [("deep.jsonl", '{"prompt": ' + "[" * 100_000), ("deep.json", "[" * 100_000)],
)
def test_text_that_nests_without_end_is_a_bad_row(
    db: Database, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadFile) as bad:
        import_prompts(db, tmp_path / name)
    assert "nested too deeply" in reasons(bad)[1]


def test_a_cell_that_nests_without_end_is_text_and_no_chat(db: Database, file: Any) -> None:
    cell = '[{"role": ' + "[" * 20_000
    assert import_prompts(db, file([{"prompt": cell}], "deep.csv")).added["prompts"] == 1


def test_a_text_that_nobody_can_read_is_imported_with_a_warning(db: Database, file: Any) -> None:
    texts = ["a" * 200_000, "b" * 200_001]
    report = import_prompts(db, file([{"prompt": text} for text in texts], "long.jsonl"))
    assert report.added["prompts"] == 2
    assert [(w.line, w.reason) for w in report.warnings] == [
        (2, "prompt has 200,001 characters; the limit for a judgment is 200,000")
    ]


def test_two_columns_of_one_name_are_refused(db: Database, tmp_path: Path) -> None:
    csv = tmp_path / "rows.csv"
    csv.write_text("prompt,response_a,response_b,annotator,outcome, outcome\np,x,y,ann,a,b\n")
    with pytest.raises(BadFile) as bad:
        import_judgments(db, csv)
    assert reasons(bad) == {1: "has two columns outcome; rename or remove one of them"}
    assert [row.line for row in import_judgments(db, csv, skip_bad=True).skipped] == [1]
    assert everything(db)["judgments"] == 0


def test_a_response_that_spells_a_chat_in_csv_is_text(db: Database, file: Any) -> None:
    spelled = [
        json.dumps([{"role": "assistant", "content": "hi"}]),
        json.dumps([{"role": "user", "content": "hi"}]),
    ]
    row = {"prompt": json.dumps(CHAT), "response_a": spelled[0], "response_b": spelled[1]}
    import_judgments(db, file([row | {"annotator": "ann", "outcome": "a"}], "rows.csv"))
    (found,) = judgments(db)
    assert (found["first"], found["second"]) == (spelled[0], spelled[1])
    stored = db.read("SELECT messages::VARCHAR AS m FROM prompts")
    assert json.loads(stored[0]["m"]) == CHAT
    pair = {"prompt": "p", "chosen": spelled[0], "rejected": "bye"}
    import_preferences(db, file([pair], "pairs.csv"))
    texts = {row["text"] for row in db.read("SELECT text FROM completions")}
    assert texts == {*spelled, "hi", "bye"}


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
    assert "already stored with the role audit" in report.warnings[0].reason


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

USER = {"role": "user", "content": "What color is the sky?"}
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
    assert abs(swapped - 200) < 60  # 6 standard deviations of 400 tosses, which differ in each run
    assert {row["outcome"] for row in judgments(db)} == {"first"}


def test_labeled_completions_become_pairs(db: Database, file: Any) -> None:
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
