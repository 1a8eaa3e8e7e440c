"""What the research tabs show, as pure functions of records; figures worked by hand."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pandas as pd
import pytest

from labeler.research import top
from labeler.research.caveats import accuracy_caveat, warnings
from labeler.research.models.lineage import view as lineage_view
from labeler.research.models.samples import view as samples_view
from labeler.research.models.samples.view import Answer, Sample
from labeler.research.overview import iterations_view, trust
from labeler.research.overview import view as overview_view
from labeler.research.reading import OpenFlag, State, Work, latest_run
from labeler.research.runs import resources_view
from labeler.research.runs import view as runs_view
from labeler.research.runs.eta import Eta
from labeler.research.team.people import view as people_view
from labeler.research.top import headline
from pipeline.statistics.canary import canary_figures
from storage.analysis.agreement import Agreement
from storage.analysis.intervals import WinRate
from storage.gate_report import GateReport, SequentialEvidence, Standing
from storage.records import (
    Annotator,
    EvaluatedCompletion,
    Iteration,
    Message,
    ModelVersion,
    Prompt,
    Run,
    RunNote,
)
from storage.reports import Check, LabelBudget, RewardReport, RewardVerdict, Stopped
from storage.tables.runs.run_resources import GpuHistory, GpuUse, ResourceHistory, ResourceUse
from storage.tables.runs.run_settings import Changed, changed, run_before
from tests.helpers.gate_evidence import canary_results
from tests.helpers.recording_loop import HOSTILE
from tests.helpers.research_seed import kl_flag

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def run(**changes) -> Run:
    given = {
        "id": "run-1", "stage": "policy", "iteration": 1, "status": "running", "directory": "runs/1",
        "created_at": NOON,
    }  # fmt: skip
    return Run(**(given | changes))


def standing(**more: Any) -> Standing:
    """A provisional policy."""
    evidence = SequentialEvidence(
        decision="go on", log_e=0.0, prompts=20, stopped_at=None, path=(), limit=3.0
    )
    known = {
        "verdict": "provisional", "by_evidence": "provisional", "ruling": None, "versus": (),
        "sequential": evidence, "may_stop": False, "alarm": None, "words": (),
    }  # fmt: skip
    return Standing(**known | more)


def state(**changes) -> State:
    given = {
        "iteration": Iteration(number=2, phase="labeling", labels_wanted=100), "labels": 60,
        "labels_today": 5, "latest_label": None, "judgments": 160, "rulings": 0,
        "prompts": {"train": 10}, "policy": None, "reward_model": None, "run": None,
        "evaluated": None,
    }  # fmt: skip
    return State(**(given | changes))


def stopped(**changes) -> Stopped:
    given = {
        "run": "run-1", "attempt": 1, "stage": "policy", "status": "failed", "reason": "it diverged",
        "resumable": False, "may_label": False,
    }  # fmt: skip
    return Stopped(**(given | changes))


# The loop

TRAINING = {"iteration": Iteration(number=2, phase="policy"), "run": run()}


def steps(markup: str) -> list[str]:
    return [part.split('"')[0] for part in markup.split('<li class="ks-')[1:]]


def test_the_stepper_shows_what_is_past_present_and_to_come():
    drawn = overview_view.stepper(Iteration(number=1, phase="reward"), run(stage="reward"))
    assert steps(drawn) == ["past", "past", "now", "next", "next", "next"]
    assert drawn.count("aria-current") == 1


def test_a_stopped_run_stops_its_phase_but_not_labeling():
    failed = run(status="failed")
    ppo, labeling = Iteration(number=1, phase="policy"), Iteration(number=1, phase="labeling")
    assert steps(overview_view.stepper(ppo, failed))[3] == "stopped ks-bad"
    assert steps(overview_view.stepper(labeling, failed))[1] == "now"
    assert steps(overview_view.stepper(Iteration(number=1, phase="done"), None)) == ["past"] * 6


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"iteration": None, "prompts": {}}, "x", "Import prompts."),
        ({"iteration": None}, "x", "about to start"),
        ({}, None, "40 more labels to go."),
        ({"labels": 99}, None, "1 more label to go."),
        ({"labels": 100}, None, "Press Train"),
        ({"labels": 0}, "There are no labels.", "There are no labels."),
        ({"labels": 0}, "There are no labels.", "you can train with fewer."),
        ({"labels": 100}, "The study a is running.", "asks for 100 labels, and all are in."),
        (
            {
                "iteration": Iteration(number=2, phase="sampling"),
                "run": run(stage="sampling"),
                "cancelling": True,
            },
            "x",
            "this page says how to continue.",
        ),
        (
            {"iteration": Iteration(number=2, phase="policy"), "run": run(status="failed")},
            "x",
            "The policy stage failed.",
        ),
        (
            {"iteration": Iteration(number=2, phase="policy"), "run": run()},
            "x",
            "policy stage is running",
        ),
        ({**TRAINING, "open_pairs": 37}, "x", "37 pairs left to judge."),
        ({**TRAINING, "open_pairs": 1, "waiting": 1}, "x", "uses 1 new label."),
        ({**TRAINING, "waiting": 5}, "x", "No pairs are left to judge"),
        ({"iteration": Iteration(number=2, phase="done")}, "x", "Iteration 2 is done."),
    ],
)
def test_one_sentence_says_what_to_do_next(changes, reason, says):
    assert says in overview_view.next_step(state(**changes), reason)


def test_the_label_budget_is_shown_while_labels_are_collected():
    budget = LabelBudget(
        phase="labeling", says=f"About 9 more judgments. {HOSTILE}", starts="It starts at 50."
    )
    shown = overview_view.next_step(state(), None, budget=budget)
    assert "<p>About 9 more judgments. &lt;img" in shown
    assert '<span class="ks-detail">It starts at 50.</span>' in shown
    later = overview_view.next_step(state(), None, budget=replace(budget, phase="policy"))
    assert "About 9" not in later


@pytest.mark.parametrize(
    ("changes", "says", "not_said"),
    [
        ({}, ["The policy stage failed: retry it", "It diverged."], ["resume", "labeling"]),
        (
            {"resumable": True},
            ["resume it from its last checkpoint or retry it."],
            ["labeling"],
        ),
        (
            {"stage": "reward", "may_label": True, "status": "cancelled"},
            ["The reward stage was cancelled: retry it or go back to labeling."],
            ["resume"],
        ),
        ({"flag": "kl_high", "remedy": "Raise kl_weight."}, ["KL high: Raise kl_weight."], []),
    ],
)
def test_a_stopped_stage_is_said_with_the_ways_that_there_are(changes, says, not_said):
    training = {"iteration": Iteration(number=2, phase="policy"), "run": run(status="failed")}
    seen = overview_view.next_step(state(**training), "x", stopped(**changes))
    assert all(sentence in seen for sentence in says)
    assert not any(word in seen for word in not_said)


def test_a_reward_stage_that_was_left_is_not_under_way_any_more():
    failed = run(stage="reward", status="failed", reason="too little")
    assert "Reward model" in overview_view.headline(
        state(iteration=Iteration(number=2, phase="reward"), run=failed)
    )
    assert "progressbar" not in overview_view.headline(state(run=failed))


def test_the_line_of_a_stopped_run_says_that_it_stopped():
    cancelled = run(status="cancelled", progress=0.25, message="update 10 of 40")
    seen = overview_view.headline(state(iteration=TRAINING["iteration"], run=cancelled))
    assert "PPO: cancelled at 25%, update 10 of 40" in seen


def test_training_on_no_new_labels_is_said_while_it_trains_and_only_then():
    said = "There are no new labels since the last training"
    training = {"iteration": Iteration(number=2, phase="reward"), "run": run(stage="reward")}
    for new, expected in ((0, True), (1, False), (None, False)):
        seen = overview_view.next_step(state(**training, new_labels=new), None)
        assert (said in seen) is expected
    assert said not in overview_view.next_step(state(new_labels=0), None)


def verdict(name: Literal["enough for PPO", "keep labeling"], *checks: Check) -> RewardReport:
    return RewardReport(
        models=("reward-1",), model="reward-1", verdict=RewardVerdict(verdict=name, checks=checks)
    )


READY = verdict("enough for PPO")
WEAK_VERDICT = verdict(
    "keep labeling",
    Check(name="overlap", allows="labeling", says="unknown overlap", known=False),
    Check(name="calibration", allows="ppo", says="well calibrated"),
    Check(name="accuracy", allows="labeling", says="accuracy 51% on 12 pairs"),
)


def test_the_summaries_show_people_first_then_reward_model_and_data():
    finished = Iteration(
        number=1, phase="done", evaluation={"policy": {"kl": 4.2}, "win_rate_reward_model": 0.71}
    )
    reward = ModelVersion(
        id="r", role="reward", name="reward-1",
        summary={"accuracy": 0.725, "ece": 0.04, "held_out_preferences": 40},
    )  # fmt: skip
    rate = WinRate(win_rate=0.61, low=0.52, high=0.7, comparisons=44, prompts=20)
    seen = trust.summaries(
        state(
            policy=ModelVersion(id="p", role="policy", name=HOSTILE),
            reward_model=reward, evaluated=finished, latest_label=NOON - timedelta(minutes=3),
        ),
        GateReport(policies=(standing(policy=HOSTILE, win_rate=rate),)),
        WEAK_VERDICT,
        Agreement(items=12, percent=0.75, percent_interval=[0.5, 0.9], alpha=0.5),
        open_flags=2,
        now=NOON,
    )  # fmt: skip
    for text in ("61% <span class=\"ks-muted\">52–70%", "44 judgments", "provisional",
                 "KL 4.20 nats · reward model: wins 71%", "keep labeling", "72%",
                 "40 held-out preferences", "Accuracy 51% on 12 pairs.", "60 <small>of 100 labels",
                 "width:60.0%", "3 min ago", "agreement <span>75% <span class=\"ks-muted\">50–90%</span></span>, α 0.50, on 12 pairs",
                 "2 open flags"):  # fmt: skip
        assert text in seen, text
    assert seen.index("61%") < seen.index("wins 71%")
    assert "<img src=x" not in seen


def test_the_agreement_of_a_single_pair_is_no_figure():
    one = Agreement(items=1, percent=1.0)
    seen = trust.summaries(
        state(), GateReport(), RewardReport(models=()), one, open_flags=0, now=NOON
    )
    assert "agreement: too few pairs (1 pair judged by two people)" in seen
    assert "100%" not in seen


def test_before_anything_was_trained_the_summaries_say_what_will_be_there():
    nothing = RewardReport(models=())
    seen = trust.summaries(
        state(labels=0, labels_today=0),
        GateReport(),
        nothing,
        Agreement(items=0),
        open_flags=0,
        now=NOON,
    )
    for text in ("created when the loop starts", "will be trained on your first labels",
                 "no labels in this iteration yet", "no pair judged by two people yet"):  # fmt: skip
        assert text in seen
    assert "today" not in seen
    assert "open flag" not in seen


@pytest.mark.parametrize(
    ("phase", "report", "says"),
    [
        (
            "policy",
            WEAK_VERDICT,
            "The policy is trained with reward-1, which is not ready for PPO.",
        ),
        ("labeling", WEAK_VERDICT, "reward-1 is not ready for PPO: keep labeling."),
        ("policy", READY, ""),
        ("evaluating", WEAK_VERDICT, ""),
        ("policy", RewardReport(models=()), ""),
    ],
)
def test_a_reward_model_that_is_not_ready_is_told_before_and_during_ppo(phase, report, says):
    turn = Iteration(number=2, phase=phase, labels_wanted=100)
    seen = trust.not_ready(state(iteration=turn), report)
    assert bool(seen) is bool(says)
    assert says in seen
    if says:
        assert "Accuracy 51% on 12 pairs." in seen
        assert "unknown overlap" not in seen


def test_the_last_iterations_show_changed_settings_and_people():
    made = [
        Iteration(
            number=n, phase="done", policy_produced=f"p-{n}", evaluation={"policy": {"kl": n}}
        )
        for n in range(1, 8)
    ]
    trained = [
        run(id=f"run-{n}", iteration=n, status="succeeded", config={"ppo": {"kl_weight": n // 7}})
        for n in range(1, 8)
    ]
    seen = iterations_view.newest(made, trained, GateReport(), [])
    assert re.findall(r"(\d) · p-\d", seen) == ["7", "6", "5", "4", "3"]
    assert seen.count("ppo.kl_weight=1") == 2  # the text and its tooltip, of iteration 7 alone
    assert iterations_view.newest(made[:0], [], GateReport(), []) == ""


def reward_model(**summary) -> ModelVersion:
    return ModelVersion(id="r", role="reward", name="reward-1", summary=summary)


WEAK = {"accuracy": 1 / 3, "accuracy_low": 0.01, "accuracy_high": 0.96, "held_out_preferences": 3}


@pytest.mark.parametrize(
    ("summary", "says"),
    [
        (WEAK, "33.3% (1–96%) on 3 held-out preferences, may be no better than chance"),
        (
            WEAK | {"accuracy_low": 0.5, "held_out_preferences": 90},
            "may be no better than chance",
        ),
        (
            WEAK | {"accuracy_low": 0.51, "held_out_preferences": 29},
            "measured on only 29 held-out preferences",
        ),
        (WEAK | {"accuracy_low": 0.51, "held_out_preferences": 30}, ""),
        ({}, ""),
    ],
)
def test_a_reward_model_that_may_be_a_coin_or_was_hardly_checked_is_called_weak(summary, says):
    assert (says in accuracy_caveat(reward_model(**summary))) is True
    assert bool(accuracy_caveat(reward_model(**summary))) is bool(says)


def test_wins_by_a_weak_reward_model_bear_a_caution_on_every_tab_that_shows_them():
    weak, good = reward_model(**WEAK), reward_model(accuracy_low=0.7, held_out_preferences=99)
    done = Iteration(
        number=1, phase="done", reward_model="r", evaluation={"win_rate_reward_model": 0.56}
    )
    for model, warned in ((weak, True), (good, False)):
        loop = warnings(model)
        samples = samples_view.summary([sample("q", reference=0.0, policy=1.0)], model)
        history = iterations_view.table([done], {}, {"r": model}, [], {}, GateReport())
        for seen in (loop, samples, history):
            assert ("The win rates are uncertain" in seen) is warned
        for seen in (samples, history):
            assert "reward model" in seen


# Training


def test_a_template_defines_every_metric_of_its_form_and_no_other():
    known = {"reward/<component>": "component", "reward/mean": "mean"}
    assert runs_view.definition("reward/mean", known) == "mean"
    assert runs_view.definition("reward/sycophancy", known) == "component"
    assert runs_view.definition("reward/a/b", known) == ""
    assert runs_view.definition("value/mean", known) == ""


def frame(values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [(i, name, v) for name, column in values.items() for i, v in enumerate(column)]
    return pd.DataFrame(rows, columns=["step", "name", "value"]).sample(frac=1, random_state=0)


def test_ppo_charts_hold_each_metric_once_and_leave_none_out():
    found = runs_view.series_by_name(
        frame({name: [1.0, 2.0] for name in ("reward/mean", "kl/reference", "odd/one", "optim/lr")})
    )
    main, rest, others = runs_view.charts("ppo", found, {}, {})
    placed = [s for charts in (main, rest, others) for chart in charts for s in chart.series]
    assert len(placed) == len(found) == 4
    assert [chart.title for chart in main] == ["Mean reward", "KL to the reference"]
    assert [chart.title for chart in others] == ["odd/one"]
    assert main[0].series[0].steps == [0, 1]


def test_the_canary_is_one_chart_with_the_rate_below_which_nothing_is_promoted():
    names = ["canary/pass_rate", *(f"canary/passes/{each}" for each in "abcd")]
    found = runs_view.series_by_name(frame({name: [0.96, 0.9] for name in names}))
    config = {"gate": {"canary_loss": 0.05}}
    _, (chart,), others = runs_view.charts("ppo", found, {"canary/pass_rate": "rate"}, config)
    assert (chart.title, [s.name for s in chart.series]) == (
        "Capability canary", ["all checks", "a", "b", "c"],
    )  # fmt: skip
    (limit,) = chart.limits
    assert (limit.value, limit.label) == (pytest.approx(0.91), "not promoted below")
    assert [other.title for other in others] == ["canary/passes/d"]


def test_the_charts_of_each_method_stand_first():
    dpo = ["train/loss", "dpo/margin", "dpo/accuracy", "dpo/chosen", "dpo/rejected", "train/lr"]
    found = runs_view.series_by_name(frame({name: [1.0, 2.0] for name in dpo}))
    main, rest, others = runs_view.charts("dpo", found, {}, {})
    assert [chart.title for chart in main] == ["Loss", "Reward margin", "Preference accuracy"]
    assert [len(chart.series) for chart in rest] == [2, 1]  # both sides in one chart
    assert others == []
    found = runs_view.series_by_name(
        frame({name: [1.0] for name in ("reward/mean", "kl/reference", "train/loss")})
    )
    main, rest, others = runs_view.charts("rloo", found, {}, {})
    assert [chart.title for chart in main] == ["Mean reward", "KL to the reference"]
    assert rest == []
    assert [chart.title for chart in others] == ["train/loss"]  # of a run of TRL's trainer


def test_the_card_of_a_policy_run_names_its_method():
    dpo = run(config={"optimize": {"method": "dpo"}})
    for policy_run, method in ((dpo, "DPO"), (run(), "PPO")):
        card = runs_view.card(policy_run, now=NOON, seconds_left=None)
        assert "<b>Policy</b>" in card
        assert f"{method} · iteration" in card
    assert runs_view.unit("dpo") == "step"


def test_the_card_and_the_settings_of_a_run_say_what_changed():
    before = run(id="run-1", iteration=1, config={"ppo": {"lr": 1e-6, "kl_weight": 0.0}})
    this = run(id="run-2", iteration=2, config={"ppo": {"lr": 3e-6, "kl_weight": 0.0}})
    listed = [before, this]
    difference = changed(listed, this)
    card = runs_view.card(this, now=NOON, seconds_left=None, changed=difference)
    assert "Changed settings: ppo.lr 1e-06 → 3e-06" in card
    shown = runs_view.run_settings(this, run_before(listed, this), difference)
    assert "since iteration 1, run-1" in shown
    assert shown.count("ppo.kl_weight") == 1  # only among all settings
    assert "All 2 settings" in shown
    alone = runs_view.run_settings(before, None, [])
    assert "the first run of this kind" in alone
    same = runs_view.run_settings(this, before, [])
    assert "none since iteration 1, run-1" in same
    assert "No settings" in runs_view.run_settings(run(config={}), None, [])


def test_many_changed_settings_are_counted_and_text_is_escaped():
    many = [Changed(name=f"a.{n}", before=None, now="<b>") for n in range(7)]
    card = runs_view.card(run(), now=NOON, seconds_left=None, changed=many)
    assert "a.3 – → &lt;b&gt;, 3 more" in card
    assert "a.4" not in card


def test_a_metric_with_one_value_is_a_result_and_not_a_chart():
    found = runs_view.series_by_name(frame({"train/loss": [0.7, 0.6], "held_out/ece": [0.04]}))
    _, charts, _ = runs_view.charts("reward", found, {}, {})
    assert [chart.title for chart in charts] == ["train/loss"]
    results = runs_view.results("reward", found, {"held_out/ece": "calibration"})
    assert "0.0400" in results
    assert "calibration" in results
    assert "train/loss" not in results


def test_a_flag_shows_once_with_its_latest_figures_and_all_its_steps_worst_first():
    stop = RunNote(
        run="r", seq=9, step=1, kind="flag", name="reference_changed", message=HOSTILE,
        payload={"level": "stop", "why": HOSTILE, "remedy": HOSTILE},
    )  # fmt: skip
    seen = runs_view.flags([stop, kl_flag("r", 83, 10.2), kl_flag("r", 90, 11.7)], unit="update")
    assert seen.count('class="ks-flag') == 2
    assert "updates 83, 90" in seen
    assert "11.7 nats" in seen
    assert "10.2 nats" not in seen
    assert "Raise kl_weight" in seen
    assert seen.index("Reference changed") < seen.index("KL high")
    assert "<img" not in seen


def test_a_flag_without_its_parts_and_a_warning_show_their_message():
    plain = RunNote(run="r", seq=1, step=4, kind="flag", name="odd", message="Seen. Why. Try.")
    warning = RunNote(run="r", seq=2, step=0, kind="warning", name="long_prompts", message=HOSTILE)
    seen = runs_view.flags([warning, plain], unit="update")
    assert "Seen. Why. Try." in seen
    assert "update 4" in seen
    assert "update 0" not in seen
    assert seen.index("Odd") < seen.index("Long prompts")
    assert "<img" not in seen


def test_many_steps_of_a_flag_are_abridged():
    seen = runs_view.flags([kl_flag("r", step, 11.0) for step in (1, 3, 5, 7)], unit="update")
    assert "updates 1, …, 5, 7" in seen


def test_live_samples_show_prompt_response_and_figures_as_text():
    prompt = Prompt.make(f"Why? {HOSTILE}", role="train")
    note = RunNote(
        run="r", seq=1, step=20, kind="sample", name="response", message=HOSTILE,
        payload={"prompt": prompt.id, "reward": -0.25, "kl": 3.0, "finish_reason": "length"},
    )  # fmt: skip
    seen = runs_view.samples([note], {prompt.id: prompt}, unit="step")
    assert "Why?" in seen
    assert "step 20 · reward −0.25 · KL 3.00 · cut off" in seen
    assert "<img" not in seen
    assert "unknown prompt" in runs_view.samples([note], {}, unit="step")


def test_the_card_of_a_failed_run_gives_the_reason_as_text():
    failed = run(status="failed", reason=HOSTILE, progress=0.4, message="update 4 of 10",
                 finished_at=NOON + timedelta(seconds=90), attempt=2,
                 started_at=NOON + timedelta(seconds=60))  # fmt: skip
    seen = runs_view.card(failed, now=NOON + timedelta(hours=2), seconds_left=None)
    for text in (
        "The run failed",
        "40% · update 4 of 10",
        "attempt 2 · first started 2 h ago",
        "1 min 30 s from first start to end",
        "&lt;img",
    ):
        assert text in seen
    assert "<img" not in seen
    assert "time left" not in seen


def test_a_run_at_100_percent_is_finishing_with_or_without_an_estimate():
    for seconds in (None, 600.0):
        seen = runs_view.card(run(progress=1.0), now=NOON, seconds_left=seconds)
        assert "100%" in seen
        assert "finishing" in seen
        assert "left" not in seen


def test_the_card_of_a_retry_says_what_it_took_and_links_the_earlier_attempts():
    failed = run(id="run-1", status="failed", attempt=2)
    retried = run(id="run-2", status="succeeded", attempt=3, seconds=125.0,
                  finished_at=NOON + timedelta(hours=9))  # fmt: skip
    seen = runs_view.card(
        retried, now=NOON + timedelta(hours=10), seconds_left=None, earlier=[failed]
    )
    assert "attempt 3 · started 10 h ago · took 2 min 5 s" in seen
    assert '<a href="?tab=runs&amp;run=run-1">attempt 2, failed</a>' in seen


def test_the_card_says_what_a_run_uses():
    gpu = GpuUse(name="H100", memory=30 * 10**9, total=80 * 10**9, peak=70 * 10**9, utilisation=0.5)
    use = ResourceUse(
        samples=3, cpu=1.0, mean_cpu=1.26, memory=2 * 10**9, peak=35 * 10**8, gpus=(gpu,)
    )
    seen = runs_view.card(run(), now=NOON, seconds_left=None, resources=use)
    assert "CPU 1.3 cores on average · memory 2.0 GB, peak 3.5 GB" in seen
    assert "H100: 30.0 GB of 80.0 GB, peak 70.0 GB, 50% busy" in seen


def figures(markup: str) -> dict[str, dict]:
    """The data of each chart by its title."""
    return {
        title: json.loads(html.unescape(data))
        for data, title in re.findall(r'data-chart="([^"]*)".*?<b>([^<]*)</b>', markup, re.DOTALL)
    }


def used(seconds: list[float], gpus: tuple[GpuHistory, ...] = ()) -> ResourceHistory:
    size = len(seconds)
    return ResourceHistory(
        seconds=seconds, cpu=[1.5] * size, memory=[3e9] * size, gpus=gpus, total=16 * 10**9
    )


def test_resources_are_charts_in_units():
    gpu = GpuHistory(
        name="H100", total=80 * 10**9, memory=[float("nan"), 4e10], utilisation=[0.5, 0.75]
    )
    seen = resources_view.charts(used([0, 600], (gpu,)))
    found = figures(seen)
    assert {title: chart["yTitle"] for title, chart in found.items()} == {
        "CPU": "cores", "Memory": "GB", "GPU utilisation": "%", "GPU memory": "GB",
    }  # fmt: skip
    assert 'data-unit="minute"' in seen
    assert found["CPU"]["series"] == [{"name": "CPU", "x": [0, 10], "y": [1.5, 1.5]}]
    assert found["Memory"]["series"][0]["y"] == [3, 3]
    assert found["Memory"]["limits"] == [{"value": 16, "label": "all of 16.0 GB"}]
    assert found["GPU memory"]["series"] == [{"name": "H100", "x": [0, 10], "y": [None, 40]}]
    assert found["GPU memory"]["limits"][0]["value"] == 80
    assert found["GPU utilisation"]["series"][0]["y"] == [50, 75]


@pytest.mark.parametrize(
    ("seconds", "unit", "end"),
    [(90, "second", 90), (179, "second", 179), (180, "minute", 3), (3 * 3600, "hour", 3)],
)
def test_the_axis_of_resources_has_the_unit_of_the_run(seconds, unit, end):
    seen = resources_view.charts(used([0, seconds]))
    assert f'data-unit="{unit}"' in seen
    assert figures(seen)["CPU"]["series"][0]["x"] == [0, end]


def test_many_gpus_are_the_lowest_the_mean_and_the_highest():
    gpus = tuple(
        GpuHistory(name="H100", total=10**9, memory=[n * 1e9], utilisation=[n / 10])
        for n in range(1, 6)
    )
    two = figures(resources_view.charts(used([0], gpus[:2])))["GPU memory"]["series"]
    assert [(line["name"], line["y"]) for line in two] == [("GPU 0", [1]), ("GPU 1", [2])]
    five = figures(resources_view.charts(used([0], gpus)))["GPU utilisation"]["series"]
    assert [(line["name"], line["y"]) for line in five] == [
        ("lowest", [10]), ("mean", [30]), ("highest", [50]),
    ]  # fmt: skip


def test_a_run_without_samples_has_no_charts():
    assert "No samples" in resources_view.charts(None)


def test_the_card_of_a_running_run_says_how_long_it_still_takes():
    seen = runs_view.card(run(progress=0.25), now=NOON, seconds_left=90)
    assert "about 1 min 30 s left" in seen
    seen = runs_view.card(run(progress=0.25), now=NOON, seconds_left=782)
    assert "about 13 min left" in seen


def watched(*sights: tuple[float, float], attempt: int = 1) -> float | None:
    """What is said at the last of some sights of a run; each is (seconds since noon, progress)."""
    pace = Eta()
    said = [
        pace.seconds_left(
            run(attempt=attempt, progress=progress), now=NOON + timedelta(seconds=seconds)
        )
        for seconds, progress in sights
    ]
    return said[-1]


def test_time_left_goes_by_the_steps_and_not_by_the_start_up_before_the_first():
    start_up, first = (0, 0.0), (70, 1 / 12)
    assert watched(start_up) is None
    assert watched(start_up, first) is None  # one step's end does not tell its length
    # update 2 took 5 s: ten more take 50 s
    assert watched(start_up, first, (75, 2 / 12)) == pytest.approx(50)


def test_time_left_counts_down_while_a_step_runs_but_by_one_step_at_most():
    before = [(70, 1 / 12), (75, 2 / 12)]
    assert watched((0, 0.0), *before, (78, 2 / 12)) == pytest.approx(47)
    assert watched((0, 0.0), *before, (95, 2 / 12)) == pytest.approx(45)


def test_time_left_of_a_resumed_run_does_not_count_its_start_up_either():
    at_checkpoint, ninth = (0, 8 / 12), (60, 9 / 12)
    assert watched(at_checkpoint, ninth, attempt=2) is None
    # the tenth took 6 s, so do the last two
    assert watched(at_checkpoint, ninth, (66, 10 / 12), attempt=2) == pytest.approx(12)


def test_a_run_that_falls_back_to_its_checkpoint_starts_the_clock_again():
    sights = [(0, 0.9), (20, 0.2), (30, 0.3), (50, 0.5)]
    # .2 in 20 s since the first rise; .5 to go
    assert watched(*sights, attempt=2) == pytest.approx(50)


def test_a_speed_read_off_two_seconds_is_not_believed():
    assert watched((0, 0.0), (2, 0.01), (4, 0.05)) is None


def test_the_running_run_comes_before_a_newer_one_that_stopped():
    old = run(id="old", created_at=NOON - timedelta(hours=1))
    new = run(id="new", status="failed")
    assert latest_run([old, new]) is old
    assert latest_run([]) is None


# Samples


def sample(text: str, **rewards: float | None) -> Sample:
    answers = {side: Answer(side, f"{side} says {text}", r) for side, r in rewards.items()}
    return Sample((Message("user", text),), answers)


SAMPLES = [
    sample("bread", reference=0.0, policy=1.0),  # gain 1.0
    sample("Apples", reference=1.5, policy=0.5),  # gain −1.0
    sample("coffee", reference=0.2, policy=0.2),  # gain 0
    sample("dogs", policy=None, reference=0.1),  # no gain known
]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("gain", ["bread", "coffee", "Apples", "dogs"]),
        ("loss", ["Apples", "coffee", "bread", "dogs"]),
        ("reward", ["bread", "Apples", "coffee", "dogs"]),
        ("prompt", ["Apples", "bread", "coffee", "dogs"]),
    ],
)
def test_samples_are_ordered_and_unknown_figures_come_last(order, expected):
    found = samples_view.select(SAMPLES, needle="", order=order)
    assert [s.messages[0].content for s in found] == expected


def test_the_filter_reads_prompts_and_answers_in_any_case():
    assert samples_view.select(SAMPLES, needle=" POLICY SAYS a", order="gain") == [SAMPLES[1]]


def test_the_summary_averages_rewards_and_counts_ties_half():
    seen = samples_view.summary(SAMPLES)
    # SFT (0 + 1.5 + .2 + .1) / 4 = .45; new (1 + .5 + .2) / 3 = .567; wins (1 + 0 + ½) / 3 = 50%
    for text in ("+0.45", "+0.57", "50.0%", "3 held-out prompts"):
        assert text in seen
    assert "Previous policy" not in seen


def test_of_several_answers_of_a_policy_the_first_is_shown():
    rows = [
        EvaluatedCompletion(
            prompt="p",
            messages=(Message(role="user", content="q"),),
            policy_role="policy",
            policy="p-1",
            text=text,
            reward=1.0,
        )
        for text in ("one", "two")
    ]
    (only,) = samples_view.collect(rows)
    assert only.answers["policy"].text == "one"


def test_samples_are_text():
    seen = samples_view.page([sample(HOSTILE, reference=0.0, policy=1.0)], 1)
    assert "<img" not in seen
    assert seen.count("&lt;img") == 3  # the prompt and two answers


def test_pages_hold_twelve():
    assert [samples_view.pages(n) for n in (0, 1, 12, 13)] == [1, 1, 1, 2]


# Annotators


def person(name: str, **work) -> people_view.Person:
    return people_view.Person(work=Work(annotator=Annotator(id=name, name=name), **work))


def test_names_and_comments_are_text():
    flag = OpenFlag(
        id="f", comment=HOSTILE, created_at=NOON, annotator=HOSTILE,
        messages='[{"role": "user", "content": "<img>"}]', first=HOSTILE, second=HOSTILE,
    )  # fmt: skip
    seen = people_view.flags([flag], now=NOON)
    seen += people_view.people([person(HOSTILE)], now=NOON)
    seen += people_view.invite(HOSTILE, HOSTILE)
    assert "<img" not in seen


# History


def test_the_tree_puts_each_model_under_its_parent():
    versions = [
        ModelVersion(id="sft", role="sft", name="SFT", created_at=NOON),
        ModelVersion(id="p1", role="policy", name="P1", parent="sft", created_at=NOON),
        ModelVersion(id="p2", role="policy", name="P2", parent="p1", created_at=NOON),
        ModelVersion(id="x", role="external", name="gpt", created_at=NOON),
    ]
    drawn = lineage_view.tree(versions)
    assert drawn.index("SFT") < drawn.index("P1") < drawn.index("P2")
    assert drawn.count("<ul") == 3  # one below the other
    assert "gpt" not in drawn


def test_parents_in_a_circle_are_shown_and_do_not_hang_the_page():
    circle = [
        ModelVersion(id="a", role="policy", name="A", parent="b"),
        ModelVersion(id="b", role="policy", name="B", parent="a"),
        ModelVersion(id="own", role="sft", name="C", parent="own"),
    ]
    drawn = lineage_view.tree(circle)
    assert [f"<b>{name}</b>" in drawn for name in "ABC"] == [True] * 3


def test_history_shows_figures_and_times():
    done = Iteration(
        number=1, phase="done", labels_wanted=100, reward_model="r", created_at=NOON,
        finished_at=NOON + timedelta(hours=2),
        evaluation={"policy": {"kl": 3.1, "reward": 0.7, "length": 44.6},
                    "win_rate_reward_model": 0.68,
                    "win_rate_against_reference": {
                        "win_rate": 0.68, "low": 0.594, "high": 0.762,
                        "comparisons": 120, "prompts": 120}},
    )  # fmt: skip
    reward = ModelVersion(id="r", role="reward", name="r", summary={"accuracy": 0.71})
    # They were resumed the next morning; what they took is what their workers say.
    stages = [
        run(id=stage, stage=stage, status="succeeded", finished_at=NOON + timedelta(hours=9))
        for stage in ("reward", "policy", "sampling")
    ]
    labels = {1: {"bald": 48, "random": 56}}
    seen = iterations_view.table(
        [done], labels, {"r": reward}, stages, {"reward": 120.0, "policy": 300.0}, GateReport()
    )
    for text in ("104 of 100", "random 56 · bald 48", "71.0%", "+0.70", "3.10", "68.0%", "59–76%", "44.6", "2 h",
                 "training 7 min<"):  # fmt: skip
        assert text in seen


def test_history_counts_the_time_of_every_attempt():
    listed = [
        run(id="a", stage="reward", status="succeeded", attempt=1),
        run(id="b", status="failed", attempt=2),  # resumed once
        run(id="c", status="succeeded", attempt=3),
    ]
    worked = {"a": 60.0, "b": 3600.0, "c": 1740.0}
    seen = iterations_view.table(
        [Iteration(number=1, phase="done")], {}, {}, listed, worked, GateReport()
    )
    assert "training 1 h 30 min, 4 attempts<" in seen


def test_a_stopped_iteration_says_so_in_the_history():
    ppo = Iteration(number=1, phase="policy")
    assert "Policy failed" in iterations_view.table(
        [ppo], {}, {}, [run(status="failed")], {}, GateReport()
    )


def test_history_and_tree_name_what_made_each_policy():
    methods = {1: "ppo", 2: "dpo", 3: "rloo"}
    turns = [Iteration(number=number, phase="done") for number in (*methods, 4)]
    trained = [
        run(id=f"run-{number}", iteration=number, config={"optimize": {"method": method}})
        for number, method in methods.items()
    ]
    sampled = run(id="run-4", iteration=4, stage="sampling")
    seen = iterations_view.table(turns, {}, {}, [*trained, sampled], {}, GateReport())
    for number, method in ((1, "PPO"), (2, "DPO"), (3, "RLOO")):
        assert f"{number}<small>{method}</small>" in seen
    assert '<span class="ks-figure">4</span>' in seen  # not trained yet

    made = [
        ModelVersion(id=f"p{number}", role="policy", name=f"P{number}", summary={"method": method})
        for number, method in methods.items()
    ]
    drawn = lineage_view.tree([*made, ModelVersion(id="sft", role="sft", name="SFT")])
    assert drawn.count("by PPO") == drawn.count("by DPO") == drawn.count("by RLOO") == 1


@pytest.mark.parametrize(("status", "tone"), [("cancelled", "warn"), ("failed", "bad")])
def test_a_stopped_run_has_one_tone_wherever_it_is_named(status, tone):
    ended = run(status=status)
    badge = f'ks-badge ks-{tone}">'
    turn = Iteration(number=2, phase="policy")
    assert f"{badge}Iteration 2 · Policy {status}" in top.top(state(iteration=turn, run=ended), "w")
    assert f"{badge}{status}" in runs_view.card(ended, now=NOON, seconds_left=None)
    assert f'<li class="ks-stopped ks-{tone}" data-mark="!" aria-current="step">Policy' in (
        overview_view.stepper(turn, ended)
    )
    stopped = Stopped(
        run="r",
        attempt=1,
        stage="policy",
        status=status,
        reason="x",
        resumable=True,
        may_label=False,
    )
    for told in (
        overview_view.next_step(state(iteration=turn, run=ended), None),
        overview_view.next_step(state(iteration=turn, run=ended), None, stopped),
    ):
        assert f'ks-note ks-{tone}"' in told
    listed = run(iteration=2, status=status)
    assert f"{badge}Policy {status}" in iterations_view.table(
        [turn], {}, {}, [listed], {}, GateReport()
    )


def test_a_single_iteration_draws_no_course():
    one = Iteration(number=1, phase="done", evaluation={"win_rate_reward_model": 0.6})
    assert iterations_view.charts([one], [], {}, GateReport()) == ""


def test_policies_of_different_methods_are_not_joined_by_a_line():
    found = {1: ("ppo", 3.0), 2: ("dpo", 2.0), 3: ("ppo", 4.0), 4: ("rloo", 2.5)}
    turns = [
        Iteration(number=number, phase="done", evaluation={"policy": {"kl": kl}})
        for number, (_, kl) in found.items()
    ]
    trained = [
        run(id=f"run-{number}", iteration=number, config={"optimize": {"method": method}})
        for number, (method, _) in found.items()
    ]
    drawn = html.unescape(str(iterations_view.charts(turns, trained, {}, GateReport())))
    (data,) = re.findall(r'data-chart="(.*?)">', drawn)
    assert json.loads(data)["series"] == [
        {"name": "PPO", "x": [1, 3], "y": [3, 4]},
        {"name": "DPO", "x": [2], "y": [2]},
        {"name": "RLOO", "x": [4], "y": [2.5]},
    ]
    for index, name in enumerate(("PPO", "DPO", "RLOO")):
        assert f'<span class="ks-key ks-s{index}"><i></i>{name} ' in drawn
    alone = str(iterations_view.charts(turns[:1] + turns[2:3], trained, {}, GateReport()))
    assert "<i></i><em>" in alone  # one method needs no legend


def test_win_rates_are_dots_with_intervals_which_no_line_joins():
    rate = {"low": 0.5, "high": 0.9, "comparisons": 20, "prompts": 20}
    turns = [
        Iteration(
            number=number, phase="done", reward_model=f"r{number}", policy_produced=f"p{number}",
            evaluation={
                "win_rate_reward_model": wins,
                "win_rate_against_reference": {"win_rate": wins, **rate},
            },
        )
        for number, wins in ((1, 0.6), (2, 0.75))
    ]  # fmt: skip
    versions = {
        f"{role[0]}{number}": ModelVersion(
            id=f"{role[0]}{number}", role=role, name=f"{role}-{number}"
        )
        for number in (1, 2)
        for role in ("reward", "policy")
    }
    people = WinRate(win_rate=0.7, low=0.55, high=0.82, comparisons=44, prompts=20)
    gate = GateReport(policies=(standing(policy="policy-1", win_rate=people),))
    drawn = str(iterations_view.charts(turns, [], versions, gate))
    by_people, by_model = drawn.split("<figure")[1:]
    assert "Wins against SFT, by people" in by_people
    assert re.findall('aria-label="(Iteration.*?)"', by_people) == [
        "Iteration 1, PPO: 70% (55–82%), 44 judgments"
    ]
    assert re.findall('aria-label="(Iteration.*?)"', by_model) == [
        "Iteration 1, PPO: 60% (50–90%), by reward-1",
        "Iteration 2, PPO: 75% (50–90%), by reward-2",
    ]
    for plot, dots in ((by_people, 1), (by_model, 2)):
        assert plot.count("ks-whisker") == dots
        assert "ks-line" not in plot
    assert "data-chart" not in drawn


def test_the_history_has_each_verdict_in_the_row_of_its_policy():
    turns = [
        Iteration(number=1, phase="done", policy_produced="p1"),
        # The verdict that the second iteration stored is about the first one's policy.
        Iteration(number=2, phase="done", policy_produced="p2", verdict="promoted"),
    ]
    versions = {
        f"p{n}": ModelVersion(id=f"p{n}", role="policy", name=f"policy-{n}") for n in (1, 2)
    }
    people = WinRate(win_rate=0.7, low=0.55, high=0.82, comparisons=44, prompts=20)
    gate = GateReport(
        policies=(
            standing(policy="policy-2", win_rate=None),
            standing(policy="policy-1", verdict="promoted", win_rate=people),
        )
    )
    seen = iterations_view.table(turns, {}, versions, [], {}, gate)
    newest, first = seen.split("<tbody>")[1].split("</tr>")[:2]
    assert "promoted" in first
    assert "people 70%, 55–82%" in first
    assert re.search('data-label="Verdict">–</td>', newest)  # nobody has judged it yet
    lost = canary_figures(canary_results(lost=20))
    blocked = standing(policy="policy-2", verdict="blocked", win_rate=None, canary=lost)
    seen = iterations_view.table(turns, {}, versions, [], {}, GateReport(policies=(blocked,)))
    assert "blocked" in seen.split("<tbody>")[1].split("</tr>")[0]  # before anybody has judged it


def test_what_is_wrong_with_the_workspace_stands_above_every_tab(db):
    assert "ks-note" not in headline(db)
    db.health.loop_error = "no <model> there"
    assert "no &lt;model&gt; there" in headline(db)
    db.health.refused = "the disk is full"  # the worse of the two
    assert "the disk is full" in headline(db)
    assert "there" not in headline(db)
