"""The table of prompts as HTML.  Texts and categories are untrusted.  Pure functions."""

from __future__ import annotations

from typing import Any

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.data.pair_view import asking
from storage.browsing.prompts import PromptListing, PromptRow
from storage.records import MAX_CATEGORY

_COLUMNS = (
    Column("Prompt"),
    Column("Role", help="A role never changes: it would leak prompts between training and tests."),
    Column("Category"),
    Column("Pairs", "right"),
    Column("Judgments", "right", "Current judgments of its pairs."),
    Column("Added", "right"),
    Column(""),
)
_NO_PROMPTS = components.empty(
    "No prompts yet", "Add one here, or import a file with python launch.py import --prompts FILE."
)
_NO_MATCH = components.empty("No prompt matches", "Change the filters.")


def table(found: PromptListing, *, filtered: bool) -> Markup:
    """A page of the prompts with their buttons."""
    if not found.rows:
        return _NO_MATCH if filtered else _NO_PROMPTS
    return components.table(_COLUMNS, (_row(row) for row in found.rows), caption="Prompts")


def _row(row: PromptRow) -> tuple[Any, ...]:
    turns = f"{row.turns} messages" if row.turns > 1 else ""
    marks = [components.badge("retired", "warn") if row.retired else "", components.detail(turns)]
    return (
        Markup('<div class="ks-prose" dir="auto">{} {}</div>').format(
            row.text, Markup(" ").join(each for each in marks if each)
        ),
        components.badge(row.role),
        Markup('<span dir="auto">{}</span>').format(row.category or components.DASH),
        components.number(row.pairs),
        components.number(row.judgments),
        components.moment(row.created_at),
        Markup('<span class="ks-actions">{}{}</span>').format(_category(row), _use(row)),
    )


def _category(row: PromptRow) -> Markup:
    return asking(
        "Category", "category", row.id,
        title="Set the category", note=row.text, ask="Category", submit="Save", optional=True,
        value=row.category, most=MAX_CATEGORY,
    )  # fmt: skip


def _use(row: PromptRow) -> Markup:
    if row.retired:
        return components.button("Restore", "restore", row.id)
    return components.button("Retire", "retire", row.id, tone="bad")
