"""Train is refused while the reward stage could learn nothing, and a failed one can be left for labeling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.studio import Studio
from pipeline.config.sections import Config
from pipeline.loop import budgets
from pipeline.loop.loop import Loop
from pipeline.runs import jobs
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import reward
from storage import worker_files
from storage.engine.database import Database
from storage.labeling import queue
from storage.records import Run
from storage.tables import iterations, models
from storage.tables.runs import runs
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.stage_inputs import give, make_job, make_prompts, tiny_models
from tests.helpers.storage_world import fill
from tests.pipeline.loop.test_retry import directory, rows, stop

TOO_EARLY = {
    "one": (["first"], "All judgments are on one prompt"),
    "three ties": (["tie"] * 3, "None of the 3 judgments prefers a response"),
    "two both bad": (["both_bad"] * 2, "None of the 2 judgments prefers a response"),
}
HELD_OUT = "Every judgment that prefers a response is on a prompt that is held out"


@pytest.fixture
def world(db: Database) -> Database:
    """Iteration 2 is being labeled; nobody has judged anything."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    fill(db, 6, iteration=2)
    add_iteration(db, 2, phase="labeling", policy_produced=None, reward_model=None)
    return db


@pytest.fixture
def loop(world: Database) -> Iterator[Loop]:
    made = Loop(world, Config())
    yield made
    made.advance()
    made.shut_down()


@pytest.mark.usefixtures("dying_workers")
@pytest.mark.parametrize(("outcomes", "says"), TOO_EARLY.values(), ids=TOO_EARLY)
def test_train_is_refused_with_what_is_missing_and_labeling_goes_on(
    loop: Loop, world: Database, outcomes: Any, says: str
):
    compare(world, "policy-1", "sft-1", outcomes)
    assert says in (loop.can_train() or "")
    assert "at least 1 more pair" in (loop.can_train() or "")
    with pytest.raises(ValueError, match=r"at least 1 more pair") as refused:
        loop.train({})
    assert str(refused.value) == loop.can_train()
    assert loop.advance() == "labeling"
    assert queue.lease(world, "ann", 1).pairs
    compare(world, "policy-1", "sft-1", ["second", "first"])
    assert loop.can_train() is None
    loop.train({})
    assert loop.advance() == "reward"


@pytest.mark.usefixtures("dying_workers")
def test_settings_that_hold_out_every_preference_are_refused(loop: Loop, world: Database):
    compare(world, "policy-1", "sft-1", ["first"] + ["tie"] * 9)
    refused = [_refusal(loop, world, seed, share="0.5") for seed in range(20)]
    assert set(refused) - {""} == {HELD_OUT}
    # Half of the prompts are held out: by chance 2 to 18 of 20 seeds, but for once in 25,000 runs.
    assert 2 <= refused.count(HELD_OUT) <= 18


def _refusal(loop: Loop, world: Database, seed: int, *, share: str = "0.9") -> str:
    """The beginning of what "Train" says with this seed; empty where it starts."""
    try:
        loop.train({"seed": str(seed), "reward.held_out_share": share})
    except ValueError as error:
        return str(error)[: len(HELD_OUT)]
    add_iteration(world, 2, phase="labeling", policy_produced=None, reward_model=None)
    return ""


@pytest.mark.usefixtures("dying_workers")
def test_a_full_disk_is_said_before_labeling_is_left(
    loop: Loop, world: Database, monkeypatch: pytest.MonkeyPatch
):
    compare(world, "policy-1", "sft-1", ["first", "second"])
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 10**18)
    with pytest.raises(ValueError, match="GB are left"):
        loop.train({})
    assert iterations.get(world, 2).phase == "labeling"


