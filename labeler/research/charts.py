"""Line charts as HTML with an SVG inside: pure, small, and drawn again without flicker.

Gradio's own plot brings a megabyte of Vega and cannot share a cursor between charts.  Here the
SVG holds only lines, stretched to whatever width there is; every text is HTML beside it, so it
never stretches.  ``charts.js`` adds the cursor that runs through all charts of a group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labeler.html.components import Markup, info, number, scientific

WIDTH, HEIGHT = 1000, 100
"""The SVG's own units; the page stretches them."""

FEW_POINTS = 40
"""Up to here each point gets a dot."""


@dataclass(frozen=True)
class Series:
    """A line: `values[i]` at `steps[i]`, steps rising.  A value that is not finite is a gap."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]

    def finite(self) -> list[float]:
        return [v for v in self.values if math.isfinite(v)]


@dataclass(frozen=True)
class Limit:
    """A horizontal line not to be crossed."""

    value: float
    label: str


@dataclass(frozen=True)
class Chart:
    """One panel: a title with its definition, up to four series and the limits they should keep."""

    title: str
    series: Sequence[Series]
    help: str = ""
    limits: Sequence[Limit] = ()
    tall: bool = False


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that lie in [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    # `0.0 +` turns −0 into 0; rounding drops the noise of 3 · 0.1.
    return [0.0 + round(i * step, 12) for i in range(first, last + 1)]


def tick_label(value: float) -> str:
    """A round number as short as it goes, and no shorter: 0.5, 1,000, 2e-5, 4.5e-5."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.6g}".replace("-", "−")
    exact = (d for d in range(6) if math.isclose(float(f"{value:.{d}e}"), value, rel_tol=1e-6))
    return scientific(value, next(exact, 6))


def value_range(chart: Chart) -> tuple[float, float]:
    """The y-axis: all finite values with a little air, and the limits that have come into sight.

    A limit counts as in sight when it is no further from the data than the data are wide: the
    KL's 10 shows once the KL nears it, and does not flatten the line before.
    """
    values = [v for s in chart.series for v in s.finite()]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    reach = max(high - low, 0.25 * max(abs(low), abs(high)))
    for limit in chart.limits:
        if low - reach <= limit.value <= high + reach:
            low, high = min(low, limit.value), max(high, limit.value)
    if high == low:
        air = 0.1 * abs(high) or 1.0
        return low - air, high + air
    air = 0.06 * (high - low)
    # Air below 0 would hint at negative lengths, shares and losses.
    return (0.0 if 0 <= low < air else low - air), high + air


def step_range(charts: Iterable[Chart]) -> tuple[float, float]:
    """The x-axis shared by charts that stand over each other."""
    steps = [s.steps[i] for c in charts for s in c.series if len(s.steps) for i in (0, -1)]
    if not steps:
        return 0.0, 1.0
    low, high = min(steps), max(steps)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def group(charts: Sequence[Chart], *, x_title: str = "update", columns: bool = False) -> Markup:
    """Charts on one x-axis with one cursor; in columns where there is room, or stacked."""
    drawn = [c for c in charts if any(s.finite() for s in c.series)]
    low, high = step_range(drawn)
    return Markup(
        '<div class="ks-charts{}" data-low="{}" data-high="{}" data-unit="{}">{}</div>'
    ).format(
        " ks-columns" if columns else "",
        low,
        high,
        x_title,
        Markup("").join(_figure(c, low, high, x_title) for c in drawn),
    )


def _figure(chart: Chart, x_low: float, x_high: float, x_title: str) -> Markup:
    y_low, y_high = value_range(chart)
    return Markup(
        '<figure class="ks-chart{}"><figcaption><b>{}</b>{}{}</figcaption>'
        '<div class="ks-plot"><div class="ks-axis">{}</div>'
        '<div class="ks-canvas" data-series="{}" data-low="{}" data-high="{}">{}{}</div></div>'
        '<div class="ks-steps">{}<span class="ks-unit">{}</span></div></figure>'
    ).format(
        " ks-tall" if chart.tall else "",
        chart.title,
        info(chart.help),
        _legend(chart),
        _y_labels(y_low, y_high),
        _data(chart),
        y_low,
        y_high,
        _svg(chart, (x_low, x_high), (y_low, y_high)),
        _limit_labels(chart, y_low, y_high),
        _x_labels(x_low, x_high),
        x_title,
    )


