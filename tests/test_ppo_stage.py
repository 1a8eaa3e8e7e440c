"""The PPO stage: shaping beside the reward model, and what it reports."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pipeline import ppo_stage
from pipeline.ppo.checkpoint import list_checkpoints, load_checkpoint
from pipeline.rundir import Report, RunDirectory
from storage import handover, prompts
from storage.database import Database
from storage.records import Prompt
from tests.stage_inputs import first_update, make_job, tiny_models_and_reward


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def test_components_are_logged_apart_and_summed_by_weight(models, tmp_path):
    weights = {"length": -3.0, "format": 0.5}
    shaped = first_update(
        models, tmp_path / "a", shaping__weights=weights, shaping__reward_weight=2.0
    )
    assert shaped["reward/mean"] == pytest.approx(
        2 * shaped["reward/score"] - 3 * shaped["reward/length"] + 0.5 * shaped["reward/format"]
    )
    assert shaped["reward/length"] > 0
    plain = first_update(models, tmp_path / "b")
    assert plain["reward/score"] == shaped["reward/score"] == pytest.approx(plain["reward/mean"])


def test_a_floor_raises_low_scores(models, tmp_path):
    plain = first_update(models, tmp_path / "a")
    floor = plain["reward/mean"]
    floored = first_update(models, tmp_path / "b", shaping__floor=floor)
    assert floored["reward/min"] == pytest.approx(floor)
    assert floored["reward/max"] == plain["reward/max"]


def test_an_unknown_component_is_refused_before_anything_is_sampled(models, tmp_path):
    with pytest.raises(ValueError, match="no shaping component 'repetitions'"):
        first_update(models, tmp_path / "a", shaping__weights={"repetitions": -1.0})


def category_counts(models: dict[str, str], path: Path, *, without: str = "") -> dict[str, int]:
    """Returns that each category's mean is of, after every prompt was answered once."""
    job = make_job("ppo", models, ppo__updates=2, ppo__rollouts=4, ppo__baseline="category_mean")
    directory = RunDirectory.create(path / "run", job)
    categories = ["sums"] * 5 + ["poems"] * 2 + [""]
    made = [Prompt.make(f"Say {i}", role="train", category=c) for i, c in enumerate(categories)]
    with Database.open(path / "workspace") as db:
        prompts.add(db, made)
        handover.give_prompts(db, directory.inputs, role="train")
    if without:
        file = directory.inputs / "prompts.parquet"
        pd.read_parquet(file).drop(columns=without).to_parquet(file, index=False)
    with Report(directory) as report:
        ppo_stage.run(job, report, directory)
    last = load_checkpoint(list_checkpoints(directory.checkpoint / "checkpoints")[-1])
    return {name: count for name, (count, _) in last["category_means"].items()}


def test_returns_are_compared_with_those_of_the_prompts_own_category(models, tmp_path):
    assert category_counts(models, tmp_path) == {"sums": 5, "poems": 2, "": 1}


def test_inputs_that_name_no_categories_are_of_one(models, tmp_path):
    assert category_counts(models, tmp_path, without="category") == {"": 8}
