"""Excluded judgments: nothing learns from them and no figure uses them, until they are restored."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from storage.analysis.agreement import agreement
from storage.analysis.reliability import annotator_figures
from storage.browsing.exclusion import exclude_all, restore_all
from storage.browsing.judgments import Filter
from storage.engine.backup import rebuild, verify
from storage.engine.database import Database
from storage.errors import NotFound
from storage.exporting.exports import export
from storage.importing.imports import import_judgments
from storage.labeling import exclusions, judgments, own_judgments, queue
from storage.labeling.own_figures import own_figures
from storage.records import Check, Judgment, now
from storage.status import status
from storage.tables import snapshots
from storage.worker_files import labels_by_arm, write_judgments_input
from tests.helpers.storage_world import fill


@pytest.fixture
def db(tmp_path: Path):
    """ann and bob judge two pairs; on the second they disagree."""
    with Database.open(tmp_path / "w") as opened:
        fill(opened, 2, wanted=2)
        for who, said in (("ann", ("first", "first")), ("bob", ("first", "second"))):
            queue.lease(opened, who, 2)
            for pair, outcome in enumerate(said):
                made = Judgment(
                    id=f"{who}-{pair}", comparison=f"c1-{pair}", annotator=who, outcome=outcome,
                    shown_swapped=False,
                )  # fmt: skip
                opened.write(lambda tx, made=made: tx.store(made))
        yield opened


def current(db: Database) -> list[str]:
    return [row["id"] for row in db.read("SELECT id FROM current_judgments ORDER BY id")]


def learned(db: Database, folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    write_judgments_input(db, folder, iteration=1)
    return pd.read_parquet(folder / "judgments.parquet")["judgment"].tolist()


def test_an_excluded_judgment_is_in_no_figure_and_in_no_training_until_it_is_restored(
    db, tmp_path
) -> None:
    assert agreement(db).percent == 0.5
    made = exclusions.exclude(db, "bob-1", reason=" guessed ", researcher="cat")
    assert (made.excluded, made.reason, made.researcher) == (True, "guessed", "cat")
    assert current(db) == ["ann-0", "ann-1", "bob-0"]
    assert learned(db, tmp_path / "inputs") == ["ann-0", "ann-1", "bob-0"]
    assert (agreement(db).percent, agreement(db).items) == (1.0, 1)
    assert annotator_figures(db)["bob"].judgments == 1
    assert status(db).judgments == 3
    assert labels_by_arm(db) == {1: {"random": 3}}
    assert snapshots.waiting(db, ["person"]) == 3
    exclusions.restore(db, "bob-1", reason="they explained it")
    assert current(db) == ["ann-0", "ann-1", "bob-0", "bob-1"]
    assert learned(db, tmp_path / "inputs") == ["ann-0", "ann-1", "bob-0", "bob-1"]
    assert agreement(db).percent == 0.5


def test_the_annotator_sees_no_difference_and_the_pair_stays_judged(db) -> None:
    figures = own_figures(db, "bob", midnight=now())
    exclusions.exclude(db, "bob-1", reason="guessed")
    listed, _ = own_judgments.own_judgments(db, "bob")
    assert [each.id for each in listed] == ["bob-1", "bob-0"]
    assert own_figures(db, "bob", midnight=now()) == figures
    assert queue.lease(db, "bob", 2).pairs == []
    assert queue.unfinished(db) == 0


def test_a_revision_of_an_excluded_judgment_counts(db) -> None:
    exclusions.exclude(db, "bob-1", reason="guessed")
    judgments.judge(db, id="bob-2", comparison="c1-1", annotator="bob", outcome="tie")
    assert current(db) == ["ann-0", "ann-1", "bob-0", "bob-2"]


def test_exports_leave_it_out_and_the_raw_one_says_so(db, tmp_path) -> None:
    exclusions.exclude(db, "bob-1", reason="guessed")
    place = tmp_path / "out.jsonl"
    report = export(db, format="trl", out=place)
    assert (report.rows, report.left_out) == (3, {"excluded": 1})
    assert any("1 excluded left out, by a researcher" in note for note in report.notes)
    export(db, format="raw", out=place, names=True)
    rows = {row["id"]: row for row in map(json.loads, place.read_text().splitlines())}
    assert {id: row["excluded"] for id, row in rows.items()} == {
        "ann-0": False, "ann-1": False, "bob-0": False, "bob-1": True,
    }  # fmt: skip
    assert rows["bob-1"]["exclusion_reason"] == "guessed"
    assert rows["ann-0"]["exclusion_reason"] is None
    with Database.open(tmp_path / "other") as other:
        assert import_judgments(other, place).added["exclusions"] == 1
        assert current(other) == ["ann-0", "ann-1", "bob-0"]
        # Here it is restored, and another import of the same file does not exclude it again.
        exclusions.restore(other, "bob-1")
        assert sum(import_judgments(other, place).added.values()) == 0
        assert current(other) == ["ann-0", "ann-1", "bob-0", "bob-1"]


def test_a_restored_judgment_is_exported_without_a_reason(db, tmp_path) -> None:
    exclusions.exclude(db, "bob-1", reason="guessed")
    exclusions.restore(db, "bob-1", reason="explained")
    export(db, format="raw", out=tmp_path / "out.parquet")
    rows = pd.read_parquet(tmp_path / "out.parquet")
    assert not rows["excluded"].any()
    assert rows["exclusion_reason"].isna().all()


def test_exclusions_survive_a_rebuild_from_the_journal(db, tmp_path) -> None:
    exclusions.exclude(db, "bob-1", reason="guessed")
    exclusions.exclude(db, "ann-1", reason="guessed")
    exclusions.restore(db, "ann-1")
    assert verify(db).same
    db.close()
    rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as again:
        assert current(again) == ["ann-0", "ann-1", "bob-0"]


def test_a_snapshot_that_is_frozen_keeps_it(db, tmp_path) -> None:
    (tmp_path / "inputs").mkdir()
    _, ids = write_judgments_input(db, tmp_path / "inputs", iteration=1)
    exclusions.exclude(db, "bob-1", reason="guessed")
    assert "bob-1" in ids
    kept = pd.read_parquet(tmp_path / "inputs" / "judgments.parquet")["judgment"].tolist()
    assert kept == ids


def test_what_cannot_be_excluded_or_restored_is_refused_with_a_sentence(db) -> None:
    with pytest.raises(NotFound, match="there is no judgment 'j'"):
        exclusions.exclude(db, "j", reason="r")
    with pytest.raises(ValueError, match="give a reason"):
        exclusions.exclude(db, "bob-1", reason=" ")
    with pytest.raises(ValueError, match="at most 2,000 characters"):
        exclusions.exclude(db, "bob-1", reason="x" * 2001)
    with pytest.raises(ValueError, match="'bob-1' is not excluded"):
        exclusions.restore(db, "bob-1")
    judgments.undo(db, id="w", annotator="bob", replaces="bob-1")
    with pytest.raises(ValueError, match="was revised or undone"):
        exclusions.exclude(db, "bob-1", reason="r")
    db.write(lambda tx: tx.store(Check(comparison="c1-0", kind="gold", answer="first")))
    with pytest.raises(ValueError, match="answers a gold pair"):
        exclusions.exclude(db, "bob-0", reason="r")
    assert current(db) == ["ann-1"]


def test_all_judgments_of_an_annotator_are_excluded_and_restored(db, monkeypatch) -> None:
    """In several transactions, and without those of a check or that are excluded already."""
    monkeypatch.setattr(exclusions, "_BATCH", 1)
    monkeypatch.setattr("storage.browsing.exclusion.MAX_PAGE", 1)
    exclusions.exclude(db, "bob-0", reason="half asleep")
    revised = Judgment(
        id="bob-2", comparison="c1-1", annotator="bob", outcome="tie", shown_swapped=False,
        replaces="bob-1",
    )  # fmt: skip
    db.write(lambda tx: tx.store(revised))
    assert exclude_all(db, Filter(annotator="bob"), reason=" guesses ", researcher="cat") == 1
    assert current(db) == ["ann-0", "ann-1"]
    stored = db.read("SELECT judgment, reason, researcher FROM exclusions ORDER BY judgment")
    assert [tuple(row.values()) for row in stored] == [
        ("bob-0", "half asleep", ""),
        ("bob-2", "guesses", "cat"),
    ]
    assert exclude_all(db, Filter(annotator="bob"), reason="again") == 0
    assert restore_all(db, Filter(annotator="ann")) == 0
    assert restore_all(db, Filter(annotator="bob")) == 2
    assert current(db) == ["ann-0", "ann-1", "bob-0", "bob-2"]


def test_a_judgment_that_changed_before_it_is_excluded_is_skipped(db) -> None:
    db.write(
        lambda tx: tx.store(Check(comparison="c1-0", kind="gold", answer="first", source="file"))
    )
    assert exclusions.exclude_each(db, ["ann-0", "ann-1", "nothing"], reason="r") == 1
    assert exclusions.restore_each(db, ["ann-0", "ann-1", "bob-1"]) == 1


def test_all_judgments_are_never_excluded_by_an_empty_filter_or_without_a_reason(db) -> None:
    for wanted in (Filter(), Filter(text="  "), Filter(excluded=False)):
        with pytest.raises(ValueError, match="set a filter first"):
            exclude_all(db, wanted, reason="r")
    with pytest.raises(ValueError, match="give a reason"):
        exclude_all(db, Filter(annotator="bob"), reason=" ")
    assert len(current(db)) == 4
