"""Iterations and their results as HTML. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.caveats import cautions
from labeler.research.charts import Chart, Series, group
from labeler.research.models.verdicts import view as verdicts_view
from labeler.research.phases import STATUS_TONES, has_stopped, phase_title
from labeler.research.plots import Axis, Plot, PlotPoint, draw
from labeler.research.reading import latest_run
from storage.gate_report import GateReport, Standing
from storage.records import Iteration, ModelVersion, Run
from storage.reports import Evaluation, RewardFigures, from_json
from storage.tables.runs.run_settings import Changed, changed_in_all
from storage.tables.runs.runs import count_attempts, methods_used, name

TRAINING = ("reward", "policy")
"""Stages whose duration the history shows."""

_COLUMNS = (
    Column("Iteration", "right", "Below: the method that trained the policy."),
    Column("Phase"),
    Column("Labels", "right", "Current judgments on the iteration's comparisons, and the number "
           "wanted. Below: by the arm of the pair."),
    Column("Accuracy", "right", "Accuracy of the reward model on held-out preferences."),
    Column("Reward", "right", "Mean reward of the new policy on held-out prompts, by this "
           "iteration's reward model. Iterations are not on the same scale."),
    Column("KL", "right", "KL from SFT to the new policy, nats per response."),
    Column("Verdict", "left", "The promotion gate's verdict on the policy that this iteration made. "
           "Below: the share of people's judgments that prefer it to SFT, with its 95% interval. "
           "People judge it in the next iteration."),
    Column("Wins, by reward model", "right", "Share of held-out prompts on which the reward model "
           "prefers the new policy to SFT; ties count half. Below: the 95% interval."),
    Column("Length", "right", "Mean tokens per response of the new policy."),
    Column("Time", "right", "From the first sample to the end of the evaluation, including labeling "
           "and waiting. Below: training of reward model and policy, with stopped attempts."),
)  # fmt: skip


def table(
    iterations: Sequence[Iteration],
    labels: Mapping[int, Mapping[str, int]],
    versions: Mapping[str, ModelVersion],
    runs: Sequence[Run],
    worked: Mapping[str, float],
    gate: GateReport,
) -> Markup:
    """A row for each iteration, the newest first.

    `labels` has the number of labels by iteration and arm, `worked` the seconds that ended runs of
    `TRAINING` stages took by run id.
    """
    if not iterations:
        return components.empty("No iterations yet", "Each iteration will have a row here.")
    methods = methods_used(runs)
    newest_first = sorted(iterations, key=lambda i: -i.number)
    standings = _standings(newest_first, versions, gate)
    rows = [
        (
            components.figure(components.number(each.number), methods.get(each.number, "")),
            *_row(
                each,
                versions.get(each.reward_model or ""),
                standings.get(each.number),
                labels.get(each.number, {}),
                [run for run in runs if run.iteration == each.number],
                worked,
            ),
        )
        for each in newest_first
    ]
    return components.stack(
        components.table(_COLUMNS, rows, caption="Iterations"),
        cautions(newest_first, versions),
        css="ks-history",
    )


NEWEST = 5
"""Iterations on the Overview page."""

_NEWEST_COLUMNS = (
    Column("Iteration"),
    Column("Changed settings", "left", "Of the policy's training, since the run before with the same method."),
    Column("People", "right", "Share of judgments that prefer the policy to SFT, with its 95% interval."),
    Column("Reward model", "right", "Share of held-out prompts on which the reward model prefers the "
           "policy to SFT."),
    Column("KL", "right", "KL from SFT to the policy, nats per response."),
    Column("Length", "right", "Mean tokens per response."),
)  # fmt: skip


def kl(found: Evaluation) -> str:
    """The KL from SFT, nats per response; best-of-N has only an upper bound."""
    return ("≤ " if found.policy.kl_is_bound else "") + components.number(found.policy.kl)


def newest(
    iterations: Sequence[Iteration],
    runs: Sequence[Run],
    gate: GateReport,
    versions: Sequence[ModelVersion],
) -> Markup:
    """The last iterations that made a policy, the newest first; empty before the first."""
    names = {model.id: model.name for model in versions}
    standings = {each.policy: each for each in gate.policies}
    made = sorted((i for i in iterations if i.policy_produced), key=lambda i: -i.number)
    if not made:
        return Markup("")
    changed = changed_in_all(runs)
    rows = []
    for each in made[:NEWEST]:
        policy = names.get(each.policy_produced or "", each.policy_produced or "")
        standing = standings.get(policy)
        rate = standing.win_rate if standing else None
        found = from_json(Evaluation, each.evaluation)
        trained = [run for run in runs if (run.iteration, run.stage) == (each.number, "policy")]
        differences = changed[trained[-1].id] if trained else []
        rows.append(
            (
                components.figure(
                    f"{each.number} · {policy}", *(m for m in [_method(trained)] if m)
                ),
                _differences(differences),
                components.figure(
                    components.percent(rate.win_rate if rate else None),
                    components.interval(rate.low, rate.high) if rate else "",
                ),
                components.percent(found.win_rate_reward_model),
                kl(found),
                components.number(found.policy.length),
            )
        )
    return components.stack(
        components.heading(
            "Last iterations", Markup('<a href="{}">all, with charts</a>').format(_ALL)
        ),
        components.table(_NEWEST_COLUMNS, rows, caption="Last iterations"),
    )


_ALL = "/research/?tab=overview&section=iterations"


def _method(trained: Sequence[Run]) -> str:
    return name(trained[-1]) if trained else ""


def _differences(changed: Sequence[Changed]) -> Markup | str:
    if not changed:
        return components.DASH
    texts = [f"{each.name}={json.dumps(each.now, ensure_ascii=False)}" for each in changed]
    return Markup('<span class="ks-changed" title="{}">{}</span>').format(
        "\n".join(texts), ", ".join(texts)
    )


def _row(
    iteration: Iteration,
    reward: ModelVersion | None,
    standing: Standing | None,
    labels: Mapping[str, int],
    runs: Sequence[Run],
    worked: Mapping[str, float],
) -> Sequence[Any]:
    found = from_json(Evaluation, iteration.evaluation)
    accuracy = from_json(RewardFigures, reward.summary).accuracy if reward else None
    seconds = sum(worked.get(run.id, 0.0) for run in runs)
    trained = f"training {components.duration(seconds)}" if seconds else ""
    trainings = [run for run in runs if run.stage in TRAINING]
    attempts = count_attempts(trainings)
    if trained and attempts > len({run.stage for run in trainings}):
        trained += f", {attempts} attempts"
    ended = iteration.finished_at
    return (
        _phase(iteration, latest_run(runs)),
        _labels(labels, iteration.labels_wanted),
        components.percent(accuracy, 1),
        components.signed(found.policy.reward),
        kl(found),
        _verdict(standing),
        _wins(found),
        components.number(found.policy.length),
        components.figure(
            components.duration((ended - iteration.created_at).total_seconds() if ended else None),
            trained,
        ),
    )


def _labels(by_arm: Mapping[str, int], wanted: int) -> Markup:
    arms = sorted(by_arm.items(), key=lambda arm: -arm[1])
    shares = " · ".join(f"{arm} {count:,}" for arm, count in arms)
    return components.figure(f"{sum(by_arm.values()):,} of {wanted:,}", shares)


def _standings(
    iterations: Sequence[Iteration], versions: Mapping[str, ModelVersion], gate: GateReport
) -> Mapping[int, Standing]:
    """By iteration, the standing of the policy that it made."""
    by_policy = {each.policy: each for each in gate.policies}
    made = {
        i.number: versions[i.policy_produced].name
        for i in iterations
        if i.policy_produced and i.policy_produced in versions
    }
    return {number: by_policy[name] for number, name in made.items() if name in by_policy}


def _verdict(standing: Standing | None) -> Markup:
    """The verdict and people's win rate; a dash while nobody has judged the policy and its canary
    shows no loss."""
    if standing is None:
        return Markup(components.DASH)
    lost = standing.canary is not None and standing.canary.holds
    if standing.win_rate is None and standing.ruling is None and not lost:
        return Markup(components.DASH)
    rate = standing.win_rate
    by_people = (
        f"people {components.percent(rate.win_rate)}, {components.interval(rate.low, rate.high)}"
        if rate
        else ""
    )
    return components.figure(verdicts_view.badge(standing.verdict), by_people)


def _wins(found: Evaluation) -> Markup:
    rate = found.win_rate_against_reference
    sure = components.interval(rate.low, rate.high) if rate else ""
    return components.figure(components.percent(found.win_rate_reward_model, 1), sure)


def _phase(iteration: Iteration, run: Run | None) -> Markup:
    name = phase_title(iteration.phase)
    if iteration.phase == "done":
        return components.badge(name, "good")
    if iteration.phase != "labeling" and run is not None and has_stopped(run):
        return components.badge(f"{name} {run.status}", STATUS_TONES[run.status])
    return components.badge(name, "info", dot=True)


def charts(
    iterations: Sequence[Iteration],
    runs: Sequence[Run],
    versions: Mapping[str, ModelVersion],
    gate: GateReport,
) -> Markup:
    """Win rates by people and by the reward models, KL and length by iteration; empty for a single
    iteration.

    No line joins win rates: each is by other judges, or by another reward model.
    """
    finished = sorted((i for i in iterations if i.evaluation), key=lambda i: i.number)
    if len(finished) < 2:
        return Markup("")
    found = [(i, from_json(Evaluation, i.evaluation)) for i in finished]
    methods = methods_used(runs)
    return components.stack(
        components.side_by_side(
            _people_plot(finished, _standings(finished, versions, gate), methods),
            _reward_model_plot(found, versions, methods),
        ),
        _courses(found, methods),
    )


def _people_plot(
    iterations: Sequence[Iteration], standings: Mapping[int, Standing], methods: Mapping[int, str]
) -> Markup:
    points = [
        _point(i.number, rate.win_rate, rate.low, rate.high, f"{rate.comparisons:,} judgments")
        for i in iterations
        if (standing := standings.get(i.number)) and (rate := standing.win_rate)
    ]
    if not points:
        return components.empty(
            "No win rates by people yet", "Annotators compare each new policy with SFT."
        )
    help = "Share of people's judgments that prefer the iteration's policy to SFT, with its 95% interval."
    return _wins_plot("Wins against SFT, by people", iterations, points, methods, help)


def _reward_model_plot(
    found: Sequence[tuple[Iteration, Evaluation]],
    versions: Mapping[str, ModelVersion],
    methods: Mapping[int, str],
) -> Markup:
    points = []
    for iteration, evaluation in found:
        wins, rate = evaluation.win_rate_reward_model, evaluation.win_rate_against_reference
        if wins is not None:
            judge = versions.get(iteration.reward_model or "")
            low, high = (rate.low, rate.high) if rate else (wins, wins)
            by = f"by {judge.name}" if judge else "by its reward model"
            points.append(_point(iteration.number, wins, low, high, by))
    if not points:
        return Markup("")
    help = (
        "Share of held-out prompts on which the iteration's own reward model prefers its policy to "
        "SFT, with its 95% interval. Different reward models are different judges, so the dots are "
        "not joined."
    )
    title = "Wins against SFT, by each iteration's reward model"
    return _wins_plot(title, [iteration for iteration, _ in found], points, methods, help)


def _point(number: int, wins: float, low: float, high: float, by: str) -> PlotPoint:
    told = f"{components.percent(wins)} ({components.interval(low, high)}), {by}"
    return PlotPoint(number, wins, low, high, told)


def _wins_plot(
    title: str,
    iterations: Sequence[Iteration],
    points: Sequence[PlotPoint],
    methods: Mapping[int, str],
    help: str,
) -> Markup:
    """Dots with intervals over all `iterations`; a dot's tooltip names its iteration and method."""
    numbers = [iteration.number for iteration in iterations]
    every = math.ceil(len(numbers) / _MOST_LABELS)
    x = Axis(
        numbers[0] - 1,
        numbers[-1] + 0.5,
        [(number, str(number)) for number in numbers[::every]],
        "iteration",
    )
    told = [
        replace(p, says=f"Iteration {p.x:g}, {methods.get(int(p.x), 'PPO')}: {p.says}")
        for p in points
    ]
    chance = [([(x.low, 0.5), (x.high, 0.5)], "ks-guide")]
    return draw(Plot(title, x, _SHARES, told, help, lines=chance, notes=[(0.5, "as good as SFT")]))


_MOST_LABELS = 12
_SHARES = Axis(0, 1, [(n / 4, f"{25 * n}%") for n in range(5)], "win rate")


def _courses(found: Sequence[tuple[Iteration, Evaluation]], methods: Mapping[int, str]) -> Markup:
    """KL and length by iteration, a line for each method."""
    plans = (
        ([(i.number, e.policy.kl) for i, e in found], "KL from SFT", "nats per response"),
        ([(i.number, e.policy.length) for i, e in found], "Response length", "tokens"),
    )
    drawn = []
    for values, title, y_title in plans:
        points = [(number, value) for number, value in values if value is not None]
        if len(points) >= 2:
            series = _by_method(points, methods)
            drawn.append(Chart(title, series, "Mean over held-out prompts.", y_title=y_title))
    return group(drawn, x_title="iteration", columns=True) if drawn else Markup("")


def _by_method(points: Sequence[tuple[int, float]], methods: Mapping[int, str]) -> Sequence[Series]:
    """A series for each method, so that no line connects two methods."""
    names = dict.fromkeys(methods.get(number, "PPO") for number, _ in points)
    return [
        Series(name, *zip(*(p for p in points if methods.get(p[0], "PPO") == name), strict=True))
        for name in names
    ]
