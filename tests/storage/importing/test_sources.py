"""Files of other tools, as their documentation and code describe them: who said what, what is left
out, and the sentence for a shape that is not known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage.engine.database import Database
from storage.importing.imports import BadFile, import_gold, import_judgments, import_pairs
from storage.importing.sources.registry import Origin
from storage.labeling import gold
from storage.records import Annotator
from storage.tables.people import annotators
from tests.helpers.import_files import everything

SAID = """
    SELECT a.name AS who, a.kind, j.outcome, j.shown_swapped AS swapped, j.strength, j.comment,
           j.milliseconds, j.created_at::VARCHAR AS at, f.text AS first, s.text AS second,
           x.name AS first_by, y.name AS second_by, p.messages::VARCHAR AS messages
    FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    JOIN models AS x ON x.id = f.policy
    JOIN models AS y ON y.id = s.policy
    ORDER BY a.name, first, second
"""


def said(db: Database) -> list[dict[str, Any]]:
    """The stored judgments; `won` is the preferred text, "" for a tie or both bad."""
    return [
        row | {"won": row.get(row["outcome"], ""), "prompt": json.loads(row["messages"])}
        for row in db.read(SAID)
    ]


def brief(db: Database) -> list[tuple[str, str]]:
    return [(row["who"], row["won"] or row["outcome"]) for row in said(db)]


# --- Argilla ---------------------------------------------------------------------------------

FIELDS = {"instruction": "Name a fruit.", "response_1": "Pear", "response_2": "Apple"}


def nested(**responses: list[dict[str, Any]]) -> dict[str, Any]:
    """A record as `Record.to_dict` of Argilla 2 writes it."""
    return {
        "id": "r1", "_server_id": "5c4", "fields": FIELDS, "metadata": {"source": "web"},
        "vectors": {}, "suggestions": {"choice": {"value": "response_1", "score": None, "agent": "m"}},
        "responses": responses,
    }  # fmt: skip


def test_argilla_nested_records(db: Database, file: Any) -> None:
    answers = [
        {"value": "response_2", "user_id": "u-1"},
        {"value": "response_1", "user_id": "u-2"},
        {"value": "tie", "user_id": "u-3"},
    ]
    rows = [nested(choice=answers, why=[{"value": "crisp", "user_id": "u-1"}])]
    report = import_judgments(db, file(rows, "records.json"), origin=Origin("argilla"))
    assert report.added["judgments"] == 3
    (warning,) = report.warnings  # once, and not for each response
    assert "no status, so drafts and discarded ones count" in warning.reason
    assert brief(db) == [("u-1", "Apple"), ("u-2", "Pear"), ("u-3", "tie")]
    # response_1 was on the left, and Apple is the first in canonical order.
    assert {row["swapped"] for row in said(db)} == {True}
    assert said(db)[0]["prompt"] == [{"role": "user", "content": "Name a fruit."}]
    again = import_judgments(db, file(rows, "records.json"), origin=Origin("argilla"))
    assert (sum(again.added.values()), again.known) == (0, 3)


def test_argilla_flat_records_of_the_hub_leave_out_drafts_and_discards(
    db: Database, file: Any
) -> None:
    row = {
        "id": "r1", "status": "completed", "_server_id": "5c4", **FIELDS,
        "choice.responses": ["response_2", "response_1", "response_1"],
        "choice.responses.users": ["u-1", "u-2", "u-3"],
        "choice.responses.status": ["submitted", "draft", "discarded"],
        "choice.suggestion": "response_1", "choice.suggestion.score": None,
        "choice.suggestion.agent": "m", "why.responses": None,
        "why.responses.users": None, "why.responses.status": None,
    }  # fmt: skip
    other = row | {"id": "r2", "choice.responses": None, "choice.responses.users": None}
    other["choice.responses.status"] = None
    for kind in ("records.json", "records.parquet"):
        report = import_judgments(db, file([row, other], kind), origin=Origin("argilla"))
        assert brief(db) == [("u-1", "Apple")]
        assert [note.reason for note in report.skipped] == [
            "left out: the draft response of u-2",
            "left out: the discarded response of u-3",
            "left out: a record without a response; import the file as pairs too, and it is judged here",
        ]
        assert not report.warnings


def test_argilla_ids_of_people_get_the_names_that_the_user_gives(db: Database, file: Any) -> None:
    annotators.add(db, Annotator(id="ana-here", name="ana"))
    answers = [
        {"value": "response_2", "user_id": "u-1", "status": "submitted"},
        {"value": "response_1", "user_id": "u-2", "status": "submitted"},
        {"value": "response_1", "user_id": "u-3", "status": "draft"},
    ]
    names = {"user-u-1": "ana", "user-u-3": "cem"}
    report = import_judgments(db, file([nested(choice=answers)]), origin=Origin("argilla", names))
    assert brief(db) == [("ana", "Apple"), ("u-2", "Pear")]
    assert report.added["annotators"] == 1
    assert "ana-here" in {row["annotator"] for row in db.read("SELECT annotator FROM judgments")}
    assert [note.reason for note in report.skipped] == ["left out: the draft response of cem"]
    with pytest.raises(ValueError, match="have no option user-u-1"):
        Origin("arena", names)


def of_the_server(*responses: tuple[str, str | None, str]) -> dict[str, Any]:
    """A record as `GET /api/v1/datasets/ID/records?include=responses` of Argilla's server sends it."""
    given = [
        {
            "id": f"r-{user}", "user_id": user, "status": status,
            "values": None if value is None else {"choice": {"value": value}, "why": {"value": "crisp"}},
        }
        for user, value, status in responses
    ]  # fmt: skip
    return {
        "id": "5c4",
        "external_id": "r1",
        "status": "pending",
        "fields": FIELDS,
        "responses": given,
    }


