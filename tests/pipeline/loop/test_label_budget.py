"""How many more labels an iteration needs: the figures, the sentences, and when training starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from pipeline.config.sections import Config, LabelingConfig
from pipeline.loop import budgets
from pipeline.loop.budgets import Budgets
from pipeline.loop.label_budget import Holds, in_words, least_labels, needed, why_start
from pipeline.loop.loop import Loop
from pipeline.promotion.gate import standing
from pipeline.reward.report.forecast import FULL_MODEL, expected_gain
from pipeline.reward.report.learning_curve import BLOCKS, COLUMNS, ORDERS, file_of
from pipeline.reward.report.report import curve_place
from storage.engine.database import Database
from storage.gate_records import Evidence, PolicyJudgment
from storage.labeling import judgments, queue
from storage.labeling.open_labels import open_labels
from storage.records import Flag, Study, new_id
from storage.reports import ExpectedGain, GateNeed, LabelBudget, Trend, from_json, to_json
from storage.tables import audit, iterations, models, policy_judgments
from storage.tables.runs import studies
from tests.helpers.gate_evidence import canary_results
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.reward_figures import write_curve

pytestmark = pytest.mark.usefixtures("dying_workers")

BY_HAND = LabelingConfig()
AT_ALL_LABELS = LabelingConfig(auto_train=True)
AUTOPILOT = LabelingConfig(auto_train=True, autopilot=True, autopilot_wait=20)
SMALL = ExpectedGain(labels=40, gain=0.002, low=-0.004, high=0.008)
CANDIDATE = standing(Evidence(policies=["sft-1", "policy-1"], reference="sft-1"), "policy-1")
DECIDED = GateNeed(policy="policy-1", decision="better", judgments=12, horizon=500)
OPEN = GateNeed(
    policy="policy-1", decision="go on", judgments=11, horizon=500, pairs=30, median=36, low=12,
    high=93, by_labels=0.4, by_wait=0.6, by_pairs=0.7,
)  # fmt: skip


def budget(**changes: object) -> LabelBudget:
    """An iteration with 60 of 100 labels."""
    values: dict = {"iteration": 2, "phase": "labeling", "labels": 60, "wanted": 100, "offered": 70}
    return LabelBudget(**(values | changes))


def said(
    labeling: LabelingConfig = BY_HAND, *, holds: Holds = Holds(), **changes: object
) -> LabelBudget:
    return in_words(budget(**changes), labeling, holds)


def rows(*outcomes: float, first: str = "policy-1", second: str = "sft-1") -> list[PolicyJudgment]:
    return [
        PolicyJudgment(
            comparison=f"c{n}", prompt=f"p{n}", iteration=2, first=first, second=second,
            outcome=outcome, predicted=None, reward_model=None,
        )
        for n, outcome in enumerate(outcomes)
    ]  # fmt: skip


# --- figures ------------------------------------------------------------------------------------


def test_one_win_short_of_a_decision_the_next_judgment_on_the_gate_probably_decides():
    """13 of 16 futures win next (tests/pipeline/promotion/test_time_to_decision.py); the only label
    that the queue offers is on the gate."""
    found = needed(
        budget(labels=99, offered=1),
        CANDIDATE, rows=rows(*[1.0] * 11), prompts=1, wait=0,
    )  # fmt: skip
    assert found.gate is not None
    assert (found.gate.median, found.gate.low, found.more, found.more_low) == (1, 1, 1, 1)
    assert found.more_high is None
    assert found.gate.by_labels == found.gate.by_pairs == pytest.approx(13 / 16)
    assert in_words(found, BY_HAND).says == (
        "About 1 more judgment until the test of policy-1 against SFT decides (90%: 1 to more than 1), "
        "1 of them on the gate. 1 of 100 labels is left; if you train before the test decides, "
        "policy-1 stays provisional."
    )


def test_a_judgment_whose_sides_are_stored_the_other_way_round_counts_the_same():
    given = {"prompts": 20, "wait": 0}
    turned = rows(*[0.0] * 9, first="sft-1", second="policy-1")
    assert needed(budget(), CANDIDATE, rows=turned, **given) == needed(
        budget(), CANDIDATE, rows=rows(*[1.0] * 9), **given
    )


def test_a_second_judgment_of_a_prompt_changes_nothing():
    once, given = rows(*[1.0] * 9), {"prompts": 20, "wait": 0}
    twice = needed(budget(), CANDIDATE, rows=once + once, **given)
    assert twice == needed(budget(), CANDIDATE, rows=once, **given)


@pytest.mark.parametrize(
    ("measured", "now", "more", "gain"),
    [
        (100, 100, 100, 0.02),  # a doubling
        (100, 150, 50, 0.02 * 0.41503749927884376),  # log2(200/150)
        (100, 150, 51, None),  # beyond twice the curve
        (100, 99, 10, None),  # judgments were withdrawn since
        (100, 120, 0, None),
    ],
)
def test_the_labels_that_are_left_add_the_slope_per_doubling(measured, now, more, gain):
    trend = Trend(slope=0.02, low=-0.01, high=0.05, judgments=90, prompts=45, orders=4)
    found = expected_gain(trend, measured=measured, now=now, more=more)
    assert (found and found.gain) == (gain and pytest.approx(gain))


# --- sentences ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"gate": OPEN, "more": 123, "more_low": 41, "more_high": 187, "offered": 200},
            "About 120 more judgments until the test of policy-1 against SFT decides (90%: 40 to 190), "
            "35 of them on the gate. 40 of 100 labels are left; if you train before the test decides, "
            "policy-1 stays provisional.",
        ),
        (
            {"gate": replace(OPEN, by_pairs=0.3)},
            "The test of policy-1 against SFT needs about 35 more judgments on the gate (90%: 12 to 95). "
            "30 such pairs are left, so it decides in this iteration with a probability of 30%. "
            "40 of 100 labels are left; if you train before the test decides, policy-1 stays "
            "provisional.",
        ),
        (
            {"gate": replace(OPEN, by_pairs=0.04, median=None, high=None, pairs=1)},
            "The test of policy-1 against SFT probably needs more than 500 further judgments on the gate "
            "(90%: 12 to more than 500). One such pair is left, so it will hardly decide in this "
            "iteration. 40 of 100 labels are left.",
        ),
        (
            {"gate": replace(OPEN, by_pairs=0.0, pairs=0), "gain": SMALL},
            "The test of policy-1 against SFT needs about 35 more judgments on the gate (90%: 12 to 95). "
            "No such pairs are left, so it cannot decide in this iteration. The 40 labels left "
            "would add less than a point of accuracy (95%: −0.4 to +0.8): you can stop now.",
        ),
        (
            {"gate": DECIDED, "gain": SMALL},
            "The test of policy-1 against SFT has decided (better): the gate needs no more judgments. "
            "The 40 labels left would add less than a point of accuracy (95%: −0.4 to +0.8): you can "
            "stop now.",
        ),
        (
            {"gate": replace(OPEN, ruled=True), "gain": replace(SMALL, high=0.02)},
            "A researcher has ruled on policy-1: the gate needs no more judgments. The 40 labels left "
            "would add +0.2 points of accuracy (95%: −0.4 to +2.0), which is uncertain.",
        ),
        (
            {"gate": replace(OPEN, by_pairs=0.3, alarm=True)},
            "The test of policy-1 against SFT needs about 35 more judgments on the gate (90%: 12 to 95). "
            "30 such pairs are left, so it decides in this iteration with a probability of 30%. The "
            "over-optimization alarm blocks policy-1 until more judgments end it. 40 of 100 labels are "
            "left; if you train before the alarm ends, policy-1 stays blocked.",
        ),
        (
            {"gate": replace(OPEN, by_pairs=0.3, canary="holds")},
            "The test of policy-1 against SFT needs about 35 more judgments on the gate (90%: 12 to 95). "
            "30 such pairs are left, so it decides in this iteration with a probability of 30%. The "
            "canary keeps policy-1 from being promoted, whatever the test decides. 40 of 100 labels are "
            "left; if you train before the test decides, policy-1 stays provisional.",
        ),
        (
            {"gate": replace(OPEN, canary="blocks")},
            "The canary blocks policy-1: the gate needs no more judgments. 40 of 100 labels are left.",
        ),
        (
            {"gate": replace(DECIDED, alarm=True)},
            "The test of policy-1 against SFT has decided (better), but the over-optimization alarm "
            "blocks policy-1: more judgments on the gate may end the alarm. 40 of 100 labels are left.",
        ),
        (
            {"gate": replace(DECIDED, decision="worse", alarm=True, canary="holds")},
            "The test of policy-1 against SFT has decided (worse): the gate needs no more judgments. 40 "
            "of 100 labels are left.",
        ),
        (
            {"gate": replace(DECIDED, canary="holds")},
            "The test of policy-1 against SFT has decided (better), but the canary holds policy-1 back: "
            "the gate needs no more judgments. 40 of 100 labels are left.",
        ),
        (
            {"gate": replace(OPEN, ruled=True, canary="blocks", alarm=True)},
            "A researcher has ruled on policy-1: the gate needs no more judgments. 40 of 100 labels are "
            "left.",
        ),
        ({"gate": None}, "40 of 100 labels are left."),
        ({"gate": None, "labels": 100}, "All 100 labels are in: you can train."),
        (
            {"gate": OPEN, "labels": 104, "more": 8, "more_low": 2, "more_high": None, "offered": 26},
            "About 8 more judgments until the test of policy-1 against SFT decides (90%: 2 to more than "
            "26), 35 of them on the gate. All 100 labels are in: you can train, or label until the "
            "test decides.",
        ),
        ({"phase": "sampling"}, "Iteration 2 needs no labels yet: its pairs are being sampled."),
        (
            {"phase": "policy", "gate": OPEN},
            "Iteration 2 trains and needs no more labels. New labels count for the next training.",
        ),
        ({"iteration": None, "phase": None}, "The loop has not started."),
    ],
)  # fmt: skip
def test_the_sentence_says_how_many_more_labels_and_what_for(changes, says):
    assert said(**changes).says == says


def test_training_that_cannot_start_is_not_promised():
    study = Holds(training="The study betas is running.")
    found = said(AUTOPILOT, holds=study, gate=DECIDED, gain=SMALL)
    assert found.says.endswith(": you can stop now.")
    assert found.blocked == "Training cannot start yet. The study betas is running."
    waits = "Training starts by itself when the labels are in and nothing prevents it."
    assert found.starts == waits
    done = said(AUTOPILOT, holds=study, gate=DECIDED, labels=100)
    assert done.says.endswith("All 100 labels are in.")
    assert done.starts == waits
    assert said(BY_HAND, holds=study, labels=100).starts == ""


def test_training_that_only_a_person_restarts_is_not_promised_either():
    stopped = Holds(automatic="Training does not start by itself again.")
    found = said(AT_ALL_LABELS, holds=stopped, labels=100)
    assert (found.blocked, found.starts) == ("", "Training does not start by itself again.")
    assert found.says == "All 100 labels are in: you can train."
    assert said(BY_HAND, holds=stopped, labels=100).starts == ""


def test_the_budget_is_read_back_from_its_json():
    found = said(AUTOPILOT, gate=OPEN, gain=SMALL)
    assert from_json(LabelBudget, to_json(found)) == found


# --- when training starts by itself -------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"gate": DECIDED, "gain": SMALL},
            "the test of policy-1 against SFT has decided (better), and 40 more labels would add less "
            "than a point of accuracy (95%: −0.4 to +0.8)",
        ),
        ({"gate": DECIDED, "gain": SMALL, "labels": 49}, None),  # fewer than half
        ({"gate": DECIDED, "gain": replace(SMALL, high=0.01)}, None),  # it may be a whole point
        ({"gate": DECIDED, "gain": None}, None),  # no learning curve
        ({"gate": OPEN, "gain": SMALL}, None),  # the test has not decided
        ({"gate": replace(DECIDED, alarm=True), "gain": SMALL}, None),  # more judgments may end it
        (
            {"gate": replace(DECIDED, alarm=True), "labels": 100},
            "all 100 labels are in, and the test of policy-1 against SFT has decided (better), but the "
            "over-optimization alarm blocks policy-1",
        ),
        (
            {"gate": replace(OPEN, canary="blocks"), "gain": SMALL},
            "the canary blocks policy-1, and 40 more labels would add less than a point of accuracy "
            "(95%: −0.4 to +0.8)",
        ),
        ({"gate": None, "gain": SMALL}, None),  # nothing to decide: the first iteration
        ({"gate": None, "labels": 100}, "all 100 labels are in"),
        (
            {"gate": DECIDED, "labels": 100},
            "all 100 labels are in, and the test of policy-1 against SFT has decided (better)",
        ),
        ({"gate": OPEN, "labels": 100}, None),  # .6 within the 20 that it may wait for
        (
            {"gate": replace(OPEN, by_wait=0.44), "labels": 105},
            "all 100 labels are in, and the test of policy-1 against SFT decides within the 15 labels "
            "that autopilot may wait for with a probability of 44%",
        ),
        (
            {"gate": OPEN, "labels": 120},
            "all 100 labels are in, and autopilot waits no longer for the test of policy-1 against SFT",
        ),
    ],
)  # fmt: skip
def test_autopilot_starts_training_for_a_reason(changes, why):
    assert why_start(budget(**changes), AUTOPILOT) == why


def test_an_autopilot_that_may_not_wait_says_so():
    at_once = replace(AUTOPILOT, autopilot_wait=0)
    full = budget(gate=OPEN, labels=100)
    why = "all 100 labels are in, and autopilot does not wait for the test of policy-1 against SFT"
    assert why_start(full, at_once) == why
    assert in_words(full, at_once).starts == f"Autopilot starts training now: {why}."


def test_without_the_switches_nothing_starts_and_without_autopilot_only_at_all_labels():
    early = budget(gate=DECIDED, gain=SMALL)
    assert why_start(early, BY_HAND) is None
    assert why_start(budget(labels=100), BY_HAND) is None
    assert why_start(early, AT_ALL_LABELS) is None
    assert why_start(budget(labels=100, gate=OPEN), AT_ALL_LABELS) == "all 100 labels are in"
    assert least_labels(budget(wanted=101)) == 51


def test_the_page_says_when_training_starts_by_itself():
    assert said(BY_HAND, gate=OPEN).starts == ""
    assert said(AT_ALL_LABELS, gate=OPEN).starts == "Training starts by itself with 100 labels."
    assert said(AUTOPILOT, gate=None, gain=SMALL).starts == (
        "Autopilot starts training with 100 labels."
    )
    assert said(AUTOPILOT, gate=OPEN).starts == (
        "Autopilot starts training with 100 labels. To start earlier, it needs a learning curve on "
        "enough labels."
    )
    assert said(AUTOPILOT, gate=OPEN, gain=SMALL).starts == (
        "Autopilot starts training with 100 labels, or from 50 on when the test has decided and the "
        "labels that are left would add less than a point of accuracy."
    )
    assert said(AUTOPILOT, gate=replace(DECIDED, alarm=True), gain=SMALL).starts == (
        "Autopilot starts training with 100 labels, or from 50 on when the alarm has ended, the test has "
        "decided and the labels that are left would add less than a point of accuracy."
    )
    assert said(AUTOPILOT, gate=OPEN, labels=105).starts == (
        "Autopilot waits until the test has decided, for at most 15 more labels."
    )
    assert said(AUTOPILOT, gate=None, labels=100).starts == (
        "Autopilot starts training now: all 100 labels are in."
    )


def test_autopilot_without_automatic_training_is_refused():
    with pytest.raises(
        ValueError, match=r"labeling\.autopilot=true needs labeling\.auto_train=true"
    ):
        Config().override({"labeling.autopilot": "true"})


# --- in a workspace -----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def never_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too, a loop reads the budget again after each judgment."""
    monkeypatch.setattr(budgets, "SLOW", math.inf)


