"""The report on a retrained reward model, from predictions by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs.study_folder import Spec
from pipeline.studies.retrain.files import Fact
from pipeline.studies.retrain.findings import findings, format_retraining, notes, shifted
from pipeline.studies.retrain.plot import rows, write_report
from pipeline.studies.retrain.report import (
    Measured,
    RetrainReport,
    gate_shifts,
    orders,
    policy_shifts,
    summary,
    swaps,
)
from storage.gate_records import Evidence, PolicyJudgment
from tests.helpers.gate_evidence import evidence
from tests.helpers.retrained_study import made_report

PLAN = {
    "without": ["Carl"], "only": [], "guidelines": [], "before": None, "controls": 0,
    "model": "reward-1",
}  # fmt: skip


def predicted(d: float, outcome: str = "first", *, n: int = 0, arm: str = "random") -> Any:
    """A held-out judgment without ties: P(first) = σ(d)."""
    first = 1 / (1 + math.exp(-d))
    return {
        "judgment": f"j-{n}", "prompt": f"p-{n}", "arm": arm, "outcome": outcome, "d": d,
        "p_first": first, "p_second": 1 - first,
    }  # fmt: skip


def held_out(*differences: float) -> dict[str, Any]:
    """Judgments that prefer the first response, on a prompt each; the last is not of the stream."""
    made = [predicted(d, n=n) for n, d in enumerate(differences)]
    made.append(predicted(-9.0, n=len(differences), arm="bald"))
    return {row["judgment"]: row for row in made}


def scores(**expected: list[float]) -> dict[str, Any]:
    """Scores of policies; the reward above SFT is 2 · expected, and SFT's are 0 and 2 (sd 1)."""
    return {
        policy: [
            {
                "policy": policy, "prompt": f"h-{n}", "reward": 2 * each + 2 * (n % 2),
                "reference_reward": 2.0 * (n % 2), "expected": each,
            }
            for n, each in enumerate(values)
        ]
        for policy, values in expected.items()
    }  # fmt: skip


def facts(left_out: set[int], count: int) -> list[Fact]:
    """Judgments of the snapshot; those of Carl are left out."""
    return [
        Fact(
            judgment=f"j-{n}", annotator="Carl" if n in left_out else "Ada", kind="person",
            part="held_out", left_out=n in left_out,
        )
        for n in range(count)
    ]  # fmt: skip


def reported(*controls: Measured, plan: dict[str, Any] | None = None) -> RetrainReport:
    """Four preferences, of which Carl gave the last; the retrained model corrects one of the others."""
    spec = Spec(kind="retrain", name="r", plan=plan or PLAN, repeats="run", iteration=1)
    rated = scores(**{"policy-1": [0.6, 0.8]})
    return summary(
        spec,
        facts=facts({3}, 4),
        original=Measured(held_out=held_out(1, 1, -1, 1), scores=rated),
        retrained=Measured(held_out=held_out(1, 1, 1, -1), scores=scores(**{"policy-1": [0.7, 0.5]})),
        controls=controls,
        evidence=Evidence(),
        tie_model="rao_kupper",
        not_evaluated=["policy-2"],
    )  # fmt: skip


def test_groups_of_held_out_judgments_by_hand():
    remaining, every, left_out = reported().held_out
    assert [each.group for each in (remaining, every, left_out)] == ["remaining", "all", "left_out"]
    assert [each.judgments for each in (remaining, every, left_out)] == [3, 4, 1]  # no bald pair
    for each, before, after in ((remaining, 2 / 3, 1), (every, 3 / 4, 3 / 4), (left_out, 1, 0)):
        assert each.accuracy is not None
        assert (each.accuracy.before, each.accuracy.after) == (
            pytest.approx(before), pytest.approx(after),
        )  # fmt: skip
        assert each.accuracy.shift == pytest.approx(after - before)
    assert left_out.accuracy is not None
    assert left_out.accuracy.low is None  # one prompt
    assert remaining.log_loss is not None
    # −log σ(1) = .3133 and −log σ(−1) = 1.3133.
    assert remaining.log_loss.before == pytest.approx((2 * 0.3133 + 1.3133) / 3, abs=1e-4)
    assert remaining.log_loss.after == pytest.approx(0.3133, abs=1e-4)


