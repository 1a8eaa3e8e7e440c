"""Sharing prompts out between the random stream and what a reward model chooses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.sections import Config
from pipeline.loop.stage_inputs import Preparation
from storage import worker_files
from storage.allocation import Allocation, PromptUsage, allocate_prompts
from storage.engine.database import Database
from storage.records import RANDOM_STREAM, Iteration, Prompt, new_id
from storage.tables import prompts as stored
from tests.helpers.policy_world import add_iteration, add_models
from tests.helpers.stage_inputs import rows_of
from tests.helpers.storage_world import fill

PROMPTS = [f"p{i}" for i in range(200)]


def plan(prompts: list[str] = PROMPTS, **changes: Any) -> list[Allocation]:
    settings: dict[str, Any] = {
        "pairs": 100,
        "shares": {"reference": 0.15, "previous": 0.25},
        "chosen": ("bald", 0.5),
        "prompts_per_pair": 2.0,
        "used": PromptUsage(),
        "seed": 0,
    }
    return allocate_prompts(prompts, **settings | changes)


def pairs_by_arm(rows: list[Allocation]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.arm] += row.pairs
    return dict(counts)


def test_every_arm_gets_its_share_and_the_chosen_one_spare_prompts():
    rows = plan()
    assert pairs_by_arm(rows) == {"reference": 15, "previous": 25, "random": 10, "bald": 50}
    pool = [row for row in rows if row.arm == "bald"]
    assert Counter(row.pairs for row in pool) == {1: 50, 0: 50}
    assert len({row.prompt for row in rows}) == len(rows) == 150


def test_the_chosen_part_takes_what_the_stream_leaves():
    assert pairs_by_arm(plan(chosen=("bald", 1.0))) == {
        "reference": 15, "previous": 25, "bald": 60
    }  # fmt: skip
    assert pairs_by_arm(plan(shares={"reference": 0.8})) == {"reference": 80, "bald": 20}
    assert pairs_by_arm(plan(chosen=None, shares={})) == {"random": 100}


def test_arms_fall_on_prompts_by_chance():
    # Over seeds, every prompt meets the stream and the reward model about equally often.
    met: dict[str, Counter[str]] = {prompt: Counter() for prompt in PROMPTS}
    for seed in range(300):
        for row in plan(shares={}, pairs=200, prompts_per_pair=1.0, seed=seed):
            met[row.prompt][row.arm] += row.pairs
    counts = [count["bald"] for count in met.values()]
    # 150 expected, standard deviation 8.7: five of those either way.
    assert min(counts) > 106
    assert max(counts) < 194


def test_what_the_model_chose_does_not_decide_what_it_is_measured_on():
    chosen_before = dict.fromkeys(PROMPTS[:100], 1)
    fresh, later = plan(), plan(used=PromptUsage(all=chosen_before))
    stream = [[row for row in rows if row.arm in RANDOM_STREAM] for rows in (fresh, later)]
    assert stream[0] == stream[1]
    # The reward model itself is not shown the same prompts again while there are others.
    pools = [{row.prompt for row in rows if row.arm == "bald"} for rows in (fresh, later)]
    assert len(pools[1] & set(PROMPTS[:100])) < len(pools[0] & set(PROMPTS[:100]))


def test_prompts_least_compared_in_the_stream_come_first():
    used = dict.fromkeys(PROMPTS[:150], 1)
    rows = plan(used=PromptUsage(all=used, stream=used))
    assert {r.prompt for r in rows if r.arm in RANDOM_STREAM} == set(PROMPTS[150:])


def test_fewer_prompts_than_pairs_are_parted_and_the_stream_goes_round():
    rows = plan(PROMPTS[:30], shares={})
    pool = {row.prompt for row in rows if row.arm == "bald"}
    stream = {row.prompt: row.pairs for row in rows if row.arm == "random"}
    assert len(pool) == len(stream) == 15
    assert not pool & stream.keys()
    assert pairs_by_arm(rows) == {"bald": 15, "random": 85}
    assert set(stream.values()) == {5, 6}  # 85 over 15 prompts
    assert pairs_by_arm(plan(PROMPTS[:1], shares={})) == {"random": 100}
    assert pairs_by_arm(plan(PROMPTS[:4], shares={}, chosen=("bald", 1.0))) == {
        "bald": 2, "random": 98
    }  # fmt: skip


def test_without_a_choosing_arm_no_prompt_is_asked_twice_before_all_are_asked_once():
    rows = plan(PROMPTS[:40], chosen=None, shares={})
    assert Counter(Counter({r.prompt: r.pairs for r in rows}).values()) == {2: 20, 3: 20}


def test_the_plan_is_written_with_what_the_workspace_has_compared(tmp_path: Path):
    with Database.open(tmp_path / "workspace") as db:
        fill(db, pairs=3)
        asked = stored.listing(db, role="train")
        stored.add(db, [Prompt.make(f"new {i}?", role="train") for i in range(3)])
        inputs = tmp_path / "inputs"
        inputs.mkdir()
        worker_files.write_sampling_plan_input(
            db, inputs, pairs=4, shares={}, chosen=("bald", 0.25), prompts_per_pair=2.0, seed=0
        )
        rows = rows_of(inputs / "prompts.parquet")
    stream = {row["id"] for row in rows if row["arm"] == "random"}
    assert len(stream) == 3
    assert not stream & {prompt.id for prompt in asked}  # they are in the stream already
    assert Counter(row["pairs"] for row in rows if row["arm"] == "bald") == {1: 1, 0: 1}


def test_who_is_asked_hangs_on_the_seed_and_on_the_iteration(db: Database, tmp_path: Path):
    add_models(db, policies=3)
    for number in (1, 2, 3):
        add_iteration(db, number)

    def asked(number: int, seed: int) -> set[str]:
        config = Config().override({"seed": seed})
        current = Iteration(number=number, labels_wanted=5)
        inputs = tmp_path / new_id("inputs")
        inputs.mkdir()
        Preparation(db, current, config).fill("sampling", inputs)
        return {row["id"] for row in rows_of(inputs / "prompts.parquet")}

    assert asked(3, 0) == asked(3, 0)
    # Of 40 prompts some 12 are asked; two draws are the same once in billions.
    assert asked(3, 0) != asked(4, 0)
    assert asked(3, 0) != asked(3, 9)


def test_by_default_no_reward_model_chooses_pairs(db: Database, tmp_path: Path):
    add_models(db, policies=2)
    add_iteration(db, 1)
    current = add_iteration(db, 2, phase="sampling", labels_wanted=22)
    prepared = Preparation(db, current, Config())
    assert prepared.job("sampling").names["reward"] is not None  # it could choose
    prepared.fill("sampling", tmp_path)
    rows = rows_of(tmp_path / "prompts.parquet")
    assert {row["arm"] for row in rows} == {"random", "reference"}
    # 1.3 · 22/1.1 pairs, and no spare prompt.
    assert sum(row["pairs"] for row in rows) == 26
    assert min(row["pairs"] for row in rows) == 1


def test_a_workspace_without_train_prompts_is_told_what_to_do(tmp_path: Path):
    with (
        Database.open(tmp_path / "workspace") as db,
        pytest.raises(ValueError, match="import some"),
    ):
        worker_files.write_sampling_plan_input(
            db, tmp_path, pairs=4, shares={}, chosen=None, prompts_per_pair=1.0, seed=0
        )
