"""The promotion gate: what counts as evidence, what it decides, and whom the loop samples then."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.promotion import gate
from pipeline.runs.jobs import Jobs
from pipeline.runs.rundir import Job, RunDirectory
from storage.engine import lookup
from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.errors import NotFound
from storage.gate_records import Evidence
from storage.gate_report import GateProgress, GateReport, Standing
from storage.records import Iteration, Judgment, Run, Withdrawal, new_id, now
from storage.reports import Evaluation, from_json, to_json
from storage.tables import iterations, policy_judgments
from storage.tables.runs import runs
from tests.helpers.policy_world import add_iteration, add_models, add_policy, compare

TWELVE_WINS = ["first"] * 12  # the fewest that settle it (test_eprocess.py)
TWELVE_LOSSES = ["second"] * 12


@pytest.fixture
def world(db: Database) -> Database:
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2)
    return db


def standing(db: Database, policy: str = "policy-1") -> Standing:
    return gate.standing(policy_judgments.evidence(db), policy)


# --- what counts ------------------------------------------------------------------------------


def test_only_the_random_streams_pairs_of_two_policies_count(world: Database):
    compare(world, "policy-1", "sft-1", ["first"])
    compare(world, "policy-1", "sft-1", ["second"], arm="previous")
    compare(world, "sft-1", "policy-1", ["both_bad"], arm="random")
    compare(world, "policy-1", "policy-1", ["first"], arm="random")
    compare(world, "policy-1", "sft-1", ["first"], arm="imported")
    compare(world, "policy-1", "sft-1", ["first"], annotator="robot")
    rows = policy_judgments.judged(world)
    assert [(r.first, r.outcome) for r in rows] == [
        ("policy-1", 1.0), ("policy-1", 0.0), ("sft-1", 0.5),
    ]  # fmt: skip


def test_pairs_that_a_reward_model_chose_do_not_count(world: Database):
    compare(world, "policy-1", "sft-1", ["first"])
    world.write(lambda tx: tx.execute("UPDATE comparisons SET arm = 'bald'"))
    assert policy_judgments.judged(world) == []


def test_what_was_taken_back_does_not_count(world: Database):
    withdrawn, _ = compare(world, "policy-1", "sft-1", ["first", "second"])
    world.write(lambda tx: tx.store(Withdrawal(id="w", replaces=withdrawn, annotator="ann")))
    assert [row.outcome for row in policy_judgments.judged(world)] == [0.0]


def test_a_revised_judgment_keeps_its_place(world: Database):
    given = compare(world, "policy-1", "sft-1", ["first"] * 13 + ["second"] * 30)
    assert standing(world).sequential.decision == "better"
    of = {j.id: j for j in lookup.select(world, Judgment, "SELECT * FROM judgments")}
    again = [
        replace(of[id], id=new_id("j"), replaces=id, created_at=now(), comment="looked again")
        for id in given[:3]
    ]
    world.write(lambda tx: tx.store(*again))
    assert standing(world).sequential.stopped_at == 12
    # A correction does count, where the judgment stood: the second prompt is a loss now.
    last = replace(again[1], id=new_id("j"), replaces=again[1].id, outcome="second")
    world.write(lambda tx: tx.store(last))
    assert [row.outcome for row in policy_judgments.judged(world)] == [1, 0] + [1] * 11 + [0] * 30


def test_outcomes_and_predictions_are_the_policys_own_whichever_side_it_stood_on(world: Database):
    compare(world, "policy-1", "sft-1", ["first"], predicted=0.8)
    compare(world, "sft-1", "policy-1", ["first"], predicted=0.7)
    compare(world, "policy-2", "policy-1", ["first"])
    rows = gate.judgments_against(policy_judgments.evidence(world), "policy-1", "sft-1")
    assert [row.outcome for row in rows] == [1.0, 0.0]
    assert [row.predicted for row in rows] == pytest.approx([0.8, 0.3])


# --- verdicts ---------------------------------------------------------------------------------


def test_too_little_evidence_is_provisional(world: Database):
    assert standing(world).words == ["People have not compared it with SFT yet."]
    compare(world, "policy-1", "sft-1", TWELVE_WINS[:11])
    found = standing(world)
    assert (found.verdict, found.may_stop, found.alarm) == ("provisional", False, None)
    assert "100% of 11 judgments on 11 prompts" in found.words[0]
    assert "log E is 2.8, and the test decides at 3.0" in found.words[1]  # log 15.9


def test_a_policy_that_is_clearly_better_is_promoted_and_judging_may_stop(world: Database):
    compare(world, "policy-1", "sft-1", TWELVE_WINS)
    found = standing(world)
    assert (found.verdict, found.may_stop) == ("promoted", True)
    assert found.sequential.stopped_at == 12
    assert found.sequential.path[-1][0] == 12
    assert "You can stop" in found.words[1]


def test_a_policy_that_is_clearly_worse_is_blocked(world: Database):
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    assert standing(world).verdict == "blocked"


def test_the_alarm_blocks_even_a_policy_that_people_prefer(world: Database):
    # 18 wins, then 8 losses: better is settled after 12; expected .95 against .69 of people.
    compare(world, "policy-1", "sft-1", ["first"] * 18 + ["second"] * 8, predicted=0.95)
    found = standing(world)
    assert found.sequential.decision == "better"
    assert (found.verdict, found.alarm.alarm) == ("blocked", True)
    # gap .95 − 18/26 = .25769; v = 26/25 · (18 · .30769² + 8 · .69231²)/26² = .0085207.
    assert found.alarm.z == pytest.approx(0.257692 / math.sqrt(0.0085207), rel=1e-4)
    assert found.words[2].startswith("Over-optimization alarm.")


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        (19, "people gave 50%. The over-optimization alarm needs 20 prompts."),
        (20, "people gave 50% (z = 0.0). This shows no over-optimization."),
    ],
)
def test_over_optimization_is_denied_only_where_it_could_be_seen(
    world: Database, prompts: int, says: str
):
    # A hair under people's .5, so that z is a negative that rounds to 0.
    compare(world, "policy-1", "sft-1", ["tie"] * prompts, predicted=0.4999)
    assert standing(world).words[2].endswith(says)


def test_the_alarm_discounts_by_the_evaluations_kl(db: Database):
    # 12 of 20 prompts won; .9 is promised, and half of that lead is .7.
    # v = 20/19 · (12 · .4² + 8 · .6²)/20² = .0126316: z = .3/.11239 = 2.67, or .1/.11239 = .89.
    add_models(db, policies=2)
    add_iteration(db, 1, evaluation=to_json(Evaluation(lead=0.5)))
    add_iteration(db, 2, evaluation={"policy": {"reward": 1.0}})  # of a version without discounts
    for policy in ("policy-1", "policy-2"):
        won = ["first"] * 12 + ["second"] * 8
        compare(db, policy, "sft-1", won, predicted=0.9, by=policy.replace("policy", "reward"))
    known = policy_judgments.evidence(db)
    first, second = (gate.standing(known, policy) for policy in ("policy-1", "policy-2"))
    assert first.alarm
    assert second.alarm
    assert (first.alarm.alarm, second.alarm.alarm) == (False, True)
    assert (first.alarm.z, second.alarm.z) == pytest.approx((0.89, 2.67), abs=0.01)
    assert "predicted 70% wins (90% before the discount for its KL)" in first.words[2]
    assert "predicted 90% wins, and people gave 60%" in second.words[2]


def test_only_its_own_reward_models_promises_count_against_a_policy(world: Database):
    compare(
        world, "policy-1", "sft-1", ["first"] * 18 + ["second"] * 8, predicted=0.95, by="reward-2"
    )
    found = standing(world)
    assert (found.alarm, found.verdict) == (None, "promoted")


def test_a_researchers_ruling_goes_before_the_evidence_until_it_is_taken_back(world: Database):
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    policy_judgments.override(world, "policy-1", "promote", reason="shorter is what we want")
    found = standing(world)
    assert (found.verdict, found.by_evidence) == ("promoted", "blocked")
    assert "shorter is what we want" in found.words[-1]
    policy_judgments.override(world, "policy-1", "promote", reason="\x1b[31mred\nand more")
    assert standing(world).words[-1].endswith("”:  [31mred and more")
    policy_judgments.override(world, "policy-1", "evidence", reason="was a misunderstanding")
    found = standing(world)
    assert found.verdict == "blocked"
    assert "ruled" not in found.words[-1]
    with pytest.raises(ValueError, match="there is no ruling on policy-1 to withdraw"):
        policy_judgments.override(world, "policy-1", "evidence", reason="again")


def test_rulings_need_a_reason_and_a_trained_policy(world: Database):
    with pytest.raises(ValueError, match="an override needs a written reason"):
        policy_judgments.override(world, "policy-1", "promote", reason="  ")
    with pytest.raises(ValueError, match="ruling='maybe' must be one of 'promote', 'block'"):
        policy_judgments.override(world, "policy-1", "maybe", reason="x")
    with pytest.raises(ValueError, match="sft-1 is not a trained policy"):
        policy_judgments.override(world, "sft-1", "promote", reason="x")
    with pytest.raises(ValueError, match="at most 2,000 characters; this one has 2,001"):
        policy_judgments.override(world, "policy-1", "promote", reason="x" * 2001)
    with pytest.raises(NotFound, match="policy-9"):
        policy_judgments.override(world, "policy-9", "promote", reason="x")
    with pytest.raises(ValueError, match="no ruling on policy-1 to withdraw"):
        policy_judgments.override(world, "policy-1", "evidence", reason="x")
    assert policy_judgments.overrides(world) == []


def test_rulings_and_predictions_survive_a_rebuild(world: Database):
    compare(world, "policy-1", "sft-1", ["first"] * 3, predicted=0.8)
    policy_judgments.override(world, "policy-1", "block", reason="rude", researcher="Rosa")
    before = policy_judgments.evidence(world)
    world.close()
    rebuild(world.workspace)
    with Database.open(world.workspace) as again:
        assert policy_judgments.evidence(again) == before
        assert standing(again).words[-1] == "Rosa ruled “block”: rude"


def test_a_policy_is_compared_with_others_as_well(world: Database):
    compare(world, "policy-2", "sft-1", ["first"])
    # .75 with variance 4/3 · (3 · .0625 + .5625)/16 = .0625, so n = 3; Wilson's with t(3) = 3.182.
    compare(world, "policy-1", "policy-2", ["second"] * 3 + ["first"], arm="previous")
    found = standing(world, "policy-2")
    said = "People preferred it to policy-1 in 75% of 4 judgments on 4 prompts (13% to 98%)."
    assert said in found.words
    assert standing(world, "policy-1").versus[0].win_rate == 0.25
    assert found.win_rate.comparisons == 1  # against SFT


# --- how much is asked ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [(1000, 150), (400, 60), (200, 60), (100, 50), (24, 12), (1, 0)],
)
def test_labels_against_sft(labels: int, wanted: int):
    # The larger of 60 and 15%, at most half.
    assert gate.labels_wanted(Config(), labels) == wanted


def test_all_or_nothing_can_be_asked_for():
    every = Config().override({"gate.most": "1"})
    assert gate.labels_wanted(every, 50) == 50
    none = Config().override({"gate.labels": "0", "sampling.reference_share": "0"})
    assert gate.labels_wanted(none, 400) == 0


def test_shares_of_arms_follow_whom_there_is_to_compare():
    def shares(sampled: str | None, previous: str | None, labels: int = 400) -> dict[str, float]:
        current = Iteration(number=3, policy_sampled=sampled, labels_wanted=labels)
        return gate.shares(Config(), current, previous=previous, reference="sft-1")

    assert shares(None, None) == {}
    assert shares("policy-1", "sft-1") == {"reference": 0.15}
    assert shares("policy-2", "policy-1") == {"reference": 0.15, "previous": 0.25}
    assert shares("policy-2", "policy-1", labels=100) == {"reference": 0.5, "previous": 0.25}
    assert shares("sft-1", "policy-2") == {"previous": 0.15}  # after a block


# --- the loop ---------------------------------------------------------------------------------


class Started:
    """Stands in for worker processes: remembers jobs, and writes their inputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.jobs: list[Job] = []
        self.inputs = folder / "given"
        self.inputs.mkdir()
        monkeypatch.setattr(Jobs, "start", lambda _, job, *, fill: self.start(job, fill))

    def start(self, job: Job, fill: Any) -> None:
        fill(self.inputs)
        self.jobs.append(job)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    return Started(monkeypatch, tmp_path)


