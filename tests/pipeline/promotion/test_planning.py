"""Planning: the sizes that textbooks give, and simulated stopping times that hold."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from typer.testing import CliRunner

from commands.main import app
from pipeline.promotion import power
from pipeline.promotion.power import (
    JudgmentPlan,
    Scenario,
    fixed_size,
    format_plan,
    plan,
    stopping_times,
)
from pipeline.statistics.sequential_test import LOG_E_THRESHOLD, log_e, log_wealth
from storage.reports import from_json


@pytest.mark.parametrize(("w", "judgments"), [(0.55, 783), (0.6, 194), (0.65, 85), (0.7, 47)])
def test_sizes_without_ties(w, judgments):
    # (1.95996 · ½ + .84162 √(w(1−w)))² / (w−½)²: at .6 (.97998 + .41231)²/.01 = 193.8.
    assert fixed_size(Scenario(win_rate=w), power=0.8) == judgments
    assert fixed_size(Scenario(win_rate=1 - w), power=0.8) == judgments


@pytest.mark.parametrize(("w", "m", "judgments"), [(0.99, 1, 6), (0.95, 2, 12)])
def test_fewer_than_six_prompts_never_decide(w, m, judgments):
    assert fixed_size(Scenario(win_rate=w, per_prompt=m), power=0.8) == judgments


def test_ties_save_judgments():
    # t = .2: (1.95996 √.2 + .84162 √.19)²/.01 = (.87652 + .36685)²/.01 = 154.6.
    assert fixed_size(Scenario(win_rate=0.6, ties=0.2), power=0.8) == 155


def test_several_judgments_a_prompt_pay_the_design_effect():
    # 193.8 · (1 + 2 · .3) = 310.1, in whole prompts of 3: 312.
    assert fixed_size(Scenario(win_rate=0.6, per_prompt=3), power=0.8) == 312
    alike = Scenario(win_rate=0.6, per_prompt=3, correlation=1.0)
    assert fixed_size(alike, power=0.8) == 3 * 194


def test_the_planned_size_has_the_planned_power():
    scenario = Scenario(win_rate=0.6, ties=0.2)
    n = fixed_size(scenario, power=0.8)
    x = scenario.outcomes(np.random.default_rng(0), (4000, n))[..., 0]
    z = (x.mean(1) - 0.5) / (x.std(1, ddof=1) / math.sqrt(n))
    assert np.mean(z > 1.96) == pytest.approx(0.8, abs=0.03)


def test_simulated_judgments_have_the_mean_ties_and_correlation_asked_for():
    scenario = Scenario(win_rate=0.6, ties=0.2, per_prompt=2, correlation=0.3)
    means = scenario.outcomes(np.random.default_rng(1), (200_000,)).mean(-1)
    assert means.mean() == pytest.approx(0.6, abs=0.005)
    # One judgment varies by .6 · .4 − .2/4 = .19, the mean of two by .19 · (1 + .3)/2.
    assert means.var() == pytest.approx(0.19 * 0.65, rel=0.02)


def test_the_e_process_stops_on_the_right_side_and_later_without_a_difference():
    times, better = stopping_times(Scenario(win_rate=0.65), most_prompts=600)
    assert (times > 0).mean() > 0.99
    assert better.mean() > 0.97
    worse = stopping_times(Scenario(win_rate=0.35), most_prompts=600)[1]
    assert worse.mean() < 0.03
    # Eleven wins in a row cannot settle it, twelve do.
    certain = stopping_times(Scenario(win_rate=0.999), most_prompts=100, runs=50)[0]
    assert certain.min() == 12


def test_stopping_times_are_those_of_whole_paths():
    # Blocks and the runs that leave them are bookkeeping: the same law as whole paths at once.
    scenario = Scenario(win_rate=0.6, ties=0.2)
    times = stopping_times(scenario, most_prompts=300, runs=4000)[0]
    paths = (
        log_e(log_wealth(scenario.outcomes(np.random.default_rng(8), (4000, 300))[..., 0]))
        > LOG_E_THRESHOLD
    )
    expected = np.where(paths.any(1), paths.argmax(1) + 1, -1)
    for by in (60, 120, 200, 300):
        shares = [((t > 0) & (t <= by)).mean() for t in (times, expected)]
        assert shares[0] == pytest.approx(shares[1], abs=0.035)  # 3 standard errors


def test_a_plan_is_the_same_each_time_and_reads_as_a_sentence():
    found = plan(Scenario(win_rate=0.65))
    assert found == plan(Scenario(win_rate=0.65))
    assert found.fixed == 85
    assert 70 < found.e_process.mean < 130
    assert found.e_process.median < found.e_process.for_power
    text = format_plan(found)
    assert "85 judgments show it in 80% of cases" in text
    assert f"{found.e_process.mean} judgments on average" in text
    assert "correlate" not in text
    assert "assumed correlation 0.3" in format_plan(plan(Scenario(win_rate=0.7, per_prompt=2)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"win_rate": 0.5}, "at least 0.02 from 0.5"),
        ({"win_rate": 1.0}, "between 0 and 1"),
        ({"win_rate": 0.9, "ties": 0.3}, "its? share|between 0 and 0.2"),
        ({"win_rate": 0.6, "per_prompt": 0}, "--per-prompt 0 must be between 1 and 100"),
        ({"win_rate": 0.6, "per_prompt": 100_000}, "--per-prompt 100000 must be between 1 and 100"),
        ({"win_rate": 0.6, "correlation": 1.5}, "--correlation 1.5"),
    ],
)
def test_impossible_scenarios_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        Scenario(**values)


def test_a_power_of_one_is_refused():
    with pytest.raises(ValueError, match="--power 1"):
        fixed_size(Scenario(win_rate=0.6), power=1.0)


def test_figures_are_said_as_they_were_given():
    with pytest.raises(ValueError, match=r"--win-rate 0\.5000001 must lie"):
        Scenario(win_rate=0.5000001)
    found = plan(Scenario(win_rate=0.9), power=0.999)
    assert "judgments show it in 99.9% of cases" in format_plan(found)


def test_the_command_prints_words_or_json():
    def run(*options: str) -> str:
        ended = CliRunner().invoke(app, ["plan", *options], catch_exceptions=False)
        assert ended.exit_code == 0
        return ended.output

    asked = ("--win-rate", "0.7", "--ties", "0.2")
    found = json.loads(run(*asked, "--json"))
    assert found == asdict(plan(Scenario(win_rate=0.7, ties=0.2)))
    assert run(*asked).strip() == format_plan(from_json(JudgmentPlan, found))


def test_runs_that_stopped_on_the_wrong_side_do_not_count_as_decided(
    monkeypatch: pytest.MonkeyPatch,
):
    """60 of 100 end right after ten judgments, 40 wrong after five."""
    times, better = np.repeat([5, 10], [40, 60]), np.repeat([False, True], [40, 60])
    monkeypatch.setattr(power, "stopping_times", lambda *_, **__: (times, better))
    found = plan(Scenario(win_rate=0.6)).e_process
    assert (found.median, found.for_power) == (10, None)
    assert (found.mean, found.stopped) == (8, 1.0)  # but they all stopped


def test_the_e_process_counts_every_judgment_of_a_prompt_and_only_the_right_side():
    one, three = (plan(Scenario(win_rate=0.7, per_prompt=m, correlation=1.0)) for m in (1, 3))
    # The test reads the first judgment of a prompt: the others cost and tell nothing.
    for figure in ("mean", "median", "for_power"):
        assert getattr(three.e_process, figure) == pytest.approx(
            3 * getattr(one.e_process, figure), abs=3
        )
    assert plan(Scenario(win_rate=0.3)).e_process.for_power == pytest.approx(
        one.e_process.for_power, rel=0.1
    )
    later = plan(Scenario(win_rate=0.7), power=0.95).e_process
    assert later.median == one.e_process.median
    assert later.for_power > 1.3 * one.e_process.for_power
