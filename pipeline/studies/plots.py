"""Figures of studies as SVG: one style, one legend, and KL axes that fit the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F5F3F", "#555555")
"""The palette of Okabe and Ito (2008), safe for color-blind readers, and two more."""
INK, FAINT = "#1b1b1b", "#666666"
_TOP, _LEFT, _RIGHT, _ROW = 0.78, 0.75, 0.2, 0.26  # inches
_FAR = 4
_TICKS = [step * 10.0**power for power in range(-1, 5) for step in (1, 2, 5)]
_NEAR = 1.25
"""The budget is drawn if it is at most this many times the largest KL."""


def svg_figure(
    *, width: float, height: float, title: str, subtitle: str, margin: float = _LEFT
) -> Any:
    """A figure without axes, to be saved as SVG; sizes are in inches.  The titles begin at `margin`."""
    # Imported here, because matplotlib is slow to import.
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height))
    FigureCanvasSVG(figure)
    left = margin / width
    figure.text(left, 1 - 0.3 / height, title, size=13, weight="bold", color=INK)
    figure.text(left, 1 - 0.53 / height, subtitle, size=9, color=FAINT)
    return figure


def columns(figure: Any, count: int, *, legend: int) -> list[Any]:
    """`count` axes side by side, with room for a legend of `legend` rows below them."""
    width, height = figure.get_size_inches()
    all_axes = figure.subplots(
        1,
        count,
        squeeze=False,
        gridspec_kw={
            "left": _LEFT / width,
            "right": 1 - _RIGHT / width,
            "top": 1 - (_TOP + (0.2 if count > 1 else 0)) / height,
            "bottom": (0.65 + _ROW * legend) / height,
            "wspace": 0.2,
        },
    )[0]
    for axes in all_axes:
        axes.grid(color="0.93", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("0.6")
        axes.tick_params(color="0.6", labelcolor="0.3", labelsize=9)
    return [*all_axes]


def fit_kl(axes: Any, kls: Sequence[float], budget: float, *, to: str) -> bool:
    """Fit the KL axis to the data and draw the budget if it fits; return whether it does.

    If a curve runs far beyond the budget, the axis has a square-root scale (as in Gao et al. 2023,
    arXiv:2210.10760).
    """
    furthest, label = max(kls), f"KL to {to}, nats per response"
    shown = budget <= _NEAR * furthest
    right = max(furthest, budget) if shown else furthest
    if furthest > _FAR * budget:
        axes.set_xscale("function", functions=(_root, _square))
        axes.set_xlim(0, 1.05 * right)
        ticks = [0.0]
        for tick in _TICKS:
            if tick <= right and tick**0.5 - ticks[-1] ** 0.5 > 0.06 * right**0.5:
                ticks.append(tick)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        label += " (square-root scale)"
    else:
        left = min(0.0, *kls)
        room = 0.04 * (right - left) or 0.05
        axes.set_xlim(left - room, right + room)
    axes.set_xlabel(label)
    if shown:
        axes.axvline(budget, color="0.45", ls=":", lw=1.4, zorder=1)
    return shown


def _root(kl: Any) -> Any:
    return kl.clip(0) ** 0.5


def _square(root: Any) -> Any:
    return root.clip(0) ** 2


def mark(label: str, **style: Any) -> Any:
    """A legend entry for something that is not drawn on the axes."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    options: dict[str, Any] = {"ls": "none", "color": INK} | style
    return Line2D([], [], label=label, **options)


def budget_mark(label: str, *, shown: bool) -> Any:
    """The legend entry of the budget line, which may be off the axis."""
    return mark(label if shown else f"{label} (off the axis)", ls=":", color="0.45", lw=1.4)


def add_legend(figure: Any, handles: Sequence[Any], *, rows: int) -> None:
    """Add one legend below all axes."""
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=-(-len(handles) // rows),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        columnspacing=1.6,
        handlelength=1.8,
    )


def outlined(axes: Any, text: str, point: tuple[float, float], **style: Any) -> None:
    """A label near a point, with an offset in points and an outline that keeps it readable."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415

    outline = [withStroke(linewidth=2.5, foreground="white")]
    options = {"textcoords": "offset points", "size": 8, "path_effects": outline, "zorder": 6}
    axes.annotate(text, point, **(options | style))


def save_svg(figure: Any, path: Path) -> Path:
    """Write the figure reproducibly: the same figure gives the same file."""
    from matplotlib import rc_context  # noqa: PLC0415

    with rc_context({"svg.hashsalt": "kitestring"}):
        figure.savefig(path, metadata={"Date": None})
    return path
