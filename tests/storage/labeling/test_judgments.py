"""What counts as somebody's current judgment, told as histories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from storage.engine import lookup
from storage.engine.backup import verify
from storage.engine.database import Database
from storage.errors import Conflict, NotFound, NotLeased
from storage.labeling import judgments, queue
from storage.labeling.queue_cache import QueueCache
from storage.records import Iteration, Judgment, Snapshot
from storage.sides import shown_swapped
from storage.tables import iterations, snapshots
from tests.helpers.storage_world import fill


@pytest.fixture(scope="module")
def filled(empty_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = shutil.copytree(empty_workspace, tmp_path_factory.mktemp("filled") / "workspace")
    with Database.open(workspace) as opened:
        fill(opened)
    return workspace


@pytest.fixture
def db(filled: Path, tmp_path: Path) -> Iterator[Database]:
    with Database.open(shutil.copytree(filled, tmp_path / "workspace")) as opened:
        yield opened


def lease(db: Database, who: str, n: int = 1) -> list[str]:
    return [pair.comparison.id for pair in queue.lease(db, who, n).pairs]


def judge(db: Database, id: str, comparison: str, who: str = "ann", outcome="a", **more):
    return judgments.judge(db, id=id, comparison=comparison, annotator=who, outcome=outcome, **more)


def standing(db: Database) -> set[str]:
    """The ids of current judgments, from the view; the desk's memory must agree with it."""
    rows = db.read("SELECT id, comparison, annotator FROM current_judgments")

    def remembered(tx) -> set[str]:
        cards = [
            tx.observer(QueueCache).item(tx, c["id"]) for c in tx.rows("SELECT id FROM comparisons")
        ]
        return {judgment for card in cards for judgment in card.judged.values()}

    assert db.write(remembered) == {row["id"] for row in rows}
    return {row["id"] for row in rows}


def count(db: Database, table: str) -> int:
    return db.read(f"SELECT count(*) AS n FROM {table}")[0]["n"]


@pytest.mark.parametrize("who", ["ann", "bob", "cat", "dee", "eve", "fay"])
def test_pressing_a_prefers_what_stood_on_the_left(db, who):
    """By the texts: whatever the sides, the completion shown as A is the one preferred."""
    pair = queue.lease(db, who, 1).pairs[0]
    stored = judge(db, "j", pair.comparison.id, who, "a", criteria={"helpful": "b", "clear": "tie"})
    chosen = pair.comparison.first if stored.outcome == "first" else pair.comparison.second
    text = db.read("SELECT text FROM completions WHERE id = $id", id=chosen)[0]["text"]
    assert text == pair.left != pair.right
    assert stored.shown_swapped == pair.swapped
    assert stored.criteria == {
        "helpful": "second" if stored.outcome == "first" else "first",
        "clear": "tie",
    }
    assert lookup.by_key(db, Judgment, "j") == stored


def test_both_sides_occur():
    sides = {shown_swapped(who, "c1-0") for who in ("ann", "bob", "cat", "dee", "eve", "fay")}
    assert sides == {True, False}  # else the test above proves half of what it says


def test_revising_replaces_the_current_judgment(db):
    (c,) = lease(db, "ann")
    judge(db, "j1", c, outcome="a")
    second = judge(db, "j2", c, outcome="tie")
    assert second.replaces == "j1"
    assert standing(db) == {"j2"}
    third = judge(db, "j3", c, outcome="b", replaces="j2")
    assert third.replaces == "j2"
    assert standing(db) == {"j3"}
    assert count(db, "judgments") == 3  # history keeps all


def test_revising_what_another_tab_has_revised_is_a_conflict(db):
    (c,) = lease(db, "ann")
    judge(db, "j1", c)
    judge(db, "j2", c, replaces="j1")
    with pytest.raises(Conflict, match="another tab"):
        judge(db, "j3", c, replaces="j1")
    assert standing(db) == {"j2"}


def test_undo_takes_the_judgment_back_and_the_same_pair_comes_again(db):
    before = queue.lease(db, "ann", 1).pairs[0]
    judge(db, "j1", before.comparison.id)
    assert judgments.undo(db, id="w1", annotator="ann").id == "j1"
    assert standing(db) == set()
    assert queue.lease(db, "ann", 1).pairs == [before]  # same comparison, same sides
    again = judge(db, "j2", before.comparison.id)
    assert again.replaces is None
    assert standing(db) == {"j2"}


