"""What figures of a reward model allow: each threshold from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.reward.report.verdict import verdict as verdict_on
from storage.reports import Check, Forecast, Quality, RewardVerdict, from_json
from tests.helpers.reward_figures import quality

GAIN = Forecast(more=100, low=0.005, says="the next 100 labels would bring …")


def verdict(forecast: Forecast | None = GAIN, **changes: Any) -> RewardVerdict:
    return verdict_on(from_json(Quality, quality(**changes)), forecast)


def check(name: str, forecast: Forecast | None = GAIN, **changes: Any) -> Check:
    return next(each for each in verdict(forecast, **changes).checks if each.name == name)


def share(value: float, low: float, high: float) -> dict[str, float]:
    return {"win_rate": value, "low": low, "high": high, "comparisons": 90, "prompts": 60}


def length(value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return quality()["length"] | {"correlation": {"value": value, "low": low, "high": high}}


def calibration(ece: float, chance: float, gap: float = 0.1) -> dict[str, Any]:
    return quality()["calibration"] | {
        "ece": ece, "ece_by_chance": chance, "overconfidence": {"value": gap, "low": -1, "high": 1},
    }  # fmt: skip


def test_good_figures_are_enough_for_ppo():
    found = verdict()
    assert found.verdict == "enough for PPO"
    assert [each.name for each in found.checks] == [
        "judgments", "accuracy", "ceiling", "calibration", "length", "labels",
    ]  # fmt: skip
    assert {each.allows for each in found.checks} == {"ppo"}


@pytest.mark.parametrize(
    ("changes", "name", "allows"),
    [
        ({"decisive": 19}, "judgments", "labeling"),
        ({"decisive": 20}, "judgments", "best_of_n"),
        ({"decisive": 49}, "judgments", "best_of_n"),
        ({"decisive": 50}, "judgments", "ppo"),
        ({"accuracy": share(0.8, 0.50, 0.9)}, "accuracy", "labeling"),
        ({"accuracy": share(0.6, 0.51, 0.7)}, "accuracy", "best_of_n"),
        ({"accuracy": share(0.7, 0.59, 0.8)}, "accuracy", "best_of_n"),
        ({"accuracy": share(0.7, 0.60, 0.8)}, "accuracy", "ppo"),
        ({"share_of_ceiling": {"value": 0.8, "low": 0.7, "high": 0.89}}, "ceiling", "best_of_n"),
        ({"share_of_ceiling": {"value": 0.8, "low": 0.7, "high": 0.9}}, "ceiling", "ppo"),
        ({"share_of_ceiling": None, "ceiling": None}, "ceiling", "ppo"),
        ({"calibration": calibration(0.11, 0.10)}, "calibration", "best_of_n"),
        ({"calibration": calibration(0.11, 0.12)}, "calibration", "ppo"),
        ({"calibration": calibration(0.09, 0.05)}, "calibration", "ppo"),
        ({"length": length(0.6, 0.51, 0.7)}, "length", "best_of_n"),
        ({"length": length(-0.6, -0.7, -0.51)}, "length", "best_of_n"),
        ({"length": length(0.6, 0.50, 0.7)}, "length", "ppo"),
        ({"length": length(0.1, -0.6, 0.9)}, "length", "ppo"),
        ({"length": length(0.9, None, None)}, "length", "ppo"),
        ({"length": None}, "length", "ppo"),
    ],
)
def test_each_figure_allows_what_its_interval_allows(
    changes: dict[str, Any], name: str, allows: str
):
    assert check(name, **changes).allows == allows
    found = verdict(**changes)
    words = {
        "labeling": "keep labeling",
        "best_of_n": "best-of-N is safer",
        "ppo": "enough for PPO",
    }
    assert found.verdict == words[allows]  # all other figures are good


@pytest.mark.parametrize(
    ("low", "allows"), [(0.011, "labeling"), (0.01, "ppo"), (-0.2, "ppo"), (None, "ppo")]
)
def test_labels_that_surely_pay_are_worth_waiting_for(low: float | None, allows: str):
    assert check("labels", Forecast(more=100, low=low, says="so")) == Check(
        name="labels",
        allows=allows,
        says="so",
        known=low is not None,  # type: ignore[arg-type]
    )


def test_the_least_that_any_figure_allows_is_the_verdict():
    weak = verdict(decisive=30, accuracy=share(0.6, 0.4, 0.8))
    assert weak.verdict == "keep labeling"
    assert verdict(None, decisive=30).verdict == "best-of-N is safer"


def test_reasons_name_their_figures():
    assert check("judgments").says.startswith("90 held-out preferences on 60 prompts")
    assert "72% (63% to 79%)" in check("accuracy").says
    assert "84% (80% to 89%)" in check("ceiling").says
    assert "it is overconfident" in check("calibration", calibration=calibration(0.2, 0.1)).says
    modest = check("calibration", calibration=calibration(0.2, 0.1, gap=-0.1))
    assert "it is underconfident" in modest.says
    short = check("length", length=length(-0.6, -0.7, -0.51)).says
    assert "by −0.60" in short
    assert "rewards shorter responses" in short
    assert "rewards longer responses" in check("length", length=length(0.6, 0.51, 0.7)).says
    assert "no learning curve yet" in check("labels", None).says
    few = check("ceiling", share_of_ceiling=None, ceiling=None, overlap=7)
    assert "needs 20 pairs with preferences of two people, and there are 7" in few.says
    assert not few.known
    assert not check("labels", None).known
    assert check("ceiling").known
    # Chance alone could explain an error that misleads: nothing is known, whatever was measured.
    assert not check("calibration", calibration=calibration(0.3, 0.4)).known
    assert not check("calibration", calibration=calibration(0.0, 0.4)).known
    assert check("calibration", calibration=calibration(0.05, 0.1)).known


def test_without_any_preference_only_labels_are_asked_for():
    found = verdict(None, decisive=0, prompts=0, accuracy=None)
    assert found.verdict == "keep labeling"
    assert [each.name for each in found.checks] == ["judgments", "labels"]
