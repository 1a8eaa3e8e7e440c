"""Between sampling and training: what is asked of annotators, when training begins, what it is given."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.loop.stage_inputs import Preparation, iteration_seed
from pipeline.runs.rundir import RunDirectory
from storage import worker_files
from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.records import LEARNED_FROM, Prompt, new_id
from storage.tables import iterations, prompts, snapshots
from storage.tables.runs import runs
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.storage_world import fill

pytestmark = pytest.mark.usefixtures("dying_workers")


@pytest.fixture
def world(db: Database) -> Database:
    """A trained policy that iteration 2 samples; three labels are wanted."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling", policy_produced=None, reward_model=None, labels_wanted=3)
    return db


@contextmanager
def loop_of(db: Database, **settings: object) -> Iterator[Loop]:
    made = Loop(db, Config().override({k.replace("__", "."): v for k, v in settings.items()}))
    try:
        yield made
    finally:
        made.advance()
        made.shut_down()


def judge_next(db: Database, who: str, n: int) -> list[str]:
    """`who` judges the next `n` pairs of the queue; ids of the judgments."""
    made = []
    for pair in queue.lease(db, who, n).pairs:
        id, comparison = new_id("j"), pair.comparison.id
        judgments.judge(db, id=id, comparison=comparison, annotator=who, outcome="a")
        made.append(id)
    assert len(made) == n
    return made


def labeling(db: Database, number: int, *, pairs: int = 8) -> None:
    """Iteration `number` with pairs to judge, of which three are wanted."""
    fill(db, pairs, iteration=number)
    add_iteration(
        db, number, phase="labeling", policy_produced=None, reward_model=None, labels_wanted=3
    )


def trained_on(db: Database, number: int) -> set[str]:
    """The judgments in the newest snapshot of an iteration."""
    run = runs.newest(db, number, "reward")
    assert run is not None
    snapshot = (db.workspace / run.directory / "inputs" / "snapshot.txt").read_text()
    members = "SELECT judgment FROM snapshot_judgments WHERE snapshot = $hash"
    return {row["judgment"] for row in db.read(members, hash=snapshot)}


def test_what_comes_in_while_the_loop_trains_counts_for_the_next_snapshot(world: Database):
    labeling(world, 2)
    first = judge_next(world, "ann", 3)
    with loop_of(world, labeling__auto_train=True) as loop:
        assert loop.advance() == "reward"
        loop.advance()
        assert trained_on(world, 2) == set(first)
        late = judge_next(world, "ann", 1)
        assert snapshots.waiting(world, LEARNED_FROM) == 1
        for phase in ("policy", "evaluating", "done"):
            add_iteration(world, 2, phase=phase, labels_wanted=3)
            late += judge_next(world, "ann", 1)
        assert loop.advance() == "sampling"  # of iteration 3
        late += judge_next(world, "bob", 1)
        assert trained_on(world, 2) == set(first)
        assert worker_files.labels_in(world, iterations.get(world, 2)) == 8
        labeling(world, 3)
        assert worker_files.labels_in(world, iterations.get(world, 3)) == 0
        assert loop.advance() == "labeling"  # the labels of the round before are not its own
        new = judge_next(world, "bob", 3)
        assert loop.advance() == "reward"
        loop.advance()
        assert trained_on(world, 3) == {*first, *late, *new}
        assert snapshots.new_in(world, 3) == len(late + new) == 8
        assert snapshots.waiting(world, LEARNED_FROM) == 0


def test_a_judgment_that_comes_late_changes_no_verdict_but_the_next(world: Database):
    """Twelve losses against SFT block policy-1, of which half come in while PPO runs."""
    add_iteration(
        world,
        2,
        phase="policy",
        policy_produced=None,
        reward_model="reward-2",
        verdict="provisional",
    )
    compare(world, "policy-1", "sft-1", ["second"] * 6)
    with loop_of(world) as loop:
        loop.advance()
        compare(world, "policy-1", "sft-1", ["second"] * 6)
        assert iterations.get(world, 2).verdict == "provisional"
        add_iteration(world, 2, phase="done", reward_model="reward-2", verdict="provisional")
        loop.advance()
        assert iterations.get(world, 2).verdict == "blocked"
        assert iterations.get(world, 3).policy_sampled == "sft-1"


@pytest.mark.parametrize(("alone", "then"), [(True, "reward"), (False, "labeling")])
def test_training_begins_by_itself_once_the_labels_are_in_where_it_is_asked_to(
    world: Database, alone: bool, then: str
):
    compare(world, "policy-1", "sft-1", ["first"] * 3, iteration=1)  # those were iteration 1's
    with loop_of(world, labeling__auto_train=alone) as loop:
        compare(world, "policy-1", "sft-1", ["first", "tie"])
        assert loop.advance() == "labeling"
        compare(world, "policy-1", "sft-1", ["second"])
        assert loop.advance() == then
        assert loop.state().phase == then