def test_an_undone_pair_is_his_again_though_its_lease_had_run_out(db):
    given = queue.lease(db, "ann", 1, lifetime=timedelta(microseconds=1)).pairs
    judge(db, "j1", given[0].comparison.id)
    judgments.undo(db, id="w1", annotator="ann")
    assert given[0].comparison.id not in lease(db, "bob", 3)
    assert queue.lease(db, "ann", 1).pairs == given


def test_undoing_a_revision_does_not_bring_back_what_it_replaced(db):
    (c,) = lease(db, "ann")
    judge(db, "j1", c)
    judge(db, "j2", c)
    assert judgments.undo(db, id="w1", annotator="ann", replaces="j2").id == "j2"
    assert standing(db) == set()
    assert lease(db, "ann") == [c]
    with pytest.raises(Conflict, match="already"):
        judgments.undo(db, id="w2", annotator="ann", replaces="j1")


def test_undo_without_a_name_takes_the_latest_act_of_any_kind(db):
    c0, c1, c2 = lease(db, "ann", 3)
    judge(db, "j", c0)
    judgments.skip(db, id="s", comparison=c1, annotator="ann")
    judgments.flag(db, id="f", comparison=c2, annotator="ann", comment="broken")
    undone = [judgments.undo(db, id=f"w{i}", annotator="ann").id for i in range(3)]
    assert undone == ["f", "s", "j"]
    assert [count(db, t) for t in ("current_judgments", "open_skips", "open_flags")] == [0, 0, 0]
    with pytest.raises(NotFound, match="you have nothing to undo"):
        judgments.undo(db, id="w9", annotator="ann")
    # All three came back: the last one undone first.
    assert lease(db, "ann", 3) == [c0, c1, c2]


def test_undo_of_one_label_from_two_tabs(db):
    (c,) = lease(db, "ann")
    judge(db, "j1", c)
    judgments.undo(db, id="tab-1", annotator="ann", replaces="j1")
    with pytest.raises(Conflict, match="another tab"):
        judgments.undo(db, id="tab-2", annotator="ann", replaces="j1")
    assert count(db, "withdrawals") == 1


def test_an_undo_that_is_sent_again_undoes_nothing_more(db):
    c0, c1 = lease(db, "ann", 2)
    judge(db, "j0", c0)
    judge(db, "j1", c1)
    assert judgments.undo(db, id="w", annotator="ann").id == "j1"
    assert judgments.undo(db, id="w", annotator="ann").id == "j1"
    assert judgments.undo(db, id="w", annotator="ann", replaces="j1").id == "j1"
    assert standing(db) == {"j0"}
    with pytest.raises(Conflict, match="belongs to another undo"):
        judgments.undo(db, id="w", annotator="ann", replaces="j0")


def test_nobody_undoes_another_ones_label(db):
    (c,) = lease(db, "ann")
    judge(db, "j1", c)
    with pytest.raises(NotFound):
        judgments.undo(db, id="w", annotator="bob", replaces="j1")
    # … nor by giving an act of his own the id of that label.
    (d,) = lease(db, "bob")
    with pytest.raises(Conflict, match="already used for other content"):
        judgments.skip(db, id="j1", comparison=d, annotator="bob")
    assert standing(db) == {"j1"}


def test_sending_a_label_again_stores_nothing_new(db):
    (c,) = lease(db, "ann")
    first = judge(db, "j1", c, strength=2, comment="clear", milliseconds=900)
    size = db.journal.size
    assert judge(db, "j1", c, strength=2, comment="clear", milliseconds=900) == first
    assert (count(db, "judgments"), db.journal.size) == (1, size)
    judgments.undo(db, id="w", annotator="ann")
    assert judge(db, "j1", c, strength=2, comment="clear") == first  # a late retry after an undo
    assert standing(db) == set()


@pytest.mark.parametrize(
    "change",
    [{"outcome": "b"}, {"strength": 3}, {"comment": "x"}, {"criteria": {"clear": "a"}}],
)
def test_the_same_id_with_other_content_is_a_conflict(db, change):
    (c,) = lease(db, "ann")
    judge(db, "j1", c, strength=1)
    with pytest.raises(Conflict, match="'j1'"):
        judge(db, "j1", c, **{"strength": 1, **change})
    assert count(db, "judgments") == 1


def test_an_id_used_for_another_comparison_is_a_conflict(db):
    c0, c1 = lease(db, "ann", 2)
    judge(db, "j1", c0)
    with pytest.raises(Conflict, match="'j1'"):
        judge(db, "j1", c1)
    assert standing(db) == {"j1"}


