"""The report of a comparison of methods: plain values, a table, and a plot with two panels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.runs.rundir import write_atomically
from pipeline.studies.compare import TRAINED, CurvePoint, MethodCurve
from pipeline.studies.plots import (
    COLORS,
    INK,
    add_legend,
    budget_mark,
    columns,
    fit_kl,
    mark,
    outlined,
    save_svg,
    svg_figure,
)
from storage.analysis.intervals import NORMAL

_STYLES = {
    "sft": ("SFT", INK, "o", "none"),
    "best_of_n": ("best of N (KL: upper bound)", COLORS[4], "D", "--"),
    "ppo": ("PPO", COLORS[0], "o", "-"),
    "grpo": ("GRPO", COLORS[3], "v", "-"),
    "reinforce++": ("REINFORCE++", COLORS[0], "P", ":"),
    "dpo": ("DPO", COLORS[2], "s", "-"),
    "rloo": ("RLOO", COLORS[1], "^", "-"),
}
"""Title, color, marker and line of each method."""


@dataclass(frozen=True, kw_only=True)
class MethodResult(CurvePoint):
    """One method: its last point, its curve, and its scores at the KL of the comparison."""

    method: str
    training_seconds: float
    gold_at_kl: float | None
    """None if its curve does not reach that KL."""
    reward_at_kl: float | None
    points: list[CurvePoint]


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """The results of a comparison at `kl` nats."""

    kl: float
    methods: list[MethodResult]


def summary(curves: Sequence[MethodCurve], kl: float) -> ComparisonReport:
    """The results at a KL in nats."""
    methods = []
    for curve in curves:
        gold, reward = curve.at(kl) or (None, None)
        methods.append(
            MethodResult(
                **vars(curve.points[-1]),
                method=curve.method,
                training_seconds=curve.training_seconds,
                gold_at_kl=gold,
                reward_at_kl=reward,
                points=curve.points,
            )
        )
    return ComparisonReport(kl=kl, methods=methods)


def write_report(folder: Path, curves: Sequence[MethodCurve], found: ComparisonReport) -> Path:
    """Write compare.json and compare.svg to the study's folder; return the plot's path."""
    write_atomically(folder / "compare.json", json.dumps(asdict(found), indent=1))
    prompts = curves[0].points[0].win_rate.prompts
    figure = svg_figure(
        width=10,
        height=5.2,
        title="Score against KL by method",
        subtitle=f"Means over {prompts} held-out prompts, along training or over N; bars: 95% "
        "interval of the mean; large marker: the method's result",
    )
    panels = columns(figure, 2, legend=1)
    for axes, title in zip(panels, ("gold score", "reward model's score"), strict=True):
        axes.set_title(title, loc="left", size=10.5, color=INK)
    handles = [_draw(panels, curve) for curve in curves]
    kls = [point.kl for curve in curves for point in curve.points]
    shown = [fit_kl(axes, kls, found.kl, to="SFT") for axes in panels]
    handles.append(budget_mark(f"compared at {found.kl:g} nats", shown=all(shown)))
    add_legend(figure, handles, rows=1)
    return save_svg(figure, folder / "compare.svg")


def _draw(panels: Sequence[Any], curve: MethodCurve) -> Any:
    """Draw a method's curves of gold and reward with intervals; return its legend entry."""
    title, color, marker, line = _STYLES[curve.method]
    style: dict[str, Any] = {"color": color, "ls": line, "lw": 1.8}
    end: dict[str, Any] = {"marker": marker, "color": color, "ms": 8, "mec": "white", "mew": 0.9}
    kls = [point.kl for point in curve.points]
    # The trained methods begin at SFT's own mark.
    first = 1 if curve.method in TRAINED else 0
    gold = [(point.gold, point.gold_error) for point in curve.points]
    reward = [(point.reward, point.reward_error) for point in curve.points]
    for axes, figures in zip(panels, (gold, reward), strict=True):
        means = [mean for mean, _ in figures]
        half = [NORMAL * (error or 0) for _, error in figures]
        bars = {"fmt": "none", "ecolor": color, "elinewidth": 1.1, "alpha": 0.5}
        axes.plot(kls, means, **style, zorder=3)
        axes.plot(kls[first:-1], means[first:-1], marker, color=color, ms=4, zorder=3)
        axes.errorbar(kls[first:], means[first:], half[first:], **bars)
        axes.plot(kls[-1], means[-1], **end, zorder=5)
        if curve.method == "best_of_n":
            for point, mean in zip(curve.points, means, strict=True):
                # The last label goes to the left, away from the figure's edge.
                at_end = point is curve.points[-1]
                aside = {"xytext": (-6, 9), "ha": "right"} if at_end else {"xytext": (6, -11)}
                outlined(axes, point.label, (point.kl, mean), color=INK, **aside)
    return mark(title, **(style | end))


def format_comparison(found: ComparisonReport, plot: Path) -> str:
    """The table of a comparison."""
    kl = found.kl
    lines = [
        f"{'method':<10}{'gold':>8}{'reward':>9}{'KL':>8}{'tokens':>8}  {'wins against SFT':<19}"
        f"{'train s':>8}{'sample s':>9}  gold at {kl:g} nats"
    ]
    for row in found.methods:
        at, wins, itself = row.gold_at_kl, row.win_rate, row.method == "sft"
        won = f"{wins.win_rate:.2f} ({wins.low:.2f}–{wins.high:.2f})"
        gold_at_kl = "never reached" if at is None else f"{at:.3f}"
        lines.append(
            f"{row.method:<10}{row.gold:>8.3f}{row.reward:>9.3f}{row.kl:>8.2f}"
            f"{row.length:>8.1f}  {'–' if itself else won:<19}{row.training_seconds:>8.0f}"
            f"{row.sampling_seconds:>9.1f}  {'–' if itself else gold_at_kl}"
        )
    return "\n".join([*lines, "", str(plot)])
