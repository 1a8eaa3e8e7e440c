"""The gold pairs as HTML.  Texts are untrusted.  Pure functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from labeler.html import components
from labeler.html.components import Column, Markup
from storage.analysis.intervals import wilson
from storage.labeling.gold import MIN_JUDGMENTS, GoldPair
from storage.wording import plural

_SNIPPET = 90  # characters of a text
_COLUMNS = (
    Column("Prompt"),
    Column("Expected answer"),
    Column("From", help="judgments: annotators agreed on the pair. file: the pair was imported."),
    Column("Answered", "right", "Annotators who have judged the pair."),
    Column(
        "As expected",
        "right",
        "Share of them who gave the expected answer, with its 95% interval. If most annotators miss "
        "a pair, its answer may be wrong: retire it.",
    ),
    Column(""),
)


def gold(pairs: Sequence[GoldPair], candidates: int) -> Markup:
    """How many gold pairs there are and could be, and a row for each."""
    active = sum(pair.active for pair in pairs)
    words = (
        f"{plural(active, 'gold pair')} in use. {plural(candidates, 'pair')} "
        f"could become one: at least {MIN_JUDGMENTS} annotators judged each, all with the same "
        "preference. Annotators cannot recognize gold pairs, and nobody gets a pair that they judged "
        "before. Models do not learn from judgments of gold pairs."
    )
    if not pairs:
        return components.empty("No gold pairs", words)
    rows = [_row(pair) for pair in pairs]
    return components.stack(
        components.detail(words), components.table(_COLUMNS, rows, caption="Gold pairs")
    )


def practice(pairs: Sequence[GoldPair]) -> Markup:
    """A row for each practice pair."""
    if not pairs:
        return components.empty(
            "No practice pairs",
            "Import pairs with an answer and an explanation on the Data page, in the section Import.",
        )
    return components.table(_COLUMNS, [_row(pair) for pair in pairs], caption="Practice pairs")


def _row(pair: GoldPair) -> Sequence[Any]:
    messages = json.loads(pair.messages)
    share = pair.matched / pair.answered if pair.answered else None
    spread = components.interval(*wilson(share, pair.answered)) if share is not None else ""
    button = (
        components.button("Retire", "gold-retire", pair.id, tone="bad")
        if pair.active
        else components.button("Use again", "gold-restore", pair.id)
    )
    return (
        _snippet(messages[-1]["content"]),
        _snippet(pair.first if pair.answer == "first" else pair.second),
        "judgments" if pair.source else "file",
        components.number(pair.answered),
        components.figure(components.percent(share), spread),
        Markup('<span class="ks-actions">{}</span>').format(button),
    )


def _snippet(text: str) -> Markup:
    words = " ".join(text.split())
    short = words if len(words) <= _SNIPPET else f"{words[:_SNIPPET].rstrip()}…"
    return Markup('<span class="ks-words" dir="auto">{}</span>').format(short)