ACTS = {
    "judgment": lambda db, id, c: judge(db, id, c),
    "skip": lambda db, id, c: judgments.skip(db, id=id, comparison=c, annotator="ann"),
    "flag": lambda db, id, c: judgments.flag(db, id=id, comparison=c, annotator="ann"),
}


@pytest.mark.parametrize("again", ACTS)
@pytest.mark.parametrize("earlier", [*ACTS, "undo"])
@pytest.mark.parametrize("restart", [False, True])
def test_an_id_of_an_earlier_iteration_is_used_for_every_kind_of_act(
    tmp_path, earlier, again, restart
):
    """The desk holds no cards of that iteration, and each unique index knows one kind alone."""
    with Database.open(tmp_path) as db:
        fill(db)
        c0, c1 = lease(db, "ann", 2)
        if earlier == "undo":
            judge(db, "j0", c0)
            judgments.undo(db, id="old", annotator="ann")
        else:
            ACTS[earlier](db, "old", c0)
        fill(db, iteration=2)
        if not restart:
            refuses_old(db, again, c1)
    with Database.open(tmp_path) as db:
        refuses_old(db, again, c1)
        assert verify(db).differences == []


def refuses_old(db: Database, again: str, c1: str) -> None:
    before = [count(db, f"{name}s") for name in ACTS]
    (d0,) = lease(db, "ann")
    for c in (d0, c1):
        with pytest.raises(Conflict, match="the id 'old' is already used for other content"):
            ACTS[again](db, "old", c)
    assert [count(db, f"{name}s") for name in ACTS] == before


def test_an_act_that_was_not_stored_leaves_its_id_free(db):
    """Whatever the disk refuses may be sent again."""
    c0, c1 = lease(db, "ann", 2)
    judge(db, "j0", c0)

    def refused(tx) -> None:
        judgments.judgment_operation(id="j1", comparison=c1, annotator="ann", outcome="a")(tx)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        db.write(refused)
    assert standing(db) == {"j0"}
    assert judge(db, "j1", c1).id == "j1"
    assert standing(db) == {"j0", "j1"}


def test_only_who_was_given_a_comparison_may_act_on_it(db):
    (c,) = lease(db, "ann")
    with pytest.raises(NotLeased, match="never leased"):
        judge(db, "j", c, "bob")
    with pytest.raises(NotLeased):
        judgments.skip(db, id="s", comparison=c, annotator="bob")
    with pytest.raises(NotLeased):
        judgments.flag(db, id="f", comparison=c, annotator="bob")
    with pytest.raises(NotFound, match="'nowhere'"):
        judge(db, "j", "nowhere")
    assert standing(db) == set()


def test_a_late_answer_counts_also_after_another_one_and_a_new_iteration(db):
    given = queue.lease(db, "ann", 1, lifetime=timedelta(microseconds=1)).pairs
    c = given[0].comparison.id
    assert lease(db, "bob") == [c]  # his lease has run out
    judge(db, "jb", c, "bob")
    iterations.save(db, Iteration(number=1, phase="reward"))
    fill(db, iteration=2)
    judge(db, "ja", c, "ann")
    assert standing(db) == {"ja", "jb"}
    assert count(db, "current_judgments") == 2


def test_invalid_judgments_are_refused_before_anything_is_stored(db):
    (c,) = lease(db, "ann")
    for bad in (
        {"outcome": "left"},
        {"outcome": "tie", "strength": 2},
        {"strength": 4},
        {"criteria": {"pretty": "a"}},
        {"criteria": {"clear": "first"}},
    ):
        with pytest.raises(ValueError, match=r"."):
            judge(db, "j", c, **bad)
    with pytest.raises(ValueError, match="1 to 100"):
        judge(db, " ", c)
    assert count(db, "judgments") == 0


def test_a_flag_hides_the_comparison_until_it_is_cleared(db):
    (c,) = lease(db, "ann")
    judgments.flag(db, id="f", comparison=c, annotator="ann", comment="NSFW")
    assert [row["comment"] for row in db.read("FROM open_flags")] == ["NSFW"]
    assert c not in lease(db, "bob", 3)
    judgments.clear_flag(db, id="w", flag="f", researcher="cat")
    judgments.clear_flag(db, id="w2", flag="f", researcher="cat")  # twice is once
    assert count(db, "open_flags") == 0
    assert count(db, "withdrawals") == 1
    assert lease(db, "cat") == [c]


