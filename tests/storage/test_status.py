"""The state of a workspace at a glance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from commands.data import show
from storage.commands import Commands
from storage.engine.database import Database
from storage.records import (
    Annotator,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    ModelVersion,
    Prompt,
    Run,
    Withdrawal,
)
from storage.reports import to_json
from storage.status import status
from storage.tables import iterations
from storage.tables.runs import runs


def judgment(id: str, comparison: str, annotator: str, **more: Any) -> Judgment:
    return Judgment(
        id=id,
        comparison=comparison,
        annotator=annotator,
        outcome="first",
        shown_swapped=False,
        **more,
    )


def labeled() -> Iterator[Any]:
    """Iteration 1 done with one judged pair, iteration 2 at two of its ten labels."""
    yield Annotator(id="a", name="Ann")
    yield Annotator(id="b", name="Bot", kind="simulated")
    yield Annotator(id="r", name="Researcher", role="researcher")
    yield from (Prompt.make(f"q{n}", role=role) for n, role in enumerate(["train", "train", "sft"]))
    for n, (iteration, arm) in enumerate([(1, "random"), (2, "bald"), (2, "random")]):
        for side in ("f", "s"):
            yield Completion(id=f"{side}{n}", prompt="p", policy="sft-0", text=side)
        yield Comparison(
            id=f"c{n}", prompt="p", first=f"f{n}", second=f"s{n}", iteration=iteration, arm=arm
        )
    yield judgment("j0", "c0", "a")
    yield judgment("j1", "c1", "a")
    yield judgment("j2", "c1", "b", edit="better")
    yield judgment("j3", "c2", "b", edit="withdrawn with its revision")
    yield judgment("j4", "c2", "b", replaces="j3")
    yield Withdrawal(id="w", replaces="j4", annotator="b")


def test_an_empty_workspace_has_a_status(db: Database) -> None:
    assert to_json(status(db)) == {
        "judgments": 0,
        "comparisons": 0,
        "annotators": 0,
        "judgments_by_kind": {},
        "edits": 0,
        "agreement": {
            "items": 0,
            "percent": None,
            "percent_interval": None,
            "alpha": None,
            "alpha_interval": None,
            "alpha_ordinal": None,
            "alpha_ordinal_interval": None,
            "kappas": [],
        },
        "checks": {
            "gold_pairs": 0,
            "gold_candidates": 0,
            "practice_pairs": 0,
            "practice_asked": False,
            "gold": {"answered": 0, "matched": 0, "share": None, "interval": None},
            "reask": {"answered": 0, "matched": 0, "share": None, "interval": None},
            "annotators": [],
        },
        "prompts": {},
        "iteration": None,
        "policy": None,
        "reward_model": None,
        "runs": [],
        "resources": None,
        "trouble": None,
        "label_budget": None,
    }


def test_labels_are_counted_as_they_stand(db: Database) -> None:
    db.write(lambda tx: tx.store(*labeled()))
    db.write(lambda tx: tx.store(Iteration(number=1, phase="done")))
    db.write(lambda tx: tx.store(Iteration(number=2, phase="labeling", labels_wanted=10)))
    found = to_json(status(db))
    assert json.loads(json.dumps(found)) == found
    assert (found["judgments"], found["comparisons"], found["annotators"]) == (3, 3, 2)
    assert found["judgments_by_kind"] == {"person": 2, "simulated": 1}
    assert found["edits"] == 1
    kappa = {"annotators": ["Ann", "Bot"], "kappa": None, "interval": None, "items": 1}
    assert found["agreement"]["kappas"] == [kappa]
    assert found["prompts"] == {"train": 2, "sft": 1}
    assert found["iteration"] == {
        "number": 2,
        "phase": "labeling",
        "method": "PPO",
        "labels_wanted": 10,
        "labels": 2,
        "labels_by_arm": {"bald": 2},
        "verdict": None,
    }


def test_the_models_in_use_and_the_runs_of_the_iteration(db: Database) -> None:
    def store(*records: Any) -> None:
        db.write(lambda tx: tx.store(*records))

    store(ModelVersion(id="sft-0", role="sft", name="demo"))
    assert to_json(status(db))["policy"] == {"id": "sft-0", "name": "demo", "role": "sft"}
    store(
        ModelVersion(id="policy-1", role="policy", name="policy-1"),
        ModelVersion(id="policy-2", role="policy", name="policy-2"),
        ModelVersion(
            id="reward-1", role="reward", name="r", iteration=1, summary={"accuracy": 0.5}
        ),
        ModelVersion(
            id="reward-2",
            role="reward",
            name="r",
            iteration=2,
            summary={"accuracy": 0.75, "log_loss": 0.6, "theta": 0.3},
        ),
        Iteration(number=2, phase="policy", policy_sampled="policy-1", reward_model="reward-2"),
        Run(id="run-1", stage="policy", iteration=1, status="succeeded", directory="runs/run-1"),
        Run(
            id="run-2",
            stage="policy",
            iteration=2,
            status="failed",
            directory="runs/run-2",
            reason="no space left",
            progress=0.4,
        ),
    )
    found = to_json(status(db))
    # What the iteration says beats what was made last.
    assert found["policy"]["id"] == "policy-1"
    assert found["reward_model"] == {
        "id": "reward-2",
        "iteration": 2,
        "accuracy": 0.75,
        "log_loss": 0.6,
        "ece": None,
        "held_out_preferences": None,
    }
    assert found["runs"] == [
        {
            "id": "run-2",
            "stage": "policy",
            "name": "PPO",
            "iteration": 2,
            "status": "failed",
            "attempt": 1,
            "progress": 0.4,
            "message": "",
            "reason": "no space left",
        }
    ]


def test_the_running_stage_shows_the_devices_and_memory_that_it_uses(db: Database) -> None:
    running = Run(id="run-2", stage="policy", iteration=2, status="running", directory="runs/run-2")
    earlier = Run(
        id="run-1", stage="reward", iteration=2, status="succeeded", directory="runs/run-1"
    )
    db.write(lambda tx: tx.store(Iteration(number=2, phase="policy"), earlier, running))
    sample = {
        "time": 1.0, "cpu": 1.5, "memory": 10, "cores": 16, "total": 100, "available": 60,
        "gpus": [{"name": "H100", "memory": 30, "total": 80, "utilisation": 0.5}],
    }  # fmt: skip
    for run, cpu in ((earlier, 9.0), (running, 1.5)):
        (db.workspace / run.directory).mkdir(parents=True)
        file = db.workspace / run.directory / "resources.jsonl"
        file.write_text(json.dumps(sample | {"cpu": cpu}) + "\n")
    assert to_json(status(db))["resources"] == {
        "samples": 1, "cpu": 1.5, "mean_cpu": 1.5, "memory": 10, "peak": 10, "cores": 16,
        "total": 100, "available": 60,
        "gpus": [{"name": "H100", "memory": 30, "total": 80, "peak": 30, "utilisation": 0.5}],
    }  # fmt: skip
    runs.save(db, replace(running, status="succeeded"))
    assert to_json(status(db))["resources"] is None


def test_the_command_prints_each_alpha_with_its_interval(capsys) -> None:
    found = {"agreement": {"alpha": 0.41237, "alpha_interval": [0.30051, 0.5], "kappas": []}}
    show(found, as_json=False)
    printed = capsys.readouterr().out
    assert "  alpha: 0.4124\n  alpha_interval: 0.3005 to 0.5\n  kappas: –" in printed
    show(found, as_json=True)
    assert json.loads(capsys.readouterr().out) == found


def test_rows_that_hold_more_than_figures_are_printed_as_blocks(capsys) -> None:
    show({"iterations": [{"number": 1, "gold": {"sft": 0.5}}, {"number": 2, "kl": 3.0}]}, False)
    assert capsys.readouterr().out.splitlines() == [
        "iterations:",
        "  - number: 1",
        "    gold:",
        "      sft: 0.5",
        "  - number: 2",
        "    kl: 3",
    ]


def test_the_night_before_a_resume_is_no_time_that_a_stage_took(db: Database) -> None:
    evening = datetime(2026, 5, 1, 20, tzinfo=UTC)
    morning = datetime(2026, 5, 2, 8, tzinfo=UTC)
    stages = (
        ("sampling", "succeeded"),
        ("reward", "succeeded"),
        ("policy", "succeeded"),
        ("evaluate", "failed"),
    )
    made = [
        Run(
            id=f"run-{stage}",
            stage=stage,
            iteration=1,
            status=status,
            directory=f"runs/{stage}",
            attempt=2,
            created_at=evening,
            finished_at=morning,
        )
        for stage, status in stages
    ]
    db.write(lambda tx: tx.store(Iteration(number=1), *made))
    for stage, result in (("sampling", {"adopted": True}), ("reward", {"seconds": 61.5})):
        folder = db.workspace / "runs" / stage
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result))
    # Sampling was adopted without a worker.  The directory of ppo is gone, as after a restore.
    assert Commands(db).call("iteration", {"number": 1})["seconds"] == {"reward": 61.5}


@pytest.mark.parametrize(("method", "name"), [("dpo", "DPO"), ("rloo", "RLOO"), ("ppo", "PPO")])
def test_the_policys_stage_is_called_by_its_method(db: Database, method: str, name: str):
    config = {"optimize": {"method": method}}
    iterations.save(db, Iteration(number=1, phase="policy", settings={"optimize.method": method}))
    assert to_json(status(db))["iteration"]["method"] == name  # before its run exists
    made = Run(
        id="r", stage="policy", iteration=1, status="running", directory="runs/r", config=config
    )
    runs.save(db, made)
    found = to_json(status(db))
    assert [run["name"] for run in found["runs"]] == [name]
    assert found["iteration"]["method"] == name
    assert found["iteration"]["phase"] == "policy"
    # A retry with another method is another method, whatever was asked for first.
    runs.save(db, replace(made, config={"optimize": {"method": "rloo"}}))
    assert to_json(status(db))["iteration"]["method"] == "RLOO"
