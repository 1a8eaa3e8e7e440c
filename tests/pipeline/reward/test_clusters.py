"""Judgments of one prompt are no further evidence: copying each of them leaves every interval as it was.

Every caller has to hand the prompts on; one that treats judgments as independent would be too sure.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from pipeline.config.sections import Config
from pipeline.promotion import gate
from pipeline.reward.likelihood import FIRST, SECOND
from pipeline.reward.quality.metrics import held_out_metrics
from pipeline.simulation import report as goldreport
from pipeline.statistics.winrate import win_rate
from pipeline.studies.compare import Answer, point
from storage.records import EvaluatedCompletion, Message
from tests.helpers.gate_evidence import WON, evidence
from tests.helpers.held_out_rows import figures, row
from tests.helpers.judged_pairs import pair

COPIES = 4


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
    assert many.win_rate
    assert one.win_rate
    assert (many.win_rate.low, many.win_rate.high) == (
        close(one.win_rate.low), close(one.win_rate.high),
    )  # fmt: skip
    assert many.win_rate.comparisons == COPIES * one.win_rate.comparisons
    assert many.sequential.log_e == close(one.sequential.log_e)
    assert many.alarm
    assert one.alarm
    assert (many.alarm.z, many.alarm.error) == (close(one.alarm.z), close(one.alarm.error))


def test_the_leaderboard():
    one, many = (gate.report(evidence(copies), Config()).leaderboard[0] for copies in (1, COPIES))
    assert (one.policy, one.judgments) == ("policy-1", len(WON))
    # The prior weighs less beside more judgments, which moves the interval and hardly narrows it.
    width, copied = (rank.high - rank.low for rank in (one, many))
    assert copied == pytest.approx(width, rel=0.1)


def held_out_rows(copies: int) -> list[dict[str, Any]]:
    return [
        row(
            0.3 + 0.05 * n, "first" if won > 0.5 else "second", name=f"j{n}-{copy}",
            prompt=f"p{n}", first_length=5 + n % 3,
        )
        for copy in range(copies)
        for n, won in enumerate(WON)
    ]  # fmt: skip


def intervals(found: Any, path: str = "") -> dict[str, float]:
    """Every low and high of a nested report, by where it stands."""
    if isinstance(found, dict):
        items = found.items()
    elif isinstance(found, list | tuple):
        items = enumerate(found)
    else:
        name = path.rpartition(".")[2]
        return {path: found} if name in ("low", "high") and found is not None else {}
    return {k: v for key, each in items for k, v in intervals(each, f"{path}.{key}").items()}


def test_every_interval_of_a_reward_models_report():
    one, many = (asdict(figures(held_out_rows(copies))) for copies in (1, COPIES))
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
        assert getattr(many, end) == close(getattr(one, end))


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
                EvaluatedCompletion(
                    prompt=f"p{n}", messages=(Message(role="user", content=f"question {n}"),),
                    policy_role=role, text=text(role, won),
                )
                for n, won in enumerate(WON)
                for role in ("policy", "reference")
                for _ in range(copies if role == "policy" else 1)
            ],
            lambda _, response: float(len(response)),
        )
        for copies in (1, COPIES)
    )  # fmt: skip
    assert one.win_rate == close(sum(WON) / len(WON))
    assert {name: close(value) for name, value in asdict(one).items()} == asdict(many)
