"""An annotator knows the texts of a pair, its id, their own id and this program: none of it may tell
that the pair was written elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.engine import backup
from storage.engine.database import Database
from storage.importing.imports import import_judgments, import_pairs
from storage.labeling import queue
from storage.records import WRITTEN, Prompt, digest
from storage.sides import shown_swapped
from storage.tables.people.pseudonyms import SECRET
from tests.helpers.import_files import everything, judgments, total
from tests.storage.importing.test_written_pairs import add_people

COUNT = 200
ROWS = [
    {"prompt": f"question {n}", "response_a": f"first {n}", "response_b": f"second {n}"}
    | ({"id": f"q{n}"} if n % 2 else {})
    for n in range(COUNT)
]
_PAIRS = """
    SELECT c.*, f.text AS first_text, s.text AS second_text FROM comparisons AS c
    JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second
"""


def ids(db: Database) -> set[str]:
    return {row["id"] for row in db.read("SELECT id FROM comparisons")}


def guesses() -> set[str]:
    """The ids that follow from the texts alone, with the ids of the file guessed."""
    items = [[], *(["item", f"q{n}"] for n in range(COUNT))]
    made = set()
    for row in ROWS:
        texts = sorted([row["response_a"], row["response_b"]])
        prompt = Prompt.make(row["prompt"], role="train").id
        made |= {f"c-{digest(*item, prompt, *texts)}" for item in items}
    return made


def test_ids_do_not_follow_from_the_texts(db: Database, file: Any, tmp_path: Path) -> None:
    import_pairs(db, file(ROWS))
    assert len(ids(db)) == COUNT
    assert not ids(db) & guesses()
    with Database.open(tmp_path / "other") as other:
        import_pairs(other, file(ROWS))
        assert not ids(db) & ids(other)


def test_neither_sides_nor_the_order_in_the_queue_follow_from_what_annotators_know(
    db: Database, file: Any
) -> None:
    import_pairs(db, file(ROWS))
    pairs = db.read(_PAIRS)
    # Whoever can compute on which side the first response is sees the order in which a pair is stored.
    sorted_first = sum(row["first_text"] < row["second_text"] for row in pairs)
    # Half of 200 by a fair coin, give or take 5 standard deviations (7.1).
    assert abs(sorted_first - COUNT / 2) < 36
    for row in pairs:
        assert row["position"] != int(digest("position", row["id"]), 16) >> 2


def test_what_is_on_the_left_is_stored_as_it_was_seen(db: Database, file: Any) -> None:
    add_people(db, "ann")
    import_pairs(db, file(ROWS[:8]))
    for leased in queue.lease(db, "ann", 8).pairs:
        assert leased.swapped == shown_swapped("ann", leased.comparison.id)
        [stored] = [row for row in db.read(_PAIRS) if row["id"] == leased.comparison.id]
        shown = (leased.right, leased.left) if leased.swapped else (leased.left, leased.right)
        assert (stored["first_text"], stored["second_text"]) == shown


@pytest.mark.parametrize("rebuilt", [False, True])
def test_the_same_file_again_is_a_repeat_also_after_a_rebuild(
    db: Database, file: Any, rebuilt: bool
) -> None:
    import_pairs(db, file(ROWS))
    before = everything(db)
    if rebuilt:
        db.close()
        backup.rebuild(db.workspace)
        db = Database.open(db.workspace)
    swapped = [r | {"response_a": r["response_b"], "response_b": r["response_a"]} for r in ROWS]
    for rows in (ROWS, swapped):
        report = import_pairs(db, file(rows))
        assert (total(report), report.known, report.warnings) == (0, COUNT, [])
    assert everything(db) == before
    db.close()


def test_pairs_of_an_earlier_version_are_known(db: Database, file: Any) -> None:
    """Those had the ids of their content, and their texts in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "storage.importing.planning.written_pairs.written_id", lambda _, content: content
        )
        import_pairs(db, file(ROWS))
    assert ids(db) <= guesses()
    report = import_pairs(db, file(ROWS))
    assert (total(report), report.known, report.warnings) == (0, COUNT, [])


def test_a_pair_with_other_names_is_told_in_either_order(db: Database, file: Any) -> None:
    named = [row | {"model_a": "one", "model_b": "two"} for row in ROWS[:8]]
    import_pairs(db, file(named))
    assert import_pairs(db, file(named)).warnings == []
    exchanged = [row | {"model_a": "two", "model_b": "one"} for row in named]
    assert len(import_pairs(db, file(exchanged)).warnings) == 8


def test_votes_on_a_written_pair_go_to_it_and_once(db: Database, file: Any) -> None:
    import_pairs(db, file(ROWS))
    voted = ROWS[0] | {"annotator": "zoe", "outcome": "a"}
    item = {name: value for name, value in ROWS[1].items() if name != "id"}
    votes = [voted, item | {"annotator": "zoe", "outcome": "b", "item": "q1"}]
    report = import_judgments(db, file(votes, "votes.jsonl"))
    assert (report.added["comparisons"], report.added["judgments"]) == (0, 2)
    assert {row["arm"] for row in db.read("SELECT arm FROM comparisons")} == {WRITTEN}
    texts = [row["first"] if row["outcome"] == "first" else row["second"] for row in judgments(db)]
    assert sorted(texts) == ["first 0", "second 1"]
    again = import_judgments(db, file(votes, "votes.jsonl"))
    assert (total(again), again.known) == (0, 2)


def test_votes_stored_before_their_pair_are_known_after_it(db: Database, file: Any) -> None:
    votes = [ROWS[0] | {"annotator": "zoe", "outcome": "a"}]
    import_judgments(db, file(votes, "votes.jsonl"))
    report = import_pairs(db, file(ROWS[:2]))
    assert (report.known, report.added["comparisons"]) == (1, 1)
    assert total(import_judgments(db, file(votes, "votes.jsonl"))) == 0


def test_the_key_is_in_the_journal(db: Database, file: Any) -> None:
    import_pairs(db, file(ROWS[:1]))
    [row] = db.read("SELECT value ->> '$' AS key FROM settings WHERE key = $key", key=SECRET)
    assert row["key"] in (db.workspace / "journal.jsonl").read_text()
