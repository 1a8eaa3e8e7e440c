"""Warnings about weak reward models. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from labeler.html import components
from labeler.html.components import Markup
from storage.records import Iteration, ModelVersion

FEW = 30
"""Below so many held-out preferences, the 95% interval of an accuracy is 30 points wide or more."""


def accuracy_caveat(model: ModelVersion | None) -> str:
    """What is weak about a reward model, as the end of a sentence; empty if nothing is known."""
    summary = model.summary if model else {}
    preferred, low = summary.get("held_out_preferences"), summary.get("accuracy_low")
    count = (
        components.plural(int(preferred), "held-out preference") if preferred is not None else ""
    )
    if low is not None and low <= 0.5:
        interval = components.interval(low, summary.get("accuracy_high"))
        found = [
            components.percent(summary.get("accuracy"), 1),
            interval and f"({interval})",
            count and f"on {count}",
        ]
        return f"its accuracy, {' '.join(each for each in found if each)}, may be no better than chance"
    if preferred is not None and preferred < FEW:
        return f"its accuracy was measured on only {count}"
    return ""


def warnings(model: ModelVersion | None) -> Markup:
    """A warning beside win rates by a weak reward model; empty beside those by a good one."""
    weak = accuracy_caveat(model)
    if model is None or not weak:
        return Markup("")
    return _note(f"{model.name} decides the wins, and {weak}.")


def cautions(iterations: list[Iteration], versions: Mapping[str, ModelVersion]) -> Markup:
    """As `warnings`, for the win rates of several iterations."""
    found = [
        f"in iteration {i.number}, {weak}"
        for i in iterations
        if i.evaluation and (weak := accuracy_caveat(versions.get(i.reward_model or "")))
    ]
    if not found:
        return Markup("")
    return _note(f"Each iteration's own reward model decides its wins: {'; '.join(found)}.")


def _note(body: str) -> Markup:
    return components.note(
        "warn",
        "The win rates are uncertain.",
        f"{body} More labels make the reward model more accurate.",
    )