def test_flags_of_one_annotator_are_bounded_until_a_researcher_clears_them(db, monkeypatch):
    monkeypatch.setattr(judgments, "MAX_FLAGS", 2)
    pairs = fill(db, 6, iteration=2)
    assert lease(db, "ann", 5) == pairs[:5]
    for n in (0, 1):
        judgments.flag(db, id=f"f{n}", comparison=pairs[n], annotator="ann")
    with pytest.raises(Conflict, match="2 of your flags are not cleared yet"):
        judgments.flag(db, id="f2", comparison=pairs[2], annotator="ann")
    assert lease(db, "ann", 5) == pairs[2:]  # what was refused is still to be judged
    judgments.flag(db, id="f1", comparison=pairs[1], annotator="ann")  # sent again
    # Others have flags of their own, and one that is cleared or taken back makes room.
    lease(db, "bob")
    judgments.clear_flag(db, id="w", flag="f0", researcher="cat")
    judgments.flag(db, id="f2", comparison=pairs[2], annotator="ann")
    judgments.undo(db, id="w2", annotator="ann", replaces="f1")
    judgments.flag(db, id="f3", comparison=pairs[3], annotator="ann")
    (c,) = lease(db, "bob")
    judgments.flag(db, id="fb", comparison=c, annotator="bob")
    open_flags = db.read("SELECT id FROM open_flags ORDER BY id")
    assert [row["id"] for row in open_flags] == ["f2", "f3", "fb"]


@pytest.mark.parametrize("after", ["", "a restart", "a new iteration"])
def test_an_undo_has_an_id_of_its_own(tmp_path, after):
    with Database.open(tmp_path) as db:
        fill(db)
        c0, c1 = lease(db, "ann", 2)
        judge(db, "j0", c0)
        judge(db, "j1", c1)
        judgments.undo(db, id="w", annotator="ann", replaces="j1")
        if after == "a new iteration":
            fill(db, iteration=2)
    with Database.open(tmp_path) as db:
        for id in ("j0", "j1"):
            with pytest.raises(Conflict, match="is already used for other content"):
                judgments.undo(db, id=id, annotator="ann", replaces="j0")
        assert standing(db) == {"j0"}
        for act in (
            judge,
            lambda db, id, c: judgments.skip(db, id=id, comparison=c, annotator="ann"),
        ):
            with pytest.raises(Conflict, match="is already used for other content"):
                act(db, "w", c1)


def store(db: Database, snapshot: Snapshot) -> int:
    return db.write(lambda tx: tx.store(snapshot))


def test_new_judgments_of_a_snapshot_are_those_in_no_earlier_one(db):
    taken = [(1, ("j0", "j1")), (2, ("j1", "j2", "j3")), (3, ("j0", "j3"))]
    for number, ids in taken:
        store(db, Snapshot(hash=f"s{number}", iteration=number, judgments=ids))
    # nothing was before 1; j2 and j3 are new in 2; 3 has fewer than 2, and none of its own
    assert [snapshots.new_in(db, number) for number in (1, 2, 3, 4)] == [None, 2, 0, None]


def test_a_snapshot_keeps_what_is_undone_later(db):
    c0, c1 = lease(db, "ann", 2)
    judge(db, "j0", c0)
    judge(db, "j1", c1)
    taken = Snapshot(hash="s1", iteration=1, judgments=("j0", "j1"))
    assert store(db, taken) == 1
    judgments.undo(db, id="w", annotator="ann")
    members = db.read("SELECT judgment FROM snapshot_judgments ORDER BY ALL")
    assert [row["judgment"] for row in members] == ["j0", "j1"]
    assert store(db, taken) == 0
    with pytest.raises(Conflict):
        store(db, Snapshot(hash="s1", iteration=1, judgments=("j0",)))
    assert standing(db) == {"j0"}
    assert verify(db).differences == []


def test_the_journal_says_what_was_judged(db):
    (c,) = lease(db, "ann")
    judge(db, "j1", c, strength=3, comment="é\n")
    line = json.loads(db.journal.path.read_text().splitlines()[-1])
    assert {
        k: line[k] for k in ("record", "id", "comparison", "annotator", "strength", "comment")
    } == {
        "record": "judgment",
        "id": "j1",
        "comparison": c,
        "annotator": "ann",
        "strength": 3,
        "comment": "é\n",
    }
