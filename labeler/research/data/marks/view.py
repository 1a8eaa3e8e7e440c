"""Marked passages as HTML.  Quotes, prompts and names are untrusted.  Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.reading import MarkedJudgment, MarkReason
from storage.records import Mark

PROMPT = 80
"""Characters of a prompt."""
_COUNTS = (Column("Reason"), Column("Passages", "right"), Column("Judgments", "right"))
_PASSAGES = (
    Column("Reason"),
    Column("Passage"),
    Column("Response", help="Whether the annotator preferred the response."),
    Column("Prompt"),
    Column("Annotator"),
    Column("Time"),
)


def marked_passages(reasons: Sequence[MarkReason], judgments: Sequence[MarkedJudgment]) -> Markup:
    """Reasons with their numbers, and the newest passages; nothing if there are no marks."""
    if not reasons:
        return Markup("")
    counts = [
        (Markup('<span dir="auto">{}</span>').format(each.reason), each.marks, each.judgments)
        for each in reasons
    ]
    passages = [
        _row(judgment, side, mark)
        for judgment in judgments
        for side, marks in judgment.marks.items()
        for mark in marks
    ]
    return components.lines(
        [
            components.heading("Marked passages", "of current judgments; all are in raw exports"),
            components.stack(
                components.table(_COUNTS, counts, caption="Marks by reason"),
                components.table(_PASSAGES, passages, caption="Passages of the newest judgments"),
            ),
        ]
    )


def _row(judgment: MarkedJudgment, side: str, mark: Mark) -> tuple[Markup | str, ...]:
    text = Markup('<span dir="auto">{}</span>')
    prompt = judgment.prompt if len(judgment.prompt) <= PROMPT else f"{judgment.prompt[:PROMPT]} …"
    passage = Markup('<div class="ks-prose" dir="auto">{}<mark>{}</mark>{}</div>')
    return (
        text.format(mark.reason),
        passage.format(mark.prefix, mark.quote, mark.suffix),
        {"tie": "tie", "both_bad": "both bad", side: "preferred"}.get(judgment.outcome, "other"),
        components.prose(prompt),
        text.format(judgment.annotator),
        components.moment(judgment.created_at),
    )
