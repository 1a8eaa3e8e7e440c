"""Line charts as HTML with their data; ``charts.js`` draws them with uPlot (`labeler/static`) and the
functions of ``plotting.js``.

The HTML alone has a title, the last values, and a summary for screen readers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeler.html.components import Markup, info, number

PLOTTING_JS = (Path(__file__).parent / "plotting.js").read_text(encoding="utf-8")
CHARTS_JS = (Path(__file__).parent / "charts.js").read_text(encoding="utf-8")
UPLOT = (
    '<link rel="stylesheet" href="/static/uPlot.min.css">'
    '<script src="/static/uPlot.iife.min.js"></script>'
    f"<script>{PLOTTING_JS}</script>"
)
"""HTML for the page's head that `CHARTS_JS` needs."""


@dataclass(frozen=True)
class Series:
    """A line: `values[i]` at increasing `steps[i]`. A non-finite value is a gap."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]

    def points(self) -> list[tuple[float, float]]:
        """(step, value), without gaps."""
        pairs = zip(self.steps, self.values, strict=True)
        return [(step, value) for step, value in pairs if math.isfinite(value)]


@dataclass(frozen=True)
class Limit:
    """A horizontal line that the series should not cross.

    It is drawn if it is near the values, or `always`; otherwise its label is at the end of the axis.
    """

    value: float
    label: str
    always: bool = False


@dataclass(frozen=True)
class Chart:
    """A title with its definition, up to four series and their limits."""

    title: str
    series: Sequence[Series]
    help: str = ""
    limits: Sequence[Limit] = ()
    y_title: str = ""
    """What the y-axis shows, with its unit."""
    tall: bool = False


def group(
    charts: Sequence[Chart],
    *,
    x_title: str = "update",
    columns: bool = False,
    tools: bool = False,
    x_end: float | None = None,
) -> Markup:
    """Charts that share their x-axis and cursor; empty without a finite value.

    `tools` offers smoothing and a log scale, for the metrics of a run.  The x-axis reaches to `x_end`,
    the last step of a run that still goes on, so that it keeps its scale.
    """
    drawn = [chart for chart in charts if any(series.points() for series in chart.series)]
    if not drawn:
        return Markup("")
    low, high = _step_range(drawn, x_end)
    return Markup(
        '<div class="ks-charts{}{}" data-low="{}" data-high="{}" data-unit="{}">{}</div>'
    ).format(
        " ks-columns" if columns else "",
        " ks-with-tools" if tools else "",
        low,
        high,
        x_title,
        Markup("").join(_figure(chart, x_title) for chart in drawn),
    )


def _step_range(charts: Iterable[Chart], end: float | None) -> tuple[float, float]:
    steps = [step for chart in charts for series in chart.series for step in series.steps]
    low, high = min(steps), max(steps)
    high = high if end is None else max(high, end)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _figure(chart: Chart, unit: str) -> Markup:
    return Markup(
        '<figure class="ks-chart{}" data-chart="{}"><figcaption><span class="ks-title"><b>{}</b>{}</span><span class="ks-legend">'
        '<span class="ks-at"></span>{}</span></figcaption><div class="ks-uplot" tabindex="0" '
        'role="application" aria-roledescription="line chart" aria-label="{}"></div>'
        '<output class="ks-hidden"></output></figure>'
    ).format(
        " ks-tall" if chart.tall else "",
        json.dumps(_data(chart), separators=(",", ":")),
        chart.title,
        info(chart.help),
        Markup("").join(
            _key(i, series, len(chart.series) > 1) for i, series in enumerate(chart.series)
        ),
        " ".join(
            [
                _titled(chart),
                *(_summary(series, unit) for series in chart.series),
                *(f"Line: {limit.label}." for limit in chart.limits),
            ]
        ),
    )


def _titled(chart: Chart) -> str:
    return f"{chart.title}, {chart.y_title}." if chart.y_title else f"{chart.title}."


def _key(index: int, series: Series, named: bool) -> Markup:
    """A series in the legend, with its last value."""
    points = series.points()
    return Markup('<span class="ks-key ks-s{}"><i></i>{}<em>{}</em></span>').format(
        index, f"{series.name} " if named else "", number(points[-1][1]) if points else ""
    )


def _summary(series: Series, unit: str) -> str:
    """The series in words."""
    points = series.points()
    if not points:
        return f"{series.name}: no values."
    (first, start), (last, end) = points[0], points[-1]
    values = [value for _, value in points]
    return (
        f"{series.name}: {number(start)} at {unit} {first:g}, {number(end)} at {unit} {last:g}, "
        f"lowest {number(min(values))}, highest {number(max(values))}."
    )


def _data(chart: Chart) -> dict[str, Any]:
    """The data for ``charts.js``; gaps are null."""
    return {
        "series": [
            {
                "name": s.name,
                "x": [float(f"{x:.6g}") for x in s.steps],
                "y": [float(f"{y:.6g}") if math.isfinite(y) else None for y in s.values],
            }
            for s in chart.series
        ],
        "yTitle": chart.y_title,
        "limits": [
            {"value": limit.value, "label": limit.label}
            | ({"always": True} if limit.always else {})
            for limit in chart.limits
        ],
    }
