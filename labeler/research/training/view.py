"""A run as HTML: its state, its charts, its red flags.  Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.charts import Chart, Limit, Series
from labeler.research.phases import STATUS_TONES, reading_name, stage_title, stopping
from storage.records import Prompt, Run, RunNote

if TYPE_CHECKING:
    import pandas as pd

Plan = tuple[str, Sequence[tuple[str, str]], Sequence[Limit]]
"""Title, (metric, name in the legend), limits."""

_REWARD: Plan = ("Reward", (("reward/mean", "mean score"),), ())
_KL: Plan = ("KL to the reference", (("kl/reference", "nats"),), (Limit(10, "warn at 10"),))
_LOSS: Plan = ("Loss", (("train/loss", "mean"),), ())
_OPTIMIZER: Sequence[Plan] = (
    ("Gradient norm", (("train/grad_norm", "norm"),), ()),
    ("Learning rate", (("train/lr", "lr"),), ()),
)
_DPO_MAIN: Sequence[Plan] = (
    _LOSS,
    ("Reward margin", (("dpo/margin", "chosen less rejected"),), (Limit(0, "none"),)),
    ("Preference accuracy", (("dpo/accuracy", "share"),), (Limit(0.5, "chance"),)),
)
_DPO_REST: Sequence[Plan] = (
    (
        "Implicit reward",
        (("dpo/chosen", "chosen"), ("dpo/rejected", "rejected")),
        (Limit(0, "as the reference"),),
    ),
    *_OPTIMIZER,
)
_PPO_REST: Sequence[Plan] = (
    ("Paid: scaled score less KL", (("reward/total", "per response"),), ()),
    ("Policy loss", (("policy/loss", "policy"),), ()),
    ("Value loss", (("value/loss", "value"),), ()),
    ("Entropy", (("policy/entropy", "nats"),), (Limit(0.02, "collapsed"),)),
    (
        "Clip fraction",
        (("policy/clip_fraction", "policy"), ("value/clip_fraction", "value")),
        (Limit(0.5, "warn at .5"),),
    ),
    (
        "Explained variance",
        (("value/explained_variance", "share"),),
        (Limit(0, "worse than a constant"),),
    ),
    ("Response length", (("completion/length_mean", "tokens"),), ()),
    ("Reward with length", (("reward/length_correlation", "Pearson's r"),), ()),
    ("Reward spread", (("reward/std", "std"),), (Limit(0.01, "flat"),)),
    (
        "Ended, distinct",
        (("completion/eos_rate", "ended"), ("completion/unique", "distinct")),
        (Limit(0.5, "warn at .5"),),
    ),
    ("KL of the update", (("policy/approx_kl", "nats"),), ()),
    ("KL coefficient β", (("kl/coefficient", "β"),), ()),
    ("Gradient norm", (("optim/grad_norm", "norm"),), ()),
    ("Learning rate", (("optim/lr", "policy"), ("optim/critic_lr", "critic")), ()),
)
_PLANS: Mapping[str, tuple[Sequence[Plan], Sequence[Plan]]] = {
    "ppo": ((_REWARD, _KL), _PPO_REST),
    "rloo": ((_REWARD, _KL), (_LOSS, *_PPO_REST)),
    "dpo": (_DPO_MAIN, _DPO_REST),
}
"""The main charts and those beside them, by the method that improves the policy."""
_BY_UPDATES = ("ppo", "rloo")
"""Methods that report every update, the only one too."""


def unit(kind: str) -> str:
    """What a step is called of a run of this kind (`runs.kind`)."""
    return "update" if kind in _BY_UPDATES else "step"


def definition(name: str, known: Mapping[str, str]) -> str:
    """What a metric means; ``reward/<component>`` in `known` stands for any component."""
    if name in known:
        return known[name]
    for template, meaning in known.items():
        pattern = re.sub(r"<[^>]+>", "[^/]+", re.escape(template).replace(r"\<", "<"))
        if "<" in template and re.fullmatch(pattern, name):
            return meaning
    return ""


def series_by_name(metrics: pd.DataFrame) -> dict[str, Series]:
    """Columns step, name, value → one series a name, steps rising."""
    return {
        str(name): Series(str(name), part["step"].tolist(), part["value"].astype(float).tolist())
        for name, part in metrics.sort_values("step").groupby("name", sort=True)
    }


def charts(
    kind: str, found: Mapping[str, Series], known: Mapping[str, str]
) -> tuple[list[Chart], list[Chart], list[Chart]]:
    """The charts of a run of this kind (`runs.kind`): the main ones, those beside them, and every metric not in either.

    A metric with a single step is a result, not a course, and is left to `results`.
    """
    courses = {name: s for name, s in found.items() if len(s.steps) > 1 or kind in _BY_UPDATES}
    if kind not in _PLANS:
        return [], [_chart_of(name, s, known) for name, s in courses.items()], []
    mains, rests = _PLANS[kind]
    main = [_planned(plan, courses, known, tall=True) for plan in _reported(mains, courses)]
    rest = [_planned(plan, courses, known) for plan in _reported(rests, courses)]
    planned = {metric for plan in (*mains, *rests) for metric, _ in plan[1]}
    others = [_chart_of(name, s, known) for name, s in courses.items() if name not in planned]
    return main, rest, others


def _reported(plans: Sequence[Plan], found: Mapping[str, Series]) -> list[Plan]:
    """The charts that have a line, or all before anything is reported: RLOO has no value loss."""
    return [plan for plan in plans if not found or any(name in found for name, _ in plan[1])]


def _planned(
    plan: Plan,
    found: Mapping[str, Series],
    known: Mapping[str, str],
    *,
    tall: bool = False,
) -> Chart:
    title, lines, limits = plan
    series = [
        Series(label, found[name].steps, found[name].values)
        for name, label in lines
        if name in found
    ]
    meanings = [(label, definition(name, known)) for name, label in lines if name in found]
    if len(meanings) > 1:
        help = " ".join(f"{label[:1].upper()}{label[1:]}: {meaning}" for label, meaning in meanings)
    else:
        help = meanings[0][1] if meanings else ""
    return Chart(title, series, help, limits, tall=tall)


def _chart_of(name: str, series: Series, known: Mapping[str, str]) -> Chart:
    return Chart(name, [series], definition(name, known))


def results(kind: str, found: Mapping[str, Series], known: Mapping[str, str]) -> Markup:
    """Metrics that have one value only, as a table; empty where there are none."""
    single = {n: s for n, s in found.items() if len(s.steps) == 1 and kind not in _BY_UPDATES}
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
    return components.table(columns, rows, caption="Results of the stage")


def card(
    run: Run, *, now: datetime, seconds_left: float | None, cancelling: bool = False
) -> Markup:
    """What a run is, how far it is, and why it ended if it did not succeed."""
    status, status_tone = run.status, STATUS_TONES[run.status]
    if cancelling:
        status, status_tone = "cancelling", "warn"
    detail = [f"iteration {run.iteration}"]
    if run.attempt > 1:
        detail.append(f"attempt {run.attempt}")
    begun = "started" if run.attempt == 1 else "first started"
    detail.append(f"{begun} {components.ago(run.created_at, now)}")
    if run.finished_at:
        span = components.duration((run.finished_at - run.created_at).total_seconds())
        detail.append(f"took {span}" if run.attempt == 1 else f"{span} from first start to end")
    pieces = [
        Markup(
            '<div class="ks-run"><b>{}</b>{}<span class="ks-detail">{}</span>'
            '<span class="ks-detail ks-mono ks-run-id">{}</span></div>'
        ).format(
            stage_title(run),
            components.badge(status, status_tone, dot=run.status == "running"),
            " · ".join(detail),
            run.id,
        ),
        Markup('<div style="margin-top:10px">{}</div>').format(
            components.bar(run.progress, tone=status_tone, label=stage_title(run))
        ),
        Markup('<div class="ks-detail">{}</div>').format(_where(run, seconds_left, cancelling)),
    ]
    if run.reason and run.status != "succeeded":
        title = "It failed" if run.status == "failed" else "It was stopped"
        tone: components.Tone = "bad" if run.status == "failed" else "warn"
        pieces.append(
            Markup('<div style="margin-top:10px">{}</div>').format(
                components.note(tone, title, run.reason)
            )
        )
    return Markup('<div class="ks-card">{}</div>').format(components.lines(pieces))


def _where(run: Run, seconds_left: float | None, cancelling: bool) -> str:
    parts = [components.percent(run.progress)]
    if cancelling:
        parts.append(stopping(run))
    elif run.message:
        parts.append(run.message)
    if run.status == "running" and not cancelling:
        left = (
            "time left: too early to say"
            if seconds_left is None
            else f"about {components.duration(seconds_left)} left"
            if seconds_left >= 1
            else "finishing"
        )
        parts.append(left)
    return " · ".join(parts)


def flags(notes: Sequence[RunNote], *, unit: str) -> Markup:
    """Red flags and warnings, each once, with the steps it came up at; the worst first."""
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
        ("Seen", item.payload.get("seen")),
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
    """``update 83``; of many times the first and the last two."""
    if len(steps) == 1:
        return f"{unit} {steps[0]}"
    named = [str(s) for s in steps] if len(steps) <= 3 else [str(steps[0]), "…"]
    if len(steps) > 3:
        named += [str(s) for s in steps[-2:]]
    return f"{unit}s {', '.join(named)}"


def samples(
    notes: Sequence[RunNote], prompts: Mapping[str, Prompt], *, unit: str, limit: int = 6
) -> Markup:
    """What the policy says while it trains, the newest first; `prompts` by id."""
    newest = list(reversed(notes))[:limit]
    return components.lines(
        _sample(n, prompts.get(str(n.payload.get("prompt"))), unit) for n in newest
    )


def _sample(item: RunNote, prompt: Prompt | None, unit: str) -> Markup:
    facts = [f"{unit} {item.step}"]
    for key, text in (("reward", components.signed), ("kl", components.number)):
        value = item.payload.get(key)
        if isinstance(value, int | float):
            facts.append(f"{'KL' if key == 'kl' else key} {text(float(value), 2)}")
    if item.payload.get("finish_reason") == "length":
        facts.append("cut off")
    return Markup(
        '<article class="ks-sample"><header><div>{}</div>{}</header>'
        '<div class="ks-side">{}</div></article>'
    ).format(
        components.conversation(prompt.messages)
        if prompt
        else Markup("<em>(prompt not known)</em>"),
        components.badge(" · ".join(facts)),
        components.prose(item.message) if item.message else Markup("<em>(empty)</em>"),
    )
