"""A large file is stored in batches; others write between them, and an import can be cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from storage.engine import backup
from storage.engine.database import Database
from storage.errors import StorageUnavailable
from storage.importing import batches
from storage.importing.imports import (
    BadFile,
    ImportInterrupted,
    import_gold,
    import_judgments,
    import_pairs,
)
from storage.importing.target import Batch, DatabaseTarget, Stored
from storage.records import Annotator, Judgment, Withdrawal
from tests.helpers.import_files import ROW, everything, judgments

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANN, BOB = Annotator(id="a-ann", name="ann"), Annotator(id="a-bob", name="bob")


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    """Rows of ann about `count` pairs."""
    return [{**ROW, "prompt": f"Question {n}", **more} for n in range(count)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_RECORDS", 3)


@contextmanager
def before_batch(number: int, act: Callable[[], object]) -> Iterator[list[int]]:
    """Call `act` once before this batch is stored; yields the numbers of plans and batches."""
    counts = [0, 0]
    read, store = DatabaseTarget.start_reading, DatabaseTarget.store

    def start_reading(self: DatabaseTarget) -> None:
        counts[0] += 1
        read(self)

    def store_batch(self: DatabaseTarget, batch: Batch, people: set[str]) -> Stored:
        counts[1] += 1
        if counts[1] == number:
            act()
        return store(self, batch, people)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseTarget, "start_reading", start_reading)
        patch.setattr(DatabaseTarget, "store", store_batch)
        yield counts


def refuse() -> None:
    raise StorageUnavailable("nothing was stored: the disk is full")


def test_a_small_file_is_one_batch_and_a_large_one_several(
    db: Database, file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with before_batch(0, refuse) as counts:
        import_judgments(db, file(rows(4), "one.jsonl"))
        assert counts == [1, 1]
        # 5 prompts, 10 completions, 5 pairs and 5 judgments; the model and ann are known.
        monkeypatch.setattr(batches, "MAX_RECORDS", 4)
        report = import_judgments(db, file(rows(9), "two.jsonl"))
    assert counts == [2, 1 + 7]
    assert (report.known, report.added["judgments"], report.added["completions"]) == (4, 5, 10)


@pytest.mark.usefixtures("small")
def test_a_plan_is_made_again_when_it_revises_what_its_author_withdraws(
    db: Database, file: Any
) -> None:
    db.write(lambda tx: tx.store(ANN))
    import_judgments(db, file(rows(3, created_at=NOON.isoformat()), "one.jsonl"))
    (first, *_) = judgments(db)
    withdrawn = Withdrawal(id="w-1", replaces=first["id"], annotator=ANN.id, created_at=NOON)
    later = rows(9, created_at=(NOON + timedelta(hours=1)).isoformat(), outcome="b")
    with before_batch(5, lambda: db.write(lambda tx: tx.store(withdrawn))) as counts:
        report = import_judgments(db, file(later, "two.jsonl"))
    assert counts[0] == 2
    assert (report.added["judgments"], report.known) == (9, 0)
    replaced = sorted(row["replaces"] or "" for row in judgments(db)[3:])
    assert replaced == sorted([""] * 7 + [row["id"] for row in judgments(db)[1:3]])


@pytest.mark.usefixtures("small")
def test_acts_and_accounts_of_other_people_do_not_make_a_plan_again(
    db: Database, file: Any
) -> None:
    db.write(lambda tx: tx.store(ANN, BOB))

    def act() -> None:
        pair = db.read("SELECT id FROM comparisons ORDER BY id LIMIT 1")[0]["id"]
        of_bob = Judgment(
            id="j-bob", comparison=pair, annotator=BOB.id, outcome="tie", shown_swapped=False,
            created_at=NOON,
        )  # fmt: skip
        db.write(lambda tx: tx.store(of_bob, Annotator(id="a-c", name="carl")))

    with before_batch(12, act) as counts:
        import_judgments(db, file(rows(9)))
    assert counts[0] == 1
    assert {row["annotator"]: row["outcome"] for row in judgments(db)} == {
        "ann": "second",  # Pear sorts after Apple
        "bob": "tie",
    }


@pytest.mark.usefixtures("small")
def test_a_new_account_of_a_name_in_the_file_is_the_files_annotator(
    db: Database, file: Any
) -> None:
    with before_batch(3, lambda: db.write(lambda tx: tx.store(ANN))) as counts:
        import_judgments(db, file(rows(9)))
    assert counts[0] == 2
    found = db.read("SELECT annotator, count(*) AS n FROM judgments GROUP BY ALL")
    assert found == [{"annotator": ANN.id, "n": 9}]


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.usefixtures("small")
def test_a_row_that_its_author_overtakes_is_reported(
    db: Database, file: Any, skip_bad: bool
) -> None:
    db.write(lambda tx: tx.store(ANN))

    def act() -> None:
        pair = db.read("SELECT id FROM comparisons ORDER BY id LIMIT 1")[0]["id"]
        made = Judgment(
            id="j-new", comparison=pair, annotator=ANN.id, outcome="tie", shown_swapped=False
        )
        db.write(lambda tx: tx.store(made))

    path = file(rows(9))
    with before_batch(12, act):
        if skip_bad:
            report = import_judgments(db, path, skip_bad=True)
            assert (report.skipped_in_all, report.added["judgments"]) == (1, 8)
        else:
            reason = r"imported in part \(33 records\).*ann judged this pair again later"
            with pytest.raises(ImportInterrupted, match=reason):
                import_judgments(db, path)
    assert len(judgments(db)) == (9 if skip_bad else 1)


@pytest.mark.parametrize("cut", [1, 2, 7, 13, 17])
@pytest.mark.usefixtures("small")
def test_an_import_that_the_disk_cuts_short_is_completed_by_the_next(
    db: Database, file: Any, tmp_path: Path, cut: int
) -> None:
    gold = {"arm": "gold", "expected": "a"}
    of_a_study = rows(9)[:5] + rows(9, **gold)[5:]
    path = file(of_a_study)
    stopped = StorageUnavailable if cut == 1 else ImportInterrupted
    with before_batch(cut, refuse), pytest.raises(stopped, match="the disk is full"):
        import_judgments(db, path)
    assert sum(everything(db).values()) == 3 * (cut - 1) - (cut == 17)  # a check
    import_judgments(db, path)
    with Database.open(tmp_path / "whole") as whole:
        import_judgments(whole, path)
        assert everything(db) == everything(whole)
        checks = "SELECT comparison, kind, answer FROM checks ORDER BY comparison"
        assert db.read(checks) == whole.read(checks)
        assert len(db.read(checks)) == 4
    assert backup.verify(db).same


@pytest.mark.usefixtures("small")
def test_a_bad_row_in_the_last_batch_stores_nothing(db: Database, file: Any) -> None:
    bad = file([*rows(9), {**ROW, "outcome": "c"}])
    with pytest.raises(BadFile, match="nothing was imported"):
        import_judgments(db, bad)
    assert sum(everything(db).values()) == 0


@pytest.mark.usefixtures("small")
def test_gold_pairs_that_were_cut_short_are_completed(db: Database, file: Any) -> None:
    path = file(
        [
            {"prompt": f"Question {n}", "response_a": "x", "response_b": "y", "answer": "a"}
            for n in range(4)
        ]
    )
    # 4 prompts, 1 model, 8 completions, 4 pairs: the checks begin in the sixth batch.
    with before_batch(7, refuse), pytest.raises(ImportInterrupted):
        import_gold(db, path)
    assert import_gold(db, path).added["checks"] == 3
    assert import_gold(db, path).known == 4


@pytest.mark.usefixtures("small")
def test_pairs_are_in_the_queue_once(db: Database, file: Any) -> None:
    path = file(
        [{"prompt": f"Question {n}", "response_a": "x", "response_b": "y"} for n in range(7)]
    )
    with before_batch(9, refuse), pytest.raises(ImportInterrupted):
        import_pairs(db, path)
    import_pairs(db, path)
    assert db.read("SELECT count(*) AS n FROM comparisons WHERE arm = 'written'") == [{"n": 7}]
