"""The quality of a reward model: verdict, figures and plots as HTML. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.plots import Axis, Plot, PlotPoint, draw
from storage.analysis.intervals import WinRate
from storage.reports import (
    Accuracy,
    AccuracyBin,
    AccuracyByAgreement,
    Ceiling,
    CurveLines,
    Quality,
    RewardReport,
)
from storage.wording import plural

TONES: Mapping[str, components.Tone] = {
    "enough for PPO": "good",
    "best-of-N is safer": "warn",
    "keep labeling": "bad",
}
_MEANING = {
    "enough for PPO": "all checks allow training a policy with it",
    "best-of-N is safer": "good enough to select the best of several responses, not good enough for PPO: train with optimize.method = best-of-n",
    "keep labeling": "label more pairs before you train a policy with it",
}
_ALLOWS: Mapping[str, components.Tone] = {"ppo": "good", "best_of_n": "warn", "labeling": "bad"}
_GROUPS = {
    "unanimous": "Several people who agree",
    "split": "Several people who disagree",
    "single": "One person",
}


def verdict(report: RewardReport) -> Markup:
    """The verdict with its reasons, or why there is none yet."""
    if report.model is None:
        return components.empty(
            "No reward model yet",
            "It is trained on your first labels. Then this page shows its accuracy, and whether it is "
            "good enough for PPO.",
        )
    if report.verdict is None:
        return components.empty(
            f"{report.model} has no report", components.sentence(report.missing or "")
        )
    found = report.verdict
    reasons = [
        Markup('<li class="ks-{}">{}</li>').format(
            _ALLOWS[check.allows] if check.known else "neutral", components.sentence(check.says)
        )
        for check in found.checks
    ]
    return components.card(
        components.heading(report.model, _MEANING[found.verdict]),
        components.badge(found.verdict, TONES[found.verdict]),
        Markup('<ul class="ks-reasons">{}</ul>').format(components.lines(reasons)),
        css="ks-verdict",
    )


# ------------------------------------------------------------------ figures


def figures(report: RewardReport) -> Markup:
    """Accuracy, noise ceiling, calibration error and correlation with length."""
    quality = report.quality
    if quality is None:
        return Markup("")
    return components.tiles(
        [_accuracy(quality), _ceiling(quality), _calibration(quality), _length(quality)]
    )


def _accuracy(quality: Quality) -> Markup:
    found = quality.accuracy
    judged = plural(quality.decisive, "held-out preference")
    return components.tile(
        "Accuracy",
        _with_interval(found.win_rate if found else None, found),
        f"{judged} · {plural(quality.prompts, 'prompt')}",
        help="Share of held-out preferences in which the reward is higher for the preferred "
        "response, on pairs that no reward model chose. Small: the 95% interval, clustered by "
        "prompt. Chance is 50%.",
    )


def _ceiling(quality: Quality) -> Markup:
    ceiling, share = quality.ceiling, quality.share_of_ceiling
    if ceiling is None:
        few = f"{plural(quality.overlap, 'pair')} with preferences of two people so far"
        return components.tile("Noise ceiling", components.DASH, few, help=_CEILING)
    if share is None:
        detail = "accuracy unknown"
    else:
        detail = (
            f"the accuracy is {components.percent(share.value)} of that "
            f"({components.interval(share.low, share.high)})"
        )
    return components.tile(
        "Noise ceiling", _with_interval(ceiling.value, ceiling), detail, help=_CEILING
    )


_CEILING = (
    "The accuracy of a perfect reward model. People disagree with each other, so no model can "
    "predict every judgment. Estimated from how often a second person agrees with the first."
)


def _calibration(quality: Quality) -> Markup:
    found, loss = quality.calibration, quality.log_loss
    chance = components.number(quality.coin_log_loss)
    nats = f"log-loss {components.number(loss)}; a constant prediction has {chance}"
    if found is None:
        return components.tile(
            "Calibration error", components.DASH, nats if loss is not None else ""
        )
    return components.tile(
        "Calibration error",
        Markup("{} <small>by chance up to {}</small>").format(
            components.percent(found.ece), components.percent(found.ece_by_chance)
        ),
        nats,
        help="Expected calibration error (ECE): mean difference between predicted probabilities and "
        "observed frequencies. With this number of judgments, even correct probabilities have an "
        "error up to the small figure. Log-loss: nats per judgment; the constant prediction is 50% "
        "with the share of ties on other prompts.",
    )


def _length(quality: Quality) -> Markup:
    found = quality.length
    if found is None:
        return components.tile(
            "Length correlation",
            components.DASH,
            "all preferences are between responses of equal length",
        )
    rho, people, model = found.correlation, found.rule, found.reward
    spread = _to(rho.low, rho.high) if rho.low is not None and rho.high is not None else ""
    return components.tile(
        "Length correlation",
        Markup("{} <small>{}</small>").format(components.decimal(rho.value), spread),
        f"people prefer the longer response in {components.percent(people.win_rate)}, the reward "
        f"model in {components.percent(model.win_rate)}",
        help="Correlation between differences in reward and in length. People may have good reasons "
        "to prefer longer responses. PPO exploits a reward model that prefers them much more often "
        "than people do.",
    )


def _with_interval(value: float | None, found: WinRate | Ceiling | None) -> Markup:
    spread = components.interval(found.low, found.high) if found else ""
    return Markup("{} <small>{}</small>").format(components.percent(value, 1), spread)


def _to(low: float, high: float) -> str:
    return f"{components.decimal(low)} to {components.decimal(high)}"


# ------------------------------------------------------------------ plots and tables


def reliability(report: RewardReport) -> Markup:
    """Reliability diagram: predicted probability against accuracy, a dot for each bin."""
    quality = report.quality
    if quality is None or quality.calibration is None:
        return Markup("")
    bins = quality.calibration.bins
    most = max(row.judgments for row in bins)
    points = [
        PlotPoint(
            row.stated,
            row.accuracy,
            row.low,
            row.high,
            f"predicted {components.percent(row.stated)}, correct in {components.percent(row.accuracy)} "
            f"({components.interval(row.low, row.high)}) of {plural(row.judgments, 'judgment')}",
            size=round(7 + 7 * math.sqrt(row.judgments / most)),
        )
        for row in bins
    ]
    return draw(
        Plot(
            "Reliability diagram",
            Axis(0.5, 1, [(n / 10, f"{n}0%") for n in range(5, 11)], "predicted probability"),
            _SHARES,
            points,
            help="How often the response that the reward model favors won, by the probability that the "
            "model predicted for it. The dots of a calibrated model lie on the dashed line, those of "
            "an overconfident model below it. Larger dots have more judgments.",
            lines=[([(0.5, 0.5), (1, 1)], "ks-guide")],
        )
    )


_SHARES = Axis(0, 1, [(n / 4, f"{25 * n}%") for n in range(5)], "accuracy")


def _from(lowest: float) -> Axis:
    """Accuracies from a tenth below the lowest up to 100%."""
    tenths = max(math.ceil(10 * lowest - 1e-9) - 1, 0)
    labels = [(n / 10, f"{n}0%") for n in range(tenths, 11) if n % 2 == 0]
    return Axis(tenths / 10, 1, labels, "accuracy")


def by_margin(report: RewardReport) -> Markup:
    """Accuracy by the difference between the two rewards."""
    rows: Sequence[AccuracyBin] = report.quality.by_margin if report.quality else ()
    names = [_to(row.start, row.end) for row in rows]
    return _table("Reward margin", names, rows, "Accuracy by margin")


def by_agreement(report: RewardReport) -> Markup:
    """Accuracy by whether people agree on the pair."""
    rows: Sequence[AccuracyByAgreement] = report.quality.by_agreement if report.quality else ()
    return _table("Judged by", [_GROUPS[row.group] for row in rows], rows, "Accuracy by agreement")


def _table(title: str, names: Sequence[str], rows: Sequence[Accuracy], caption: str) -> Markup:
    if not rows:
        return Markup("")
    columns = (
        Column(title),
        Column(
            "Accuracy",
            help="With its 95% interval, clustered by prompt. The line in the middle is 50%.",
        ),
        Column("Judgments", "right"),
    )
    cells = [
        (name, _bar(row), components.number(row.judgments))
        for name, row in zip(names, rows, strict=True)
    ]
    return Markup('<div><h3 class="ks-caption">{}</h3>{}</div>').format(
        caption, components.table(columns, cells, caption=caption)
    )


def _bar(row: Accuracy) -> Markup:
    accuracy, low, high = row.accuracy, row.low, row.high
    return Markup('<div class="ks-rank">{}{}</div>').format(
        components.interval_bar("accuracy", low, accuracy, high),
        components.with_interval(accuracy, low, high),
    )


# ------------------------------------------------------------------ the learning curve


def curve(report: RewardReport) -> Markup:
    """Accuracy by the number of labels, with a forecast."""
    found = report.curve
    if found is None or report.quality is None:
        return Markup("")
    if not found.points:
        return components.empty(
            "No learning curve yet",
            "A learning curve trains the reward model again on a quarter, a half and three quarters of "
            "the labels, in four orders, and forecasts the gain from the next 100 labels. This takes "
            f"about six times as long as training the reward model{_seconds(report)}.",
        )
    points = [
        PlotPoint(
            p.labels, p.accuracy, p.low, p.high,
            f"{p.labels:.0f} labels: accuracy {components.percent(p.accuracy, 1)} "
            f"({components.interval(p.low, p.high)}) on {plural(p.judgments, 'judgment')}",
        )
        for p in found.points
    ]  # fmt: skip
    lines = found.lines or CurveLines(trend=(), band=())
    now, ahead = points[-1].x, found.forecast.more if found.forecast and found.lines else 0
    marks = [(p.x, f"{p.x:.0f}") for p in points]
    marks += [(now + ahead, f"+{ahead}")] if ahead else []
    end = now + 1.08 * ahead if ahead else 1.04 * now
    ceiling = report.quality.ceiling
    notes = [(0.5, "chance")] + ([(ceiling.value, "noise ceiling")] if ceiling else [])
    return draw(
        Plot(
            "Learning curve",
            Axis(0, end, marks, "labels"),
            _from(min(0.5, *(p.low for p in points))),
            points,
            help="Dots: accuracy of reward models that learned from fewer labels, on the same held-out "
            "judgments, with 95% intervals. Line: the trend over all judgments on which a model was "
            "not trained. Shaded: the 95% interval of the forecast.",
            lines=[
                *(([(0, at), (end, at)], "ks-guide") for at, _ in notes),
                *([([(n, a) for n, a in lines.trend], "ks-line")] if lines.trend else []),
            ],
            band=[(n, low, high) for n, low, high in lines.band],
            notes=notes,
        )
    )


def _seconds(report: RewardReport) -> str:
    seconds = report.curve_seconds
    return f", or about {components.duration(seconds)}" if seconds else ""


def progress(report: RewardReport) -> Markup:
    """The progress of a learning curve, or why it stopped."""
    found = report.curve
    if found is None or found.state in ("none", "done"):
        return Markup("")
    if found.state in ("running", "cancelling"):
        doing = "stopping" if found.state == "cancelling" else found.message
        return components.card(
            components.badge("training on fewer labels", "info", dot=True),
            components.bar(found.progress, label="learning curve"),
            components.detail(doing),
        )
    done = f"{components.percent(found.progress)} is done and saved. You can continue from there."
    if found.state == "stopped":
        return components.note("warn", "The learning curve was stopped.", done)
    return components.note("bad", "The learning curve failed.", f"{found.reason}. {done}")