def test_argilla_records_of_the_server_leave_out_drafts_and_discards(
    db: Database, file: Any
) -> None:
    row = of_the_server(
        ("u-1", "response_2", "submitted"),
        ("u-2", "response_1", "draft"),
        ("u-3", None, "discarded"),  # skipped without an answer
        ("u-4", "response_1", "discarded"),
    )
    report = import_judgments(db, file([row], "records.json"), origin=Origin("argilla"))
    assert brief(db) == [("u-1", "Apple")]
    assert [note.reason for note in report.skipped] == [
        "left out: the draft response of u-2",
        "left out: the discarded response of u-4",
    ]
    assert not report.warnings


def test_argilla_records_that_nobody_judged_become_pairs_to_judge_here(
    db: Database, file: Any
) -> None:
    draft = of_the_server(("u-1", "response_2", "draft"))
    draft["fields"] = FIELDS | {"instruction": "Name a green fruit."}
    judged = nested(choice=[{"value": "response_1", "user_id": "u-1"}])
    judged["fields"] = FIELDS | {"instruction": "Name a sweet fruit."}
    path = file([judged, draft, nested()], "records.json")
    report = import_pairs(db, path, origin=Origin("argilla"))
    assert report.added["comparisons"] == 2
    pairs = db.read(
        "SELECT p.messages::VARCHAR AS asked, f.text AS first, s.text AS second, c.arm "
        "FROM comparisons AS c JOIN prompts AS p ON p.id = c.prompt "
        "JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second ORDER BY asked"
    )
    assert [json.loads(pair["asked"])[0]["content"] for pair in pairs] == [
        "Name a fruit.",
        "Name a green fruit.",
    ]
    assert all({pair["first"], pair["second"]} == {"Apple", "Pear"} for pair in pairs)
    assert {pair["arm"] for pair in pairs} == {"written"}
    assert import_judgments(db, path, origin=Origin("argilla")).added["judgments"] == 1
    with pytest.raises(ValueError, match=r"which has no pairs that wait for a judgment$"):
        import_pairs(db, file([judged]), origin=Origin("argilla"))


