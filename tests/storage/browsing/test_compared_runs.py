"""Runs beside each other: last figures, changed settings, curves, times and flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from storage.browsing.runs import MOST_COMPARED, compare, summaries
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import Iteration, Metric, Run, RunNote
from storage.tables import iterations
from storage.tables.runs import runs

POLICY = Run(
    id="run-a", stage="policy", iteration=1, status="succeeded", directory="runs/run-a",
    config={"ppo": {"kl_weight": 0.1, "lr": 1e-5}},
)  # fmt: skip


def metric(run: str, seq: int, step: int, name: str, value: float) -> Metric:
    return Metric(run=run, seq=seq, step=step, name=name, value=value)


@pytest.fixture
def db(tmp_path) -> Iterator[Database]:
    with Database.open(tmp_path / "place") as db:
        iterations.save(
            db, Iteration(number=1, phase="done", labels_wanted=1, policy_produced="p-1")
        )
        run = runs.save(db, POLICY)
        later = {"ppo": {"kl_weight": 0.2, "lr": 1e-5}}
        runs.save(db, replace(POLICY, id="run-b", iteration=2, directory="runs/b", config=later))
        runs.save(db, replace(POLICY, id="run-r", stage="reward", directory="runs/r", config=later))
        told = [
            metric("run-a", 1, 1, "reward/mean", 0.5), metric("run-a", 2, 2, "reward/mean", 0.9),
            metric("run-a", 3, 2, "reward/mean", 0.7),  # step 2 was repeated after a resume
            metric("run-a", 4, 1, "kl/reference", 1.0), metric("run-a", 5, 2, "kl/reference", 3.0),
            metric("run-a", 6, 1, "speed/rollout_seconds", 2.0),
            metric("run-a", 7, 1, "speed/update_seconds", 3.0),
            metric("run-a", 8, 2, "speed/rollout_seconds", 4.0),
        ]  # fmt: skip
        flag = {"run": "run-a", "kind": "flag", "name": "kl_high", "message": "KL is 3.0."}
        notes = [RunNote(seq=9, step=2, **flag), RunNote(seq=10, step=3, **flag)]
        runs.ingest(db, replace(run, ingested_seq=10), told, notes)
        yield db


def test_a_run_is_listed_with_its_last_figures_and_what_changed(db):
    listed = {run.id: run for run in summaries(db)}
    assert [*listed] == ["run-r", "run-b", "run-a"]  # the newest first
    first = listed["run-a"]
    assert (first.reward, first.kl, first.flags, first.policy) == (0.7, 3.0, 1, "p-1")
    assert (first.changed, listed["run-b"].changed) == ({}, {"ppo.kl_weight": 0.2})
    assert (listed["run-b"].reward, listed["run-b"].flags) == (None, 0)
    assert (listed["run-r"].method, listed["run-r"].policy) == ("", None)


def last(db: Database) -> dict[str, dict[str, float]]:
    return runs.last_values(db, ["reward/mean", "kl/reference"])


def test_last_figures_follow_new_events_and_a_new_attempt(db):
    assert last(db) == {"run-a": {"reward/mean": 0.7, "kl/reference": 3.0}}
    run = runs.get(db, "run-a")
    later = [metric("run-a", 11, 3, "reward/mean", 1.5), metric("run-a", 12, 1, "kl/reference", 9)]
    runs.ingest(db, replace(run, ingested_seq=12), later, [])
    assert last(db)["run-a"] == {"reward/mean": 1.5, "kl/reference": 3.0}  # of the last step
    # A checkpoint of step 1: what came after it is dropped, and the figures of step 1 are the last.
    again = runs.save(db, replace(runs.get(db, "run-a"), attempt=2))
    runs.ingest(db, replace(again, ingested_seq=4), [], [], replace_from=5)
    assert last(db)["run-a"] == {"reward/mean": 0.7, "kl/reference": 1.0}
    runs.ingest(db, replace(again, ingested_seq=0), [], [], replace_from=0)
    assert last(db) == {}


def test_repeated_events_change_no_last_figure(db):
    again = [metric("run-a", 1, 1, "reward/mean", 0.5), metric("run-a", 4, 1, "kl/reference", 1.0)]
    runs.ingest(db, replace(runs.get(db, "run-a"), ingested_seq=10), again[:1], [])
    runs.ingest(db, replace(runs.get(db, "run-a"), ingested_seq=10), again[1:], [])
    assert last(db) == {"run-a": {"reward/mean": 0.7, "kl/reference": 3.0}}


def test_curves_have_one_value_a_step_times_add_up_and_flags_have_their_steps(db):
    found = compare(db, ["run-b", "run-a"])
    assert [run.run for run in found.runs] == ["run-b", "run-a"]
    assert found.metrics == [
        "kl/reference", "reward/mean", "speed/rollout_seconds", "speed/update_seconds",
    ]  # fmt: skip
    empty, run = found.runs
    assert (empty.curves, empty.seconds.steps, empty.flags) == ({}, [], [])
    assert (run.curves["reward/mean"].steps, run.curves["reward/mean"].values) == (
        [1, 2],
        [0.5, 0.7],
    )
    assert (run.seconds.steps, run.seconds.values) == ([1, 2], [5.0, 9.0])
    assert [(flag.step, flag.name) for flag in run.flags] == [(2, "kl_high"), (3, "kl_high")]
    assert compare(db, ["run-a"], ["kl/reference"]).runs[0].curves.keys() == {"kl/reference"}


def test_a_long_curve_is_thinned_and_keeps_its_last_step(db):
    run = runs.get(db, "run-b")
    told = [metric("run-b", i, i, "reward/mean", float(i)) for i in range(1, 101)]
    runs.ingest(db, replace(run, ingested_seq=100), told, [])
    curve = compare(db, ["run-b"], points=10).runs[0].curves["reward/mean"]
    assert curve.steps == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert curve.values == [float(step) for step in curve.steps]


def test_refusals_say_what_is_possible(db):
    with pytest.raises(ValueError, match=f"between 1 and {MOST_COMPARED} runs; 0 were named"):
        compare(db, [])
    with pytest.raises(ValueError, match="11 were named"):
        compare(db, [f"run-{i}" for i in range(11)])
    with pytest.raises(ValueError, match="each run may be named once"):
        compare(db, ["run-a", "run-a"])
    with pytest.raises(NotFound, match="there is no run 'run-z'"):
        compare(db, ["run-a", "run-z"])