@pytest.fixture
def loop(world: Database, started: Started) -> Loop:
    """A loop that starts no process: what it would start is in `started`."""
    assert not started.jobs
    return Loop(world, Config().override({"labeling.labels": "40"}))


def arms(started: Started) -> dict[str, int]:
    plan = pd.read_parquet(started.inputs / "prompts.parquet")
    return plan.groupby("arm")["pairs"].sum().to_dict()


def test_the_next_iteration_samples_what_this_one_made(loop: Loop, world: Database, started):
    compare(world, "policy-1", "sft-1", ["first", "second"])
    loop.advance()
    second, third = iterations.listing(world)[1:]
    assert (second.verdict, third.policy_sampled) == ("provisional", "policy-2")
    assert started.jobs[0].names["previous"] == "policy-1"
    # 40 labels, 1.3 · 40/1.1 = 47 pairs; half against SFT, a quarter against the one before, 11 left.
    assert arms(started) == {"reference": 24, "previous": 12, "random": 11}


def test_a_reward_model_that_chooses_gets_what_the_gate_leaves(world: Database, started: Started):
    settings = {"labeling.labels": "40", "sampling.selection": "hybrid"}
    compare(world, "policy-1", "sft-1", ["first", "second"])
    Loop(world, Config().override(settings)).advance()
    # Of the 11 pairs left, BALD chooses as many as there are prompts for.
    assert arms(started) == {"reference": 24, "previous": 12, "bald": 10, "random": 1}


