"""The leaderboard of all models in the judgments: by hand, and from imported judgments."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launch import app
from pipeline.promotion.model_board import format_board, model_board
from storage.engine.database import Database
from storage.gate_records import ModelJudgment
from storage.importing.imports import import_gold, import_judgments
from storage.records import Annotator, Judgment
from storage.tables.model_judgments import judged
from tests.helpers.policy_world import add_iteration, add_models, compare


def beats(
    first: str, second: str, outcome: float = 1.0, *, prompt: str = "p", category: str = ""
) -> ModelJudgment:
    return ModelJudgment(
        first=first, second=second, outcome=outcome, prompt=prompt, category=category
    )


def games(first: str, second: str, wins: int, losses: int, **more: Any) -> list[ModelJudgment]:
    return [
        beats(first, second, float(i < wins), prompt=f"{first}{second}{i}", **more)
        for i in range(wins + losses)
    ]


def test_three_models_worked_by_hand():
    # Wins and losses with the prior's tie: a to b 6.5 : 2.5, b to c 4.5 : 2.5; no one beat a cycle,
    # so the ratings add up: log(2.6) and log(1.8).
    found = model_board([*games("a", "b", 6, 2), *games("b", "c", 4, 2)], anchor="c")
    ratings = {rank.model: rank.rating for rank in found.ranks}
    assert list(ratings) == ["a", "b", "c"]
    assert ratings["b"] == pytest.approx(math.log(1.8), abs=1e-6)
    assert ratings["a"] == pytest.approx(math.log(1.8) + math.log(2.6), abs=1e-6)
    won = {rank.model: (rank.judgments, rank.won) for rank in found.ranks}
    assert won == {"a": (8, 0.75), "b": (14, 6 / 14), "c": (6, 2 / 6)}
    assert {(m.model, m.opponent): (m.judgments, m.wins) for m in found.meetings} == {
        ("a", "b"): (8, 6), ("b", "a"): (8, 2), ("b", "c"): (6, 4), ("c", "b"): (6, 2),
    }  # fmt: skip
    assert (found.judgments, found.prompts, found.categories) == (14, 14, {"(none)": 14})


def test_the_anchor_is_the_reference_or_the_model_with_the_most_judgments_of_the_largest_group():
    apart = games("x", "y", 2, 1) + games("x", "y", 1, 0)
    linked = games("a", "b", 2, 2) + games("b", "c", 1, 1)
    assert model_board(apart + linked).anchor == "b"
    assert model_board(apart + linked, reference="a").anchor == "a"
    assert model_board(apart + linked, reference="sft-1").anchor == "b"
    found = model_board(apart + linked, reference="a", anchor="x")
    assert [(r.model, r.rating is None) for r in found.ranks[-3:]] == [
        ("a", True), ("b", True), ("c", True),
    ]  # fmt: skip
    assert "not connected by judgments" in format_board(found)


def test_a_category_is_ranked_by_its_own_judgments():
    rows = games("a", "b", 5, 0, category="code") + games("a", "b", 0, 5, category="poems")
    assert [r.model for r in model_board(rows, category="code", anchor="b").ranks] == ["a", "b"]
    found = model_board(rows, category="poems", anchor="b")
    assert [r.model for r in found.ranks] == ["b", "a"]
    assert (found.judgments, found.categories) == (5, {"code": 5, "poems": 5})
    with pytest.raises(ValueError, match="category 'law'; there are: code, poems"):
        model_board(rows, category="law")
    with pytest.raises(ValueError, match="model 'z'; there are: a, b"):
        model_board(rows, anchor="z")


def test_no_judgments_give_no_board():
    found = model_board([], reference="sft-1")
    assert (found.anchor, found.ranks, found.judgments) == (None, [], 0)
    assert "import judgments" in format_board(found)


ROWS = [
    {
        "prompt": f"Question {n}",
        "response_a": f"{n} yes",
        "response_b": f"{n} no",
        "model_a": "gpt",
        "model_b": "policy-1" if n % 2 else "llama",
        "annotator": "ann",
        "outcome": ("a", "b", "tie", "both_bad")[n % 4],
    }
    for n in range(8)
]


def test_only_peoples_judgments_of_pairs_that_compare_models_count(db: Database, file: Any):
    add_models(db, 1)
    add_iteration(db, 1)
    compare(db, "policy-1", "sft-1", ["first"], arm="reference")
    compare(db, "policy-1", "sft-1", ["second", "second"], arm="bald")
    import_judgments(db, file(ROWS))
    gold = ROWS[0] | {"answer": "a", "prompt": "gold?"}
    import_gold(db, file([{k: gold[k] for k in ("prompt", "response_a", "response_b", "answer")}]))
    model = Annotator(id="a-model", name="judge", kind="model")
    pair = db.read("SELECT id FROM comparisons WHERE arm = 'imported' ORDER BY id")[0]["id"]
    by_model = Judgment(
        id="j-model", comparison=pair, annotator=model.id, outcome="first", shown_swapped=False
    )
    db.write(lambda tx: tx.store(model, by_model))
    found = {(m.model, m.opponent): (m.judgments, m.wins) for m in model_board(judged(db)).meetings}
    # gpt against llama: a, tie, a, tie; against the imported policy-1: b, both_bad, b, both_bad.
    assert found == {
        ("policy-1", "sft-1"): (1, 1), ("sft-1", "policy-1"): (1, 0),
        ("gpt", "llama"): (4, 3), ("llama", "gpt"): (4, 1),
        ("gpt", "policy-1 (imported)"): (4, 1), ("policy-1 (imported)", "gpt"): (4, 3),
    }  # fmt: skip


def test_the_command(tmp_path: Path):
    file, where = tmp_path / "votes.jsonl", ["--workspace", str(tmp_path / "w")]
    run = CliRunner()
    assert run.invoke(app, ["init", *where]).exit_code == 0
    empty = run.invoke(app, ["leaderboard", *where])
    assert "No judgments compare two models yet" in empty.output
    file.write_text("\n".join(map(json.dumps, ROWS)))
    assert run.invoke(app, ["import", "--judgments", str(file), *where]).exit_code == 0
    told = json.loads(run.invoke(app, ["leaderboard", "--json", *where]).output)
    assert (told["anchor"], told["judgments"]) == ("gpt", 8)
    assert [rank["model"] for rank in told["ranks"]] == ["policy-1", "gpt", "llama"]
    text = run.invoke(app, ["leaderboard", "--anchor", "llama", *where]).output
    assert "wins against llama" in text
    (row,) = (line.split()[:3] for line in text.splitlines() if line.startswith("llama"))
    assert row == ["llama", "reference", "0"]
    refused = run.invoke(app, ["leaderboard", "--anchor", "lama", *where])
    assert refused.exit_code == 1
    assert "there are: gpt, llama, policy-1" in str(refused.exception)
