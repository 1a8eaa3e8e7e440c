"""What the gate makes of its evidence, and how it shares an iteration's comparisons out."""

from __future__ import annotations

from dataclasses import replace

from pipeline.config.sections import Config
from pipeline.promotion import gate
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
