"""The evidence on a model's card: figures worked by hand, what was not measured, and no names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.config.sections import Config
from pipeline.promotion import gate
from storage.engine.database import Database
from storage.exporting.model_push import Verdicts, plan
from storage.gate_report import OverOptimization
from storage.records import (
    Adjudication,
    Annotator,
    Arm,
    Comparison,
    Completion,
    Iteration,
    Judgment,
    ModelVersion,
    Outcome,
    Prompt,
    Snapshot,
    now,
)
from storage.reports import Check, RewardReport, RewardVerdict
from storage.tables import policy_judgments

VERDICT = RewardVerdict(
    verdict="best-of-N is safer",
    checks=(
        Check(name="labels", allows="ppo", says="200 preferences are enough"),
        Check(name="ceiling", allows="best_of_n", says="the ceiling is far"),
        Check(name="curve", allows="ppo", says="there is no learning curve yet", known=False),
    ),
)
POLICY_2 = ModelVersion(
    id="policy-2", role="policy", name="policy-2", path="models/policy-2", parent="sft-1",
    iteration=2, reward_model="reward-1", summary={"method": "rloo"},
    created_at=datetime(2126, 1, 1, tzinfo=UTC),
)  # fmt: skip


def verdicts(db: Database, found: RewardVerdict | None = VERDICT) -> Verdicts:
    """Those of the gate, and `found` for reward-1."""

    def reward(model: str) -> RewardReport:
        if found is None:
            raise ValueError(f"there is no run of {model}")
        return RewardReport(models=(model,), model=model, verdict=found)

    return Verdicts(lambda: gate.report(policy_judgments.evidence(db), Config()), reward)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """SFT, two policies and a reward model; policy-2 has files, and nobody has judged it."""
    with Database.open(tmp_path / "study") as db:
        for name in ("policy-1", "policy-2", "reward-1"):
            folder = db.workspace / "models" / name
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
        db.write(lambda tx: tx.store(
            ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"),
            ModelVersion(id="policy-1", role="policy", name="policy-1", path="models/policy-1", parent="sft-1", iteration=1, summary={"kl/reference": 2.504}),
            Annotator(id="u-1", name="Ann Li", role="annotator", kind="person"),
            Annotator(id="u-2", name="Ben Oz", role="annotator", kind="person"),
            Annotator(id="u-3", name="robot", role="annotator", kind="simulated"),
        ))  # fmt: skip
        db.write(lambda tx: tx.store(POLICY_2, Iteration(number=1, policy_produced="policy-1")))
        yield db


def pair(name: str, other: str, arm: Arm) -> tuple[Prompt, Completion, Completion, Comparison]:
    """A comparison of policy-2, whose response is first, with another model."""
    prompt = Prompt.make(f"Question {name}", role="train")
    sides = [
        Completion(id=f"{name}-{policy}", prompt=prompt.id, policy=policy, text=f"{name} {policy}")
        for policy in ("policy-2", other)
    ]
    made = Comparison(
        id=name, prompt=prompt.id, first=sides[0].id, second=sides[1].id, iteration=3, arm=arm,
        wanted=1, position=0,
    )  # fmt: skip
    return prompt, *sides, made


def said(name: str, who: str, outcome: Outcome, guidelines: str | None = "g-1") -> Judgment:
    return Judgment(
        id=f"{name}-{who}", comparison=name, annotator=who, outcome=outcome, shown_swapped=False,
        guidelines=guidelines,
    )  # fmt: skip


def ruling(name: str, outcome: Outcome) -> Adjudication:
    return Adjudication(
        id=f"ruling-{name}", comparison=name, adjudicator="u-2", outcome=outcome,
        shown_swapped=False, reason="as Ben Oz said", created_at=now(),
    )  # fmt: skip


def judge(db: Database) -> None:
    """Six judgments by two people against SFT and policy-1, with rulings on three pairs."""
    pairs = [pair(f"r{i}", "sft-1", "reference") for i in range(4)]
    pairs += [pair(f"p{i}", "policy-1", "previous") for i in range(2)]
    judgments = [
        said("r0", "u-1", "first"), said("r1", "u-1", "first"), said("r2", "u-1", "tie"),
        said("r3", "u-1", "second"), said("r3", "u-2", "second", "g-2"),
        said("p0", "u-1", "first"), said("p0", "u-2", "second", "g-2"), said("p1", "u-2", "first", None),
    ]  # fmt: skip
    rulings = [ruling("r0", "second"), ruling("r3", "second"), ruling("p0", "first")]
    for rows in (*pairs, judgments, rulings):
        db.write(lambda tx, rows=rows: tx.store(*rows))
    db.write(lambda tx: tx.store(
        Iteration(number=2, policy_produced="policy-2", evaluation={"policy": {"kl": 3.214}, "reference": {}}),
    ))  # fmt: skip


def reward_model(db: Database) -> None:
    """reward-1 of a snapshot with the four judgments of Ann against SFT and Ben's of r3."""
    judged = ("r0-u-1", "r1-u-1", "r2-u-1", "r3-u-1", "r3-u-2")
    summary = {"accuracy": 0.75, "learned_by": {"u-1": 3, "u-2": 1}}
    db.write(lambda tx: tx.store(
        Snapshot(hash="s-1", iteration=2, judgments=judged, created_at=now()),
        ModelVersion(id="reward-1", role="reward", name="reward-1", path="models/reward-1", iteration=2, snapshot="s-1", summary=summary),
    ))  # fmt: skip


