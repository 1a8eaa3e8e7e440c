"""Warnings about weak reward models. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labeler.html import components
from labeler.html.components import Markup
from storage.records import Iteration, ModelVersion
from storage.reports import RewardFigures, RewardReport, from_json
from storage.wording import plural

FEW = 30
"""With fewer held-out preferences, the 95% interval of an accuracy is at least 30 points wide."""


CONTINUES = "Training continues with the policy after the reward model, whatever its verdict."


@dataclass(frozen=True)
class Unready:
    """A reward model whose report advises against training a policy with it by these `methods`."""

    model: str
    verdict: str
    methods: tuple[str, ...]
    reason: str
    """The first reason, as a sentence."""

    @property
    def title(self) -> str:
        return f"{self.model} is not ready for PPO: {self.verdict}."


def unready(report: RewardReport) -> Unready | None:
    """None for a reward model that is ready, or without a verdict."""
    found = report.verdict
    if found is None or found.verdict == "enough for PPO":
        return None
    best_of_n = ("best-of-n",) if found.verdict == "keep labeling" else ()
    reasons = [check.says for check in found.checks if check.known and check.allows != "ppo"]
    return Unready(
        report.model or "",
        found.verdict,
        ("ppo", "grpo", "reinforce++", "rloo", *best_of_n),
        components.sentence(reasons[0]) if reasons else "",
    )


def accuracy_caveat(model: ModelVersion | None) -> str:
    """The weakness of a reward model, as the end of a sentence; empty if none is known."""
    figures = from_json(RewardFigures, model.summary if model else {})
    preferred, low = figures.held_out_preferences, figures.accuracy_low
    count = plural(preferred, "held-out preference") if preferred is not None else ""
    if low is not None and low <= 0.5:
        interval = components.interval(low, figures.accuracy_high)
        found = [
            components.percent(figures.accuracy, 1),
            interval and f"({interval})",
            count and f"on {count}",
        ]
        return f"its accuracy, {' '.join(each for each in found if each)}, may be no better than chance"
    if preferred is not None and preferred < FEW:
        return f"its accuracy was measured on only {count}"
    return ""


def warnings(model: ModelVersion | None) -> Markup:
    """A warning for win rates by a weak reward model; empty for a good one."""
    weak = accuracy_caveat(model)
    if model is None or not weak:
        return Markup("")
    return _note(f"{model.name} decides the wins, and {weak}.")


def cautions(iterations: list[Iteration], versions: Mapping[str, ModelVersion]) -> Markup:
    """Like `warnings`, for the win rates of several iterations."""
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