def test_controls_say_what_chance_gives():
    same = Measured(held_out=held_out(1, 1, -1, 1), scores=scores(**{"policy-1": [0.6, 0.8]}))
    better = Measured(held_out=held_out(1, 1, 1, 1), scores=scores(**{"policy-1": [0.6, 0.8]}))
    (one, *_) = reported(better, plan=PLAN | {"controls": 1}).held_out
    assert one.accuracy is not None
    assert one.accuracy.chance is not None
    assert one.accuracy.chance.controls == (pytest.approx(1 / 3),)
    assert one.accuracy.chance.beyond is None
    many = reported(*[same] * 19, better, plan=PLAN | {"controls": 20})
    (figure, _, _) = (each.accuracy for each in many.held_out)
    assert figure is not None
    assert figure.chance is not None
    # The standard deviation of the controls is .0745, and that of one of three judgments .333:
    # 1/60 ± 2.093 · .333 · √(21/20) is −.698 to +.732, but from 2/3 an accuracy moves by −2/3 to +1/3.
    assert figure.chance.low == pytest.approx(-2 / 3)
    assert figure.chance.high == pytest.approx(1 / 3)
    # Over all four judgments, no limit is cut: 1/80 ± 2.093 · .25 · √(21/20).
    (_, wider, _) = (each.accuracy for each in many.held_out)
    assert wider is not None
    assert wider.chance is not None
    half = 2.093024 / 4 * math.sqrt(21 / 20)
    assert wider.chance.low == pytest.approx(1 / 80 - half)
    assert wider.chance.high == pytest.approx(min(1 / 80 + half, 1 / 4))
    assert figure.chance.beyond is False
    assert "the shift is within chance" in findings(many)[0]
    (policy,) = many.policies
    assert policy.win_rate.chance is not None
    assert policy.win_rate.chance.beyond is True  # .7 → .6, and no control moves it


def test_policies_by_hand():
    before, after = (
        scores(a=[0.6, 0.8, 0.4], b=[0.6, 0.4, 0.5]),
        scores(a=[0.4, 0.5, 0.3], b=[0.6, 0.8, 0.5]),
    )
    named, renamed = orders(before, after)
    assert (named, renamed) == (("a", "b", "SFT"), ("b", "SFT", "a"))
    first, second = found = policy_shifts([before, after], named, renamed)
    assert [each.policy for each in found] == ["a", "b"]
    assert (first.win_rate.before, first.win_rate.after) == (pytest.approx(0.6), pytest.approx(0.4))
    # Twice the expected outcome, in standard deviations of 0, 2, 0.
    spread = math.sqrt(8 / 9)
    assert first.gain.before == pytest.approx(1.2 / spread)
    # Before a .6, SFT .5, b .5; after b .63, SFT .5, a .4.
    assert (first.rank_before, first.rank_after) == (1, 3)
    assert second.rank_after == 1
    swapped = {(each.above, each.below): each.lead for each in swaps(found, [before, after])}
    assert swapped[("a", "b")].before == pytest.approx(0.1)
    assert swapped[("a", "b")].after == pytest.approx(0.4 - 1.9 / 3)
    assert swapped[("a", "SFT")].after == pytest.approx(-0.1)
    assert set(swapped) == {("a", "b"), ("a", "SFT")}  # b was level with SFT
    # Policies at one rate keep their places.
    assert orders(scores(a=[0.4], b=[0.6]), scores(a=[0.7], b=[0.7]))[1] == ("b", "a", "SFT")
    # .1 + .2 is .30000000000000004.
    assert orders(scores(a=[0.4], b=[0.6]), scores(a=[0.1 + 0.2], b=[0.3]))[1] == ("SFT", "b", "a")


def test_a_change_of_places_is_within_or_beyond_chance():
    """a leads SFT by .1 before and by −.1 after: −.2 on each prompt, so without an interval's width.
    Controls move a by −.1 and +.1: 0 ± 12.706 · .1414 · √1.5 = 2.2, but a lead ends at 1."""
    made = told_order([0.6, 0.6], [0.4, 0.4], [0.5, 0.5], [0.7, 0.7])
    assert (made.order_before, made.order_after) == (("a", "SFT"), ("SFT", "a"))
    (swap,) = made.swaps
    assert swap.lead.chance is not None
    assert swap.lead.chance.controls == (pytest.approx(-0.1), pytest.approx(0.1))
    assert swap.lead.chance.low == pytest.approx(-1.1)
    assert swap.lead.chance.high == pytest.approx(0.9)
    told = findings(made)
    assert told[1] == (
        "The order of policies by predicted win rate changes: before a, SFT; after SFT, a."
    )
    assert told[2].startswith(
        "a leads SFT by +10.0 before and by −10.0 after: a shift of −20.0 points"
    )
    assert told[2].endswith("(2 controls, 95% limit −110.0 to +90.0): the shift is within chance.")
    beyond = told_order([0.6, 0.6], [0.4, 0.4], [0.6, 0.6], [0.6, 0.6])
    assert findings(beyond)[2].endswith("the shift is beyond chance.")
    assert told_order([0.6], [0.7]).swaps == ()


def told_order(*expected: list[float]) -> RetrainReport:
    """A report of policy a, by its outcomes under the original, the retrained model and controls."""
    models = [Measured(held_out={}, scores=scores(a=each)) for each in expected]
    plan = PLAN | {"controls": len(models) - 2}
    return summary(
        Spec(kind="retrain", name="r", plan=plan, repeats="run", iteration=1),
        facts=facts({0}, 1), original=models[0], retrained=models[1], controls=models[2:],
        evidence=Evidence(), tie_model="half", not_evaluated=[],
    )  # fmt: skip


