"""The plot of a retrained reward model: shifts with their intervals, beside what chance gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.runs.rundir import write_atomically
from pipeline.studies.plots import COLORS, FAINT, INK, add_legend, mark, save_svg, svg_figure
from pipeline.studies.retrain.findings import GROUPS, change
from pipeline.studies.retrain.report import Figure, RetrainReport
from storage.reports import to_json

_ROW = 0.34
"""Height of a row in inches."""
_WIDTH, _LABELS, _MARGIN = 6.8, 2.4, 0.2
"""Widths in inches: of the figure, of its labels, and on each side.  In a wider figure, the text would be
too small on a phone."""


@dataclass(frozen=True)
class Row:
    """A row of the plot: a heading without a shift, or a shift in shares."""

    label: str
    shift: Figure | None = None


def rows(report: RetrainReport) -> list[Row]:
    """The shifts of accuracy and of win rates, under their headings."""
    sections: dict[str, list[Row]] = {
        "Accuracy on held-out preferences": [
            Row(f"{GROUPS[each.group]} ({each.preferences})", each.accuracy)
            for each in report.held_out
            if each.accuracy
        ],
        "Predicted win rate against SFT": [
            Row(each.policy, each.win_rate) for each in report.policies
        ],
        "Win rate against SFT among people": [
            Row(f"{each.policy}: {change(each.before, each.after)}", each.shift)
            for each in report.gate
            if each.shift
        ],
    }
    return list(_listed(sections))


def _listed(sections: dict[str, list[Row]]) -> Iterator[Row]:
    for heading, shown in sections.items():
        if shown:
            yield Row(heading)
            yield from shown


def write_report(folder: Path, report: RetrainReport) -> Path:
    """Write retrain.json and retrain.svg to the study's folder; return the plot's path."""
    write_atomically(folder / "retrain.json", json.dumps(to_json(report), indent=1))
    shown = rows(report)
    height = 1.75 + _ROW * len(shown)
    total = report.counts.total
    figure = svg_figure(
        width=_WIDTH,
        height=height,
        margin=_MARGIN,
        title=f"{report.model} without {total.left_out} of {total.judgments} judgments",
        subtitle="Shift in percentage points, after − before; bars: 95% interval, clustered by prompt",
    )
    left, right = (_MARGIN + _LABELS) / _WIDTH, 1 - _MARGIN / _WIDTH
    axes = figure.add_axes((left, 0.95 / height, right - left, 1 - 1.7 / height))
    _style(axes, len(shown), _reach(shown))
    for place, row in enumerate(shown):
        _draw(axes, len(shown) - 1 - place, row)
    handles = [mark("shift", color=COLORS[0], marker="o", ms=7, ls="-")]
    if any(row.shift and row.shift.chance for row in shown):
        handles += [
            mark("controls", color=FAINT, marker="|", ms=10),
            mark("95% limit of chance", color="0.8", marker="s", ms=9),
        ]
    add_legend(figure, handles, rows=1)
    return save_svg(figure, folder / "retrain.svg")


def _reach(shown: list[Row]) -> float:
    """The end of the axis, in points: limits of chance may lie beyond it."""
    ends = [0.01]
    for shift in (row.shift for row in shown if row.shift):
        chance = shift.chance
        ends += [shift.shift, shift.low or 0.0, shift.high or 0.0]
        ends += chance.controls if chance else ()
    return 105 * max(map(abs, ends))


def _style(axes: Any, count: int, reach: float) -> None:
    axes.set_ylim(-0.6, count - 0.4)
    axes.set_yticks([])
    axes.grid(color="0.93", lw=0.8, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("0.6")
    axes.tick_params(color="0.6", labelcolor="0.3", labelsize=9)
    axes.axvline(0, color="0.45", lw=1.1, zorder=1)
    axes.set_xlim(-reach, reach)
    axes.set_xlabel("percentage points", size=9, color="0.3")


def _draw(axes: Any, height: float, row: Row) -> None:
    place = axes.get_yaxis_transform()
    label: dict[str, Any] = {"transform": place, "va": "center", "ha": "left", "clip_on": False}
    left = -_LABELS / (_WIDTH - _LABELS - 2 * _MARGIN)
    if row.shift is None:
        axes.text(left, height, row.label, size=9.5, weight="bold", color=INK, **label)
        return
    axes.text(left + 0.03, height, row.label, size=9, color=INK, **label)
    shift, chance = row.shift, row.shift.chance
    if chance and chance.low is not None and chance.high is not None:
        ends = [100 * chance.low, 100 * chance.high]
        axes.plot(ends, [height] * 2, color="0.85", lw=9, solid_capstyle="butt", zorder=2)
    if chance:
        at = [100 * each for each in chance.controls]
        axes.plot(at, [height] * len(at), "|", color=FAINT, ms=10, zorder=3)
    if shift.low is not None and shift.high is not None:
        ends = [100 * shift.low, 100 * shift.high]
        axes.plot(ends, [height] * 2, color=COLORS[0], lw=1.8, zorder=4)
    axes.plot(100 * shift.shift, height, "o", color=COLORS[0], ms=7, mec="white", zorder=5)
