"""The results of the capability canary as HTML, for the Verdicts and Runs sections. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from labeler.html import components
from labeler.html.components import Column, Markup
from storage.gate_records import LostAnswer
from storage.gate_report import CheckRates

TITLE = "Capability canary"
_COLUMNS = (
    Column("Check"),
    Column("Policy passes", "right", "Share of the new policy's answers that pass the check."),
    Column(
        "SFT passes", "right", "Share of SFT's answers that pass, with the same random numbers."
    ),
    Column("Prompts", "right", "Fixed prompts whose answers are checked."),
)


def canary(checks: Sequence[CheckRates], lost: Sequence[LostAnswer]) -> Markup:
    """The pass rates of each check, and answers that only SFT's model gets right."""
    rows = [
        (
            check.name,
            components.percent(check.policy),
            components.percent(check.reference),
            components.number(check.prompts),
        )
        for check in checks
    ]
    table = components.table(_COLUMNS, rows, caption=TITLE)
    return components.stack(table, _lost(lost)) if lost else table


def _lost(lost: Sequence[LostAnswer]) -> Markup:
    columns = (Column("Failed check"), Column("Prompt"), Column("The policy's answer"))
    rows = [
        (each.check, components.prose(each.prompt), components.prose(each.answer or "(empty)"))
        for each in lost
    ]
    shown = components.table(columns, rows, caption="Answers that fail where SFT's pass")
    return Markup(
        "<details><summary>Answers that fail where SFT’s pass</summary>{}</details>"
    ).format(shown)