@pytest.mark.parametrize(
    "responses",
    [7, "x", ["a"], [{"values": ["a"]}], {"choice": "a"}, {"choice": ["a"]},
     {"choice": [{"value": [{"value": "a", "rank": "x"}, {"value": "b", "rank": 2}]}]}],
)  # fmt: skip
def test_argilla_records_of_another_form_are_bad_rows(
    db: Database, file: Any, responses: Any
) -> None:
    good = nested(choice=[{"value": "response_2", "user_id": "u-1"}])
    path = file([nested() | {"responses": responses}, good])
    with pytest.raises(BadFile, match="line 1: does not have the form of Argilla records"):
        import_judgments(db, path, origin=Origin("argilla"))
    import_judgments(db, path, origin=Origin("argilla"), skip_bad=True)
    assert brief(db) == [("u-1", "Apple")]


@pytest.mark.parametrize(
    ("value", "won"),
    [
        (["response_2", "response_1"], "Apple"),
        ([{"value": "response_1", "rank": 1}, {"value": "response_2", "rank": 2}], "Pear"),
        ([{"value": "response_1", "rank": 1}, {"value": "response_2", "rank": 1}], "tie"),
        ("Response 2", "Apple"),
        ("both_bad", "both_bad"),
    ],
)
def test_argilla_labels_and_rankings(db: Database, file: Any, value: Any, won: str) -> None:
    rows = [nested(order=[{"value": value, "user_id": "u-1"}])]
    import_judgments(db, file(rows), origin=Origin("argilla"))
    assert brief(db) == [("u-1", won)]


def test_argilla_names_that_the_user_gives(db: Database, file: Any) -> None:
    fields = {
        "task": [{"role": "user", "content": "Hi"}],
        "old": "Hey",
        "new": "Hello",
        "x_1": "",
        "x_2": "",
    }
    row = nested(
        better=[{"value": "newer", "user_id": "u-1"}], why=[{"value": "warm", "user_id": "u-1"}]
    ) | {"fields": fields}
    names = {
        "prompt": "task", "a": "old", "b": "new", "question": "better", "comment": "why",
        "answer-b": "newer",
    }  # fmt: skip
    import_judgments(db, file([row]), origin=Origin("argilla", names))
    [found] = said(db)
    assert (found["won"], found["comment"]) == ("Hello", "warm")
    assert found["prompt"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("row", "names", "sentence"),
    [
        (
            nested(choice=[{"value": "great", "user_id": "u"}]), {},
            "choice is 'great', which is no choice between response_1 and response_2; say what it means",
        ),
        (
            nested(
                choice=[{"value": "great", "user_id": "u"}], why=[{"value": "crisp", "user_id": "u"}]
            ), {}, "no question has an answer that is a choice between response_1 and response_2: "
            "choice is 'great'; why is 'crisp'. Name the question with --map question=NAME",
        ),
        (
            nested(choice=[{"value": "great", "user_id": "u"}]), {"question": "choice"},
            "choice is 'great', which is no choice between response_1 and response_2",
        ),
        (
            nested(
                choice=[{"value": "a", "user_id": "u"}], style=[{"value": "b", "user_id": "u"}]
            ), {}, "which question has the preference; name it with --map question=NAME. The questions are choice, style",
        ),
        (nested() | {"fields": {"text": "x"}}, {}, "which fields are the two responses"),
        (nested() | {"fields": {"r1": "x", "r2": "y"}}, {}, "the prompt is missing"),
        (nested(choice=[{"value": "a", "user_id": "u"}]), {"question": "no"}, "there is no question 'no'"),
        (nested(), {"a": "no", "b": "response_2"}, "there is no field 'no'"),
    ],
)  # fmt: skip
def test_argilla_shapes_that_are_not_clear(
    db: Database, file: Any, row: Any, names: Any, sentence: str
) -> None:
    with pytest.raises(BadFile, match=sentence):
        import_judgments(db, file([row]), origin=Origin("argilla", names))
    assert not any(everything(db).values())


