"""Is the reward model good enough?  Verdict, figures, reliability and learning curve, as HTML.  Pure.

`report` is what `labeler.ports.RewardReports.report` returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.plots import Axis, Plot, PlotPoint, draw

Report = Mapping[str, Any]

TONES: Mapping[str, components.Tone] = {
    "enough for PPO": "good",
    "best-of-N is safer": "warn",
    "keep labeling": "bad",
}
_MEANING = {
    "enough for PPO": "nothing in its figures speaks against training a policy on it",
    "best-of-N is safer": "good enough to pick the best of several answers, not to be followed by PPO",
    "keep labeling": "more labels are worth more than training on it",
}
_ALLOWS: Mapping[str, components.Tone] = {"ppo": "good", "best_of_n": "warn", "labeling": "bad"}
_GROUPS = {
    "unanimous": "Several people, all the same",
    "split": "Several people, divided",
    "single": "One person",
}


def verdict(report: Report) -> Markup:
    """The verdict with its reasons, or what has to happen before there is one."""
    if report["model"] is None:
        return components.empty(
            "No reward model yet",
            "It is trained on your first labels. How good it is, and what it is good enough for, "
            "appears here.",
        )
    if report["verdict"] is None:
        return components.empty(f"{report['model']} has no report", _sentence(report["missing"]))
    found = report["verdict"]
    reasons = [
        Markup('<li class="ks-{}">{}</li>').format(
            _ALLOWS[check["allows"]] if check["known"] else "neutral", _sentence(check["says"])
        )
        for check in found["checks"]
    ]
    return Markup(
        '<div class="ks-card ks-verdict">{}{}<ul class="ks-reasons">{}</ul></div>'
    ).format(
        components.heading(report["model"], _MEANING[found["verdict"]]),
        components.badge(found["verdict"], TONES[found["verdict"]]),
        components.lines(reasons),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# ------------------------------------------------------------------ figures


def figures(report: Report) -> Markup:
    """Accuracy, its ceiling, calibration and length at a glance."""
    quality = report["quality"]
    if quality is None:
        return Markup("")
    return components.tiles(
        [_accuracy(quality), _ceiling(quality), _calibration(quality), _length(quality)]
    )


def _accuracy(quality: Mapping[str, Any]) -> Markup:
    found = quality["accuracy"]
    judged = components.plural(quality["decisive"], "held-out preference")
    return components.tile(
        "Accuracy",
        _with_interval(found and found["win_rate"], found),
        f"{judged} · {components.plural(quality['prompts'], 'prompt')}",
        help="Share of held-out judgments with a preference whose winner has the higher reward, of "
        "pairs that no reward model chose. Small: the 95% interval, clustered by prompt. A coin "
        "gets 50%.",
    )


def _ceiling(quality: Mapping[str, Any]) -> Markup:
    ceiling, share = quality["ceiling"], quality["share_of_ceiling"]
    if ceiling is None:
        few = f"{components.plural(quality['overlap'], 'pair')} of preferences by two people so far"
        return components.tile("Noise ceiling", components.DASH, few, help=_CEILING)
    if share is None:
        detail = "no accuracy to set beside it"
    else:
        detail = (
            f"the accuracy is {components.percent(share['value'])} of that "
            f"({components.interval(share['low'], share['high'])})"
        )
    return components.tile(
        "Noise ceiling", _with_interval(ceiling["value"], ceiling), detail, help=_CEILING
    )


_CEILING = (
    "How often a perfect reward model would be right: people contradict each other, so no model is "
    "right about all of them. By how often a second person sides with the first."
)


def _calibration(quality: Mapping[str, Any]) -> Markup:
    found, loss = quality["calibration"], quality["log_loss"]
    chance = components.number(quality["coin_log_loss"])
    nats = f"log-loss {components.number(loss)}; chance that knows how often people tie: {chance}"
    if found is None:
        return components.tile(
            "Calibration error", components.DASH, nats if loss is not None else ""
        )
    return components.tile(
        "Calibration error",
        Markup("{} <small>by chance up to {}</small>").format(
            components.percent(found["ece"]), components.percent(found["ece_by_chance"])
        ),
        nats,
        help="ECE: how far stated probabilities are from what happens, on average. On so few "
        "judgments even true probabilities would show up to the small figure. Log-loss: nats a "
        "judgment, beside chance that knows how often people tie on other prompts.",
    )


def _length(quality: Mapping[str, Any]) -> Markup:
    found = quality["length"]
    if found is None:
        return components.tile(
            "Follows length", components.DASH, "no preference is between different lengths"
        )
    rho = found["correlation"]
    spread = f"{_decimal(rho['low'])} to {_decimal(rho['high'])}" if rho["low"] is not None else ""
    return components.tile(
        "Follows length",
        Markup("{} <small>{}</small>").format(_decimal(rho["value"]), spread),
        f"people prefer the longer one in {components.percent(found['rule']['win_rate'])}, it does in "
        f"{components.percent(found['reward']['win_rate'])}",
        help="Correlation of differences of reward with differences of length. People may prefer "
        "longer responses for good reasons; a reward model that does so far more often than they "
        "do will be exploited.",
    )


def _with_interval(value: float | None, found: Mapping[str, Any] | None) -> Markup:
    spread = components.interval(found["low"], found["high"]) if found else ""
    return Markup("{} <small>{}</small>").format(components.percent(value, 1), spread)


def _decimal(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


# ------------------------------------------------------------------ plots and tables


def reliability(report: Report) -> Markup:
    """Stated probability against share right, a dot a bin."""
    quality = report["quality"]
    if quality is None or quality["calibration"] is None:
        return Markup("")
    bins = quality["calibration"]["bins"]
    most = max(row["judgments"] for row in bins)
    points = [
        PlotPoint(
            row["stated"],
            row["accuracy"],
            row["low"],
            row["high"],
            f"stated {components.percent(row['stated'])}, right in {components.percent(row['accuracy'])} "
            f"({components.interval(row['low'], row['high'])}) of {row['judgments']}",
            size=round(7 + 7 * math.sqrt(row["judgments"] / most)),
        )
        for row in bins
    ]
    return draw(
        Plot(
            "Does it know how sure it is?",
            Axis(0.5, 1, [(n / 10, f"{n}0%") for n in range(5, 11)], "stated probability"),
            _SHARES,
            points,
            help="Judgments by the probability that the reward model gave the likelier response, "
            "and how often that response won. True probabilities lie on the dashed line; below it "
            "the model is too sure. Larger dots stand for more judgments.",
            lines=[([(0.5, 0.5), (1, 1)], "ks-guide")],
        )
    )


_SHARES = Axis(0, 1, [(n / 4, f"{25 * n}%") for n in range(5)], "share right")


def _from(lowest: float) -> Axis:
    """Shares from a tenth below the lowest up to 100%."""
    tenths = max(math.ceil(10 * lowest - 1e-9) - 1, 0)
    labels = [(n / 10, f"{n}0%") for n in range(tenths, 11) if n % 2 == 0]
    return Axis(tenths / 10, 1, labels, "share right")


def by_margin(report: Report) -> Markup:
    """Accuracy from the closest pairs to the clearest."""
    rows = report["quality"]["by_margin"] if report["quality"] else []
    names = [f"{_decimal(row['from'])} to {_decimal(row['to'])}" for row in rows]
    return _table("Difference of rewards", names, rows, "Accuracy by margin")


def by_agreement(report: Report) -> Markup:
    """Accuracy by how people agree on the pair."""
    rows = report["quality"]["by_agreement"] if report["quality"] else []
    return _table(
        "Judged by", [_GROUPS[row["group"]] for row in rows], rows, "Accuracy by agreement"
    )


def _table(
    title: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]], caption: str
) -> Markup:
    if not rows:
        return Markup("")
    columns = (
        Column(title),
        Column("Accuracy", help="With its 95% interval, clustered by prompt. The line is 50%."),
        Column("Judgments", "right"),
    )
    cells = [
        (name, _bar(row), components.number(row["judgments"]))
        for name, row in zip(names, rows, strict=True)
    ]
    return Markup('<div><h3 class="ks-caption">{}</h3>{}</div>').format(
        caption, components.table(columns, cells, caption=caption)
    )


def _bar(row: Mapping[str, Any]) -> Markup:
    low, middle, high = (round(100 * row[name], 1) for name in ("low", "accuracy", "high"))
    said = Markup('<span>{} <span class="ks-muted">{}</span></span>').format(
        components.percent(row["accuracy"]), components.interval(row["low"], row["high"])
    )
    return Markup(
        '<div class="ks-rank"><div class="ks-range" role="img" aria-label="{}%, 95% interval {} to '
        '{}%"><i style="left:{}%;width:{}%"></i><b style="left:{}%"></b></div>{}</div>'
    ).format(middle, low, high, low, round(high - low, 1), middle, said)


# ------------------------------------------------------------------ the learning curve


def curve(report: Report) -> Markup:
    """Accuracy by the number of labels, and what the next ones would bring."""
    found = report["curve"]
    if found is None or report["quality"] is None:
        return Markup("")
    if not found["points"]:
        return components.empty(
            "No learning curve yet",
            "It trains the reward model again on a quarter, a half and three quarters of the labels, "
            "in four orders, and shows what the next 100 labels would bring. That takes about as "
            f"long as training the reward model six times{_seconds(report)}.",
        )
    points = [
        PlotPoint(
            p["labels"], p["accuracy"], p["low"], p["high"],
            f"{p['labels']:.0f} labels: right in {components.percent(p['accuracy'], 1)} "
            f"({components.interval(p['low'], p['high'])}) of {p['judgments']}",
        )
        for p in found["points"]
    ]  # fmt: skip
    lines = found["lines"] or {"trend": [], "band": []}
    now, ahead = points[-1].x, found["forecast"]["more"] if found["lines"] else 0
    marks = [(p.x, f"{p.x:.0f}") for p in points]
    marks += [(now + ahead, f"+{ahead}")] if ahead else []
    end = now + 1.08 * ahead if ahead else 1.04 * now
    ceiling = report["quality"]["ceiling"]
    notes = [(0.5, "a coin")] + ([(ceiling["value"], "noise ceiling")] if ceiling else [])
    return draw(
        Plot(
            "What labels bring",
            Axis(0, end, marks, "labels"),
            _from(min(0.5, *(p.low for p in points))),
            points,
            help="Dots: accuracy on the same held-out judgments of reward models that learned from "
            "fewer labels, with 95% intervals. Line: the trend over all judgments that a model had "
            "not learned from. Shaded: the 95% interval of what the next labels would bring.",
            lines=[
                *(([(0, at), (end, at)], "ks-guide") for at, _ in notes),
                *([([(n, a) for n, a in lines["trend"]], "ks-line")] if lines["trend"] else []),
            ],
            band=[(n, low, high) for n, low, high in lines["band"]],
            notes=notes,
        )
    )


def _seconds(report: Report) -> str:
    seconds = report["curve_seconds"]
    return f": {components.duration(seconds)} by the last training" if seconds else ""


def progress(report: Report) -> Markup:
    """How far a curve is that is being made, or why it stopped."""
    found = report["curve"]
    if found is None or found["state"] in ("none", "done"):
        return Markup("")
    if found["state"] in ("running", "cancelling"):
        doing = "stopping" if found["state"] == "cancelling" else found["message"]
        return Markup('<div class="ks-card">{}{}<span class="ks-detail">{}</span></div>').format(
            components.badge("training on fewer labels", "info", dot=True),
            components.bar(found["progress"], label="learning curve"),
            doing,
        )
    done = f"{components.percent(found['progress'])} is done. Models that were finished are kept, and it goes on from there."
    if found["state"] == "stopped":
        return components.note("warn", "The learning curve was stopped.", done)
    return components.note("bad", "The learning curve failed.", f"{found['reason']}. {done}")
