"""A run's settings, and what changed since the run of its kind before it."""

from __future__ import annotations

from typing import Any

from storage.records import Run
from storage.tables.runs.run_settings import (
    Changed,
    changed,
    changed_in_all,
    difference,
    run_before,
    settings_of,
)


def run(id: str, stage: Any = "policy", **config: Any) -> Run:
    return Run(
        id=id, stage=stage, iteration=1, status="succeeded", directory=f"runs/{id}", config=config
    )


FIRST = run("a", seed=1, ppo={"lr": 1e-6, "updates": 20}, optimize={"method": "ppo"})
REWARD = run("b", "reward", seed=5, ppo={"lr": 3e-6})
OTHER = run("c", seed=1, ppo={"lr": 9e-6}, optimize={"method": "dpo"})
LAST = run("d", seed=1, ppo={"lr": 2e-6, "updates": 20, "gamma": 1.0}, optimize={"method": "ppo"})
RUNS = [FIRST, REWARD, OTHER, LAST]


def test_settings_are_named_as_on_the_command_line() -> None:
    assert settings_of(FIRST) == {
        "seed": 1, "ppo.lr": 1e-6, "ppo.updates": 20, "optimize.method": "ppo",
    }  # fmt: skip
    # A value may be a table itself.
    shaped = run("e", shaping={"weights": {"length": -1.0}})
    assert settings_of(shaped) == {"shaping.weights": {"length": -1.0}}


def test_a_run_is_compared_with_the_one_of_its_method_before_it() -> None:
    assert run_before(RUNS, LAST) == FIRST
    assert run_before(RUNS, FIRST) is None
    assert run_before(RUNS, REWARD) is None


def test_what_changed_is_named_with_both_values() -> None:
    assert changed(RUNS, LAST) == [
        Changed(name="ppo.lr", before=1e-6, now=2e-6),
        Changed(name="ppo.gamma", before=None, now=1.0),
    ]
    assert changed(RUNS, FIRST) == []
    assert changed([LAST, FIRST], FIRST) == [
        Changed(name="ppo.lr", before=2e-6, now=1e-6),
        Changed(name="ppo.gamma", before=1.0, now=None),
    ]


def test_runs_without_settings_are_not_compared() -> None:
    adopted = run("x")
    assert changed([FIRST, adopted], adopted) == []
    assert run_before([FIRST, adopted, LAST], LAST) == FIRST


def test_a_stage_lists_only_what_it_reads() -> None:
    before = run("a", "reward", reward={"lr": 1e-5}, ppo={"lr": 1e-6, "temperature": 1.0}, evaluate={"beams": 1})  # fmt: skip
    now = run("b", "reward", reward={"lr": 2e-5}, ppo={"lr": 2e-6, "temperature": 0.7}, evaluate={"beams": 4})  # fmt: skip
    read = ["reward.lr", "ppo.temperature"]
    assert [each.name for each in changed([before, now], now)] == read
    assert [each.name for each in changed_in_all([before, now])["b"]] == read
    assert [each.name for each in difference(before.config, now.config)] == [
        "reward.lr", "ppo.lr", "ppo.temperature", "evaluate.beams",
    ]  # fmt: skip
