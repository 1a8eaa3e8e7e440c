"""A run as HTML: state, charts, red flags and samples. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.charts import Chart, Limit, Series
from labeler.research.phases import STAGE_LABELS, STATUS_TONES, reading_name, stopping
from labeler.research.runs.eta import NEARLY_DONE, about
from labeler.research.runs.evaluation_view import evaluated
from labeler.research.runs.limits import limits
from storage.records import Prompt, Run, RunLabel, RunNote
from storage.reports import Evaluation
from storage.tables.runs import runs
from storage.tables.runs.run_machines import Machine
from storage.tables.runs.run_resources import ResourceUse
from storage.tables.runs.run_settings import Changed, settings_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Plan:
    """A chart: its title, lines (metric, name in the legend), title of the y-axis, and limits."""

    title: str
    lines: Sequence[tuple[str, str]]
    y_title: str
    limits: Sequence[Limit] = ()


_REWARD = Plan("Mean reward", [("reward/mean", "reward")], "reward")
_KL = Plan(
    "KL to the reference",
    [("kl/reference", "KL")],
    "nats per response",
)
_LOSS = Plan("Loss", [("train/loss", "loss")], "loss")
_OPTIMIZER = (
    Plan("Gradient norm", [("train/grad_norm", "norm")], "L2 norm"),
    Plan("Learning rate", [("train/lr", "learning rate")], "learning rate"),
)
_DPO_MAIN = (
    _LOSS,
    Plan("Reward margin", [("dpo/margin", "margin")], "chosen − rejected", [Limit(0, "no margin")]),
    Plan("Preference accuracy", [("dpo/accuracy", "accuracy")], "share", [Limit(0.5, "chance")]),
)
_DPO_REST = (
    Plan(
        "Implicit reward",
        [("dpo/chosen", "chosen"), ("dpo/rejected", "rejected")],
        "reward",
        [Limit(0, "reference")],
    ),
    *_OPTIMIZER,
)
_PPO_REST = (
    Plan("Total reward", [("reward/total", "total reward")], "per response"),
    Plan("Policy loss", [("policy/loss", "policy")], "loss"),
    Plan("Value loss", [("value/loss", "value")], "loss"),
    Plan("Entropy", [("policy/entropy", "entropy")], "nats per token"),
    Plan(
        "Clip fraction",
        [("policy/clip_fraction", "policy"), ("value/clip_fraction", "value")],
        "share of tokens",
    ),
    Plan("Explained variance", [("value/explained_variance", "explained variance")], "share"),
    Plan("Response length", [("completion/length_mean", "length")], "tokens"),
    Plan(
        "Correlation of reward and length",
        [("reward/length_correlation", "correlation")],
        "Pearson's r",
    ),
    Plan("Reward standard deviation", [("reward/std", "standard deviation")], "reward"),
    Plan(
        "Finished and unique responses",
        [("completion/eos_rate", "finished"), ("completion/unique", "unique")],
        "share of responses",
    ),
    Plan("Approximate KL of the update", [("policy/approx_kl", "KL")], "nats per token"),
    Plan("KL coefficient", [("kl/coefficient", "β")], "β"),
    Plan("Gradient norm", [("optim/grad_norm", "norm")], "L2 norm"),
    Plan("Learning rate", [("optim/lr", "policy"), ("optim/critic_lr", "critic")], "learning rate"),
)
_CRITIC_FREE = tuple(
    plan for plan in _PPO_REST if plan.title not in ("Value loss", "Explained variance")
)
_GROUPS = Plan("Prompts with equal scores", [("reward/frac_zero_std", "share")], "share of prompts")
_BEST_OF_N = (
    Plan("Reward by N", [("best_of_n/reward", "best of N samples of SFT")], "reward"),
    Plan("KL from SFT, upper bound", [("best_of_n/kl_bound", "log N − (N−1)/N")], "nats"),
)
_OPENRLHF_KL = Plan(
    "KL from SFT per token", [("openrlhf/kl_per_token", "KL per token")], "nats per token"
)
_OPENRLHF_REST = (
    Plan("Total reward", [("reward/total", "total reward")], "per response"),
    Plan("Policy loss", [("policy/loss", "policy")], "loss"),
    Plan("Value loss", [("value/loss", "value")], "loss"),
    Plan("Clip fraction", [("policy/clip_fraction", "policy")], "share of tokens"),
    Plan("Response length", [("completion/length_mean", "length")], "tokens"),
    Plan("Finished responses", [("completion/eos_rate", "finished")], "share of responses"),
    Plan("Gradient norm", [("openrlhf/grad_norm", "norm")], "L2 norm"),
    Plan("Learning rate", [("optim/lr", "policy"), ("optim/critic_lr", "critic")], "learning rate"),
)
_PLANS: Mapping[str, tuple[Sequence[Plan], Sequence[Plan]]] = {
    "ppo": ((_REWARD, _KL), _PPO_REST),
    "grpo": ((_REWARD, _KL), (_GROUPS, *_CRITIC_FREE)),
    "reinforce++": ((_REWARD, _KL), _CRITIC_FREE),
    "rloo": ((_REWARD, _KL), (_GROUPS, *_CRITIC_FREE)),
    "dpo": (_DPO_MAIN, _DPO_REST),
    "best-of-n": (_BEST_OF_N, ()),
    "openrlhf": ((_REWARD, _OPENRLHF_KL), _OPENRLHF_REST),
}
"""The main charts and the smaller ones, by method."""
_ENGINE = ("ppo", "grpo", "rloo", "reinforce++")
"""Methods of the PPO engine, whose settings and limits are those of `ppo`, and whose metrics are time
series even after a single update."""


CANARY, CANARY_CHECKS = "canary/pass_rate", "canary/passes/"


def unit(kind: str) -> str:
    """The name of a step in a run of this kind (`runs.kind`)."""
    return "update" if kind in (*_ENGINE, "openrlhf") else "step"


def definition(name: str, known: Mapping[str, str]) -> str:
    """The definition of a metric; ``reward/<component>`` in `known` matches any component."""
    if name in known:
        return known[name]
    for template, meaning in known.items():
        pattern = re.sub(r"<[^>]+>", "[^/]+", re.escape(template).replace(r"\<", "<"))
        if "<" in template and re.fullmatch(pattern, name):
            return meaning
    return ""


def series_by_name(metrics: pd.DataFrame) -> dict[str, Series]:
    """Columns step, name and value → a series for each name, by step."""
    return {
        str(name): Series(str(name), part["step"].tolist(), part["value"].astype(float).tolist())
        for name, part in metrics.sort_values("step").groupby("name", sort=True)
    }


def charts(
    kind: str,
    found: Mapping[str, Series],
    known: Mapping[str, str],
    config: Mapping[str, Any],
) -> tuple[list[Chart], list[Chart], list[Chart]]:
    """The charts of a run of this kind (`runs.kind`): the main ones, smaller ones, all other metrics.

    A metric with a single step is a result, which `results` shows.  PPO's charts have the limits of
    its red flags and of the run's `config`.
    """
    limited = partial(limits, found=found, config=config) if kind in _ENGINE else _unlimited
    time_series = {name: s for name, s in found.items() if len(s.steps) > 1 or kind in _ENGINE}
    if kind not in _PLANS:
        return [], [_chart_of(name, s, known, limited) for name, s in time_series.items()], []
    main_plans, other_plans = _PLANS[kind]
    if CANARY in time_series:
        other_plans = (_canary_plan(time_series), *other_plans)
    main = [
        _planned(plan, time_series, known, limited, tall=True)
        for plan in _reported(main_plans, time_series)
    ]
    rest = [
        _planned(plan, time_series, known, limited) for plan in _reported(other_plans, time_series)
    ]
    planned = {metric for plan in (*main_plans, *other_plans) for metric, _ in plan.lines}
    others = [
        _chart_of(name, s, known, limited) for name, s in time_series.items() if name not in planned
    ]
    return main, rest, others


def _canary_plan(found: Mapping[str, Series]) -> Plan:
    """The pass rates of the canary: of all checks together, and of the first three."""
    checks = [name for name in found if name.startswith(CANARY_CHECKS)][:3]
    lines = [(CANARY, "all checks"), *((name, name.removeprefix(CANARY_CHECKS)) for name in checks)]
    return Plan("Capability canary", lines, "share that passes")


def _reported(plans: Sequence[Plan], found: Mapping[str, Series]) -> list[Plan]:
    """The charts with data (RLOO, for example, has no value loss); all before the first update."""
    return [plan for plan in plans if not found or any(name in found for name, _ in plan.lines)]


def _unlimited(_metric: str) -> tuple[Limit, ...]:
    return ()


def _planned(
    plan: Plan,
    found: Mapping[str, Series],
    known: Mapping[str, str],
    limited: Callable[[str], Sequence[Limit]],
    *,
    tall: bool = False,
) -> Chart:
    shown = [
        (found[name], label, definition(name, known)) for name, label in plan.lines if name in found
    ]
    series = [Series(label, metric.steps, metric.values) for metric, label, _ in shown]
    several = [f"{label[:1].upper()}{label[1:]}: {meaning}" for _, label, meaning in shown]
    help = " ".join(several) if len(shown) > 1 else "".join(meaning for *_, meaning in shown)
    lines = [*plan.limits, *(limit for name, _ in plan.lines for limit in limited(name))]
    return Chart(plan.title, series, help, lines, y_title=plan.y_title, tall=tall)


def _chart_of(
    name: str,
    series: Series,
    known: Mapping[str, str],
    limited: Callable[[str], Sequence[Limit]],
) -> Chart:
    last = name.rpartition("/")[2].replace("_", " ")
    return Chart(name, [series], definition(name, known), limited(name), y_title=last)


def results(
    kind: str,
    found: Mapping[str, Series],
    known: Mapping[str, str],
    evaluation: Evaluation | None = None,
) -> Markup:
    """Metrics with a single value, as a table; `evaluation` is what an evaluation run found.

    An evaluation has a row for each policy, and its metrics are folded.
    """
    single = {n: s for n, s in found.items() if len(s.steps) == 1 and kind not in _ENGINE}
    if not single:
        return Markup("")
    columns = [components.Column("Metric"), components.Column("Value", "right")]
    rows = [
        (
            Markup("{} {}").format(name, components.info(definition(name, known))),
            components.number(s.values[0]),
        )
        for name, s in single.items()
    ]
    table = components.table(columns, rows, caption="Results of the stage")
    if evaluation is None:
        return table
    folded = Markup("<details><summary>All {} metrics</summary>{}</details>")
    return components.stack(evaluated(evaluation, known), folded.format(len(rows), table))


def planned_updates(run: Run) -> int | None:
    """The updates of a running run whose steps are updates; None for any other."""
    if run.status != "running" or unit(runs.kind(run)) != "update":
        return None
    return run.config.get("ppo", {}).get("updates")


def card(
    run: Run,
    *,
    now: datetime,
    seconds_left: float | None,
    cancelling: bool = False,
    changed: Sequence[Changed] = (),
    earlier: Sequence[Run] = (),
    stages: Sequence[Run] = (),
    label: RunLabel | None = None,
    resources: ResourceUse | None = None,
    machine: Machine | None = None,
) -> Markup:
    """A run, its progress, the first settings that changed, and why it failed or was cancelled.

    `earlier` are the attempts that the run retries, oldest first; `stages` are the runs of the same
    iteration; `label` has its name and note, `resources` what its worker uses or used, `machine` the cluster
    that runs it.
    """
    status, status_tone = run.status, STATUS_TONES[run.status]
    if cancelling:
        status, status_tone = "cancelling", "warn"
    detail = [runs.name(run)] if run.stage == "policy" else []
    detail.append(f"iteration {run.iteration}")
    if run.attempt > 1:
        detail.append(f"attempt {run.attempt}")
    started = "started" if run.started_at is None else "first started"
    detail.append(f"{started} {components.ago(run.created_at, now)}")
    if run.finished_at:
        detail.append(_took(run, run.finished_at))
    named = label.name if label else ""
    if named:
        detail.insert(0, STAGE_LABELS[run.stage])
    head = Markup(
        '<div class="ks-run" data-name="{}" data-note="{}"><b>{}</b>{}{}'
        '<span class="ks-detail ks-mono ks-run-id">{}</span></div>'
    ).format(
        named,
        label.note if label else "",
        named or STAGE_LABELS[run.stage],
        components.badge(status, status_tone, dot=run.status == "running"),
        components.detail(" · ".join(detail)),
        run.id,
    )
    why = Markup("")
    if run.reason and run.status != "succeeded":
        failed = run.status == "failed"
        title = "The run failed" if failed else "The run was cancelled"
        why = components.note("bad" if failed else "warn", title, run.reason)
    return components.card(
        _stages_line(run, stages),
        head,
        components.prose(label.note) if label and label.note else Markup(""),
        components.bar(run.progress, tone=status_tone, label=STAGE_LABELS[run.stage]),
        components.detail(_where(run, seconds_left, cancelling)),
        _changed_line(changed),
        _attempts_line(earlier),
        _machine_line(machine),
        _resources_line(resources),
        why,
        css="ks-run-card",
    )


def _took(run: Run, ended: datetime) -> str:
    if run.seconds is not None:
        span = components.duration(run.seconds)
        return f"took {span}" if run.started_at is None else f"took {span}, with earlier attempts"
    span = components.duration((ended - run.created_at).total_seconds())
    return f"took {span}" if run.attempt == 1 else f"{span} from first start to end"


def _stages_line(run: Run, stages: Sequence[Run]) -> Markup:
    """Links to the runs of the other stages of the iteration."""
    if len(stages) < 2:
        return Markup("")
    links = [
        Markup('<a href="?tab=runs&amp;run={}"{}>{}</a>').format(
            each.id,
            Markup(' aria-current="true"') if each.id == run.id else "",
            STAGE_LABELS[each.stage],
        )
        for each in stages
    ]
    return Markup('<nav class="ks-stages" aria-label="Stages of iteration {}">{}</nav>').format(
        run.iteration, components.lines(links)
    )


def _attempts_line(earlier: Sequence[Run]) -> Markup:
    """Links to the attempts before this one."""
    if not earlier:
        return Markup("")
    links = [
        Markup('<a href="?tab=runs&amp;run={}">attempt {}, {}</a>').format(
            run.id, run.attempt, run.status
        )
        for run in earlier
    ]
    return Markup('<div><span class="ks-detail">Earlier attempts: {}</span></div>').format(
        Markup(" · ").join(links)
    )


def _machine_line(found: Machine | None) -> Markup:
    if found is None:
        return Markup("")
    node = f", node {found.node}" if found.node else ""
    return Markup("<div>{}</div>").format(
        components.detail(f"{found.launcher}: job {found.job}{node}")
    )


def _resources_line(found: ResourceUse | None) -> Markup:
    if found is None:
        return Markup("")
    parts = [
        f"CPU {found.mean_cpu:.1f} cores on average",
        f"memory {_gigabytes(found.memory)}, peak {_gigabytes(found.peak)}",
    ]
    for gpu in found.gpus:
        busy = "" if gpu.utilisation is None else f", {gpu.utilisation:.0%} busy"
        parts.append(
            f"{gpu.name}: {_gigabytes(gpu.memory)} of {_gigabytes(gpu.total)}, "
            f"peak {_gigabytes(gpu.peak)}{busy}"
        )
    return Markup("<div>{}</div>").format(components.detail(" · ".join(parts)))


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


_NAMED = 4
"""Changed settings that the card names."""


def _changed_line(changed: Sequence[Changed]) -> Markup:
    if not changed:
        return Markup("")
    named = [f"{each.name} {_value(each.before)} → {_value(each.now)}" for each in changed[:_NAMED]]
    more = [f"{len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    line = components.detail(f"Changed settings: {', '.join([*named, *more])}")
    return Markup("<div>{}</div>").format(line)


def run_settings(run: Run, before: Run | None, changed: Sequence[Changed]) -> Markup:
    """What changed since the run `before`, and all settings by section."""
    if not run.config:
        return components.empty("No settings", "This run was made without a worker.")
    kind = STAGE_LABELS[run.stage]
    if before is None:
        title = components.heading("Changed settings", f"the first run of this kind: {kind}")
        difference = Markup("")
    elif not changed:
        title = components.heading("Changed settings", f"none since {_named(before)}")
        difference = Markup("")
    else:
        title = components.heading("Changed settings", f"since {_named(before)}")
        columns = [Column("Setting"), Column("Before"), Column("This run")]
        rows = [(each.name, _value(each.before), _value(each.now)) for each in changed]
        difference = components.table(columns, rows, caption="Changed settings")
    values = [(name, _value(value)) for name, value in settings_of(run).items()]
    everything = components.table(
        [Column("Setting"), Column("Value")], values, caption="All settings of this run"
    )
    return components.stack(
        title,
        difference,
        Markup("<details><summary>All {} settings</summary>{}</details>").format(
            len(values), everything
        ),
    )


def _named(run: Run) -> str:
    return f"iteration {run.iteration}, {run.id}"


def _value(value: Any) -> str:
    """A setting's value as on the command line; – for none."""
    if value is None or value == "":
        return components.DASH
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _where(run: Run, seconds_left: float | None, cancelling: bool) -> str:
    parts = [components.percent(run.progress)]
    if cancelling:
        parts.append(stopping(run))
    elif run.message:
        parts.append(run.message)
    if run.status == "running" and not cancelling:
        parts.append(_left(run, seconds_left))
    return " · ".join(parts)


