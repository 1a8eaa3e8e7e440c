"""The three summaries that say what can be trusted: policy, reward model and data. Pure functions.

Each links to the section with the evidence.
"""

from __future__ import annotations

from datetime import datetime

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.caveats import CONTINUES, unready
from labeler.research.models.reward.view import TONES
from labeler.research.models.verdicts import view as verdicts_view
from labeler.research.overview import iterations_view
from labeler.research.reading import State
from storage.analysis.agreement import Agreement
from storage.gate_report import GateReport, Standing
from storage.records import Iteration
from storage.reports import Evaluation, RewardFigures, RewardReport, from_json
from storage.wording import plural


def summaries(
    state: State,
    gate: GateReport,
    report: RewardReport,
    agreement: Agreement,
    *,
    open_flags: int,
    now: datetime,
) -> Markup:
    """Policy, reward model and data beside each other."""
    return Markup('<div class="ks-tiles ks-trust">{}</div>').format(
        components.lines(
            [
                _policy(state, gate),
                _reward_model(state, report),
                _data(state, agreement, open_flags, now),
            ]
        )
    )


def not_ready(state: State, report: RewardReport) -> Markup:
    """A warning that the policy is trained with a reward model that its report advises against."""
    phase = state.iteration.phase if state.iteration else None
    found = unready(report)
    if phase not in ("labeling", "policy") or found is None:
        return Markup("")
    if phase == "policy":
        title = f"The policy is trained with {found.model}, which is not ready for PPO."
        advice = (
            "The promotion gate shows whether people prefer it; label more in the next iteration."
        )
    else:
        title, advice = found.title, CONTINUES
    return components.note("warn", title, f"{found.reason} {advice}")


def _tile(title: str, address: str, value: object, badge: object, *details: object) -> Markup:
    return Markup(
        '<a class="ks-tile" href="/research/?{}"><div class="ks-label">{}{}</div>'
        '<div class="ks-value">{}</div>{}</a>'
    ).format(
        address,
        title,
        badge,
        value,
        components.lines(
            each if isinstance(each, Markup) and "ks-bar" in each else components.detail(each)
            for each in details
            if each
        ),
    )


def _policy(state: State, gate: GateReport) -> Markup:
    """People's win rate first, then KL and what the reward model says."""
    policy = state.policy
    address = "tab=models"
    if policy is None or policy.role != "policy":
        what = "the frozen SFT reference" if policy else "created when the loop starts"
        name = policy.name if policy else components.DASH
        return _tile("Policy", address, name, "", what)
    found = next((each for each in gate.policies if each.policy == policy.name), None)
    rate = found.win_rate if found else None
    value = components.with_interval(rate.win_rate, rate.low, rate.high) if rate else "–"
    by_people = (
        f"people prefer {policy.name} to SFT, {plural(rate.comparisons, 'judgment')}"
        if rate
        else f"{policy.name}: people have not compared it with SFT yet"
    )
    return _tile(
        "Policy", address, value, _verdict(found), by_people, _by_reward_model(state.evaluated)
    )


def _verdict(found: Standing | None) -> Markup:
    return verdicts_view.badge(found.verdict) if found else Markup("")


def _by_reward_model(evaluated: Iteration | None) -> str:
    if evaluated is None:
        return "not evaluated yet"
    found = from_json(Evaluation, evaluated.evaluation)
    rate = found.win_rate_against_reference
    interval = components.interval(rate.low, rate.high) if rate else ""
    wins = components.percent(found.win_rate_reward_model)
    return (
        f"KL {iterations_view.kl(found)} nats · "
        f"reward model: wins {wins}{interval and f' ({interval})'}"
    )


def _reward_model(state: State, report: RewardReport) -> Markup:
    """The verdict with its first reason."""
    model, address = state.reward_model, "tab=models&amp;section=reward-model"
    address = Markup(address)
    if model is None:
        return _tile(
            "Reward model", address, components.DASH, "", "will be trained on your first labels"
        )
    figures = from_json(RewardFigures, model.summary)
    accuracy = components.with_interval(
        figures.accuracy, figures.accuracy_low, figures.accuracy_high
    )
    held_out = figures.held_out_preferences
    measured = f"{model.name}: accuracy" + (
        f" on {plural(held_out, 'held-out preference')}" if held_out else ""
    )
    verdict = report.verdict if report.model == model.name else None
    if verdict is None:
        return _tile("Reward model", address, accuracy, "", measured)
    least = [check for check in verdict.checks if check.known and check.allows != "ppo"]
    return _tile(
        "Reward model",
        address,
        accuracy,
        components.badge(verdict.verdict, TONES[verdict.verdict]),
        measured,
        components.sentence(least[0].says) if least else "",
    )


def _data(state: State, agreement: Agreement, open_flags: int, now: datetime) -> Markup:
    """Labels of the iteration, agreement and open flags."""
    share = state.labels / state.wanted if state.wanted else 0.0
    value = Markup("{} <small>of {} labels</small>").format(
        components.number(state.labels), components.number(state.wanted)
    )
    latest = f" · latest {components.ago(state.latest_label, now)}" if state.latest_label else ""
    # "0 today" would read as if nobody had labeled the earlier iterations today.
    given = (
        f"{state.labels_today:,} today{latest}"
        if state.labels
        else "no labels in this iteration yet"
    )
    return _tile(
        "Data",
        "tab=data",
        value,
        components.badge(plural(open_flags, "open flag"), "warn") if open_flags else "",
        components.bar(share, tone="good" if share >= 1 else "info", label="labels"),
        given,
        _agreed(agreement),
    )


def _agreed(agreement: Agreement) -> str:
    """Agreement with its interval; without one, there are too few pairs for a figure."""
    if not agreement.items:
        return "no pair judged by two people yet"
    pairs = plural(agreement.items, "pair")
    if agreement.percent is None or agreement.percent_interval is None:
        return f"agreement: too few pairs ({pairs} judged by two people)"
    share = components.with_interval(agreement.percent, *agreement.percent_interval)
    return Markup("agreement {}, α {}, on {}").format(
        share, components.number(agreement.alpha, 2), pairs
    )
