"""What a policy's own reward model expects of the pairs that people judge it by."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.reward.network import load_network
from pipeline.reward.predictions import expected_outcome, predict
from pipeline.runs.rundir import Report, RunDirectory
from storage.engine.database import Database
from storage.records import new_id
from storage.tables import policy_judgments
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.stage_inputs import make_job, make_prompts, tiny_models_and_reward


def expected(d: float, theta: float, tie_model: Any = "rao_kupper") -> float:
    each = torch.tensor([d], dtype=torch.float64)
    return expected_outcome(each, theta=theta, tie_model=tie_model).item()


def test_expected_outcome_by_hand():
    assert expected(0.0, 0.7) == pytest.approx(0.5, abs=1e-12)
    assert expected(math.log(3), 1e-9) == pytest.approx(0.75)
    # σ(1 − .5) = .622459, σ(−1 − .5) = .182426: ½ (1 + .622459 − .182426) = .720017.
    assert expected(1.0, 0.5) == pytest.approx(0.720017, abs=1e-6)
    assert expected(-1.0, 0.5) == pytest.approx(1 - 0.720017, abs=1e-6)
    assert expected(900.0, 0.5) == 1.0
    # Without ties in the model: σ(log 3) = ¾ whatever θ.
    assert expected(math.log(3), 0.5, "drop") == pytest.approx(0.75)


def test_the_policys_own_reward_model_predicts(tmp_path: Path):
    models = tiny_models_and_reward(tmp_path / "models")
    job = make_job("reward", models)
    job = replace(job, models=job.models | {"proxy": models["reward"]})
    directory = RunDirectory.create(tmp_path / "run", job)
    pairs = [
        {"comparison": f"c-{i}", "messages": row["messages"], "first_text": first,
         "second_text": second}
        for i, (row, first, second) in enumerate(
            zip(make_prompts(3), ("a", "same", "b"), ("b", "same", "a"), strict=True)
        )
    ]  # fmt: skip
    with Report(directory) as report:
        assert predict(job, report, directory, device=torch.device("cpu")) == 0
        assert not (directory.outputs / "predictions.parquet").exists()
        pd.DataFrame(pairs).to_parquet(directory.inputs / "evaluation_pairs.parquet")
        assert predict(job, report, directory, device=torch.device("cpu")) == 3
        found = pd.read_parquet(directory.outputs / "predictions.parquet").to_dict("records")
        assert [row["comparison"] for row in found] == ["c-0", "c-1", "c-2"]
        assert found[1]["first"] == pytest.approx(0.5, abs=1e-12)
        gap = found[0]["first_score"] - found[0]["second_score"]
        assert gap != 0
        theta = load_network(models["reward"]).ties().item()
        assert found[0]["first"] == pytest.approx(expected(gap, theta))
        # A reward model that is gone is a warning, not the end of a stage that has trained.
        gone = replace(job, models=job.models | {"proxy": models["reference"]})
        assert predict(gone, report, directory, device=torch.device("cpu")) == 0
    assert "no predictions for the over-optimization alarm" in directory.events.read_text()


def test_only_pairs_of_the_random_stream_are_predicted(db: Database, tmp_path: Path):
    add_models(db, policies=1)
    add_iteration(db, 2)
    wanted = [
        compare(db, "policy-1", "sft-1", ["first"], arm=arm)[0]
        for arm in ("random", "previous", "reference")
    ]
    for arm in ("bald", "uncertainty", "d_optimal", "imported"):
        compare(db, "policy-1", "sft-1", ["first"], arm=arm)
    compare(db, "policy-1", "policy-1", ["first"], arm="random")
    compare(db, "policy-1", "sft-1", ["first"], iteration=1)
    assert policy_judgments.write_pairs_input(db, tmp_path, iteration=2, proxy=None) == 0
    assert policy_judgments.write_pairs_input(db, tmp_path, iteration=2, proxy="reward-1") == 3
    given = set(pd.read_parquet(tmp_path / "evaluation_pairs.parquet")["comparison"])
    of = {row["id"]: row["comparison"] for row in db.read("SELECT id, comparison FROM judgments")}
    assert given == {of[id] for id in wanted}


def test_predictions_are_stored_once(db: Database, tmp_path: Path):
    add_models(db, policies=1)
    add_iteration(db, 1)
    compare(db, "policy-1", "sft-1", ["first"])
    comparison = policy_judgments.judged(db)[0].comparison
    row = {"comparison": comparison, "first": 0.7, "first_score": 1.0, "second_score": 0.5}
    for first in (0.7, 0.2):  # the stage run again scores a little differently: the first stands
        pd.DataFrame([row | {"first": first}]).to_parquet(tmp_path / "predictions.parquet")
        policy_judgments.import_predictions_output(db, tmp_path, proxy="reward-1")
    assert policy_judgments.judged(db)[0].predicted == 0.7
    assert (
        policy_judgments.import_predictions_output(db, tmp_path / new_id(), proxy="reward-1") == 0
    )