def lines_of(db: Database, model: str, given: Verdicts | None = None) -> list[str]:
    return plan(db, given or verdicts(db), model).card.splitlines()


def test_the_card_of_a_judged_policy_has_the_figures_worked_by_hand(db: Database) -> None:
    judge(db)
    reward_model(db)
    lines = lines_of(db, "policy-2")
    # Against SFT the prompts give 1, 1, ½ and 0 + 0: the mean is 2.5 of 5.  Sums of residuals by prompt
    # ½, ½, 0, −1, so the variance is 4/3 · 1.5/25 = .08 and the effective size .25/.08 = 3.125.  With
    # t(3) = 3.18245, Wilson's half-width is 3.18245/4.24093 · √(.08 + 10.1279/39.0625) = .437.
    assert (
        "* Win rate against SFT: 50.0% (95% interval 6.3% to 93.7%; 5 judgments on 4 prompts)."
        in lines
    )
    # Against policy-1, 1 + 0 and 1: 2 of 3.  Residuals −1/3 and 1/3, variance 2 · (2/9)/9 = .04938,
    # size (2/9)/.04938 = 4.5; t(1) = 12.7062, center .50452, half-width .49243.
    assert (
        "* Win rate against the previous policy: 66.7% (95% interval 1.2% to 99.7%; 3 judgments on "
        "2 prompts), policy-1." in lines
    )
    assert (
        "* KL to SFT: 3.21 nats per response, mean over responses to the held-out prompts." in lines
    )
    assert "* Judgments on this policy: 8 judgments by 2 people." in lines
    assert (
        "* Guidelines of these judgments: version `g-1` (5 judgments), version `g-2` (2 judgments), "
        "not recorded (1 judgment)." in lines
    )
    # r0 was won by policy-2 and is ruled against it, r3 is confirmed, and p0 has one vote for each side.
    assert (
        "* Rulings of adjudicators: on 3 pairs: 1 confirmed the outcome with the most votes, 1 changed "
        "it, 1 decided a pair on which no outcome had the most votes. Training and figures use the "
        "judgments, not the rulings." in lines
    )
    # r3: both say second; p0: first and second.  Half agree; with three second and one first, chance
    # disagreement is 2·3·1/(4·3) = ½ as well, so alpha is 0.
    [agreement] = [line for line in lines if line.startswith("* Agreement of annotators: 50.0%")]
    assert "on 2 pairs of the workspace" in agreement
    assert "alpha (nominal) 0.00" in agreement
    [verdict] = [line for line in lines if line.startswith("* Verdict of the promotion gate:")]
    assert "provisional. The sequential test against SFT is undecided: log E is " in verdict


