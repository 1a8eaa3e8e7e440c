"""Acts that are sent again, by somebody else, or under an id that is taken or too long."""

from __future__ import annotations

import pytest

from storage.engine.database import Database
from storage.errors import Conflict, NotFound
from storage.labeling import judgments, queue
from tests.helpers.storage_world import fill


@pytest.fixture(autouse=True)
def pairs(db: Database) -> None:
    fill(db)


def lease(db: Database, who: str, n: int = 1) -> list[str]:
    return [pair.comparison.id for pair in queue.lease(db, who, n).pairs]


def judge(db: Database, id: str, comparison: str, who: str = "ann", **more):
    given = {"outcome": "a"} | more
    return judgments.judge(db, id=id, comparison=comparison, annotator=who, **given)


def flag(db: Database, id: str, comparison: str, who: str = "ann", comment: str = ""):
    return judgments.flag(db, id=id, comparison=comparison, annotator=who, comment=comment)


def current(db: Database) -> list[str]:
    return [row["id"] for row in db.read("SELECT id FROM current_judgments")]


def open_flags(db: Database) -> list[str]:
    return [row["id"] for row in db.read("SELECT id FROM open_flags ORDER BY created_at")]


def test_an_annotator_has_twenty_uncleared_flags_and_no_more(db):
    fill(db, 21, iteration=2)
    names = [f"f{n}" for n in range(21)]
    for name in names[:20]:
        flag(db, name, *lease(db, "ann"))
    (pair,) = lease(db, "ann")
    with pytest.raises(Conflict, match="20 of your flags are not cleared yet"):
        flag(db, "f20", pair)
    assert open_flags(db) == names[:20]
    judgments.clear_flag(db, id="w", flag="f0", researcher="cat")
    flag(db, "f20", pair)
    assert open_flags(db) == names[1:]


def test_an_id_has_1_to_100_characters(db):
    pair, *others = lease(db, "ann", 3)
    for id, c in zip(("é", "é" * 100), others, strict=True):
        assert judge(db, id, c).id == id
    flag(db, "f", pair)
    for id in ("", " ", "\t\n", "x" * 101):
        for act in (
            lambda id=id: judge(db, id, pair),
            lambda id=id: judgments.skip(db, id=id, comparison=pair, annotator="ann"),
            lambda id=id: flag(db, id, pair),
            lambda id=id: judgments.undo(db, id=id, annotator="ann"),
            lambda id=id: judgments.clear_flag(db, id=id, flag="f", researcher="cat"),
        ):
            with pytest.raises(ValueError, match="1 to 100 characters"):
                act()
    assert judgments.latest(db, "ann") == "f"


def test_the_id_of_an_undo_is_its_annotators_own(db):
    (pair,) = lease(db, "ann")
    judge(db, "j", pair)
    judgments.undo(db, id="w", annotator="ann")
    for replaces in (None, "j"):
        with pytest.raises(Conflict, match="belongs to another undo"):
            judgments.undo(db, id="w", annotator="bob", replaces=replaces)


def test_what_an_undo_would_take_back_is_the_latest_act_that_stands(db):
    c0, c1, c2 = lease(db, "ann", 3)
    assert judgments.latest(db, "ann") is None
    judge(db, "j1", c0)
    judgments.skip(db, id="s", comparison=c1, annotator="ann")
    flag(db, "f", c2)
    assert judgments.latest(db, "ann") == "f"
    judgments.clear_flag(db, id="cleared", flag="f", researcher="cat")
    assert judgments.latest(db, "ann") == "s"
    judge(db, "j2", c0)  # a revision is the latest now, and j1 stands no more
    assert judgments.latest(db, "ann") == "j2"
    for undone, left in (("j2", "s"), ("s", None)):
        assert judgments.undo(db, id=f"w-{undone}", annotator="ann").id == undone
        assert judgments.latest(db, "ann") == left
    assert judgments.latest(db, "bob") is None


def test_a_revision_that_is_sent_again_is_no_conflict(db):
    """By then the judgment that it names is not the current one."""
    (pair,) = lease(db, "ann")
    judge(db, "j1", pair)
    second = judge(db, "j2", pair, outcome="b", replaces="j1", milliseconds=5)
    # Neither the time taken nor what it revises is content.
    assert judge(db, "j2", pair, outcome="b", replaces="j1", milliseconds=9) == second
    assert judge(db, "j2", pair, outcome="b") == second
    assert second.milliseconds == 5
    assert current(db) == ["j2"]


def test_who_means_to_revise_what_is_not_there_is_told(db):
    (pair,) = lease(db, "ann")
    with pytest.raises(Conflict, match="'j0' of this comparison is not the current one"):
        judge(db, "j1", pair, replaces="j0")
    judge(db, "j1", pair)
    judgments.undo(db, id="w", annotator="ann")
    with pytest.raises(Conflict, match="'j1' of this comparison"):
        judge(db, "j2", pair, replaces="j1")
    assert current(db) == []


def test_an_id_stands_for_one_kind_of_act_on_one_pair(db):
    (pair,) = lease(db, "ann")
    judge(db, "j", pair)
    flag(db, "f", pair, comment="rude")
    for act in (
        lambda: flag(db, "j", pair),
        lambda: judgments.skip(db, id="j", comparison=pair, annotator="ann"),
        lambda: judgments.skip(db, id="f", comparison=pair, annotator="ann"),
        lambda: judge(db, "f", pair),
        lambda: flag(db, "f", pair, comment="very rude"),
    ):
        with pytest.raises(Conflict, match="is already used for other content"):
            act()
    assert flag(db, "f", pair, comment="rude").id == "f"
    assert db.read("SELECT comment FROM open_flags") == [{"comment": "rude"}]


def test_a_flag_that_is_sent_again_ends_no_lease(db):
    (pair,) = lease(db, "ann")
    flag(db, "f", pair)
    judgments.undo(db, id="w", annotator="ann")  # and the pair is leased to Ann again
    assert flag(db, "f", pair).id == "f"
    assert pair not in lease(db, "bob", 3)
    assert lease(db, "ann") == [pair]


def test_only_a_flag_can_be_cleared(db):
    (pair,) = lease(db, "ann")
    judge(db, "j", pair)
    for name in ("j", "nothing"):
        with pytest.raises(NotFound, match=f"there is no flag '{name}'"):
            judgments.clear_flag(db, id="w", flag=name, researcher="cat")
    assert current(db) == ["j"]


def test_an_act_that_is_unknown_or_another_ones_cannot_be_undone(db):
    (pair,) = lease(db, "ann")
    judge(db, "j", pair)
    for who, name in (("bob", "j"), ("ann", "nothing")):
        with pytest.raises(NotFound, match=f"stored nothing under the id '{name}'"):
            judgments.undo(db, id="w", annotator=who, replaces=name)
    assert current(db) == ["j"]
