"""Who is given which comparison, and that no two get the same one by accident."""

from __future__ import annotations

import sys
import threading
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.labeling.queue import Progress
from storage.labeling.queue_cache import QueueCache, QueueItem
from storage.labeling.text_cache import TextCache
from storage.records import Comparison, Iteration
from storage.tables import iterations, settings
from tests.helpers.storage_world import fill


def lease(db: Database, who: str, n: int = 1, **more) -> list[str]:
    return [pair.comparison.id for pair in queue.lease(db, who, n, **more).pairs]


def progress(db: Database, who: str, *, offset: int = 0) -> Progress:
    return queue.progress(db, who, since=queue.midnight(db.clock(), offset))


def judge(db: Database, comparison: str, who: str) -> str:
    id = str(uuid.uuid4())
    judgments.judge(db, id=id, comparison=comparison, annotator=who, outcome="tie")
    return id


def test_pairs_come_in_the_order_of_their_position_and_to_one_annotator_each(db):
    fill(db, 5)
    assert lease(db, "ann", 2) == ["c1-0", "c1-1"]
    assert lease(db, "bob", 2) == ["c1-2", "c1-3"]
    assert lease(db, "cat", 2) == ["c1-4"]
    assert lease(db, "dan", 2) == []


def test_a_reloaded_page_gets_the_same_pairs_and_a_prefetching_one_gets_others(db):
    fill(db, 6)
    assert lease(db, "ann", 2) == ["c1-0", "c1-1"]
    assert lease(db, "ann", 2) == ["c1-0", "c1-1"]
    assert lease(db, "ann", 2, holding=["c1-0", "c1-1"]) == ["c1-2", "c1-3"]
    # The latest given come first: an undone one is asked at once.
    assert lease(db, "ann", 3, holding=["c1-0"]) == ["c1-2", "c1-3", "c1-1"]


def test_what_was_answered_or_skipped_does_not_come_again(db):
    fill(db, 3)
    first, second = lease(db, "ann", 2)
    judge(db, first, "ann")
    judgments.skip(db, id="s", comparison=second, annotator="ann")
    assert lease(db, "ann", 3) == ["c1-2"]
    assert lease(db, "bob", 3) == ["c1-1"]  # the skipped one is still wanted, from others


def test_overlap_goes_to_as_many_annotators_as_it_wants_half_finished_first(db):
    fill(db, 3, wanted=2)
    assert lease(db, "ann") == ["c1-0"]
    assert lease(db, "bob") == ["c1-0"]  # wants two
    assert lease(db, "cat") == ["c1-1"]  # the first is out to two already
    judge(db, "c1-1", "cat")
    # c1-1 is half finished, so it goes before c1-2, but never to cat again.
    assert lease(db, "cat") == ["c1-2"]
    assert lease(db, "dan") == ["c1-1"]
    judge(db, "c1-1", "dan")
    assert lease(db, "eve") == ["c1-2"]


def test_a_lease_ends_with_its_time_and_what_was_held_may_still_be_answered(db):
    clock = Clock(db)
    fill(db, 2)
    lease(db, "ann", lifetime=timedelta(minutes=30))
    assert lease(db, "bob", 2) == ["c1-1"]
    clock.advance(minutes=29)
    assert lease(db, "cat") == []
    clock.advance(minutes=2)
    assert lease(db, "cat", 2, lifetime=timedelta(minutes=30)) == ["c1-0", "c1-1"]
    clock.advance(minutes=31)
    assert lease(db, "dan", 2) == ["c1-0", "c1-1"]
    judge(db, "c1-0", "cat")


def test_a_lease_held_on_the_screen_is_extended(db):
    clock = Clock(db)
    fill(db, 2)
    lease(db, "ann", lifetime=timedelta(minutes=30))
    clock.advance(minutes=20)
    lease(db, "ann", holding=["c1-0"], lifetime=timedelta(minutes=30))
    clock.advance(minutes=20)  # 40 after it was given, 20 after it was extended
    assert lease(db, "bob", 2) == []
    clock.advance(minutes=11)
    assert lease(db, "bob", 2) == ["c1-0", "c1-1"]


