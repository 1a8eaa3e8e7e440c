"""The gate's rule on the canary: hold a policy, block it, and say why."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from pipeline.config.sections import Config
from pipeline.loop.milestones import Milestones
from pipeline.promotion import gate
from storage.engine.database import Database
from storage.gate_records import CanaryResults, Evidence, StandingRuling
from storage.gate_report import GateReport
from storage.reports import Evaluation, from_json, to_json
from storage.tables import iterations, policy_judgments
from storage.tables.runs import events
from tests.helpers.gate_evidence import canary_results, evidence
from tests.helpers.policy_world import add_iteration, add_models, compare


def better(canary: CanaryResults | None) -> Evidence:
    """People clearly prefer policy-1 to SFT, and its reward model expected it."""
    known = evidence(1)
    rows = [
        replace(known.judged[0], comparison=f"c{n}", prompt=f"p{n}", outcome=1.0, predicted=0.9)
        for n in range(24)
    ]
    canaries = {} if canary is None else {"policy-1": canary}
    return replace(known, judged=rows, canaries=canaries)


@pytest.mark.parametrize(
    ("lost", "gained", "verdict"),
    [
        (4, 0, "promoted"),  # four points
        (5, 0, "blocked"),  # 5 [.7, 9.3]
        (8, 3, "provisional"),  # 5 [−1.6, 11.5]
        (20, 5, "blocked"),
        (0, 9, "promoted"),
    ],
)
def test_a_policy_that_loses_five_points_is_not_promoted(lost: int, gained: int, verdict: str):
    known = better(canary_results(lost=lost, gained=gained))
    assert gate.verdict(known, "policy-1") == verdict
    found = gate.standing(known, "policy-1")
    assert (found.verdict, found.by_evidence) == (verdict, verdict)
    assert found.canary
    assert found.canary.loss == pytest.approx((lost - gained) / 100)
    assert found.sequential.decision == "better"
    assert gate.last_promoted(known) == ("policy-1" if verdict == "promoted" else "sft-1")


def test_without_a_canary_the_verdict_is_as_before():
    found = gate.standing(better(None), "policy-1")
    assert (found.verdict, found.canary) == ("promoted", None)
    assert not [word for word in found.words if word.startswith(gate.CANARY)]


def words(lost: int, gained: int = 0) -> str:
    found = gate.standing(better(canary_results(lost=lost, gained=gained)), "policy-1")
    (sentence,) = [word for word in found.words if word.startswith(gate.CANARY)]
    return sentence


def test_the_reason_names_rates_interval_limit_and_check():
    assert words(14) == (
        "Capability canary. Its answers pass on 86% of 100 fixed prompts, and SFT's on 100%: it loses "
        "14.0 points (95% interval 7.0 to 20.8), and the limit is 5 points (gate.canary_loss). The loss is "
        "more than chance, so the policy is blocked. The check that loses most is “on topic”: 100% to "
        "86%. Raise ppo.kl_weight."
    )
    held = words(8, 3)
    assert "it loses 5.0 points (95% interval −1.5 to 11.5)" in held
    assert "The loss may be chance, but the policy is not promoted." in held
    assert words(2).endswith(
        "on 100%: it loses 2.0 points (95% interval −0.8 to 4.8), and the limit is 5 points (gate.canary_loss)."
    )
    assert words(0, 2).endswith("SFT's on 98%. It gains 2.0 points (95% interval −0.8 to 4.8).")


def test_a_ruling_overrides_the_canary_and_people_who_prefer_sft_do_as_well():
    known = better(canary_results(lost=20))
    ruling = StandingRuling(ruling="promote", reason="it need not", researcher="", at="2026-01-01")
    ruled = replace(known, overrides={"policy-1": ruling})
    found = gate.standing(ruled, "policy-1")
    assert (found.verdict, found.by_evidence) == ("promoted", "blocked")
    worse = [replace(row, outcome=0.0) for row in known.judged]
    held = replace(known, judged=worse, canaries={"policy-1": canary_results(lost=8, gained=3)})
    assert gate.verdict(held, "policy-1") == "blocked"


def test_a_block_raises_the_kl_weight():
    # Trained with .1 (`evidence`), and gate.kl_raise is 3.
    config, notes = gate.with_raised_kl_weight(Config(), better(canary_results(lost=20)))
    assert config.ppo.kl_weight == pytest.approx(0.3)
    assert "policy-1" in notes["kl_raise"]
    same, notes = gate.with_raised_kl_weight(Config(), better(canary_results(lost=8, gained=3)))
    assert (same, notes) == (Config(), {})


@pytest.fixture
def world(db: Database) -> Database:
    add_models(db, policies=2)
    evaluation = to_json(Evaluation(canary=canary_results(lost=14)))
    add_iteration(db, 1, evaluation=evaluation)
    add_iteration(db, 2, evaluation={"policy": {"reward": 1.0}})  # of a version without a canary
    compare(db, "policy-1", "sft-1", ["first"] * 12)
    return db


def test_the_evidence_has_the_canary_of_each_evaluation(world: Database):
    known = policy_judgments.evidence(world)
    assert known.canaries == {"policy-1": canary_results(lost=14)}
    assert gate.verdict(known, "policy-1") == "blocked"
    assert gate.verdict(known, "policy-2") == "provisional"
    sampled = gate.next_sampled(known, iterations.get(world, 1))
    assert sampled == "sft-1"
    report = gate.report(known, Config())
    assert from_json(GateReport, json.loads(json.dumps(asdict(report)))) == report
    assert "Capability canary." in gate.format_gate(report)


def test_the_event_of_a_verdict_names_the_canary(world: Database):
    Milestones(world).verdicts(policy_judgments.evidence(world), policy="policy-1")
    (event,) = [each for each in events.listing(world) if each.type == "gate.verdict"]
    assert event.data["verdict"] == "blocked"
    assert "it loses 14.0 points" in event.data["reason"]