def test_after_a_block_the_next_iteration_samples_the_last_promoted(
    loop: Loop, world: Database, started: Started
):
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    loop.advance()
    second, third = iterations.listing(world)[1:]
    assert (second.verdict, third.policy_sampled) == ("blocked", "sft-1")
    # What was made meanwhile waits, and is compared with the one that is sampled.
    job = started.jobs[0]
    assert (job.names["policy"], job.names["previous"]) == ("sft-1", "policy-2")
    assert arms(started) == {"previous": 24, "random": 23}


def test_a_ruling_lets_a_blocked_policys_successor_through(loop: Loop, world: Database):
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    found = loop.override_gate("promote", "the judges misread the task", policy="policy-1")
    assert (found.verdict, found.by_evidence) == ("promoted", "blocked")
    loop.advance()
    second, third = iterations.listing(world)[1:]
    assert (second.verdict, third.policy_sampled) == ("promoted", "policy-2")


def test_a_promoted_policy_is_what_a_later_block_falls_back_to(
    loop: Loop, world: Database, started: Started
):
    compare(world, "policy-1", "sft-1", TWELVE_WINS)
    loop.override_gate("block", "it lectures", policy="policy-2")
    loop.advance()
    third = iterations.listing(world)[-1]
    assert third.policy_sampled == "policy-1"
    found = loop.gate()
    assert found.last_promoted == "policy-1"
    # SFT is compared with the one that waits: the promoted one's verdict is known.
    job = started.jobs[0]
    assert (job.names["policy"], job.names["candidate"]) == ("policy-1", "policy-2")
    assert found.iteration.policy == "policy-2"


