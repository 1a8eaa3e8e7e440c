"""Static plots of a few points with intervals, as HTML with an SVG inside. Pure functions.

The SVG has only lines, because it stretches with the page. Dots and texts are HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labeler.html.components import Markup, info

WIDTH, HEIGHT = 1000, 100
"""The units of the SVG."""

Place = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, with labels (position, text) and a title."""

    low: float
    high: float
    labels: Sequence[tuple[float, str]]
    title: str

    def share(self, value: float) -> float:
        """The position on the axis, 0 to 1; values beyond an end are clipped to it."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


@dataclass(frozen=True)
class PlotPoint:
    """A dot with its interval; `says` is its tooltip, `size` is in pixels."""

    x: float
    y: float
    low: float
    high: float
    says: str
    size: int = 9


@dataclass(frozen=True)
class Plot:
    """Points on two axes; lines (places, style) are drawn below them, `band` below those.

    `band` has (x, low, high); styles are CSS classes: ``ks-line`` or ``ks-guide``.
    """

    title: str
    x: Axis
    y: Axis
    points: Sequence[PlotPoint]
    help: str = ""
    lines: Sequence[tuple[Sequence[Place], str]] = ()
    band: Sequence[tuple[float, float, float]] = ()
    notes: Sequence[tuple[float, str]] = ()
    """(y, text) beside a guide line."""


def draw(plot: Plot) -> Markup:
    """The plot as a figure."""
    return Markup(
        '<figure class="ks-chart ks-dotted"><figcaption><b>{}</b>{}</figcaption>'
        '<div class="ks-y-title">{}</div><div class="ks-plot"><div class="ks-axis">{}</div><div class="ks-canvas">{}{}{}</div></div>'
        '<div class="ks-steps">{}</div><div class="ks-axis-title">{}</div></figure>'
    ).format(
        plot.title,
        info(plot.help),
        plot.y.title,
        _labels(plot.y, "top"),
        _svg(plot),
        Markup("").join(
            Markup('<span class="ks-guide-label" style="top:{}%">{}</span>').format(
                _percent(1 - plot.y.share(height)), text
            )
            for height, text in plot.notes
        ),
        Markup("").join(_dot(plot, point) for point in plot.points),
        _labels(plot.x, "left"),
        plot.x.title,
    )


def _svg(plot: Plot) -> Markup:
    pieces = [
        Markup('<path class="ks-grid" d="{}"/>').format(
            _path(plot, [(plot.x.low, y), (plot.x.high, y)])
        )
        for y, _ in plot.y.labels
    ]
    if plot.band:
        lower = [(x, low) for x, low, _ in plot.band]
        upper = [(x, high) for x, _, high in reversed(plot.band)]
        pieces.append(
            Markup('<path class="ks-band" d="{}Z"/>').format(_path(plot, [*lower, *upper]))
        )
    pieces += [
        Markup('<path class="{}" d="{}"/>').format(style, _path(plot, places))
        for places, style in plot.lines
    ]
    pieces += [
        Markup('<path class="ks-whisker" d="{}"/>').format(
            _path(plot, [(point.x, point.low), (point.x, point.high)])
        )
        for point in plot.points
    ]
    return Markup(
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, f"{plot.title}: {plot.y.title}", Markup("").join(pieces))


def _path(plot: Plot, places: Sequence[Place]) -> str:
    """SVG path data through places in the units of the axes."""
    return "M" + "L".join(
        f"{WIDTH * plot.x.share(x):.1f} {HEIGHT * (1 - plot.y.share(y)):.2f}" for x, y in places
    )


def _dot(plot: Plot, point: PlotPoint) -> Markup:
    return Markup(
        '<b class="ks-point" tabindex="0" role="note" aria-label="{0}" data-tip="{0}" '
        'style="left:{1}%;top:{2}%;width:{3}px;height:{3}px"></b>'
    ).format(
        point.says,
        _percent(plot.x.share(point.x)),
        _percent(1 - plot.y.share(point.y)),
        point.size,
    )


def _labels(axis: Axis, side: str) -> Markup:
    return Markup("").join(
        Markup('<span style="{}:{}%">{}</span>').format(
            side, _percent(1 - axis.share(at) if side == "top" else axis.share(at)), text
        )
        for at, text in axis.labels
    )


def _percent(share: float) -> float:
    return round(100 * share, 2)
