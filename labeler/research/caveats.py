"""When a reward model's verdicts should be read with care.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from labeler.html import components
from labeler.html.components import Markup
from storage.records import Iteration, ModelVersion

FEW = 30
"""Held-out preferences below which an accuracy says little: its 95% interval is 30 points wide or more."""


def accuracy_caveat(model: ModelVersion | None) -> str:
    """What is weak about a reward model, as the end of a sentence; empty where nothing is known."""
    summary = model.summary if model else {}
    preferred, low = summary.get("held_out_preferences"), summary.get("accuracy_low")
    measured = (
        f"on {components.plural(int(preferred), 'held-out preference')}"
        if preferred is not None
        else ""
    )
    if low is not None and low <= 0.5:
        sure = components.interval(low, summary.get("accuracy_high"))
        known = (
            components.percent(summary.get("accuracy"), 1),
            f"({sure})" if sure else "",
            measured,
        )
        return f"its accuracy, {' '.join(k for k in known if k)}, may be no better than a coin's"
    if preferred is not None and preferred < FEW:
        return f"its accuracy was measured {measured} only"
    return ""


def warnings(model: ModelVersion | None) -> Markup:
    """One caution beside wins that a weak reward model counted; empty beside a good one's."""
    weak = accuracy_caveat(model)
    if model is None or not weak:
        return Markup("")
    return _note(f"They are the verdict of {model.name}, and {weak}.")


def cautions(iterations: list[Iteration], versions: Mapping[str, ModelVersion]) -> Markup:
    """As `caution`, for the wins of several iterations at once."""
    said = [
        f"iteration {i.number}: {weak}"
        for i in iterations
        if i.evaluation and (weak := accuracy_caveat(versions.get(i.reward_model or "")))
    ]
    if not said:
        return Markup("")
    return _note(f"They are each iteration's own reward model's verdict. In {'; in '.join(said)}.")


def _note(body: str) -> Markup:
    return components.note("warn", "Read the wins with care.", f"{body} More labels make it surer.")