def _left(run: Run, seconds: float | None) -> str:
    if run.progress >= 1 or (seconds is not None and seconds < NEARLY_DONE):
        return "finishing"  # what is left, such as the storing of its results, has no progress
    return "estimating the time left" if seconds is None else f"about {about(seconds)} left"


def flags(notes: Sequence[RunNote], *, unit: str) -> Markup:
    """Red flags and warnings, one entry per name with its steps, worst first."""
    latest: dict[str, RunNote] = {}
    seen_at: dict[str, list[int]] = {}
    for item in notes:
        latest[item.name] = item
        seen_at.setdefault(item.name, []).append(item.step)
    worst_first = sorted(latest.values(), key=lambda n: (-_severity(n), -n.step))
    return components.lines(_flag(item, seen_at[item.name], unit) for item in worst_first)


def _severity(item: RunNote) -> int:
    if item.kind != "flag":
        return 0
    return 2 if item.payload.get("level") == "stop" else 1


def _flag(item: RunNote, steps: Sequence[int], unit: str) -> Markup:
    tone: components.Tone = ("neutral", "warn", "bad")[_severity(item)]
    when = components.badge(_when(steps, unit), tone) if any(steps) else ""
    explained = [
        ("Observed", item.payload.get("seen")),
        ("Why it matters", item.payload.get("why")),
        ("First thing to try", item.payload.get("remedy")),
    ]
    rows = [(name, text) for name, text in explained if text] or [("", item.message)]
    return Markup('<div class="ks-flag ks-{}" role="alert"><b>{} {}</b>{}</div>').format(
        tone,
        reading_name(item.name),
        when,
        Markup("").join(
            Markup("<span>{}</span><span>{}</span>").format(name, text) for name, text in rows
        ),
    )


