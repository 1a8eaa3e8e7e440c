"""Answers to flags: who gets them, what clearing does, and that they survive a rebuild."""

from __future__ import annotations

import pytest

from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.errors import Conflict, NotFound
from storage.labeling import flag_answers, judgments, queue
from storage.labeling.flag_answers import answer_flag, mark_read, own_answers, unread
from tests.helpers.storage_world import fill


@pytest.fixture(autouse=True)
def flagged(db: Database) -> str:
    """The pair that ann has flagged, under the id f."""
    fill(db)
    pair = queue.lease(db, "ann", 1).pairs[0].comparison.id
    judgments.flag(db, id="f", comparison=pair, annotator="ann", comment="rude")
    return pair


def answer(db: Database, id: str, text: str, **more):
    return answer_flag(db, id=id, flag="f", researcher="cat", text=text, **more)


def open_flags(db: Database) -> list[str]:
    return [row["id"] for row in db.read("SELECT id FROM open_flags")]


def test_an_answer_reaches_the_annotator_who_flagged_the_pair_and_nobody_else(db):
    answer(db, "a1", " We look into it. ")
    assert open_flags(db) == ["f"]
    answer(db, "a2", "Removed, thank you.", clear=True)
    assert open_flags(db) == []
    mine = own_answers(db, "ann")
    assert [(each.id, each.text) for each in mine] == [
        ("a2", "Removed, thank you."),
        ("a1", "We look into it."),
    ]
    assert {(each.comment, each.prompt) for each in mine} == {("rude", "question 1.0?")}
    assert own_answers(db, "bob") == []
    assert (unread(db, "ann"), unread(db, "bob")) == (2, 0)


def test_clearing_with_an_answer_brings_the_pair_back_to_the_queue(db, flagged):
    held = [pair.comparison.id for pair in queue.lease(db, "bob", 3).pairs]
    assert flagged not in held
    answer(db, "a", "It is fine.", clear=True)
    assert [pair.comparison.id for pair in queue.lease(db, "cat", 3).pairs] == [flagged]


def test_what_was_read_is_kept_for_each_person_and_read_once(db):
    answer(db, "a1", "One.")
    answer(db, "a2", "Two.")
    assert mark_read(db, "bob", ["a1", "a2"]) == 0
    assert mark_read(db, "ann", []) == 0
    assert unread(db, "ann") == 2
    assert mark_read(db, "ann", ["a1", "nothing"]) == 1
    first = db.read("SELECT read_at FROM flag_answers WHERE id = 'a1'")
    assert mark_read(db, "ann", ["a1"]) == 0
    assert db.read("SELECT read_at FROM flag_answers WHERE id = 'a1'") == first
    assert [(each.id, each.read) for each in own_answers(db, "ann")] == [
        ("a2", False),
        ("a1", True),
    ]


def test_an_answer_that_is_sent_again_is_stored_once_and_stays_read(db):
    answer(db, "a", "One.")
    mark_read(db, "ann", ["a"])
    assert answer(db, "a", "One.", clear=True).text == "One."
    assert (open_flags(db), unread(db, "ann"), len(own_answers(db, "ann"))) == ([], 0, 1)
    with pytest.raises(Conflict, match="already used for another answer"):
        answer(db, "a", "Two.")


def test_a_refused_answer_neither_is_stored_nor_clears_the_flag(db):
    for text, says in (("  \n", "needs a text"), ("x" * 5_001, "5,000"), ("a\0b", "NUL")):
        with pytest.raises(ValueError, match=says):
            answer(db, "a", text, clear=True)
    with pytest.raises(NotFound, match="no flag 'g'"):
        answer_flag(db, id="a", flag="g", researcher="cat", text="Hm.")
    assert (open_flags(db), own_answers(db, "ann")) == (["f"], [])


def test_a_flag_that_the_annotator_undid_can_still_be_answered(db):
    judgments.undo(db, id="u", annotator="ann")
    answer(db, "a", "Thanks anyway.", clear=True)
    assert [each.text for each in own_answers(db, "ann")] == ["Thanks anyway."]
    [listed] = flag_answers.flags(db, all=True)
    assert (listed.state, [each.researcher for each in listed.answers]) == ("undone", ["cat"])
    assert flag_answers.flags(db) == []


def test_answers_and_what_was_read_survive_a_rebuild(tmp_path):
    with Database.open(tmp_path / "w") as db:
        fill(db)
        pair = queue.lease(db, "ann", 1).pairs[0].comparison.id
        judgments.flag(db, id="f", comparison=pair, annotator="ann", comment="rude")
        answer(db, "a1", "One.", clear=True)
        answer(db, "a2", "Two.")
        mark_read(db, "ann", ["a1"])
        before = db.read("FROM flag_answers ORDER BY id")
    rebuild(tmp_path / "w")
    with Database.open(tmp_path / "w") as db:
        assert db.read("FROM flag_answers ORDER BY id") == before
        assert (unread(db, "ann"), open_flags(db)) == (1, [])