class Clock:
    """Sets the time of an open database."""

    def __init__(self, db: Database) -> None:
        self._now = datetime(2026, 5, 1, 23, 30, tzinfo=UTC)
        db.clock = self

    def __call__(self) -> datetime:
        self._now += timedelta(microseconds=1)
        return self._now

    def advance(self, **by: float) -> None:
        self._now += timedelta(**by)


def test_nobody_holds_more_than_64_pairs_whatever_they_name(db):
    fill(db, 100)
    held: list[str] = []
    while new := lease(db, "ann", 16, holding=held):
        held += new
    assert len(held) == 100
    # 36 of those given first are for others again; an answer to one of them still counts.
    others = [lease(db, who, 16) for who in ("bob", "cat", "dan", "eve")]
    assert [len(each) for each in others] == [16, 16, 4, 0]
    assert set().union(*others) < set(held[:48])
    judge(db, held[0], "ann")


def test_a_page_learns_which_of_its_pairs_are_gone(db):
    clock = Clock(db)
    fill(db, 6, wanted=2)
    kept, judged, skipped, flagged = lease(db, "ann", 4)
    judge(db, judged, "ann")
    judgments.skip(db, id="s", comparison=skipped, annotator="ann")
    assert lease(db, "bob", 2) == [judged, kept]
    judgments.flag(db, id="f", comparison=lease(db, "cat", 2)[1], annotator="cat")
    held = [kept, judged, skipped, flagged, "no such pair"]
    assert queue.lease(db, "ann", 1, holding=held).gone == [
        judged,
        skipped,
        flagged,
        "no such pair",
    ]
    clock.advance(minutes=31)
    assert queue.lease(db, "ann", 1, holding=[kept]).gone == []  # nobody else has it: hers again
    clock.advance(minutes=31)
    assert all(kept in lease(db, who, 6) for who in ("dan", "eve"))
    assert queue.lease(db, "ann", 1, holding=[kept]).gone == [kept]


def test_released_pairs_are_for_others_or_for_a_reload(db):
    fill(db, 6)
    held = lease(db, "ann", 6)
    assert lease(db, "bob", 6) == []
    assert queue.release(db, "ann", [*held[2:], "no such pair"]) == 4
    assert queue.release(db, "bob", held) == 0
    assert lease(db, "bob", 1) == held[2:3]
    again = queue.lease(db, "ann", 1, holding=held)
    assert (again.pairs, again.gone) == ([], held[2:3])
    assert lease(db, "bob", 6, holding=held[2:3]) == []
    judge(db, held[2], "ann")  # a judgment of a released pair counts, however late
    judge(db, held[2], "bob")


def share(db: Database, who: str, *, holding: list[str]) -> int:
    return queue.lease(db, who, 1, holding=holding).share


def test_a_page_may_hold_its_share_of_what_others_leave(db):
    clock = Clock(db)
    fill(db, 60)
    # Alone, half: somebody may come.  Of 60 pairs, 30.
    assert share(db, "ann", holding=[]) == 30
    held = lease(db, "ann", 16)
    held += lease(db, "ann", 13, holding=held)
    assert len(held) == 29
    # Bob, with 31 pairs that Ann does not hold: a third.
    assert share(db, "bob", holding=[]) == 10
    # Ann: 59 pairs that Bob does not hold, a third.
    assert share(db, "ann", holding=held) == 19
    clock.advance(minutes=31)  # their leases ended
    assert share(db, "cat", holding=[]) == 30


def test_a_page_may_hold_40_pairs_of_many_and_4_of_few(db):
    fill(db, 100)
    assert share(db, "ann", holding=[]) == 40
    for _ in range(6):
        for pair in lease(db, "bob", 16):
            judge(db, pair, "bob")
    assert share(db, "cat", holding=[]) == 4