def _when(steps: Sequence[int], unit: str) -> str:
    """``update 83``; for many steps, the first and the last two."""
    if len(steps) == 1:
        return f"{unit} {steps[0]}"
    named = [str(s) for s in steps] if len(steps) <= 3 else [str(steps[0]), "…"]
    if len(steps) > 3:
        named += [str(s) for s in steps[-2:]]
    return f"{unit}s {', '.join(named)}"


def samples(
    notes: Sequence[RunNote], prompts: Mapping[str, Prompt], *, unit: str, limit: int = 6
) -> Markup:
    """Samples from training with a heading, newest first, or empty HTML. `prompts` by id."""
    newest = list(reversed(notes))[:limit]
    if not newest:
        return Markup("")
    shown = [_sample(n, prompts.get(str(n.payload.get("prompt"))), unit) for n in newest]
    return components.lines([components.heading("Latest samples"), *shown])


def _sample(item: RunNote, prompt: Prompt | None, unit: str) -> Markup:
    facts = [f"{unit} {item.step}"]
    for key, name, text in (
        ("reward", "reward", components.signed),
        ("kl", "KL", components.decimal),
    ):
        value = item.payload.get(key)
        if isinstance(value, int | float):
            facts.append(f"{name} {text(float(value))}")
    if item.payload.get("finish_reason") == "length":
        facts.append("cut off")
    return Markup(
        '<article class="ks-sample"><header><div>{}</div>{}</header>'
        '<div class="ks-side">{}</div></article>'
    ).format(
        components.conversation(prompt.messages) if prompt else Markup("<em>(unknown prompt)</em>"),
        components.badge(" · ".join(facts)),
        components.prose(item.message) if item.message else Markup("<em>(empty)</em>"),
    )