@pytest.mark.usefixtures("dying_workers")
def test_training_by_itself_waits_until_it_can(world: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(budgets, "SLOW", math.inf)
    config = Config().override({"labeling.auto_train": True})
    add_iteration(
        world, 2, phase="labeling", policy_produced=None, reward_model=None, labels_wanted=2
    )
    loop = Loop(world, config)
    assert loop.label_budget().blocked == "Training cannot start yet. There are no labels yet."
    compare(world, "policy-1", "sft-1", ["tie"] * 3)
    assert loop.advance() == "labeling"
    found = loop.label_budget()
    reason = "Training cannot start yet. None of the 3 judgments prefers a response"
    assert found.blocked.startswith(reason)
    assert found.starts.startswith("Training starts by itself when the labels are in")
    compare(world, "policy-1", "sft-1", ["first", "second"])
    # A budget that was slow to read is kept, but not when a run has been started since.
    monkeypatch.setattr(budgets, "SLOW", 0.0)
    monkeypatch.setattr(budgets, "SHARE", 1e9)
    assert loop.label_budget().starts == "Training starts by itself with 2 labels."
    assert loop.advance() == "reward"
    failed = stop(loop)
    loop.label_more(failed.id)
    # It failed for a reason of its own: a person decides when to train again.
    assert loop.advance() == "labeling"
    found = loop.label_budget()
    assert found.starts == (
        "Training does not start by itself again, because a reward stage has stopped. Press Train when "
        "you are ready."
    )
    assert found.blocked == ""
    loop.shut_down()


@pytest.mark.parametrize(
    "outcomes",
    [["first", "second"], ["first", "tie"], ["second", "both_bad", "tie"], ["first"] * 3],
    ids=" ".join,
)
def test_the_stage_trains_on_whatever_train_accepts(tmp_path: Path, world: Database, outcomes: Any):
    """The smallest sets of judgments that are accepted go through the real stage."""
    compare(world, "policy-1", "sft-1", outcomes)
    loop = Loop(world, Config())
    seed = next(n for n in range(50) if not _refusal(loop, world, n, share="0.15"))
    loop.shut_down()
    given = tmp_path / "given"
    given.mkdir()
    worker_files.write_judgments_input(world, given, iteration=2)
    job = make_job(
        "reward", tiny_models(tmp_path / "models"), seed=seed, reward__members=2,
        reward__epochs=1,
    )  # fmt: skip
    run = RunDirectory.create(tmp_path / "run", job)
    for file in given.iterdir():
        file.rename(run.inputs / file.name)
    give(run, "prompts.parquet", make_prompts(4))
    with Report(run) as report:
        summary = reward.run(job, report, run)
    assert summary.counts.pairs >= 1
    assert summary.counts.held_out_pairs >= 1


# --- the way back -----------------------------------------------------------------------------


@pytest.fixture
def failed(loop: Loop, world: Database) -> Run:
    """The reward stage has failed on two judgments."""
    compare(world, "policy-1", "sft-1", ["first", "second"])
    loop.train({"reward.epochs": "2"})
    return stop(loop)


@pytest.mark.usefixtures("dying_workers")
def test_a_failed_reward_stage_is_left_for_labeling_and_trained_anew(
    loop: Loop, world: Database, failed: Run
):
    first = (directory(world, failed).inputs / "snapshot.txt").read_text()
    loop.label_more(failed.id)
    assert loop.state().blocked is None
    assert loop.advance() == "labeling"
    assert runs.get(world, failed.id) == failed
    compare(world, "policy-1", "sft-1", ["first"])
    assert loop.can_train() is None
    loop.train({})
    assert loop.advance() == "reward"
    again = runs.newest(world, 2, "reward")
    assert again is not None
    assert again.id != failed.id
    assert rows(world, again, "judgments") == 3
    second = (directory(world, again).inputs / "snapshot.txt").read_text()
    members = "SELECT count(*) AS n FROM snapshot_judgments WHERE snapshot = $hash"
    assert [world.read(members, hash=hash)[0]["n"] for hash in (first, second)] == [2, 3]
    # Settings of the first attempt are the iteration's, as after a retry.
    assert again.config["reward"]["epochs"] == 2


@pytest.mark.usefixtures("dying_workers")
def test_the_model_that_comes_of_it_has_the_new_snapshot(loop: Loop, world: Database, failed: Run):
    loop.label_more(failed.id)
    compare(world, "policy-1", "sft-1", ["tie"])
    loop.train({})
    again = stop(loop)
    made = directory(world, again)
    made.model.mkdir()
    made.write_result({})
    runs.save(world, Run(**{**vars(again), "status": "succeeded", "reason": None}))
    assert loop.advance() == "policy"
    snapshot = models.get(world, "reward-2").snapshot
    assert snapshot == (made.inputs / "snapshot.txt").read_text()
    assert models.get(world, "reward-2").run == again.id


@pytest.mark.usefixtures("dying_workers")
def test_only_a_stopped_reward_stage_can_be_left(loop: Loop, world: Database, failed: Run):
    loop.retry(failed.id)
    with pytest.raises(ValueError, match="only a stopped run"):
        loop.label_more(runs.listing(world)[-1].id)
    with pytest.raises(ValueError, match="no longer waits for"):
        loop.label_more(failed.id)
    add_iteration(world, 2, phase="policy", policy_produced=None, reward_model="reward-2")
    ppo = stop(loop)
    with pytest.raises(ValueError, match="does not learn from labels"):
        loop.label_more(ppo.id)
    assert iterations.get(world, 2).phase == "policy"


@pytest.mark.usefixtures("dying_workers")
def test_the_command_line_goes_the_same_way(tmp_path: Path):
    place = tmp_path / "workspace"
    with Database.open(place) as db:
        add_models(db, policies=1)
        fill(db, 3, iteration=1)
    studio = Studio(place, Config())
    try:
        compare(studio.db, "policy-1", "sft-1", ["first"], iteration=1)
        with pytest.raises(ValueError, match="at least 1 more pair"):
            studio.call("train", overrides={})
        compare(studio.db, "policy-1", "sft-1", ["first"], iteration=1)
        studio.call("train", overrides={})
        for _ in range(2):
            studio.call("advance")
        assert "label-more" in studio.call("status")["trouble"]
        studio.call("label-more")
        assert studio.call("status")["iteration"]["phase"] == "labeling"
    finally:
        studio.close()