@pytest.mark.parametrize("kind", ["judge", "skip", "flag", "in turn"])
def test_who_undoes_everything_holds_no_more_than_64_pairs_either(db, monkeypatch, kind):
    monkeypatch.setattr(judgments, "MAX_FLAGS", 1000)
    settings.set_check_plan(db, settings.CheckPlan(gold_share=0, reask_share=0))
    fill(db, 100)
    acts = {"judge": judge, "skip": skip, "flag": flag}
    doing = list(acts) if kind == "in turn" else [kind]
    done: list[tuple[str, str]] = []
    while new := lease(db, "ann", 16):
        done += [(acts[doing[len(done) % len(doing)]](db, pair, "ann"), pair) for pair in new]
    assert len(done) == 100
    for act, pair in done:
        judgments.undo(db, id=uuid.uuid4().hex, annotator="ann", replaces=act)
        assert pair in {card.comparison.id for card in hand(db, "ann")}  # the one just undone
    assert len(hand(db, "ann")) == 64
    others = [lease(db, who, 16) for who in ("bob", "cat", "dan", "eve")]
    assert [len(each) for each in others] == [16, 16, 4, 0]
    judge(db, done[0][1], "ann")  # whoever held one may still answer it


def test_a_pair_that_is_flagged_meanwhile_is_counted(db):
    """A cleared flag returns the lease: without the count, Ann would hold more than 64."""
    fill(db, 100, wanted=2)
    held = lease(db, "ann", 16)
    assert lease(db, "bob", 16) == held
    flags = [flag(db, pair, "bob") for pair in held]
    while new := lease(db, "ann", 16, holding=held):
        held += new
    for act in flags:
        judgments.clear_flag(db, id=uuid.uuid4().hex, flag=act, researcher="cat")
    assert len(hand(db, "ann")) == 64


def skip(db: Database, comparison: str, who: str) -> str:
    id = uuid.uuid4().hex
    return judgments.skip(db, id=id, comparison=comparison, annotator=who).id


def flag(db: Database, comparison: str, who: str) -> str:
    id = uuid.uuid4().hex
    return judgments.flag(db, id=id, comparison=comparison, annotator=who).id


def hand(db: Database, who: str) -> list[QueueItem]:
    def operation(tx) -> list[QueueItem]:
        tx.observer(QueueCache).load(tx)
        return tx.observer(QueueCache).unanswered(who, tx.now())

    return db.write(operation)


def test_a_page_that_holds_a_few_pairs_keeps_them_all_day(db):
    fill(db, 200)
    held: list[str] = []
    for _ in range(180):
        held += lease(db, "ann", 4 - len(held), holding=held)
        judge(db, held.pop(0), "ann")
    # Answered pairs do not count toward the 64: Ann's last three are still leased to Ann alone.
    assert not set(lease(db, "bob", 16)) & set(held)


def test_the_newest_iteration_that_has_pairs_is_served(db):
    fill(db, 2, iteration=1)
    assert lease(db, "ann") == ["c1-0"]
    fill(db, 1, iteration=2)
    assert lease(db, "bob", 3) == ["c2-0"]
    assert lease(db, "ann", 3) == []  # what he holds of iteration 1 is no longer asked


@pytest.mark.parametrize("phase", ["reward", "policy", "evaluating", "done"])
def test_pairs_are_served_while_the_loop_trains_and_samples_the_next_ones(db, phase):
    fill(db, 3, iteration=1)
    judge(db, lease(db, "ann")[0], "ann")
    iterations.save(db, Iteration(number=1, phase=phase))
    assert lease(db, "ann") == ["c1-1"]
    assert progress(db, "ann") == Progress(1, 1, 2, 1, 1)
    iterations.save(db, Iteration(number=2, phase="sampling"))
    judge(db, "c1-1", "ann")
    assert lease(db, "ann") == ["c1-2"]
    fill(db, 1, iteration=2)
    judge(db, "c1-2", "ann")  # an answer to what he held counts
    assert lease(db, "ann", 3) == ["c2-0"]


def test_nothing_is_served_before_the_first_pairs_are_sampled(db):
    assert lease(db, "ann") == []
    iterations.save(db, Iteration(number=1, phase="sampling"))
    assert lease(db, "ann") == []
    assert progress(db, "ann").iteration is None


