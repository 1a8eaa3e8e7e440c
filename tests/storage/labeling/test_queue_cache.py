"""The writer's memory of the queue: what one item counts, and what the memory follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import judgments, queue
from storage.labeling.queue_cache import Lease, QueueCache, QueueItem
from storage.records import WRITTEN, Annotator, Comparison, Flag, Iteration, Judgment, Skip
from storage.tables import iterations
from storage.tables.people import annotators
from tests.helpers.storage_world import fill

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SOON = NOON + timedelta(minutes=1)
PAIR = Comparison(id="c", prompt="p", first="f", second="s", iteration=1, arm="random")


def lease(db: Database, who: str, n: int = 1, **more) -> list[str]:
    return [pair.comparison.id for pair in queue.lease(db, who, n, **more).pairs]


def judge(db: Database, comparison: str, who: str) -> None:
    judgments.judge(
        db, id=f"{who} {comparison}", comparison=comparison, annotator=who, outcome="tie"
    )


# --- one item -----------------------------------------------------------------------------------


def item(wanted: int = 1, *, models: set[str] | None = None, **held: datetime) -> QueueItem:
    """An item that is leased to these annotators until then."""
    leases = {who: Lease(NOON, until) for who, until in held.items()}
    return QueueItem(replace(PAIR, wanted=wanted), models or set(), leases=leases)


def judged(who: str, id: str = "", replaces: str | None = None) -> Judgment:
    return Judgment(
        id=id or f"j-{who}", comparison="c", annotator=who, outcome="tie", shown_swapped=False,
        replaces=replaces,
    )  # fmt: skip


def skipped(who: str) -> Skip:
    return Skip(id=f"s-{who}", comparison="c", annotator=who)


def flagged(who: str) -> Flag:
    return Flag(id=f"f-{who}", comparison="c", annotator=who)


def test_an_item_goes_to_as_many_as_it_wants_judgments():
    assert item(1).may_go_to("ann", NOON)
    assert not item(1, bob=SOON).may_go_to("ann", NOON)
    assert item(2, bob=SOON).may_go_to("ann", NOON)
    assert not item(2, bob=SOON, cat=SOON).may_go_to("ann", NOON)
    assert item(1, ann=SOON).may_go_to("ann", NOON)  # Ann's own lease does not bar Ann


def test_a_lease_ends_at_its_moment():
    assert not item(1, bob=NOON + timedelta(microseconds=1)).may_go_to("ann", NOON)
    assert item(1, bob=NOON).may_go_to("ann", NOON)
    assert item(1, bob=NOON - timedelta(minutes=1)).may_go_to("ann", NOON)


def test_leases_of_those_who_answered_or_are_models_hold_nothing_back():
    found = item(2, bob=SOON, cat=SOON, robot=SOON, models={"robot"})
    found.add(judged("bob"))  # one of two is given, and cat has the other
    assert (found.missing, found.may_go_to("ann", NOON)) == (1, False)
    found.add(skipped("cat"))
    assert found.may_go_to("ann", NOON)
    assert not found.may_go_to("bob", NOON)
    assert not found.may_go_to("cat", NOON)


def test_judgments_of_models_do_not_count():
    found = item(2, models={"robot"})
    for who, missing in (("robot", 2), ("ann", 1), ("bob", 0), ("cat", -1)):
        found.add(judged(who))
        assert found.missing == missing
    assert set(found.judged) == {"robot", "ann", "bob", "cat"}


def test_who_judged_and_skipped_one_pair_is_not_asked_again():
    found = item(3)
    found.add(skipped("ann"))
    found.add(judged("ann"))
    assert (found.past, found.may_go_to("ann", NOON)) == ({"ann"}, False)
    found.close("j-ann")
    assert (found.past, found.judged, found.missing) == ({"ann"}, {}, 3)
    found.close("s-ann")
    assert found.may_go_to("ann", NOON)


def test_a_revision_closes_what_it_replaces_and_its_undo_opens_nothing():
    found = item(1)
    found.add(judged("ann", "j1"))
    assert found.closed == set()
    found.add(judged("ann", "j2", replaces="j1"))
    assert (found.judged, found.closed) == ({"ann": "j2"}, {"j1"})
    found.close("j2")
    assert (found.judged, found.missing) == ({}, 1)


def test_a_flag_keeps_an_item_from_everybody_until_the_last_is_cleared():
    found = item(1)
    for who in ("bob", "cat"):
        found.add(flagged(who))
    found.close("f-bob")
    assert (found.flags, found.may_go_to("ann", NOON)) == ({"f-cat"}, False)
    found.close("f-cat")
    assert (found.flags, found.may_go_to("ann", NOON)) == (set(), True)


# --- the memory -----------------------------------------------------------------------------------


def test_the_tables_are_read_once(db):
    fill(db, 2)
    asked: list[str] = []

    class Counting:
        def rows(self, sql: str, /, **parameters: object) -> list[dict]:
            asked.append(sql)
            return db.read(sql, **parameters)

    cache = QueueCache()
    cache.load(Counting())
    assert asked
    before = len(asked)
    cache.load(Counting())
    assert cache.item(Counting(), "c1-0").comparison.id == "c1-0"
    assert len(asked) == before
    with pytest.raises(NotFound, match="'nowhere'"):
        cache.item(Counting(), "nowhere")
    cache.forget()
    asked.clear()
    cache.load(Counting())
    assert len(asked) == before


def test_a_model_that_joins_counts_for_nothing_from_then_on(db):
    """The one judgment that is wanted is still wanted when a model has given its own."""
    fill(db, 2)
    assert lease(db, "ann") == ["c1-0"]
    annotators.add(db, Annotator(id="robot", name="robot", kind="model"))
    assert lease(db, "robot") == ["c1-1"]
    judge(db, "c1-1", "robot")
    assert lease(db, "bob", 2) == ["c1-1"]
    # Nor does a lease of a model keep anybody waiting.
    annotators.add(db, Annotator(id="droid", name="droid", kind="model"))
    judge(db, "c1-1", "bob")
    fill(db, 1, iteration=2)
    assert lease(db, "droid") == ["c2-0"]
    assert lease(db, "cat") == ["c2-0"]


def test_pairs_written_elsewhere_are_served_beside_the_iterations_own(db):
    fill(db, 1)
    (row,) = db.read("SELECT * FROM comparisons")
    written = Comparison(**row | {"id": "w", "iteration": 0, "arm": WRITTEN, "position": 5})
    db.write(lambda tx: tx.store(written))
    assert lease(db, "ann", 2) == ["c1-0", "w"]
    assert lease(db, "ann", 2) == ["c1-0", "w"]  # a reloaded page
    db.write(lambda tx: tx.observer(QueueCache).forget())
    assert lease(db, "ann", 2) == ["c1-0", "w"]
    judge(db, "w", "ann")
    assert lease(db, "ann", 2) == ["c1-0"]


def test_an_iteration_is_served_when_its_sampling_ends(db):
    """Its pairs are stored before, while people label those of the one before it."""
    fill(db, 1)
    fill(db, 1, iteration=2)
    iterations.save(db, Iteration(number=2, phase="sampling"))
    assert lease(db, "ann", 2) == ["c1-0"]
    iterations.save(db, Iteration(number=2, phase="labeling"))
    assert lease(db, "ann", 2) == ["c2-0"]


def test_a_pair_with_more_answers_than_wanted_is_with_nobody(db):
    """Two leases ran out, and a third person holds the pair; the late answers of both count."""
    fill(db, 1)
    short = timedelta(microseconds=1)
    assert lease(db, "ann", lifetime=short) == lease(db, "bob", lifetime=short) == ["c1-0"]
    assert lease(db, "cat") == ["c1-0"]
    assert queue.leased_to_others(db, "dan") == 1
    judge(db, "c1-0", "ann")
    assert queue.leased_to_others(db, "dan") == 0
    judge(db, "c1-0", "bob")
    assert queue.leased_to_others(db, "dan") == 0
    assert lease(db, "dan") == []


def test_who_holds_what_is_known_when_the_tables_are_read_again(db):
    fill(db, 3)
    judged, held = lease(db, "bob", 2)
    judge(db, judged, "bob")

    def of_bob(tx) -> list[str]:
        cache = tx.observer(QueueCache)
        cache.forget()
        cache.load(tx)
        return [item.comparison.id for item in cache.unanswered("bob", tx.now())]

    assert db.write(of_bob) == [held]
    assert queue.leased_to_others(db, "ann") == 1


def test_half_finished_pairs_come_first_and_each_group_by_position(db):
    fill(db, 4, wanted=2)
    for pair in reversed(lease(db, "ann", 4)[2:]):
        judge(db, pair, "ann")

    def order(tx) -> list[str]:
        cache = tx.observer(QueueCache)
        cache.load(tx)
        return [item.comparison.id for item in cache.available("bob", tx.now())]

    remembered = db.write(order)
    assert remembered == ["c1-2", "c1-3", "c1-0", "c1-1"]
    db.write(lambda tx: tx.observer(QueueCache).forget())
    assert db.write(order) == remembered