@pytest.fixture
def world(db: Database) -> Database:
    """Iteration 2 asks for 28 labels; policy-1 is the candidate."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(
        db, 2, phase="labeling", policy_produced=None, reward_model=None, labels_wanted=28
    )
    return db


@contextmanager
def loop_of(db: Database, **labeling: object) -> Iterator[Loop]:
    made = Loop(db, Config().override({f"labeling.{k}": v for k, v in labeling.items()}))
    try:
        yield made
    finally:
        made.advance()
        made.shut_down()


def outputs_of_curve(db: Database) -> Path:
    found = models.reward_models(db)[0]
    return curve_place(db.workspace, found.model, found.directory).outputs


def flat_curve(outputs: Path, *, labels: int) -> None:
    """A model of any share of the labels is right about 70% of the same judgments, but for one."""
    outputs.mkdir(parents=True)
    models = [(order, blocks) for order in ORDERS for blocks in range(1, BLOCKS)]
    for order, blocks in (*models, (FULL_MODEL, BLOCKS)):
        right = [float(n % 10 < 7) for n in range(400)]
        if blocks < BLOCKS:
            right[3 * order + blocks] = 0.0
        rows = [
            (f"j-{n}", f"p-{n // 2}", order, blocks / BLOCKS, labels * blocks / BLOCKS, value)
            for n, value in enumerate(right)
        ]
        pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(file_of(outputs, order, blocks))


def test_open_labels_are_those_that_people_have_not_given(world: Database):
    """Of ten pairs one is judged and one is flagged; two more are of another iteration or policy."""
    compare(world, "policy-1", "sft-1", ["first", *[None] * 5])
    compare(world, "sft-1", "policy-1", [None] * 3)  # stored the other way round
    compare(world, "policy-1", "policy-1", [None], arm="random")
    compare(world, "policy-1", "sft-1", [None], iteration=1)
    pair = queue.lease(world, "ann", 1).pairs[0].comparison
    world.write(lambda tx: tx.store(Flag(id="f", comparison=pair.id, annotator="ann", comment="?")))
    found = open_labels(world, 2, compared=("policy-1", "sft-1"))
    gate = pair.arm == "reference"
    assert (found.labels, found.prompts) == (8, 8 - 1 + (not gate))
    assert open_labels(world, 2).prompts == 0
    asked = policy_judgments.judged(world, between=("sft-1", "policy-1"))
    assert len(asked) == 1
    again = open_labels(
        world, 2, compared=("policy-1", "sft-1"), judged=[pair.prompt for pair in asked]
    )
    assert again == found  # the judged prompt has no other pair


def test_a_prompt_that_is_judged_already_offers_no_first_judgment(world: Database):
    compare(world, "policy-1", "sft-1", [None] * 2)
    prompt = queue.lease(world, "ann", 1).pairs[0].prompt.id
    found = open_labels(world, 2, compared=("policy-1", "sft-1"), judged=[prompt])
    assert (found.labels, found.prompts) == (2, 1)


def test_judgments_between_two_policies_leave_out_others(world: Database):
    compare(world, "policy-1", "sft-1", ["first"])
    compare(world, "policy-2", "sft-1", ["first"])
    compare(world, "policy-1", "policy-2", ["first"])
    assert len(policy_judgments.judged(world)) == 3
    [row] = policy_judgments.judged(world, between=("sft-1", "policy-1"))
    assert (row.first, row.second) == ("policy-1", "sft-1")


def test_autopilot_starts_training_at_half_of_the_labels_and_notes_why(world: Database):
    flat_curve(outputs_of_curve(world), labels=14)
    compare(world, "policy-1", "sft-1", [*["first"] * 13, *[None] * 10])
    with loop_of(world, auto_train=True, autopilot=True) as loop:
        assert loop.advance() == "labeling"  # 13 labels; the test has decided with the twelfth
        compare(world, "policy-1", "sft-1", ["first"])
        assert loop.advance() == "reward"
    [entry] = audit.listing(world, action="train")
    assert (entry.actor, entry.entry.via, entry.subject) == ("studio", "studio", "iteration 2")
    assert entry.entry.details["why"].startswith(
        "the test of policy-1 against SFT has decided (better), and 14 more labels would add less"
    )
    assert audit.listing(world, actor="studio") == audit.listing(world, action="train")
    assert audit.listing(world, actor="operator") == []


@pytest.mark.parametrize("auto_train", [True, False])
def test_without_autopilot_nothing_starts_before_all_labels(world: Database, auto_train: bool):
    flat_curve(outputs_of_curve(world), labels=14)
    compare(world, "policy-1", "sft-1", [*["first"] * 14, *[None] * 10])
    with loop_of(world, auto_train=auto_train) as loop:
        assert loop.advance() == "labeling"
        assert audit.listing(world, action="train") == []
        assert "you can stop now" in loop.label_budget().says


def test_a_curve_that_still_rises_keeps_labeling(world: Database):
    """`write_curve` rises by several points per doubling, and 14 more labels are a doubling."""
    outputs = outputs_of_curve(world)
    write_curve(outputs)
    for file in outputs.iterdir():
        table = pd.read_parquet(file)
        table["labels"] *= 14 / 400
        table.to_parquet(file)
    compare(world, "policy-1", "sft-1", [*["first"] * 14, *[None] * 10])
    with loop_of(world, auto_train=True, autopilot=True) as loop:
        assert loop.advance() == "labeling"
        gain = loop.label_budget().gain
    assert gain is not None
    assert gain.low > 0


def test_a_running_study_keeps_training_from_starting(world: Database):
    compare(world, "policy-1", "sft-1", ["first", "second", None])
    with loop_of(world, auto_train=True) as loop:
        assert loop.label_budget().starts == "Training starts by itself with 28 labels."
        study = Study(
            id="sweep-betas", kind="sweep", name="betas", status="running", repeats="run-1", iteration=1
        )  # fmt: skip
        studies.save(world, study)
        found = loop.label_budget()
        assert found.blocked == (
            "Training cannot start yet. The study betas is running. Wait until it ends, or cancel it."
        )
        assert found.starts.startswith("Training starts by itself when the labels are in")


def test_a_ruling_settles_the_gate(world: Database):
    compare(world, "policy-1", "sft-1", ["first", None])
    with loop_of(world) as loop:
        assert "ruled" not in loop.label_budget().says
        policy_judgments.override(world, "policy-1", "promote", reason="seen enough")
        assert loop.label_budget().says.startswith("A researcher has ruled on policy-1")


def test_a_block_by_the_canary_settles_the_gate(world: Database):
    compare(world, "policy-1", "sft-1", ["first", None])
    lost = to_json(canary_results(lost=14, gained=2))  # 12 points, more than chance
    iterations.save(world, replace(iterations.get(world, 1), evaluation={"canary": lost}))
    with loop_of(world) as loop:
        assert loop.label_budget().says.startswith(
            "The canary blocks policy-1: the gate needs no more judgments. 27 of 28 labels are left."
        )


def test_an_alarm_blocks_until_more_judgments_end_it(world: Database):
    """The reward model predicts 95% wins on 24 prompts, and people give half."""
    compare(world, "policy-1", "sft-1", ["first", "second"] * 12, predicted=0.95)
    compare(world, "policy-1", "sft-1", [None] * 40)
    with loop_of(world) as loop:
        found = loop.label_budget()
        assert found.gate is not None
        assert (found.gate.alarm, found.gate.decision, found.gate.settled) == (True, "go on", False)
        assert "The over-optimization alarm blocks policy-1 until more" in found.says


def test_the_first_iteration_has_no_candidate(db: Database):
    add_models(db, policies=0)
    add_iteration(db, 1, phase="labeling", policy_produced=None, reward_model=None, labels_wanted=5)
    compare(db, "sft-1", "sft-1", ["first", None], arm="random", iteration=1)
    with loop_of(db) as loop:
        found = loop.label_budget()
        assert (found.gate, found.offered) == (None, 1)
        assert found.says == "4 of 5 labels are left."
        assert found.blocked.startswith(
            "Training cannot start yet. All judgments are on one prompt."
        )


def test_a_budget_is_read_again_after_a_judgment_or_five_seconds(world: Database):
    """The second case is for a learning curve, which is a file."""
    compare(world, "policy-1", "sft-1", ["first", None])
    clock = [0.0]
    with loop_of(world) as loop:
        read = Budgets(world, loop.reports, lambda *_: Holds(), clock=lambda: clock[0])
        current = iterations.get(world, 2)

        def ask() -> LabelBudget:
            return read.get(current, Config())

        first = ask()
        clock[0] = 4.9
        assert ask() is first
        [pair] = queue.lease(world, "ann", 1).pairs
        judgments.judge(
            world, id=new_id("j"), comparison=pair.comparison.id, annotator="ann", outcome="a"
        )
        second = ask()
        assert (first.labels, second.labels) == (1, 2)
        clock[0] = 9.8
        assert ask() is second
        clock[0] = 10.0
        assert ask() is not second


def test_a_budget_that_takes_a_second_to_read_is_kept_for_twenty(
    world: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(budgets, "SLOW", 0.25)
    compare(world, "policy-1", "sft-1", ["first"])
    times = iter([0.0, 1.0, 19.9, 20.0, 20.0, 21.0])  # begun, read, asked, asked, begun, read
    with loop_of(world) as loop:
        read = Budgets(world, loop.reports, lambda *_: Holds(), clock=lambda: next(times))
        current = iterations.get(world, 2)
        first = read.get(current, Config())
        compare(world, "policy-1", "sft-1", ["first"])
        kept = read.get(current, Config())
        assert kept.gate is first.gate
        assert kept.says == first.says.replace("27 of 28", "26 of 28")  # as the page counts them
        assert read.get(current, Config()).gate is not first.gate
