"""Counts of judgments by snapshot, against the plain computation on sets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.engine.database import Database
from storage.records import Annotator, Comparison, Completion, Judgment, Prompt, Snapshot
from storage.tables import snapshots


@pytest.fixture
def db(tmp_path: Path):
    with Database.open(tmp_path / "w") as opened:
        yield opened


def add_judgments(db: Database, count: int) -> list[str]:
    """One judgment for each of `count` pairs; every fifth prompt is held-out."""
    stored: list[object] = [Annotator(id="a", name="A"), Annotator(id="m", name="M", kind="model")]
    for i in range(count):
        prompt = Prompt.make(f"Question {i}?", role="train" if i % 5 else "held-out")
        sides = [Completion(id=f"k{i}{s}", prompt=prompt.id, policy="p", text=s) for s in "xy"]
        pair = Comparison(
            id=f"c{i}", prompt=prompt.id, first=sides[0].id, second=sides[1].id, iteration=1,
            arm="random",
        )  # fmt: skip
        judgment = Judgment(
            id=f"j{i}", comparison=pair.id, annotator="m" if i % 7 == 0 else "a", outcome="first",
            shown_swapped=False,
        )  # fmt: skip
        stored += [prompt, *sides, pair, judgment]
    db.write(lambda tx: tx.store(*stored))
    return [f"j{i}" for i in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_sets_for_snapshots_of_any_content(db, seed):
    coin = random.Random(seed)
    ids = add_judgments(db, 60)
    made: dict[int, list[set[str]]] = {}
    for number in range(1, 6):
        for _ in range(coin.choice([0, 1, 1, 2])):
            chosen = tuple(coin.sample(ids, coin.randint(1, 40)))
            hash = f"s{number}-{coin.random()}"
            snapshot = Snapshot(hash=hash, iteration=number, judgments=chosen)
            db.write(lambda tx, snapshot=snapshot: tx.store(snapshot))
            made.setdefault(number, []).append(set(chosen))
    for number in range(1, 7):
        earlier = [each for n, found in made.items() if n < number for each in found]
        taken = made.get(number, [])
        new = len(set().union(*taken) - set().union(*earlier)) if taken and earlier else None
        assert snapshots.new_in(db, number) == new
    used = set().union(*(each for found in made.values() for each in found))
    left = [f"j{i}" for i in range(60) if i % 5 and i % 7 and f"j{i}" not in used]
    assert snapshots.waiting(db, ["person"]) == len(left)
    assert snapshots.waiting(db, ["person", "model"]) == sum(
        f"j{i}" not in used for i in range(60) if i % 5
    )


def test_judgments_wait_before_there_is_a_snapshot(db):
    add_judgments(db, 10)
    assert snapshots.waiting(db, ["person", "model"]) == 8
    assert snapshots.new_in(db, 1) is None
