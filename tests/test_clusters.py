"""Judgments of one prompt are no further evidence: copying each of them leaves every interval as it was.

Every caller has to hand the prompts on; one that treats judgments as independent would be too sure.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipeline import gate, goldreport
from pipeline.compare import Answer, point
from pipeline.config import Config
from pipeline.reward.likelihood import FIRST, SECOND
from pipeline.reward.metrics import held_out_metrics
from pipeline.reward.quality import quality
from pipeline.winrate import win_rate
from storage.records import Iteration
from tests.judged_pairs import pair

COPIES = 4
WON = (1.0, 1.0, 0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.5)  # fmt: skip
"""Of policy-1 against SFT, on one prompt each."""


def evidence(copies: int, *, swapped: bool = False) -> dict[str, Any]:
    """What the gate knows after `copies` judgments of each prompt, which all say the same."""
    sides = ("sft-1", "policy-1") if swapped else ("policy-1", "sft-1")
    judged = [
        {
            "first": sides[0], "second": sides[1], "outcome": 1 - won if swapped else won,
            "prompt": f"p{n}", "predicted": 0.2 + 0.02 * n, "reward_model": "reward-1",
            "iteration": 2,
        }
        for n, won in enumerate(WON)
        for _ in range(copies)
    ]  # fmt: skip
    return {
        "judged": judged, "policies": ["sft-1", "policy-1"], "reference": "sft-1",
        "iteration": {"number": 2, "on_trial": "policy-1", "labels": 100},
        "proxies": {"policy-1": "reward-1"}, "kl_weights": {"policy-1": 0.1}, "overrides": {},
    }  # fmt: skip


def close(found: Any) -> Any:
    return pytest.approx(found, abs=1e-9)


def test_copies_would_narrow_an_interval_that_takes_them_for_independent():
    # What the tests below would miss if it were not so.
    one = win_rate(WON, range(len(WON)))
    many = win_rate(list(WON) * COPIES, range(len(WON) * COPIES))
    assert many.high - many.low < 0.6 * (one.high - one.low)
    copied = win_rate(list(WON) * COPIES, [*range(len(WON))] * COPIES)
    assert (copied.low, copied.high) == (close(one.low), close(one.high))


def test_a_policys_standing():
    one, many = (gate.standing(evidence(copies), "policy-1") for copies in (1, COPIES))
    for end in ("low", "high"):
        assert many["win_rate"][end] == close(one["win_rate"][end])
    assert many["win_rate"]["comparisons"] == COPIES * one["win_rate"]["comparisons"]
    assert many["sequential"]["log_e"] == close(one["sequential"]["log_e"])
    assert many["alarm"]["z"] == close(one["alarm"]["z"])
    assert many["alarm"]["error"] == close(one["alarm"]["error"])


def test_the_leaderboard():
    one, many = (
        gate.report(evidence(copies), Config())["leaderboard"][0] for copies in (1, COPIES)
    )
    assert (one["policy"], one["judgments"]) == ("policy-1", len(WON))
    # The prior weighs less beside more judgments, which moves the interval and hardly narrows it.
    width, copied = (rank["high"] - rank["low"] for rank in (one, many))
    assert copied == pytest.approx(width, rel=0.1)


def test_a_reports_board_knows_who_won_on_either_side():
    for swapped in (False, True):
        board = gate.report(evidence(1, swapped=swapped), Config())["leaderboard"]
        assert [rank["policy"] for rank in board] == ["policy-1", "sft-1"]
        assert board[0]["win_rate"] > 0.6


def test_a_report_counts_this_iterations_judgments_and_knows_no_stranger():
    known = evidence(1)
    for row in known["judged"][:5]:
        row["iteration"] = 1
    stranger = known["judged"][0] | {"first": "imported", "second": "sft-1"}
    known["judged"].append(stranger)
    found = gate.report(known, Config())
    assert found["iteration"]["judged"] == len(WON) - 5
    assert [rank["policy"] for rank in found["leaderboard"]] == ["policy-1", "sft-1"]


def test_what_the_gate_takes_leaves_the_rest_to_the_previous_policy():
    config = Config().override({"sampling.previous_share": 0.6, "gate.most": 0.5})
    current = Iteration(number=3, phase="sampling", labels_wanted=100, policy_sampled="policy-2")
    found = gate.shares(config, current, previous="policy-1", reference="sft-1")
    assert found == {"reference": 0.5, "previous": 0.5}


def held_out_rows(copies: int) -> list[dict[str, Any]]:
    rows = []
    for copy in range(copies):
        for n, won in enumerate(WON):
            d = 0.3 + 0.05 * n
            first = 1 / (1 + math.exp(-d))
            row = {
                "judgment": f"j{n}-{copy}", "prompt": f"p{n}", "arm": "random", "d": d,
                "outcome": "first" if won > 0.5 else "second", "p_first": first,
                "p_second": 1 - first, "first_length": 5 + n % 3, "second_length": 5,
            }  # fmt: skip
            rows.append(row)
    return rows


def intervals(found: Any, path: str = "") -> dict[str, float]:
    """Every low and high of a nested report, by where it stands."""
    if isinstance(found, dict):
        items = found.items()
    elif isinstance(found, list):
        items = enumerate(found)
    else:
        name = path.rpartition(".")[2]
        return {path: found} if name in ("low", "high") and found is not None else {}
    return {k: v for key, each in items for k, v in intervals(each, f"{path}.{key}").items()}


def test_every_interval_of_a_reward_models_report():
    one, many = (
        quality(
            rows, groups={row["judgment"]: "single" for row in rows}, log_loss=0.6,
            coin_log_loss=0.7, agreed=None, expected=None,
        )
        for rows in map(held_out_rows, (1, COPIES))
    )  # fmt: skip
    single, copied = intervals(one), intervals(many)
    for figure in ("accuracy", "overconfidence", "bins", "by_margin", "by_agreement", "rule"):
        assert any(figure in path for path in single), figure
    assert copied == {path: pytest.approx(value, abs=1e-6) for path, value in single.items()}


def test_the_accuracy_of_held_out_judgments():
    found = []
    for copies in (1, COPIES):
        pairs = [
            pair(FIRST if won > 0.5 else SECOND, prompt=f"p{n}")
            for n, won in enumerate(WON)
            for _ in range(copies)
        ]
        ahead = [0.4] * len(pairs)
        found.append(
            held_out_metrics(pairs, ahead, [0.0] * len(pairs), theta=0.5, tie_model="drop")
        )
    one, many = found
    for end in ("accuracy_low", "accuracy_high"):
        assert many[end] == close(one[end])


def test_a_comparison_of_methods():
    one, many = (
        point(
            "last",
            [
                Answer(prompt=f"p{n}", text="", gold=won, reward=won / 2 + n % 3, kl=1.0, length=4)
                for n, won in enumerate(WON)
                for _ in range(copies)
            ],
            {f"p{n}": 0.5 for n in range(len(WON))},
            seconds=1.0,
        )
        for copies in (1, COPIES)
    )
    for name in ("gold_error", "reward_error"):
        assert getattr(many, name) == close(getattr(one, name))
    assert (many.win_rate.low, many.win_rate.high) == (
        close(one.win_rate.low),
        close(one.win_rate.high),
    )


def test_the_golds_own_comparison():
    def text(role: str, won: float) -> str:
        return "x" * (2 if role == "reference" else round(1 + 2 * won))

    one, many = (
        goldreport.compare(
            [
                {
                    "prompt": f"p{n}", "messages": [{"role": "user", "content": f"question {n}"}],
                    "policy_role": role, "text": text(role, won),
                }
                for n, won in enumerate(WON)
                for role in ("policy", "reference")
                for _ in range(copies if role == "policy" else 1)
            ],
            lambda _, response: float(len(response)),
        )
        for copies in (1, COPIES)
    )  # fmt: skip
    assert one["win_rate"] == close(sum(WON) / len(WON))
    assert {name: close(value) for name, value in one.items()} == many
