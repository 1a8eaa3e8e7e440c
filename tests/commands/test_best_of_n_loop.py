"""An iteration with best-of-N, from the labels to the pairs of the next iteration."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.simulate import stop_workers
from commands.studio import server_for
from pipeline.config.sections import CONFIGS
from pipeline.models.best_of_n import best_of_n_kl, manifest_of
from storage.engine.database import Database
from storage.reports import Evaluation, from_json
from storage.tables import iterations, models
from tests.commands.test_live_loop import client, label, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_best_of_n_policy_is_made_evaluated_sampled_and_compared(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    sets = [
        "optimize.method=best-of-n",
        "optimize.best_of=4",
        "labeling.labels=24",
        "worker.nice=0",
    ]
    with server_for(workspace, [CONFIGS / "tiny.toml"], sets) as remote:
        wait_for(remote, "labeling", 1)
        with client(remote, "Ann") as ann:
            label(ann, 24)
        remote.call("train", overrides={})
        wait_for(remote, "labeling", 2)
        gate = remote.call("gate")
    stop_workers(workspace)
    with Database.open(workspace) as db:
        policy = models.get(db, "policy-1")
        evaluation = from_json(Evaluation, iterations.get(db, 1).evaluation)
        sampled = db.read("SELECT DISTINCT policy FROM completions WHERE prompt IN "
                          "(SELECT prompt FROM comparisons WHERE iteration = 2)")  # fmt: skip
        arms = db.read("SELECT DISTINCT arm FROM comparisons WHERE iteration = 2")
    assert policy.summary["method"] == "best-of-n"
    assert (policy.parent, policy.reward_model) == ("sft-1", "reward-1")
    manifest = manifest_of(workspace / policy.path)
    assert manifest is not None
    assert (manifest.n, manifest.reward_model) == (4, "reward-1")
    assert evaluation.policy.kl_is_bound
    assert evaluation.policy.kl == pytest.approx(best_of_n_kl(4))
    assert (evaluation.policy.reward or 0) > (evaluation.reference.reward or 0)
    assert "policy-1" in {row["policy"] for row in sampled}
    # People compare it with SFT, so the gate can decide on it.
    assert "reference" in {row["arm"] for row in arms}
    assert [each["policy"] for each in gate["policies"]] == ["policy-1"]