# --- Label Studio ----------------------------------------------------------------------------


def task(*annotations: dict[str, Any], **data: Any) -> dict[str, Any]:
    """A task of the JSON export."""
    data = data or {"prompt": "Name a fruit.", "text1": "Pear", "text2": "Apple"}
    return {
        "id": 1,
        "data": data,
        "annotations": list(annotations),
        "predictions": [],
        "project": 8,
    }


def annotation(result: list[dict[str, Any]], who: Any = 7, **more: Any) -> dict[str, Any]:
    return {
        "id": 1001, "result": result, "was_cancelled": False, "ground_truth": False,
        "created_at": "2021-03-09T22:16:08.728353Z", "lead_time": 4.288, "completed_by": who, **more,
    }  # fmt: skip


def chosen(side: str) -> dict[str, Any]:
    return {
        "id": "Dx", "from_name": "pw", "to_name": "pw", "type": "pairwise",
        "value": {"selected": side},
    }  # fmt: skip


WHY = {
    "type": "textarea",
    "from_name": "why",
    "to_name": "text1",
    "value": {"text": ["crisp", "sweet"]},
}


def test_label_studio_pairwise_by_several_people(db: Database, file: Any) -> None:
    rows = [
        task(
            annotation([chosen("right"), WHY]),
            annotation([chosen("left")], {"id": 8, "email": "bo@example.org"}, lead_time=None),
            annotation([chosen("left")], 9, was_cancelled=True),
            annotation([], 10),
            annotation([chosen("left")], 11, ground_truth=True),
        ),
        task(),
    ]
    report = import_judgments(db, file(rows, "project.json"), origin=Origin("label-studio"))
    assert brief(db) == [("bo@example.org", "Pear"), ("label-studio-7", "Apple")]
    seven = said(db)[1]
    assert (seven["comment"], seven["milliseconds"]) == ("crisp\n\nsweet", 4288)
    assert seven["at"].startswith("2021-03-09 22:16:08.728353")
    assert seven["swapped"] is True  # text1 was on the left, and Apple is first in canonical order
    assert [note.reason for note in report.skipped] == [
        "left out: an annotation that label-studio-9 cancelled",
        "left out: an annotation by label-studio-10 without a choice",
        "left out: a ground truth by label-studio-11: `import --gold` reads it",
        "left out: a task without annotations",
    ]


def test_label_studio_ground_truths_are_gold_pairs(db: Database, file: Any) -> None:
    rows = [
        task(annotation([chosen("right")], 11, ground_truth=True), annotation([chosen("left")])),
        task(annotation([chosen("left")])),
    ]
    report = import_gold(db, file(rows, "project.json"), origin=Origin("label-studio"))
    assert (report.added["checks"], everything(db)["judgments"]) == (1, 0)
    [pair] = gold.listing(db)
    assert {pair.first, pair.second} == {"Apple", "Pear"}
    assert getattr(pair, pair.answer) == "Apple"
    with pytest.raises(ValueError, match=r"which has no gold pairs$"):
        import_gold(db, file(rows[1:], "project.json"), origin=Origin("label-studio"))


def ranking(**buckets: list[str]) -> dict[str, Any]:
    return annotation([{"type": "ranker", "from_name": "rank", "value": {"ranker": buckets}}])


ITEMS = [{"id": str(n), "title": f"Model {n}", "body": text} for n, text in enumerate("xyz")]


def test_label_studio_rankings_become_all_pairs(db: Database, file: Any) -> None:
    rows = [task(ranking(rank=["2", "0", "1"]), prompt="Letter?", items=ITEMS)]
    import_judgments(db, file(rows, "project.json"), origin=Origin("label-studio"))
    pairs = {(row["first"], row["second"], row["won"]) for row in said(db)}
    assert pairs == {("x", "z", "z"), ("y", "z", "z"), ("x", "y", "x")}