def test_verdicts_are_those_of_the_gate_without_the_judgments():
    known = evidence(3)
    named = Evidence(
        **vars(known) | {
            "judged": [
                type(row)(**vars(row) | {"judgment": f"j-{n}"}) for n, row in enumerate(known.judged)
            ]
        }
    )  # fmt: skip
    (same,) = gate_shifts(named, set())
    assert same.before == same.after
    assert same.shift is not None
    assert (same.shift.shift, same.shift.low, same.shift.high) == (0, 0, 0)
    lost = {row.judgment for row in named.judged if row.outcome < 1}
    (only_wins,) = gate_shifts(named, lost)
    assert only_wins.after == "promoted"
    assert only_wins.rate_after is not None
    assert only_wins.rate_after.win_rate == 1
    assert only_wins.log_e_after > only_wins.log_e_before
    (none,) = gate_shifts(named, {row.judgment for row in named.judged})
    assert (none.after, none.rate_after, none.shift) == ("provisional", None, None)


def test_the_shift_at_the_gate_is_beside_random_judgments_of_the_policy():
    judged = [
        PolicyJudgment(
            comparison=f"c-{n}", judgment=f"g-{n}", prompt=f"q-{n}", iteration=2,
            first="policy-1", second="sft-1", outcome=float(n % 2),
        )
        for n in range(40)
    ]  # fmt: skip
    known = Evidence(judged=judged, policies=["sft-1", "policy-1"], reference="sft-1")
    losses = {row.judgment for row in judged if row.outcome == 0}
    (found,) = gate_shifts(known, losses)
    assert found.shift is not None
    assert (found.shift.before, found.shift.after) == (0.5, 1.0)
    assert found.shift.chance is not None
    wins = [20 * (0.5 + shift) for shift in found.shift.chance.controls]  # of 20 random judgments
    assert len({*wins}) > 1
    assert all(count == pytest.approx(round(count)) for count in wins)
    assert found.shift.chance.beyond
    (again,) = gate_shifts(known, losses)
    assert again == found
    first_half = {row.judgment for row in judged[:20]}  # has as many wins as the other
    (even,) = gate_shifts(known, first_half)
    assert even.shift is not None
    assert even.shift.chance is not None
    assert (even.shift.shift, even.shift.chance.beyond) == (0, False)


def test_text_says_of_each_shift_whether_it_is_chance(tmp_path: Path):
    made = made_report()
    text = format_retraining(made, tmp_path / "retrain.svg")
    figures = [
        *(figure for each in made.held_out for figure in (each.accuracy, each.log_loss)),
        *(figure for each in made.policies for figure in (each.win_rate, each.gain)),
        *(each.shift for each in made.gate),
    ]
    said = re.findall(r"(within|beyond) [+−][\d.]+ to", text)
    verdicts = [each.chance.beyond for each in figures if each and each.chance]
    assert len(verdicts) == 12
    assert said == ["beyond" if each else "within" for each in verdicts]
    changed = [each.shift for each in made.gate if each.before != each.after]
    told = [each for each in made.findings if "Its win rate among people" in each]
    for shift, sentence in zip(changed, told, strict=True):
        assert shift is not None
        assert f": {shifted(shift)}. As many random judgments left out shift it by" in sentence


def test_findings_notes_text_and_plot(tmp_path):
    made = reported()
    told = findings(made)
    assert told[0].startswith(
        "On the 3 held-out preferences that remain, accuracy goes from 66.7% to 100.0%: +33.3 points"
    )
    assert told[1] == "The order of policies by predicted win rate stays the same: policy-1, SFT."
    assert told[2] == "People have not compared a policy with SFT, so no verdict can change."
    assert notes(made)[0].startswith("Training again with other judgments also shifts figures")
    assert notes(made)[1].startswith("Only 3 of the model's judgments remain.")
    assert notes(made)[2] == "Without a stored evaluation: policy-2."
    text = format_retraining(made, write_report(tmp_path, made))
    assert "reward-1 of iteration 1, trained again without judgments by Carl" in text
    assert "1 of 4 judgments are left out, 3 remain" in text
    named = reported(plan=PLAN | {"without": ["Ca\x1b[31mrl"]})
    assert "\x1b" not in format_retraining(named, tmp_path)
    assert [row.label for row in rows(made)] == [
        "Accuracy on held-out preferences", "that remain (3)", "all (4)",
        "that are left out (1)", "Predicted win rate against SFT", "policy-1",
    ]  # fmt: skip
    assert (tmp_path / "retrain.svg").read_text().count("<svg") == 1


def test_nothing_to_measure_is_said():
    spec = Spec(kind="retrain", name="r", plan=PLAN, repeats="run", iteration=1)
    empty = Measured(held_out={}, scores={})
    made = summary(
        spec, facts=facts({0}, 1), original=empty, retrained=empty, controls=[],
        evidence=Evidence(), tie_model="half", not_evaluated=[],
    )  # fmt: skip
    assert [each.accuracy for each in made.held_out] == [None] * 3
    told = findings(made)
    assert told[0].startswith("No held-out preference remains")
    assert told[1].startswith("No policy has a stored evaluation")
