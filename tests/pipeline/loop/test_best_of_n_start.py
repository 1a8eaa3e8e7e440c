"""What the loop gives the policy stage when best-of-N is the method, or was it before."""

from __future__ import annotations

import pytest

from pipeline.config.sections import Config
from pipeline.loop.stage_inputs import Preparation
from pipeline.models.best_of_n import Manifest
from storage.engine.database import Database
from storage.records import Iteration, ModelVersion
from storage.tables import iterations, models


@pytest.fixture
def current(db: Database) -> Iteration:
    """The second iteration, whose sampled policy is the best of 4 samples."""
    path = db.workspace / "models" / "policy-1"
    Manifest(n=4, reference="sft-1", reward_model="reward-1").write(path)
    models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
    models.add(db, ModelVersion(id="reward-1", role="reward", name="R", path="demo"))
    models.add(
        db,
        ModelVersion(id="policy-1", role="policy", name="P", path="models/policy-1", iteration=1),
    )
    iterations.save(db, Iteration(number=1, phase="done", policy_produced="policy-1"))
    return iterations.save(
        db,
        Iteration(number=2, phase="policy", policy_sampled="policy-1", reward_model="reward-1"),
    )


def prepared(db: Database, current: Iteration, **settings: str) -> Preparation:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return Preparation(db, current, Config().override(given))


@pytest.mark.parametrize("method", ["ppo", "rloo", "dpo"])
def test_nothing_is_trained_from_a_policy_without_weights(
    db: Database, current: Iteration, method: str
) -> None:
    asked = prepared(db, current, ppo__start_from="previous", optimize__method=method)
    with pytest.raises(ValueError, match=r"best of 4 samples of sft-1.*set ppo\.start_from=sft"):
        asked.require_models("policy")
    prepared(db, current, ppo__start_from="sft", optimize__method=method).require_models("policy")


def test_best_of_n_always_starts_from_the_reference(db: Database, current: Iteration) -> None:
    asked = prepared(db, current, ppo__start_from="previous", optimize__method="best-of-n")
    asked.require_models("policy")
    job = asked.job("policy")
    assert job.names["policy"] == job.names["reference"] == "sft-1"
    assert job.kind == "best-of-n"
