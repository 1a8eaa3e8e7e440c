"""The results of an evaluation run as HTML: win rates, and a row for each policy. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research import canary_view
from storage.analysis.intervals import WinRate
from storage.gate_records import CanaryResults
from storage.gate_report import CheckRates
from storage.reports import EvaluatedPolicy, Evaluation
from storage.wording import plural


@dataclass(frozen=True)
class _Figure:
    """A column: the metric, its title, and how its value is written."""

    metric: str
    title: str
    text: Callable[[float | None], str]

    def of(self, policy: EvaluatedPolicy) -> str:
        bound = "≤ " if self.metric == "kl" and policy.kl_is_bound else ""
        return bound + self.text(getattr(policy, self.metric))


_FIGURES = (
    _Figure("reward", "Reward", components.signed),
    _Figure("audit_reward", "Audit reward", components.signed),
    _Figure("kl", "KL from SFT", components.number),
    _Figure("length", "Length", components.number),
    _Figure("distinct", "Distinct bigrams", components.percent),
    _Figure("unique", "Unique responses", components.percent),
    _Figure("canary", "Canary", components.percent),
)


def evaluated(found: Evaluation, known: Mapping[str, str]) -> Markup:
    """Win rates by the reward model and the figures of each policy; `known` defines the metrics."""
    policies = {
        "New policy": found.policy,
        "Previous policy": found.previous,
        "SFT": found.reference,
    }
    shown = {name: policy for name, policy in policies.items() if policy is not None}
    figures = [f for f in _FIGURES if any(getattr(p, f.metric) is not None for p in shown.values())]
    columns = [
        Column("Model"),
        *(
            Column(f.title, "right", known.get(f"evaluate/<policy>/{f.metric}", ""))
            for f in figures
        ),
    ]
    rows = [(name, *(f.of(policy) for f in figures)) for name, policy in shown.items()]
    return components.stack(
        components.tiles(
            [
                _wins("Wins against SFT", found.win_rate_against_reference),
                *(
                    [_wins("Wins against the previous policy", found.win_rate_against_previous)]
                    if found.win_rate_against_previous
                    else []
                ),
            ]
        ),
        components.table(columns, rows, caption="Models on held-out prompts"),
        _canary(found.canary),
    )


def _canary(results: CanaryResults | None) -> Markup:
    if results is None:
        return Markup("")
    rates = [CheckRates.of(check) for check in results.checks]
    return components.heading(
        canary_view.TITLE, "fixed prompts; the promotion gate says what a loss means"
    ) + canary_view.canary(rates, results.lost)


def _wins(title: str, rate: WinRate | None) -> Markup:
    if rate is None:
        return components.tile(title, components.DASH, "unknown")
    return components.tile(
        title,
        Markup("{} <small>{}</small>").format(
            components.percent(rate.win_rate), components.interval(rate.low, rate.high)
        ),
        f"by the reward model, on {plural(rate.prompts, 'held-out prompt')}",
        help="Share of held-out prompts on which the reward model prefers the new policy's response; "
        "ties count half. Small: the 95% interval.",
    )