def test_the_reward_stage_is_given_no_held_out_prompts_and_told_which_are_for_auditing(
    world: Database,
):
    compare(world, "policy-1", "sft-1", ["first", "second"])
    compare(world, "policy-1", "sft-1", ["first"], role="held-out")
    [audit] = compare(world, "policy-1", "sft-1", ["first"], role="audit")
    with loop_of(world) as loop:
        loop.train({})
        loop.advance()
        [run] = runs.listing(world)
        given = RunDirectory(world.workspace / run.directory).inputs / "judgments.parquet"
        roles = pd.read_parquet(given).set_index("judgment")["prompt_role"]
        assert roles.pop(audit) == "audit"
        assert list(roles) == ["train", "train"]
    assert worker_files.judgment_counts_by_kind(world, ["person"]) == {
        "used": {"person": 3},
        "left_out": {},
    }


def seed_of(db: Database, number: int, **settings: object) -> int:
    add_iteration(db, number, phase="policy", policy_sampled="policy-1", policy_produced=None)
    with loop_of(db, **settings) as loop:
        loop.advance()
        run = next(r for r in runs.listing(db) if r.iteration == number)
        return RunDirectory(db.workspace / run.directory).job().seed


def test_every_iteration_and_every_seed_draws_anew(world: Database):
    assert len({seed_of(world, 2), seed_of(world, 3), seed_of(world, 4, seed=7)}) == 3


def five_hundred_pairs(folder: Path) -> Path:
    """What the sampling stage leaves in its outputs."""
    prompt = Prompt.make("How many is 1?", role="train").id
    answers = [
        {
            "id": f"a{n}", "prompt": prompt, "policy": "policy-1", "text": f"answer {n}",
            "tokens": 2, "finish_reason": "stop", "temperature": 1.0, "seed": n,
        }
        for n in range(1000)
    ]  # fmt: skip
    pairs = [
        {
            "id": f"x{n}", "prompt": prompt, "first": f"a{2 * n}", "second": f"a{2 * n + 1}",
            "arm": "random",
        }
        for n in range(500)
    ]  # fmt: skip
    pd.DataFrame(answers).to_parquet(folder / "completions.parquet")
    pd.DataFrame(pairs).to_parquet(folder / "comparisons.parquet")
    return folder


def asked_of_two(db: Database, outputs: Path, **settings: Any) -> set[str]:
    """Takes the pairs over; the ids of those that two people are to judge."""
    assert (
        worker_files.import_comparisons_output(db, outputs, iteration=2, seed=0, **settings) == 500
    )
    rows = db.read("SELECT id, wanted FROM comparisons WHERE wanted <> 1")
    assert {row["wanted"] for row in rows} == {2}
    return {row["id"] for row in rows}


def test_about_a_tenth_of_the_pairs_is_asked_of_two(world: Database, tmp_path: Path):
    twice = asked_of_two(world, five_hundred_pairs(tmp_path), run="run-1", overlap=0.1)
    assert 30 <= len(twice) <= 70  # 50 expected, with a standard deviation of 6.7


def test_the_seed_does_not_tell_annotators_which_pairs_are_asked_of_two(tmp_path: Path):
    """They know the ids of their pairs, and may know the seed; they never see the run's id."""
    outputs = five_hundred_pairs(tmp_path)
    drawn: list[set[str]] = []
    for run in ("run-1", "run-2"):
        with Database.open(tmp_path / run) as db:
            prompts.add(db, [Prompt.make("How many is 1?", role="train")])
            drawn.append(asked_of_two(db, outputs, run=run, overlap=0.5))
    # By chance half of the 500 are told right, with a standard deviation of 11.
    assert 200 <= 500 - len(drawn[0] ^ drawn[1]) <= 300


def test_neighboring_seeds_and_iterations_share_no_random_numbers(world: Database):
    seeds = {
        (seed, number): iteration_seed(seed, number) for seed in range(30) for number in range(1, 9)
    }
    assert len(set(seeds.values())) == 240
    # By hand, on every machine: BLAKE2b of the three words, each after its length in 8 bytes.
    words = b"".join(len(word).to_bytes(8, "big") + word for word in (b"iteration", b"3", b"2"))
    found = int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") % 2**31
    assert seeds[3, 2] == found
    current = iterations.get(world, 2)
    job = Preparation(world, current, Config().override({"seed": 3})).job("reward")
    assert job.seed == found