def _legend(chart: Chart) -> Markup:
    """The last value of each series; its name too where there is more than one."""
    pieces = [
        Markup('<span class="ks-key ks-s{}"><i></i>{}<em>{}</em></span>').format(
            i,
            f"{s.name} " if len(chart.series) > 1 else "",
            number(s.finite()[-1]) if s.finite() else "",
        )
        for i, s in enumerate(chart.series)
    ]
    return Markup('<span class="ks-legend">{}</span>').format(Markup("").join(pieces))


def _data(chart: Chart) -> str:
    """What the cursor reads: names, steps and values, null where there is none."""
    return json.dumps(
        [
            {
                "name": s.name,
                "x": [float(f"{x:.6g}") for x in s.steps],
                "y": [float(f"{y:.4g}") if math.isfinite(y) else None for y in s.values],
            }
            for s in chart.series
        ],
        separators=(",", ":"),
    )


def _svg(chart: Chart, x_range: tuple[float, float], y_range: tuple[float, float]) -> Markup:
    grid = [
        Markup('<path class="ks-grid" d="M0 {0}H{1}"/>').format(_y(tick, y_range), WIDTH)
        for tick in ticks(*y_range)
    ]
    limits = [
        Markup('<path class="ks-limit" d="M0 {0}H{1}"/>').format(_y(limit.value, y_range), WIDTH)
        for limit in chart.limits
        if y_range[0] <= limit.value <= y_range[1]
    ]
    paths = [
        Markup('<path class="ks-line ks-s{}" d="{}"/>{}').format(
            i, path(s, x_range, y_range), _dots(i, s, x_range, y_range)
        )
        for i, s in enumerate(chart.series)
    ]
    return Markup(
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, chart.title, Markup("").join([*grid, *limits, *paths]))


def path(series: Series, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    """The line as SVG path data; a gap lifts the pen."""
    pieces, pen = [], "M"
    for step, value in zip(series.steps, series.values, strict=True):
        if not math.isfinite(value):
            pen = "M"
            continue
        pieces.append(f"{pen}{_x(step, x_range)} {_y(value, y_range)}")
        pen = "L"
    return "".join(pieces)


def _dots(
    index: int, series: Series, x_range: tuple[float, float], y_range: tuple[float, float]
) -> Markup:
    if len(series.steps) > FEW_POINTS:
        return Markup("")
    # A line of no length with round caps is a dot that does not stretch with the SVG.
    points = "".join(
        f"M{_x(step, x_range)} {_y(value, y_range)}h0"
        for step, value in zip(series.steps, series.values, strict=True)
        if math.isfinite(value)
    )
    return Markup('<path class="ks-dots ks-s{}" d="{}"/>').format(index, points)


def _x(step: float, span: tuple[float, float]) -> str:
    return f"{WIDTH * (step - span[0]) / (span[1] - span[0]):.1f}".removesuffix(".0")


def _y(value: float, span: tuple[float, float]) -> str:
    return f"{HEIGHT * (span[1] - value) / (span[1] - span[0]):.2f}".rstrip("0").rstrip(".")


def _y_labels(low: float, high: float) -> Markup:
    return Markup("").join(
        Markup('<span style="top:{}%">{}</span>').format(_y(tick, (low, high)), tick_label(tick))
        for tick in ticks(low, high)
    )


def _x_labels(low: float, high: float) -> Markup:
    shown = [tick for tick in ticks(low, high, 5) if tick == round(tick)]
    return Markup("").join(
        Markup('<span style="left:{}%">{}</span>').format(
            round(100 * (tick - low) / (high - low), 2), number(int(tick))
        )
        for tick in shown
    )


def _limit_labels(chart: Chart, low: float, high: float) -> Markup:
    return Markup("").join(
        Markup('<span class="ks-limit-label" style="top:{}%">{}</span>').format(
            _y(limit.value, (low, high)), limit.label
        )
        for limit in chart.limits
        if low <= limit.value <= high
    )


CHARTS_JS = (Path(__file__).parent / "charts.js").read_text(encoding="utf-8")
