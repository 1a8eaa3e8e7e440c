"""Events that the loop records: enough labels, changed verdicts, the over-optimization alarm."""

from __future__ import annotations

import pytest

from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.loop.milestones import Milestones
from storage.engine.database import Database
from storage.tables import iterations, policy_judgments
from storage.tables.runs import events
from tests.helpers.policy_world import add_iteration, add_models, compare

pytestmark = pytest.mark.usefixtures("dying_workers")


@pytest.fixture
def world(db: Database) -> Database:
    """A trained policy that iteration 2 samples; three labels are wanted."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling", policy_produced=None, reward_model=None, labels_wanted=3)
    return db


def told(db: Database, type: str) -> list[dict]:
    return [dict(each.data) for each in reversed(events.listing(db)) if each.type == type]


def look(db: Database) -> None:
    """As a studio does that has just started."""
    current = iterations.latest(db)
    assert current is not None
    Milestones(db).look(current)


def test_enough_labels_are_an_event_once_also_after_a_restart(world):
    compare(world, "policy-1", "sft-1", ["first", "second"])
    look(world)
    assert told(world, "labels.reached") == []
    compare(world, "policy-1", "sft-1", ["first", "second"])
    look(world)
    look(world)
    assert told(world, "labels.reached") == [{"iteration": 2, "labels": 4, "wanted": 3}]
    add_iteration(world, 3, phase="labeling", policy_produced=None, labels_wanted=1)
    compare(world, "policy-2", "sft-1", ["first"], iteration=3)
    look(world)
    assert [each["iteration"] for each in told(world, "labels.reached")] == [2, 3]


def test_training_that_begins_at_the_last_label_does_not_hide_the_event(world):
    compare(world, "policy-1", "sft-1", ["first", "second", "first"])
    loop = Loop(world, Config())
    loop.train({})
    assert told(world, "labels.reached") == [{"iteration": 2, "labels": 3, "wanted": 3}]
    loop.advance()
    loop.shut_down()


def test_a_verdict_that_the_evidence_changes_is_an_event(world):
    """25 wins of 25: the sequential test decides by then (tests/pipeline/statistics)."""
    compare(world, "policy-1", "sft-1", ["first"] * 25)
    look(world)
    look(world)
    (found,) = told(world, "gate.verdict")
    assert (found["policy"], found["before"], found["verdict"]) == (
        "policy-1", "provisional", "promoted",
    )  # fmt: skip
    assert "better than SFT" in found["reason"]


def test_a_ruling_is_an_event_at_once_and_so_is_its_withdrawal(world):
    loop = Loop(world, Config())
    loop.override_gate("block", "It is rude.", policy="policy-2")
    loop.override_gate("evidence", "A mistake.", policy="policy-2")
    found = told(world, "gate.verdict")
    assert [(each["before"], each["verdict"]) for each in found] == [
        ("provisional", "blocked"), ("blocked", "provisional"),
    ]  # fmt: skip
    assert "It is rude." in found[0]["reason"]
    loop.shut_down()


def test_overoptimization_is_an_alarm_once(world):
    """The reward model predicts 95% wins of 30, people give 20%: z is far above 2."""
    won = ["first", "second", "second", "second", "second"] * 6
    compare(world, "policy-1", "sft-1", won, predicted=0.95)
    for _ in range(2):
        Milestones(world).verdicts(policy_judgments.evidence(world))
    (alarm,) = told(world, "alarm.raised")
    assert (alarm["alarm"], alarm["policy"]) == ("overoptimization", "policy-1")
    assert "predicted 95% wins, and people gave 20%" in alarm["message"]


def test_a_look_costs_nothing_until_something_is_stored(world, monkeypatch):
    clock = [0.0]
    milestones = Milestones(world, clock=lambda: clock[0])
    current = iterations.latest(world)
    asked = []
    real = policy_judgments.evidence
    monkeypatch.setattr(policy_judgments, "evidence", lambda db: asked.append(1) or real(db))
    for clock[0] in (0.0, 5.0, 20.0, 40.0):
        milestones.look(current)
    assert len(asked) == 1
    compare(world, "policy-1", "sft-1", ["first"])
    milestones.look(current)
    compare(world, "policy-1", "sft-1", ["first"])
    clock[0] = 45.0
    milestones.look(current)
    assert len(asked) == 2
    clock[0] = 50.5
    milestones.look(current)
    assert len(asked) == 3