def test_a_policy_that_waited_and_was_found_harmful_blocks_its_successor_too(
    loop: Loop, world: Database
):
    add_policy(world, 3)
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    # After that block SFT is sampled and policy-2 waits; people find it harmful as well.
    add_iteration(world, 3, policy_sampled="sft-1")
    compare(world, "sft-1", "policy-2", ["first"] * 12, arm="previous", iteration=3)
    loop.advance()
    third, fourth = iterations.listing(world)[2:]
    assert (third.verdict, fourth.policy_sampled) == ("blocked", "sft-1")
    assert loop.gate().iteration.policy == "policy-3"


def test_a_waiting_policy_that_is_not_harmful_lets_its_successor_through(
    loop: Loop, world: Database
):
    add_policy(world, 3)
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    add_iteration(world, 3, policy_sampled="sft-1")
    compare(world, "sft-1", "policy-2", ["first", "second"], arm="previous", iteration=3)
    loop.advance()
    third, fourth = iterations.listing(world)[2:]
    assert (third.verdict, fourth.policy_sampled) == ("provisional", "policy-3")


def test_of_several_promoted_policies_the_newest_counts(world: Database):
    for policy in ("policy-1", "policy-2"):
        compare(world, policy, "sft-1", TWELVE_WINS)
    assert gate.last_promoted(policy_judgments.evidence(world)) == "policy-2"