def test_imported_comparisons_are_never_served(db):
    fill(db, 1)
    imported = Comparison(
        id="i", prompt="p", first="a", second="b", iteration=1, arm="imported", wanted=9
    )
    db.write(lambda tx: tx.store(imported))
    assert lease(db, "ann", 5) == ["c1-0"]


def test_comparisons_added_while_labeling_join_the_queue_in_their_place(db):
    fill(db, 2)
    assert lease(db, "ann", 1) == ["c1-0"]
    row = db.read("SELECT * FROM comparisons WHERE id = 'c1-1'")[0]
    late = Comparison(**{**row, "id": "late", "position": -1})
    db.write(lambda tx: tx.store(late))
    assert lease(db, "bob", 3) == ["late", "c1-1"]


def test_leases_survive_a_restart(tmp_path):
    with Database.open(tmp_path) as db:
        fill(db, 3)
        assert lease(db, "ann", 2) == ["c1-0", "c1-1"]
        judge(db, "c1-0", "ann")
    with Database.open(tmp_path) as db:
        assert lease(db, "bob", 3) == ["c1-2"]
        assert lease(db, "ann", 3) == ["c1-1"]
        judge(db, "c1-1", "ann")


def test_the_desk_remembers_what_the_tables_say(tmp_path):
    """After every kind of act, a fresh start hands out exactly what the running one would."""
    with Database.open(tmp_path) as db:
        fill(db, 8, wanted=2)
        for who, n in (("ann", 3), ("bob", 3), ("cat", 2)):
            for comparison in lease(db, who, n)[1:]:
                judge(db, comparison, who)
        judgments.undo(db, id="w", annotator="ann")
        judgments.skip(db, id="s", comparison=lease(db, "bob")[0], annotator="bob")
        judgments.flag(db, id="f", comparison=lease(db, "cat")[0], annotator="cat")
        people = ("ann", "bob", "cat", "dan")
        told = {who: progress(db, who) for who in people}
        db.write(lambda tx: tx.observer(QueueCache).forget())
        assert {who: progress(db, who) for who in people} == told
        expected = {who: lease(db, who, 2) for who in people}
    with Database.open(tmp_path) as db:
        assert {who: lease(db, who, 2) for who in people} == expected
        assert {who: progress(db, who) for who in people} == told


def test_progress_counts_what_stands(db):
    clock = Clock(db)  # half past eleven in the evening
    fill(db, 4, wanted=2)
    assert progress(db, "ann") == Progress(0, 0, 4, 1, 0)
    a, b, c = lease(db, "ann", 3)
    judge(db, a, "ann")
    clock.advance(hours=1)  # past midnight UTC
    judge(db, b, "ann")
    judge(db, b, "ann")  # a revision counts once
    judgments.skip(db, id="s", comparison=c, annotator="ann")
    assert progress(db, "ann") == Progress(2, 1, 1, 1, 2)
    judgments.undo(db, id="w", annotator="ann")
    judgments.undo(db, id="w2", annotator="ann")
    assert progress(db, "ann") == Progress(1, 0, 3, 1, 1)
    assert lease(db, "bob") == [a]
    judge(db, a, "bob")  # finishes it: two were wanted
    judgments.flag(db, id="f", comparison=lease(db, "bob")[0], annotator="bob")
    assert progress(db, "cat").remaining == 2


def test_a_round_counts_the_judgments_of_its_own_pairs(db):
    """Ann judged 2 of 3 pairs of the first iteration; the second has 4, of which she judged 1."""
    fill(db, 3, iteration=1)
    for pair in lease(db, "ann", 2):
        judge(db, pair, "ann")
    judge(db, lease(db, "bob")[0], "bob")
    found = progress(db, "ann")
    assert (found.done, found.remaining) == (2, 0)
    fill(db, 4, iteration=2)
    judge(db, lease(db, "ann")[0], "ann")
    found = progress(db, "ann")
    assert (found.judged, found.done, found.remaining) == (3, 1, 3)