def test_the_card_has_the_evidence_about_the_reward_model(db: Database) -> None:
    judge(db)
    reward_model(db)
    for model in ("policy-2", "reward-1"):
        lines = lines_of(db, model)
        assert "* Accuracy on held-out preferences: 75.0%." in lines
        assert (
            "* Verdict on the reward model: best-of-N is safer. The ceiling is far. There is no learning "
            "curve yet." in lines
        )
        assert (
            "* Judgments of its snapshot: 5 judgments by 2 people; it learned from 4 of them."
            in lines
        )
        assert (
            "* Guidelines of these judgments: version `g-1` (4 judgments), version `g-2` (1 judgment)."
            in lines
        )
        assert any(
            line.startswith("* Rulings of adjudicators: on 2 pairs: 1 confirmed") for line in lines
        )
    assert "## Blind comparisons" not in lines_of(db, "reward-1")
    unmeasured = lines_of(db, "reward-1", verdicts(db, None))
    assert (
        "* Verdict on the reward model: none, because its quality was not measured." in unmeasured
    )


def test_what_was_not_measured_is_said(db: Database) -> None:
    lines = lines_of(db, "policy-2")
    assert "* Win rate against SFT: not measured, because nobody has compared it with SFT." in lines
    assert (
        "* Win rate against the previous policy: not measured, because nobody has compared it with "
        "policy-1." in lines
    )
    assert "* KL to SFT: not measured." in lines
    assert "* Judgments on this policy: none yet." in lines
    assert "* Verdict of the promotion gate: provisional. There is no evidence yet." in lines
    assert (
        "* Agreement of annotators: not measured, because no pair was judged by two annotators."
        in lines
    )
    first = lines_of(db, "policy-1")
    assert (
        "* Win rate against the previous policy: does not apply, because this is the first policy."
        in first
    )
    assert (
        "* KL to SFT: 2.50 nats per response in the last update of training; not measured on held-out "
        "prompts." in first
    )


def test_an_upper_bound_of_the_kl_is_called_one(db: Database) -> None:
    evaluation = {"policy": {"kl": 0.0184, "kl_is_bound": True}, "reference": {}}
    db.write(lambda tx: tx.store(
        Iteration(number=2, policy_produced="policy-2", evaluation=evaluation),
        replace(POLICY_2, summary={"method": "best-of-n"}),
    ))  # fmt: skip
    lines = lines_of(db, "policy-2")
    assert (
        "* KL to SFT: at most 0.018 nats per response, mean over responses to the held-out prompts."
        in lines
    )


def test_a_card_names_nobody_and_says_who_decided(db: Database) -> None:
    judge(db)
    reward_model(db)
    policy_judgments.override(
        db, "policy-2", "promote", reason="Reads better\nto us.", researcher="Maria Q"
    )
    text = plan(db, verdicts(db), "policy-2").card
    assert (
        "* Verdict of the promotion gate: promoted, by a researcher's decision with the reason “Reads "
        "better to us”. By the evidence it is provisional. The sequential test" in text
    )
    for name in ("Maria", "Ann Li", "Ben Oz", "u-1", "u-2"):
        assert name not in text
        assert name not in plan(db, verdicts(db), "reward-1").card


def test_an_alarm_is_the_reason_of_a_block(db: Database) -> None:
    judge(db)
    alarm = OverOptimization(
        predicted=0.9, human=0.5, error=0.1, z=4.0, alarm=True, comparisons=5, prompts=4
    )
    report = verdicts(db).gate()
    blocked = replace(
        report.standing("policy-2"), alarm=alarm, verdict="blocked", by_evidence="blocked"
    )
    given = Verdicts(lambda: replace(report, policies=[blocked]), verdicts(db).reward)
    [line] = [
        each
        for each in lines_of(db, "policy-2", given)
        if each.startswith("* Verdict of the promotion")
    ]
    assert line.startswith("* Verdict of the promotion gate: blocked. ")
    assert line.endswith(
        "Over-optimization alarm: on 5 judgments the reward model predicted 90% wins, and annotators gave "
        "50% (z = 4.0)."
    )


def test_simulated_annotators_are_not_called_people(db: Database) -> None:
    made = pair("r9", "sft-1", "reference")
    db.write(lambda tx: tx.store(*made))
    db.write(lambda tx: tx.store(said("r9", "u-3", "first")))
    text = plan(db, verdicts(db), "policy-2").card
    assert "**None of these judgments are by people: 1 judgment by 1 simulated annotator.**" in text
    db.write(lambda tx: tx.store(said("r9", "u-1", "first")))
    text = plan(db, verdicts(db), "policy-2").card
    assert (
        "**Only 1 of 2 of these judgments are by people: 1 judgment by 1 person and 1 judgment by 1 "
        "simulated annotator.**" in text
    )
