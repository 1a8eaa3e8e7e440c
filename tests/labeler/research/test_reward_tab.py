"""The "Reward model" tab: verdict, figures, plots, and the learning curve's buttons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from labeler.research.models.reward import view as reward_view
from labeler.research.models.reward.tab import RewardTab
from labeler.research.plots import Axis, Plot, PlotPoint, draw
from storage.engine.database import Database
from storage.reports import RewardReport, from_json
from tests.helpers.recording_loop import HOSTILE, RecordingLoop
from tests.helpers.research_seed import Seeding
from tests.helpers.research_tabs import laid_out
from tests.helpers.reward_figures import make_curve, quality


@dataclass(frozen=True)
class World:
    """reward-1 is older than reports, reward-2 has one with a learning curve."""

    db: Database
    loop: RecordingLoop
    tab: RewardTab
    folder: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Database.open(tmp_path_factory.mktemp("workspace")) as db:
        Seeding(db).history(labels=20)
        folder = make_curve(db, "reward-2")
        loop = RecordingLoop(db=db)
        yield World(db, loop, laid_out(lambda: RewardTab(loop)), folder)


def report(**changes: Any) -> RewardReport:
    """One of a good reward model without a learning curve."""
    checks = [{"name": "accuracy", "allows": "ppo", "says": "it is right", "known": True}]
    curve = {
        "state": "none",
        "progress": 0.0,
        "message": "",
        "reason": None,
        "points": [],
        "lines": None,
    }
    found: dict[str, Any] = {
        "models": ["r"], "model": "r", "quality": quality(), "missing": None, "curve": curve,
        "curve_seconds": 240.0, "verdict": {"verdict": "enough for PPO", "checks": checks},
    }  # fmt: skip
    return from_json(RewardReport, found | changes)


def test_the_newest_model_is_shown_until_another_is_chosen(world: World):
    tab = world.tab
    first = tab.refresh(None)
    assert first[tab.model].value == "reward-2"
    assert "enough for PPO" in first[tab.verdict]
    assert "90 held-out preferences on 60 prompts" in first[tab.verdict]
    assert first[tab.plots].count("<svg") == 2
    assert first[tab.tables].count("<table") == 2
    other = tab.refresh("reward-1")
    assert other[tab.model].value == "reward-1"
    assert "reward-1 has no report" in other[tab.verdict]
    assert "train again to see how good it is." in other[tab.verdict]
    assert [other[each] for each in (tab.figures, tab.plots, tab.tables)] == ["", "", ""]
    assert not other[tab.start].visible


def test_before_any_reward_model_there_is_a_word_on_what_comes():
    loop = RecordingLoop()
    tab = laid_out(lambda: RewardTab(loop))
    shown = tab.refresh(None)
    assert "No reward model yet" in shown[tab.verdict]
    assert (shown[tab.figures], shown[tab.plots], shown[tab.progress]) == ("", "", "")
    assert not shown[tab.start].visible
    assert "There is no reward model yet." in tab._press(loop.reports.start_curve, None)[tab.answer]
    assert loop.asked == []


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [("enough for PPO", "good"), ("best-of-N is safer", "warn"), ("keep labeling", "bad")],
)
def test_a_verdict_has_its_color_and_its_reasons_theirs(verdict: str, tone: str):
    checks = [
        {"name": "a", "allows": allows, "says": f"because {HOSTILE}", "known": known}
        for allows, known in (
            ("ppo", True),
            ("best_of_n", True),
            ("labeling", True),
            ("ppo", False),
        )
    ]
    shown = str(reward_view.verdict(report(verdict={"verdict": verdict, "checks": checks})))
    assert f'<span class="ks-badge ks-{tone}">{verdict}</span>' in shown
    assert re.findall(r'<li class="ks-(\w+)">', shown) == ["good", "warn", "bad", "neutral"]
    assert "Because &lt;img" in shown
    assert "<img" not in shown


def test_figures_stand_with_what_they_are_known_by():
    shown = str(reward_view.figures(report()))
    for text in (
        "72.0% <small>63–79%</small>", "90 held-out preferences · 60 prompts",
        "84.0% <small>80–89%</small>", "the accuracy is 86% of that (75–96%)",
        "6% <small>by chance up to 14%</small>", "log-loss 0.842; a constant prediction has 0.987",
        "0.18 <small>−0.05 to 0.39</small>", "the longer response in 56%, the reward model in 60%",
    ):  # fmt: skip
        assert text in shown
    bare = quality(
        accuracy=None, ceiling=None, share_of_ceiling=None, calibration=None, length=None, overlap=1
    )
    shown = str(reward_view.figures(report(quality=bare)))
    assert "1 pair with preferences of two people so far" in shown
    assert shown.count('<div class="ks-value">–') == 4
    alone = {"value": 0.2, "low": None, "high": None}
    single = quality()["length"] | {"correlation": alone}
    assert "0.20 <small></small>" in str(
        reward_view.figures(report(quality=quality(length=single)))
    )


def test_the_reliability_diagram_puts_each_bin_in_its_place():
    row = {"from": 0.7, "to": 0.8, "stated": 0.75, "accuracy": 0.6, "low": 0.5, "high": 0.7}
    small = row | {"stated": 0.5, "judgments": 4}
    bins = quality()["calibration"] | {"bins": [small, row | {"judgments": 16}]}
    shown = str(reward_view.reliability(report(quality=quality(calibration=bins))))
    # x runs from .5 to 1 and y from 0 to 1; areas are as the judgments.
    assert 'style="left:50.0%;top:40.0%;width:14px;height:14px"' in shown
    assert 'style="left:0.0%;top:40.0%;width:10px;height:10px"' in shown
    assert 'class="ks-whisker" d="M500.0 50.00L500.0 30.00"' in shown
    assert 'class="ks-guide" d="M0.0 50.00L1000.0 0.00"' in shown
    assert "predicted 75%, correct in 60% (50–70%) of 16 judgments" in shown


def test_rows_by_margin_and_by_agreement():
    margins, people = (
        str(each(report())) for each in (reward_view.by_margin, reward_view.by_agreement)
    )
    assert "0.02 to 0.31" in margins
    assert "1.50 to 3.20" in margins
    assert 'style="left:71.0%;width:27.0%"' in margins  # 71 to 98
    assert '<b style="left:91.0%">' in margins
    names = re.findall(r'data-label="Judged by">([^<]+)', people)
    assert names == ["Several people who agree", "Several people who disagree", "One person"]
    assert str(reward_view.by_margin(report(quality=quality(by_margin=[])))) == ""


def test_the_curve_has_its_points_trend_and_band(world: World):
    found = world.loop.reports.report("reward-2")
    shown = str(reward_view.curve(found))
    assert shown.count('class="ks-point"') == 4
    assert shown.count("ks-band") == 1
    assert shown.count('class="ks-line"') == 1
    assert re.findall(r"<span style=\"left:[\d.]+%\">([^<]+)", shown) == [
        "100", "200", "300", "400", "+100",
    ]  # fmt: skip
    assert "noise ceiling" in shown
    # 400 of an axis that ends at 508 labels.
    assert f"left:{100 * 400 / 508:.2f}%" in shown
    assert found.quality
    assert found.curve
    without = replace(
        found,
        quality=replace(found.quality, ceiling=None),
        curve=replace(found.curve, lines=None),
    )
    shown = str(reward_view.curve(without))
    assert "noise ceiling" not in shown
    assert "ks-band" not in shown
    assert "+100" not in shown
    # 400 of an axis that ends at 416 labels.
    assert f"left:{100 * 400 / 416:.2f}%" in shown
    to_come = str(reward_view.curve(report()))
    assert "No learning curve yet" in to_come
    assert "six times as long as training the reward model, or about 4 min." in to_come
    assert "training the reward model." in str(reward_view.curve(report(curve_seconds=None)))


@pytest.mark.parametrize(
    ("state", "start", "stop", "says"),
    [
        ("none", "Compute learning curve", None, ""),
        ("running", None, True, "model 3 of 12, on 75%"),
        ("cancelling", None, False, "stopping"),
        (
            "stopped",
            "Continue learning curve",
            None,
            "25% is done and saved",
        ),
        ("failed", "Continue learning curve", None, "out of memory &lt;img"),
        ("done", None, None, ""),
    ],
)
def test_a_curve_can_be_started_stopped_and_gone_on_with(
    world: World, monkeypatch: pytest.MonkeyPatch, state: str, start: str | None,
    stop: bool | None, says: str,
):  # fmt: skip
    curve = {
        "state": state, "progress": 0.25, "message": "model 3 of 12, on 75% of the labels",
        "reason": f"out of memory {HOSTILE}",
    }  # fmt: skip
    monkeypatch.setattr(world.loop.reports, "report", lambda _: report(curve=curve))
    tab = world.tab
    shown = tab.refresh(None)
    assert shown[tab.start].visible == (start is not None)
    assert start is None or shown[tab.start].value == start
    assert shown[tab.stop].visible == (stop is not None)
    assert stop is None or shown[tab.stop].interactive is stop
    assert says in shown[tab.progress]
    assert "<img" not in shown[tab.progress]
    assert (shown[tab.progress] == "") == (state in ("none", "done"))


def test_buttons_ask_for_the_model_that_is_shown(world: World):
    tab, loop = world.tab, world.loop
    assert tab._press(loop.reports.start_curve, None)[tab.answer] == ""
    tab._press(loop.reports.cancel_curve, "reward-1")
    assert loop.asked == [("start_curve", "reward-2"), ("cancel_curve", "reward-1")]
    loop.reason = "A stage is running (ppo 12%)."
    refused = tab._press(loop.reports.start_curve, None)
    loop.reason = None
    assert "A stage is running (ppo 12%)." in refused[tab.answer]
    assert refused[tab.model].value == "reward-2"


def test_a_plot_keeps_what_lies_beyond_its_axes_at_their_ends():
    axis = Axis(0, 10, [(5, "five")], "x")
    shown = str(draw(Plot("T", axis, axis, [PlotPoint(12, -3, -5, 4, f"beyond {HOSTILE}")])))
    assert 'style="left:100.0%;top:100.0%' in shown
    assert 'd="M1000.0 100.00L1000.0 60.00"' in shown
    assert shown.count("five") == 2
    assert "<img" not in shown