def test_an_iteration_that_was_started_twice_is_the_same(loop: Loop, world: Database):
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    # As after a crash between the verdict and the new iteration.
    iterations.save(world, replace(iterations.get(world, 2), verdict="provisional"))
    loop.advance()
    assert iterations.get(world, 2).verdict == "blocked"
    loop.advance()
    assert len(iterations.listing(world)) == 3


def test_the_reward_stage_is_given_the_promises_to_hold_the_policy_to(
    loop: Loop, world: Database, started: Started
):
    add_iteration(world, 3, phase="reward", policy_produced=None, reward_model=None)
    compare(world, "policy-2", "sft-1", ["first", "second"], iteration=3)
    compare(world, "sft-1", "sft-1", ["first"], iteration=3, arm="random")
    compare(world, "policy-1", "sft-1", ["first"], iteration=2)
    loop.advance()
    assert started.jobs[0].names["proxy"] == "reward-2"
    pairs = pd.read_parquet(started.inputs / "evaluation_pairs.parquet")
    assert len(pairs) == 2


def finish_reward(db: Database, number: int, predictions: list[dict[str, Any]]) -> None:
    """A reward stage of iteration `number` that has succeeded with these predictions."""
    run = Run(
        id=f"run-{number}", stage="reward", iteration=number, status="succeeded",
        directory=f"runs/run-{number}",
    )  # fmt: skip
    names = {"policy": "policy-1", "proxy": "reward-1"}
    job = Job(
        run=run.id, stage="reward", iteration=number, config=Config(), seed=0, models={}, names=names
    )  # fmt: skip
    directory = RunDirectory.create(db.workspace / run.directory, job)
    directory.model.mkdir()
    pd.DataFrame(predictions).to_parquet(directory.outputs / "predictions.parquet")
    directory.write_result({})
    runs.save(db, run)


def test_the_verdict_stands_when_the_reward_stage_has_spoken(loop: Loop, world: Database):
    add_iteration(world, 2, phase="reward", policy_produced=None, reward_model=None)
    compare(world, "policy-1", "sft-1", ["first", "second"] * 15)
    rows = policy_judgments.judged(world)
    finish_reward(
        world,
        2,
        [
            {"comparison": r.comparison, "first": 0.9, "first_score": 1.0, "second_score": 0.0}
            for r in rows
        ],
    )
    loop.advance()
    second = iterations.get(world, 2)
    assert (second.phase, second.verdict) == ("policy", "blocked")
    assert standing(world).alarm.predicted == pytest.approx(0.9)
    # Taken over a second time, as after a crash: the same.
    iterations.save(world, replace(second, phase="reward", verdict=None))
    loop.advance()
    assert iterations.get(world, 2).verdict == "blocked"


def test_ppo_goes_on_from_the_last_promoted_after_a_block(
    loop: Loop, world: Database, started: Started
):
    settings = {"ppo.start_from": "previous"}
    for verdict, start in (("provisional", "policy-1"), ("blocked", "sft-1")):
        add_iteration(world, 2, phase="policy", verdict=verdict, settings=settings)
        loop.advance()
        assert started.jobs[-1].names["policy"] == start


def trained_with(db: Database, weights: dict[str, float]) -> None:
    for policy, weight in weights.items():
        summary = json.dumps({"kl_weight": weight})
        update = f"UPDATE models SET summary = '{summary}' WHERE id = '{policy}'"
        db.write(lambda tx, update=update: tx.execute(update))


