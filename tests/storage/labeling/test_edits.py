"""Edited responses: what is stored, exported and learned from, and that no figure uses them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.promotion import gate
from storage import worker_files
from storage.analysis.agreement import agreement
from storage.analysis.reliability import annotator_figures
from storage.engine import backup
from storage.engine.database import Database
from storage.exporting.exports import export
from storage.importing.imports import import_judgments, import_sft
from storage.labeling import judgments, queue
from storage.labeling.own_figures import own_figures
from storage.labeling.own_judgments import own_judgment
from storage.records import Annotator, Comparison, Completion, Judgment, Prompt
from storage.status import status
from storage.tables import completions, policy_judgments, prompts, snapshots
from storage.tables.people import annotators
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.storage_world import fill


def judge(db: Database, who: str, outcome: Any = "a", **more: Any) -> Judgment:
    (pair,) = queue.lease(db, who, 1).pairs
    id = str(uuid.uuid4())
    return judgments.judge(
        db, id=id, comparison=pair.comparison.id, annotator=who, outcome=outcome, **more
    )


def edit_all(db: Database) -> int:
    """Every current preference becomes a revision with an edit."""
    rows = db.read("SELECT * FROM current_judgments WHERE outcome IN ('first', 'second')")
    for row in rows:
        revision = Judgment(
            id=str(uuid.uuid4()), comparison=row["comparison"], annotator=row["annotator"],
            outcome=row["outcome"], shown_swapped=row["shown_swapped"], strength=row["strength"],
            edit=f"a better text {row['comparison']}", replaces=row["id"],
            created_at=row["created_at"],
        )  # fmt: skip
        db.write(lambda tx, revision=revision: tx.store(revision))
    return len(rows)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------ storage


def test_an_edit_is_stored_with_its_author_and_original(db: Database) -> None:
    fill(db, 2)
    stored = judge(db, "ann", edit="improved")
    (row,) = db.read("SELECT annotator, comparison, edit FROM judgments")
    assert (row["annotator"], row["edit"]) == ("ann", "improved")
    assert own_judgment(db, "ann", stored.id).edit == "improved"
    text = {"first": "first 0", "second": "second 0"}[stored.outcome]  # the original
    again = {"comparison": stored.comparison, "annotator": "ann", "outcome": "a"}
    with pytest.raises(ValueError, match="the edit is the response itself"):
        judgments.judge(db, id="again", **again, edit=f" {text}\n")


@pytest.mark.parametrize(("outcome", "edit"), [("tie", "x"), ("both_bad", "x"), ("a", "  ")])
def test_an_edit_needs_a_preference_and_a_text(db: Database, outcome: str, edit: str) -> None:
    fill(db, 1)
    with pytest.raises(ValueError, match="an edit improves the preferred response"):
        judge(db, "ann", outcome, edit=edit)


def test_edits_survive_a_rebuild(tmp_path: Path) -> None:
    with Database.open(tmp_path / "w") as db:
        fill(db, 2)
        judge(db, "ann", edit="improved")
        judge(db, "ann")
    backup.rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as db:
        found = db.read("SELECT edit FROM judgments ORDER BY edit")
        assert [row["edit"] for row in found] == ["", "improved"]


# ------------------------------------------------------------------ export and import


def test_edits_are_exported_as_preferences_and_as_demonstrations(
    db: Database, tmp_path: Path
) -> None:
    fill(db, 2)
    stored = judge(db, "ann", edit="improved")
    judge(db, "ann", "tie")
    won, lost = ("first 0", "second 0") if stored.outcome == "first" else ("second 0", "first 0")

    def rows(format: Any) -> list[dict[str, Any]]:
        out = tmp_path / f"{format}.jsonl"
        report = export(db, format=format, out=out)
        assert report.judgments == 2
        return read_jsonl(out)

    assert rows("trl") == [{"prompt": "question 1.0?", "chosen": won, "rejected": lost}]
    asked = [{"role": "user", "content": "question 1.0?"}]
    said = {text: [{"role": "assistant", "content": text}] for text in ("improved", won, lost)}
    assert rows("trl-edits") == [
        {"prompt": asked, "chosen": said["improved"], "rejected": said[won]},
        {"prompt": asked, "chosen": said["improved"], "rejected": said[lost]},
    ]
    assert rows("sft") == [{"messages": [*asked, *said["improved"]]}]
    with Database.open(tmp_path / "other") as other:
        report = import_sft(other, tmp_path / "sft.jsonl")
        assert report.warnings == []
        worker_files.write_demonstrations_input(other, tmp_path)
    demonstrations = pd.read_parquet(tmp_path / "examples.parquet")
    assert list(demonstrations["response"]) == ["improved"]


def test_without_edits_an_export_of_edits_says_so(db: Database, tmp_path: Path) -> None:
    fill(db, 1)
    judge(db, "ann")
    for format in ("sft", "trl-edits"):
        with pytest.raises(ValueError, match="nobody has edited a response"):
            export(db, format=format, out=tmp_path / "x.jsonl")  # type: ignore[arg-type]


def test_a_raw_export_brings_edits_back(db: Database, tmp_path: Path) -> None:
    fill(db, 2)
    judge(db, "ann", edit="improved")
    judge(db, "ann")
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        export(db, format="raw", out=tmp_path / name, names=True)
        with Database.open(tmp_path / f"from {name}") as other:
            import_judgments(other, tmp_path / name)
            sql = "SELECT id, outcome, edit FROM judgments ORDER BY id"
            assert other.read(sql) == db.read(sql)


# ------------------------------------------------------------------ learning


@pytest.fixture
def learned(db: Database) -> Database:
    """Ann edits her two preferences, on a train and on a held-out prompt; a model edits one."""
    fill(db, 2)
    ann = judge(db, "ann", edit="by ann")
    annotators.add(db, Annotator(id="bot", name="bot", kind="model"))
    held_out = Prompt.make("held out?", role="held-out")
    prompts.add(db, [held_out])
    texts = [Completion(id=f"h-{n}", prompt=held_out.id, policy="m", text=f"h {n}") for n in "ab"]
    completions.add(db, texts)
    for name, who, comparison in (("j-bot", "bot", ann.comparison), ("j-held", "ann", "c-held")):
        made = Judgment(
            id=name, comparison=comparison, annotator=who, outcome="second", shown_swapped=False,
            edit=f"edit of {name}",
        )  # fmt: skip
        if comparison == "c-held":
            db.write(lambda tx: tx.store(_held_comparison(held_out.id)))
        db.write(lambda tx, made=made: tx.store(made))
    return db


def _held_comparison(prompt: str) -> Comparison:
    return Comparison(
        id="c-held", prompt=prompt, first="h-a", second="h-b", iteration=1, arm="random"
    )


def test_edits_to_learn_from_are_pairs_with_their_original(learned: Database, tmp_path: Path):
    assert worker_files.write_edits_input(learned, tmp_path, kinds=["person"]) == 1
    (row,) = pd.read_parquet(tmp_path / "edits.parquet").to_dict("records")
    (stored,) = learned.read("SELECT id, outcome FROM judgments WHERE edit = 'by ann'")
    original = f"{stored['outcome']} 0"
    assert (row["judgment"], row["first_text"], row["second_text"], row["outcome"]) == (
        stored["id"], "by ann", original, "first",
    )  # fmt: skip
    assert (row["edited"], row["arm"]) == (True, "written")  # of no random stream
    kinds = ["person", "model"]
    assert worker_files.write_edits_input(learned, tmp_path, kinds=kinds) == 2


def test_edits_are_demonstrations_only_if_asked(learned: Database, tmp_path: Path) -> None:
    assert not worker_files.has_demonstrations(learned)
    assert worker_files.has_demonstrations(learned, edits=True)
    assert worker_files.write_demonstrations_input(learned, tmp_path) == 0
    # By people, and not on held-out prompts.
    assert worker_files.write_demonstrations_input(learned, tmp_path, edits=True) == 1
    (row,) = pd.read_parquet(tmp_path / "examples.parquet").to_dict("records")
    assert row["response"] == "by ann"


def test_edits_by_simulated_annotators_are_demonstrations_but_not_those_by_models(
    learned: Database, tmp_path: Path
) -> None:
    annotators.add(learned, Annotator(id="sim", name="sim-01", kind="simulated"))
    (bot,) = learned.read("SELECT * FROM judgments WHERE annotator = 'bot'")
    simulated = Judgment(
        id="j-sim", comparison=bot["comparison"], annotator="sim", outcome="first",
        shown_swapped=False, edit="by sim",
    )  # fmt: skip
    learned.write(lambda tx: tx.store(simulated))
    assert worker_files.write_demonstrations_input(learned, tmp_path, edits=True) == 2
    frame = pd.read_parquet(tmp_path / "examples.parquet")
    assert sorted(frame["response"]) == ["by ann", "by sim"]


# ------------------------------------------------------------------ statistics hold

FIGURES: dict[str, Callable[[Database], Any]] = {
    "win rates": lambda db: [
        (each.comparison, each.outcome) for each in policy_judgments.judged(db)
    ],
    "the gate": lambda db: gate.verdict(policy_judgments.evidence(db), "policy-1"),
    "agreement": lambda db: agreement(db),
    "agreement with others": lambda db: {
        id: (each.judgments, each.agreement, each.left_rate)
        for id, each in annotator_figures(db).items()
    },
    "own agreement": lambda db: (
        own_figures(db, "ann", midnight=db.clock() + timedelta(days=1)).shared_pairs
    ),
    "the random stream": lambda db: db.read(
        worker_files._SAMPLED_SO_FAR, stream=["random"], apart=["written"]
    ),
    "labels by arm": lambda db: worker_files.labels_by_arm(db),
    "labels waiting": lambda db: snapshots.waiting(db, ["person"]),
    "status": lambda db: [
        getattr(status(db), name) for name in ("comparisons", "annotators", "iteration")
    ],
}


@pytest.mark.parametrize("figure", FIGURES)
def test_no_figure_uses_edits(db: Database, figure: str) -> None:
    add_models(db, 1)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling")
    compare(db, "sft-1", "policy-1", ["first", "second", "tie"] * 10)
    compare(db, "policy-1", "policy-1", ["first"] * 20, arm="random")
    fill(db, 10, wanted=2, iteration=3)
    for who in ("ann", "bob"):
        for _ in range(10):
            judge(db, who)
    before = FIGURES[figure](db)
    assert edit_all(db) > 50
    after = FIGURES[figure](db)
    if figure == "the random stream":
        before, after = (sorted(map(str, rows)) for rows in (before, after))
    assert after == before


def test_the_judgments_to_learn_from_have_no_edits(db: Database, tmp_path: Path) -> None:
    fill(db, 3)
    for _ in range(3):
        judge(db, "ann")
    texts = ["first_text", "second_text", "outcome", "prompt"]

    def written() -> list[dict[str, Any]]:
        worker_files.write_judgments_input(db, tmp_path, iteration=1)
        frame = pd.read_parquet(tmp_path / "judgments.parquet")
        return frame[texts].sort_values(texts).to_dict("records")

    before = written()
    assert edit_all(db) == 3
    assert written() == before
    assert not (tmp_path / "edits.parquet").exists()