def test_label_studio_buckets_need_an_order(db: Database, file: Any) -> None:
    rows = [task(ranking(good=["0"], poor=["1", "2"]), prompt="Letter?", items=ITEMS)]
    with pytest.raises(BadFile, match="has the buckets good, poor; say their order"):
        import_judgments(db, file(rows, "p.json"), origin=Origin("label-studio"))
    with pytest.raises(BadFile, match="does not name the bucket poor"):
        import_judgments(
            db, file(rows, "p.json"), origin=Origin("label-studio", {"buckets": "good"})
        )
    import_judgments(
        db, file(rows, "p.json"), origin=Origin("label-studio", {"buckets": "good,poor"})
    )
    assert {(row["first"], row["second"], row["won"]) for row in said(db)} == {
        ("x", "y", "x"), ("x", "z", "x"),
    }  # fmt: skip


# --- Arena and HelpSteer3 --------------------------------------------------------------------


def talk(*turns: str, parts: bool = False) -> list[dict[str, Any]]:
    roles = ("user", "assistant") * len(turns)
    content = [[{"type": "text", "text": t, "image": None}] if parts else t for t in turns]
    return [{"role": r, "content": c} for r, c in zip(roles, content, strict=False)]


def test_arena_conversations_with_judges(db: Database, file: Any) -> None:
    battle = {
        "question_id": "q", "model_a": "vicuna", "model_b": "alpaca", "winner": "model_b",
        "judge": "arena_user_973", "conversation_a": talk("Hi?", "A"), "conversation_b": talk("Hi?", "B"),
        "turn": 1, "anony": True, "language": "English", "tstamp": 1682351591.1322,
    }  # fmt: skip
    judge = {"judge": ["gpt-4", "pair"], "winner": "tie (bothbad)"}
    report = import_judgments(db, file([battle, battle | judge]), origin=Origin("arena"))
    assert not report.warnings
    assert brief(db) == [("arena_user_973", "B"), ("gpt-4 pair", "both_bad")]
    person, model = said(db)
    assert (person["kind"], model["kind"]) == ("person", "model")
    assert (person["first_by"], person["second_by"], person["swapped"]) == (
        "vicuna",
        "alpaca",
        False,
    )
    assert person["at"].startswith("2023-04-24 15:53:11")


def test_arena_rows_without_a_judge_are_votes_of_unknown_people(db: Database, file: Any) -> None:
    rows = [
        {  # lmarena-ai/arena-human-preference-140k
            "id": "1", "model_a": "m", "model_b": "n", "winner": winner, "evaluation_session_id": "s",
            "conversation_a": talk("Hi?", "A", parts=True),
            "conversation_b": talk("Hi?", "B", parts=True),
        }
        for winner in ("model_b", "model_a", "both_bad", "model_b")
    ]  # fmt: skip
    import_judgments(db, file(rows), origin=Origin("arena"))
    votes = sorted(brief(db))
    assert votes == [
        ("imported", "B"), ("imported-2", "A"), ("imported-3", "both_bad"), ("imported-4", "B"),
    ]  # fmt: skip
    again = import_judgments(db, file(rows), origin=Origin("arena"))
    assert (sum(again.added.values()), again.known) == (0, 4)