def test_today_begins_at_midnight_where_the_annotator_is(db):
    clock = Clock(db)  # half past eleven in the evening, UTC
    fill(db, 4)

    def today(offset: int) -> int | None:
        return progress(db, "ann", offset=offset).today

    judge(db, lease(db, "ann")[0], "ann")
    clock.advance(hours=1)
    judge(db, lease(db, "ann")[0], "ann")
    assert {offset: today(offset) for offset in (0, 29, 31, 60, -60, 840, -840)} == {
        0: 1, 29: 1, 31: 2, 60: 2, -60: 2, 840: 2, -840: 2
    }  # fmt: skip
    judgments.undo(db, id="w", annotator="ann")
    assert (today(0), today(60)) == (0, 1)


def test_pairs_with_others_are_those_that_only_they_hold(db):
    clock = Clock(db)
    fill(db, 4)
    assert queue.leased_to_others(db, "ann") == 0
    a, b = lease(db, "bob", 2)
    lease(db, "ann", 1)
    assert queue.leased_to_others(db, "ann") == 2
    assert queue.leased_to_others(db, "bob") == 1
    assert queue.leased_to_others(db, "cat") == 3
    judge(db, a, "bob")  # done: it is with nobody
    judgments.skip(db, id="s", comparison=b, annotator="bob")  # anybody's again
    assert queue.leased_to_others(db, "ann") == 0
    lease(db, "cat", 4)
    assert queue.leased_to_others(db, "ann") == 2
    assert progress(db, "ann").remaining == 3
    clock.advance(hours=1)  # their leases end
    assert queue.leased_to_others(db, "ann") == 0


@pytest.mark.parametrize("wanted", [1, 2])
def test_annotators_racing_for_the_queue_get_each_pair_as_often_as_wanted(db, wanted):
    """8 threads take and answer until nothing is left: no pair too often, none twice to one."""
    fill(db, 40, wanted=wanted)
    given: list[tuple[str, str]] = []
    errors: list[Exception] = []
    start = threading.Barrier(8)

    def work(who: str) -> None:
        try:
            start.wait(30)
            while pairs := lease(db, who, 3):
                given.extend((who, comparison) for comparison in pairs)
                for comparison in pairs:
                    judge(db, comparison, who)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert max(Counter(given).values()) == 1
    assert Counter(comparison for _, comparison in given) == {f"c1-{i}": wanted for i in range(40)}
    assert len(db.read("FROM current_judgments")) == 40 * wanted


def test_more_pairs_than_are_read_ahead_all_carry_their_own_texts(db):
    fill(db, queue.READ_AHEAD + 40)
    held: list[str] = []
    while pairs := queue.lease(db, "ann", 7, holding=held).pairs:
        for pair in pairs:
            n = pair.comparison.id.removeprefix("c1-")
            assert {pair.left, pair.right} == {f"first {n}", f"second {n}"}
            assert pair.prompt.messages[0].content == f"question 1.{n}?"
        held += [pair.comparison.id for pair in pairs]
    assert len(held) == queue.READ_AHEAD + 40


def test_the_shelf_holds_so_many_bytes_and_lets_the_oldest_go(db):
    """Six pairs whose texts are of the same lengths, on a shelf for three."""
    fill(db, 6)
    one = sum(map(sys.getsizeof, ("question 1.0?", "first 0", "second 0")))
    shelf = TextCache(most=3 * one)
    ids = [f"c1-{i}" for i in range(6)]
    for name in ids[:4]:
        assert shelf.fetch(db.read, [name], [])[name].first == f"first {name[-1]}"
    assert [name in shelf for name in ids] == [False, True, True, True, False, False]
    assert shelf.bytes == 3 * one

    found = shelf.fetch(db.read, ids, [])  # more than it holds: all are given, the last stay
    assert [found[name].second for name in ids] == [f"second {i}" for i in range(6)]
    assert sum(name in shelf for name in ids) == 3
    assert shelf.bytes == 3 * one

    shelf = TextCache(most=one - 1)
    assert shelf.fetch(db.read, ids[:1], [])["c1-0"].first == "first 0"
    assert (shelf.bytes, "c1-0" in shelf) == (0, False)
    assert lease(db, "ann", 6) == ids
