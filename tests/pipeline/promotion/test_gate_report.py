"""What the gate makes of its evidence, and how it shares an iteration's comparisons out."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from pipeline.config.sections import Config
from pipeline.promotion import gate
from pipeline.statistics.sequential_test import LOG_E_THRESHOLD
from storage.gate_records import Candidate, Evidence, StandingRuling
from storage.gate_report import GateReport
from storage.records import Iteration
from tests.helpers.gate_evidence import WON, evidence


def test_a_reports_board_knows_who_won_on_either_side():
    for swapped in (False, True):
        board = gate.report(evidence(1, swapped=swapped), Config()).leaderboard
        assert [rank.policy for rank in board] == ["policy-1", "sft-1"]
        assert board[0].win_rate > 0.6


def test_a_report_counts_this_iterations_judgments_and_knows_no_stranger():
    known = evidence(1)
    earlier = [replace(row, iteration=1) for row in known.judged[:5]]
    stranger = replace(known.judged[0], first="imported", second="sft-1")
    known = replace(known, judged=[*earlier, *known.judged[5:], stranger])
    found = gate.report(known, Config())
    assert found.iteration
    assert found.iteration.judged == len(WON) - 5
    assert [rank.policy for rank in found.leaderboard] == ["policy-1", "sft-1"]


def test_what_the_gate_takes_leaves_the_rest_to_the_previous_policy():
    config = Config().override({"sampling.previous_share": 0.6, "gate.most": 0.5})
    current = Iteration(number=3, phase="sampling", labels_wanted=100, policy_sampled="policy-2")
    found = gate.shares(config, current, previous="policy-1", reference="sft-1")
    assert found == {"reference": 0.5, "previous": 0.5}


def ties(prompts: int) -> Evidence:
    """One tie of policy-1 with SFT on each prompt: nothing is ever decided."""
    known = evidence(1)
    rows = [
        replace(known.judged[0], comparison=f"c{n}", prompt=f"p{n}", outcome=0.5)
        for n in range(prompts)
    ]
    return replace(known, judged=rows)


@pytest.mark.parametrize(
    ("prompts", "shown"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (200, [*range(1, 201)]),  # as many points as a chart has
        (201, [*range(2, 201, 2), 201]),  # every second, and always the last
        (401, [*range(3, 401, 3), 401]),  # 401/200 is above 2: every third
    ],
)
def test_a_curve_has_at_most_200_points_and_the_last_is_always_one(prompts: int, shown: list[int]):
    found = gate.standing(ties(prompts), "policy-1").sequential
    assert [at for at, _ in found.path] == shown
    # A tie wins no bet: log E is 0 throughout.
    assert {value for _, value in found.path} == {0.0}
    assert (found.decision, found.prompts, found.limit) == ("go on", prompts, LOG_E_THRESHOLD)


def test_without_judgments_a_curve_has_no_points():
    found = gate.standing(ties(0), "policy-1")
    assert (found.sequential.path, found.win_rate, found.may_stop) == ([], None, False)
    assert found.words == ["People have not compared it with SFT yet."]


def test_a_curves_values_have_four_digits():
    won = replace(evidence(1), judged=[replace(ties(1).judged[0], outcome=1.0)])
    found = gate.standing(won, "policy-1").sequential
    # One win: the mean of 1 ± λ/2 over both signs of each λ is 1, so log E is 0 and not decided;
    # after two the mean of (1 ± λ/2)² is 1 + the mean of λ²/4.
    assert found.path == [(1, 0.0)]
    two = replace(won, judged=[*won.judged, replace(won.judged[0], prompt="another")])
    # λ²: .01, .04, .1225, .3025, .64, 1.21 sum to 2.325; 1 + 2.325/24 = 1.096875; log .09247.
    assert gate.standing(two, "policy-1").sequential.path == [(1, 0.0), (2, 0.0925)]


def ruled(ruling: str, **more: str) -> Evidence:
    said = {"reason": "too long", "researcher": "", "at": "2026-01-01"} | more
    return replace(evidence(1), overrides={"policy-1": StandingRuling(ruling=ruling, **said)})


def test_a_ruling_is_told_with_its_researcher_if_there_is_one():
    known = gate.standing(ruled("block", researcher="Rosa"), "policy-1")
    assert (known.verdict, known.words[-1]) == ("blocked", "Rosa ruled “block”: too long")
    nameless = gate.standing(ruled("promote"), "policy-1")
    assert nameless.verdict == "promoted"
    assert nameless.words[-1] == "A researcher ruled “promote”: too long"


def test_a_report_of_the_newest_iteration_needs_a_trained_policy():
    known = evidence(1)
    for iteration in (
        None,
        Candidate(number=2, policy=None, labels=100),
        Candidate(number=1, policy="sft-1", labels=100),  # the reference is not judged
        Candidate(number=2, policy="stranger", labels=100),
    ):
        assert gate.report(replace(known, iteration=iteration), Config()).iteration is None
    assert gate.report(replace(known, reference=None), Config()) == GateReport()


def test_the_reference_has_no_verdict_and_is_what_remains_without_a_promotion():
    known = evidence(1)
    assert gate.verdict(known, "sft-1") is gate.verdict(known, None) is None
    assert gate.verdict(known, "policy-1") == "provisional"
    assert gate.last_promoted(known) == "sft-1"
    found = gate.report(known, Config())
    assert found.last_promoted == "sft-1"
    assert [each.policy for each in found.policies] == ["policy-1"]


def test_the_oldest_policy_can_be_the_last_promoted():
    known = replace(ruled("promote"), policies=["sft-1", "policy-1", "policy-2"])
    assert gate.last_promoted(known) == "policy-1"
    assert gate.report(known, Config()).last_promoted == "policy-1"


def test_predictions_turn_round_with_the_sides():
    known = evidence(1, swapped=True)
    (row, *_) = gate.judgments_against(known, "policy-1", "sft-1")
    # Stored as SFT against policy-1: outcome 0 and prediction .2 of SFT.
    assert (row.first, row.second, row.outcome) == ("policy-1", "sft-1", 1.0)
    assert row.predicted == pytest.approx(0.8)
    unscored = replace(known, judged=[replace(known.judged[0], predicted=None)])
    assert gate.judgments_against(unscored, "policy-1", "sft-1")[0].predicted is None


def test_a_candidate_against_sft_alone_has_no_previous_policy():
    current = Iteration(number=3, phase="sampling", labels_wanted=400, policy_sampled="policy-2")

    def shares(previous: str | None) -> dict[str, float]:
        return gate.shares(Config(), current, previous=previous, reference="sft-1")

    for nobody in (None, "sft-1", "policy-2"):
        assert shares(nobody) == {"reference": 0.15}
    assert set(shares("policy-1")) == {"reference", "previous"}


def test_a_board_counts_the_judgments_of_any_two_of_its_policies():
    known = evidence(1)
    newer = replace(known.judged[0], prompt="another", first="policy-2", second="policy-1")
    known = replace(
        known, judged=[*known.judged, newer], policies=["sft-1", "policy-1", "policy-2"]
    )
    board = {rank.policy: rank.judgments for rank in gate.report(known, Config()).leaderboard}
    assert board == {"sft-1": len(WON), "policy-1": len(WON) + 1, "policy-2": 1}


def test_a_blocked_policys_weight_is_raised_though_nothing_is_known_of_the_references():
    config = Config().override({"ppo.kl_weight": 0.05, "gate.kl_raise": 3})
    raised, notes = gate.with_raised_kl_weight(config, ruled("block"))
    assert raised.ppo.kl_weight == pytest.approx(0.3)  # 3 · .1
    assert list(notes) == ["kl_raise"]
    assert gate.with_raised_kl_weight(config, ruled("promote")) == (config, {})


def test_judgments_of_a_pair_keep_their_order_whatever_the_sides_and_the_others():
    coin, names = random.Random(3), ["sft-1", "policy-1", "policy-2", "imported"]
    (model, *_) = evidence(1).judged
    rows = []
    for n in range(200):
        first, second = coin.sample(names, 2)
        outcome, predicted = coin.choice([0.0, 0.5, 1.0]), coin.choice([None, 0.25])
        rows.append(
            replace(
                model, comparison=f"c{n}", first=first, second=second, outcome=outcome,
                predicted=predicted,
            )
        )  # fmt: skip
    known = replace(evidence(1), judged=rows)
    for policy, opponent in itertools.permutations(names, 2):
        found = gate.judgments_against(known, policy, opponent)
        plain = [row for row in rows if {row.first, row.second} == {policy, opponent}]
        assert [row.comparison for row in found] == [row.comparison for row in plain]
        wins = [row.outcome if row.first == policy else 1 - row.outcome for row in plain]
        assert [(row.first, row.second, row.outcome) for row in found] == [
            (policy, opponent, won) for won in wins
        ]
    assert gate.judgments_against(known, "policy-1", None) == []