def test_arena_rows_of_the_55k_dataset(db: Database, file: Any) -> None:
    row = {
        "id": 30192, "model_a": "m", "model_b": "n", "prompt": '["Hi?"]', "response_a": '["A"]',
        "response_b": '["B"]', "winner_model_a": "0", "winner_model_b": "1", "winner_tie": "0",
    }  # fmt: skip
    path = file([row], "train.csv")
    assert import_judgments(db, path, origin=Origin("arena"), dry_run=True).preview == [
        {
            "line": 2, "prompt": "Hi?", "chosen": "B", "rejected": "A",
            "chosen model": "n", "rejected model": "m",
        }
    ]  # fmt: skip
    import_judgments(db, path, origin=Origin("arena"))
    assert brief(db) == [("imported", "B")]
    assert said(db)[0]["prompt"] == [{"role": "user", "content": "Hi?"}]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"conversation_b": talk("Hi?", "B", "More", "C")}, "differ before their last responses"),
        ({"conversation_b": talk("Hi?")}, "does not end with an assistant's turn"),
        ({"conversation_b": "no"}, "is not a list of messages"),
        ({"winner": "draw"}, "winner is 'draw' and must be model_a, model_b, tie"),
        ({"conversation_b": [*talk("Hi?"), {"role": "assistant", "content": [{"image": "x"}]}]},
         "parts other than text"),
    ],
)  # fmt: skip
def test_arena_rows_that_are_not_pairs(db: Database, file: Any, change: Any, sentence: str) -> None:
    row = {"winner": "tie", "conversation_a": talk("Hi?", "A"), "conversation_b": talk("Hi?", "B")}
    with pytest.raises(BadFile, match=sentence):
        import_judgments(db, file([row | change]), origin=Origin("arena"))


def test_helpsteer3_scores_become_outcomes_with_strength(db: Database, file: Any) -> None:
    row = {
        "domain": "code", "language": "python", "context": talk("Sort it.", "How?", "Up."),
        "response1": "sorted(x)", "response2": "x.sort()", "overall_preference": -1,
        "individual_preference": [
            {"score": -2, "reasoning": "Pure.", "feedback1": "", "feedback2": ""},
            {"score": 1, "reasoning": "In place.", "feedback1": "", "feedback2": ""},
            {"score": 0, "reasoning": "", "feedback1": "", "feedback2": ""},
        ],
    }  # fmt: skip
    whole = row | {"context": talk("Again."), "individual_preference": [], "overall_preference": 3}
    import_judgments(db, file([row, whole]), origin=Origin("helpsteer3"))
    votes = [(r["won"] or r["outcome"], r["strength"], r["comment"]) for r in said(db)]
    assert sorted(votes, key=str) == [
        ("sorted(x)", 2, "Pure."), ("tie", None, ""), ("x.sort()", 1, "In place."),
        ("x.sort()", 3, ""),
    ]  # fmt: skip
    bad = row | {"individual_preference": [{"score": 4}]}
    with pytest.raises(BadFile, match="a score is 4 and must be a whole number from -3 to 3"):
        import_judgments(db, file([bad]), origin=Origin("helpsteer3"))


# --- All -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "label-studio",
            "no row has a column data, as Label Studio tasks have; the columns are x, y",
        ),
        ("arena", "no row has a column winner or winner_model_a"),
        ("helpsteer3", "no row has a column context"),
    ],
)
def test_another_files_columns_are_told_once(
    db: Database, file: Any, name: str, sentence: str
) -> None:
    with pytest.raises(BadFile, match=sentence) as told:
        import_judgments(db, file([{"x": 1, "y": 2}] * 30), origin=Origin(name))
    assert str(told.value).count(sentence) == 1


def test_unknown_tools_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="--from is 'prodigy' and must be one of argilla"):
        Origin("prodigy")
    with pytest.raises(ValueError, match="have no option response; --map accepts: prompt, a, b"):
        Origin("argilla", {"response": "x"})


def test_a_dry_run_shows_the_first_rows_and_stores_nothing(db: Database, file: Any) -> None:
    answers = [{"value": "response_2", "user_id": "u-1"}]
    path = file([nested(choice=answers)], "records.json")
    report = import_judgments(db, path, origin=Origin("argilla"), dry_run=True)
    assert not any(everything(db).values())
    assert (report.added["judgments"], report.added["completions"]) == (1, 2)
    assert report.preview == [
        {
            "line": 1, "prompt": "Name a fruit.", "response_a": "Pear", "response_b": "Apple",
            "annotator": "u-1", "outcome": "b",
        }
    ]  # fmt: skip
    import_judgments(db, path, origin=Origin("argilla"))
    report = import_judgments(db, path, origin=Origin("argilla"), dry_run=True)
    assert (sum(report.added.values()), report.known) == (0, 1)