@pytest.mark.parametrize(
    ("blocked", "settings", "weight"),
    [
        ([], {}, 0.05),
        (["policy-1"], {}, 0.06),  # 3 · .02
        (["policy-1", "policy-2"], {}, 0.18),  # of the larger one
        (["policy-1"], {"ppo.kl_weight": "0.08"}, 0.08),  # a larger one of one's own
        (["policy-1"], {"gate.kl_raise": "1"}, 0.05),
        (["policy-1"], {"gate.kl_raise": "10"}, 0.2),
        (["policy-1"], {"gate.kl_raise": "1e9"}, 1e4),  # the largest there is
        (["policy-1"], {"ppo.kl_control": "adaptive"}, 0.05),  # which kl_target steers
        (["policy-1"], {"optimize.method": "dpo"}, 0.05),
    ],
)
def test_after_a_block_ppo_keeps_closer_to_the_reference(
    world: Database, blocked: list[str], settings: dict[str, str], weight: float
):
    trained_with(world, {"policy-1": 0.02, "policy-2": 0.06})
    for policy in blocked:
        compare(world, policy, "sft-1", TWELVE_LOSSES)
    config = Config().override({"ppo.kl_weight": "0.05"} | settings)
    found, notes = gate.with_raised_kl_weight(config, policy_judgments.evidence(world))
    assert found.ppo.kl_weight == pytest.approx(weight)
    assert replace(found, ppo=config.ppo) == config
    assert bool(notes) == (weight not in (0.05, 0.08))
    if notes:
        assert f"{blocked[-1]}, trained with" in notes["kl_raise"]


def test_a_ruling_takes_the_raise_back_and_unknown_weights_raise_nothing(
    loop: Loop, world: Database
):
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    config = Config()
    assert gate.with_raised_kl_weight(config, policy_judgments.evidence(world)) == (config, {})
    trained_with(world, {"policy-1": 1.0})
    assert (
        gate.with_raised_kl_weight(config, policy_judgments.evidence(world))[0].ppo.kl_weight == 3
    )
    loop.override_gate("promote", "the judges misread the task", policy="policy-1")
    assert gate.with_raised_kl_weight(config, policy_judgments.evidence(world)) == (config, {})


def test_ppo_is_started_with_the_raise_and_with_the_reason(
    loop: Loop, world: Database, started: Started
):
    trained_with(world, {"policy-1": 1.0})
    compare(world, "policy-1", "sft-1", TWELVE_LOSSES)
    add_iteration(world, 2, phase="policy", verdict="blocked", policy_produced=None)
    loop.advance()
    (job,) = started.jobs
    assert (job.stage, job.config.ppo.kl_weight) == ("policy", 3)
    assert "policy-1, trained with 1, is blocked" in job.notes["kl_raise"]


def test_the_report_is_what_the_command_line_prints(loop: Loop, world: Database):
    compare(world, "policy-1", "sft-1", TWELVE_WINS)
    add_iteration(world, 2, phase="labeling")
    found = loop.gate()
    assert [each.policy for each in found.policies] == ["policy-2", "policy-1"]
    assert found.iteration == GateProgress(number=2, policy="policy-1", wanted=50, judged=12)
    text = gate.format_gate(found)
    assert "policy-1: promoted" in text
    assert "12 judgments of policy-1 against SFT, 50 wanted; last promoted: policy-1" in text
    assert "policy-2         not connected by judgments   0" in text  # the columns are aligned
    (row,) = (line.split() for line in text.splitlines() if line.startswith("sft-1"))
    assert row == ["sft-1", "reference", "12"]
    nothing = gate.report(Evidence(), Config())
    assert gate.format_gate(nothing) == "There is no trained policy to judge yet."


def test_a_report_is_the_same_after_its_way_as_json(loop: Loop, world: Database):
    compare(world, "policy-1", "sft-1", TWELVE_WINS, predicted=0.9)
    compare(world, "policy-1", "policy-2", ["first"], arm="previous")
    loop.override_gate("block", "it lectures", policy="policy-2")
    add_iteration(world, 2, phase="labeling")
    found = loop.gate()
    again = from_json(GateReport, json.loads(json.dumps(asdict(found))))
    assert json.dumps(asdict(again)) == json.dumps(asdict(found))
    assert gate.format_gate(again) == gate.format_gate(found)
    assert again.standing("policy-2").ruling == found.standing("policy-2").ruling
    assert again.iteration == found.iteration
