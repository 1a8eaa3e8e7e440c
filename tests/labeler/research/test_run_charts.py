"""Limits, axis and results of a run's charts."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import pytest

from labeler.research.charts import Chart, Series, group
from labeler.research.runs import view as runs_view
from labeler.research.runs.evaluation_view import evaluated
from labeler.research.runs.limits import limits
from pipeline.ppo.metrics import red_flags
from storage.analysis.intervals import WinRate
from storage.gate_records import LostAnswer
from storage.records import Run, RunStatus
from storage.reports import EvaluatedPolicy, Evaluation
from tests.helpers.gate_evidence import canary_results

HEALTHY = {
    "reference/changed": 0.0, "policy/first_ratio_error": 0.0, "rollout/mismatch_kl": 0.0,
    "kl/reference": 2.0, "policy/entropy": 1.5, "policy/clip_fraction": 0.1,
    "value/explained_variance": 0.5, "reward/std": 0.5, "reward/mean": 1.0, "completion/unique": 1.0,
    "completion/unseen_tokens": 0.0, "completion/length_mean": 40.0, "optim/epochs": 2.0,
    "kl/coefficient": 0.05,
}  # fmt: skip
UPDATES = 12
FLAGS = {
    "kl/reference": {"kl_high"},
    "policy/entropy": {"entropy_collapse"},
    "policy/clip_fraction": {"clip_fraction_high"},
    "policy/first_ratio_error": {"ratio_not_one"},
    "rollout/mismatch_kl": {"sampler_mismatch"},
    "value/explained_variance": {"explained_variance_negative"},
    "reward/mean": {"reward_low", "reward_falling"},
    "reward/std": {"reward_flat"},
    "completion/unique": {"duplicates"},
    "completion/unseen_tokens": {"unseen_tokens"},
    "completion/length_mean": {"length_drift"},
    "optim/epochs": {"many_epochs"},
}


def series(values: dict[str, list[float]]) -> dict[str, Series]:
    return {name: Series(name, range(1, len(v) + 1), v) for name, v in values.items()}


FOUND = series({name: [value] * UPDATES for name, value in HEALTHY.items()})


def flagged(metric: str, value: float) -> set[str]:
    """The flags of a run whose `metric` ends at `value` for five updates."""
    history = [HEALTHY] * (UPDATES - 5) + [HEALTHY | {metric: value}] * 5
    return {flag.name for flag in red_flags(history)}


@pytest.mark.parametrize("metric", FLAGS)
def test_a_red_flag_is_raised_where_the_chart_has_its_line(metric: str) -> None:
    assert not red_flags([HEALTHY] * UPDATES)
    for limit in limits(metric, FOUND, {}):
        step = 0.01 * abs(limit.value) + 1e-6
        above, below = (flagged(metric, limit.value + sign * step) for sign in (1, -1))
        beyond, within = (above, below) if "above" in limit.label else (below, above)
        assert beyond & FLAGS[metric], limit
        if limit.value not in (15, -10):  # beyond a first limit
            assert not within & FLAGS[metric], limit


def test_what_the_settings_allow_is_drawn_too() -> None:
    config = {"ppo": {
        "kl_budget": 8.0, "kl_control": "adaptive", "kl_target": 6.0, "target_kl": 0.04,
        "reward_collapse": 2.0,
    }}  # fmt: skip
    own = {
        metric: [limit.label for limit in limits(metric, FOUND, config)[len(limits(metric, FOUND, {})):]]
        for metric in ("kl/reference", "policy/approx_kl", "reward/mean")
    }  # fmt: skip
    assert own == {
        "kl/reference": ["KL budget 8: stops above", "KL target 6"],
        "policy/approx_kl": ["update ends above 0.04"],
        "reward/mean": ["stops below 0"],  # 1 − 2 · 0.5
    }
    fixed = {"ppo": config["ppo"] | {"kl_control": "fixed", "kl_budget": 0.0}}
    assert limits("kl/reference", FOUND, fixed) == limits("kl/reference", FOUND, {})


def test_only_ppos_charts_have_the_limits_of_its_flags() -> None:
    config = {"ppo": {"kl_budget": 8.0}}
    main, rest, others = runs_view.charts("ppo", FOUND, {}, config)
    labels = {
        chart.title: [limit.label for limit in chart.limits] for chart in main + rest + others
    }
    assert labels["KL to the reference"] == [
        "warning above 10", "cancel above 15", "KL budget 8: stops above",
    ]  # fmt: skip
    assert labels["Entropy"] == ["warning below 0.3"]  # a fifth of the first update's
    assert labels["Response length"] == ["warning below 20", "warning above 80"]
    assert labels["completion/unseen_tokens"] == ["warning above 0.1"]
    main, rest, _ = runs_view.charts("grpo", FOUND, {}, config)
    assert main[1].limits[2].label == "KL budget 8: stops above"
    assert not {"Value loss", "Explained variance"} & {chart.title for chart in rest}
    main, rest, _ = runs_view.charts("rloo", FOUND, {}, config)
    assert main[1].limits[2].label == "KL budget 8: stops above"
    assert not {"Value loss", "Explained variance"} & {chart.title for chart in rest}
    main, rest, others = runs_view.charts("dpo", FOUND, {}, config)
    assert others
    assert not any(chart.limits for chart in main + rest + others)


METHODS = ("ppo", "grpo", "reinforce++", "rloo", "dpo")


def running(method: str, status: RunStatus = "running") -> Run:
    config = {"optimize": {"method": method}, "ppo": {"updates": 120}}
    return Run(
        id="r", stage="policy", iteration=1, status=status, directory="runs/r", config=config
    )


def test_the_x_axis_of_a_live_run_reaches_to_its_last_update() -> None:
    planned = [runs_view.planned_updates(running(method)) for method in METHODS]
    assert planned == [120, 120, 120, 120, None]
    assert runs_view.planned_updates(running("ppo", "succeeded")) is None
    chart = Chart("KL", [Series("KL", [1, 2, 3], [0.1, 0.2, 0.3])])
    assert 'data-low="1" data-high="120"' in group([chart], x_end=120)
    assert 'data-low="1" data-high="3"' in group([chart])
    assert 'data-high="3"' in group([chart], x_end=2)


def test_limits_are_told_to_screen_readers_and_to_the_script() -> None:
    _, rest, _ = runs_view.charts("ppo", FOUND, {}, {})
    drawn = html.unescape(group([chart for chart in rest if chart.title == "Entropy"]))
    assert "Line: warning below 0.3." in drawn
    (data,) = re.findall('data-chart="(.*?)">', drawn)
    (limit,) = json.loads(data)["limits"]
    assert limit == {"value": pytest.approx(0.3), "label": "warning below 0.3"}


RATE = WinRate(win_rate=0.66, low=0.55, high=0.76, comparisons=120, prompts=120)
EVALUATION = Evaluation(
    policy=EvaluatedPolicy(
        kl=6.2, kl_is_bound=True, reward=1.0, length=46.04, distinct=0.512, unique=0.99
    ),
    reference=EvaluatedPolicy(kl=0.0, reward=-0.25, length=41.0, distinct=0.6, unique=1.0),
    win_rate_against_reference=RATE,
)


def test_an_evaluation_has_a_row_for_each_model_and_folds_its_metrics() -> None:
    names = [
        f"evaluate/{role}/{name}" for role in ("policy", "reference") for name in ("kl", "reward")
    ]
    found = {name: Series(name, [0], [0.5]) for name in (*names, "evaluate/win_rate")}
    known = {"evaluate/<policy>/kl": "KL in nats."}
    seen = runs_view.results("evaluate", found, known, EVALUATION)
    assert "All 5 metrics</summary>" in seen
    shown, folded = seen.split("<details>")
    assert shown.index("Wins against SFT") < shown.index("66%") < shown.index("55–76%")
    assert "on 120 held-out prompts" in shown
    assert "evaluate/" not in shown
    assert "evaluate/policy/kl" in folded
    assert "KL in nats." in shown
    rows = [
        [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall("<td.*?</td>", row)]
        for row in shown.split("<tbody>")[1].split("</tr>")[:-1]
    ]
    assert rows == [
        ["New policy", "+1.00", "≤ 6.20", "46.0", "51%", "99%"],
        ["SFT", "−0.25", "0", "41.0", "60%", "100%"],
    ]
    assert "Audit reward" not in shown  # there was no audit model
    assert "canary" not in shown.lower()


def test_an_evaluation_shows_the_checks_of_the_canary_and_answers_that_fail() -> None:
    results = canary_results(lost=14, gained=2)
    lost = LostAnswer(check="on topic", prompt="How do I pack?", answer="<b>Knead</b>")
    shown = evaluated(
        Evaluation(
            policy=EvaluatedPolicy(canary=0.86), reference=EvaluatedPolicy(canary=0.98),
            canary=replace(results, lost=(lost,)),
        ), {"evaluate/<policy>/canary": "Share of the canary"},
    )  # fmt: skip
    assert "Share of the canary" in shown
    table = shown.split("promotion gate says")[1]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("</tr>")]
    assert ["on topic", "86%", "98%", "100"] in rows
    assert ["well-formed", "100%", "100%", "100"] in rows
    assert "&lt;b&gt;Knead" in shown


def test_the_previous_policy_is_compared_if_there_was_one() -> None:
    seen = evaluated(
        Evaluation(
            policy=EVALUATION.policy, reference=EVALUATION.reference,
            previous=EvaluatedPolicy(kl=3.0, audit_reward=0.5), win_rate_against_reference=RATE,
            win_rate_against_previous=RATE,
        ), {},
    )  # fmt: skip
    assert "Wins against the previous policy" in seen
    assert "Previous policy" in seen
    assert "Audit reward" in seen
