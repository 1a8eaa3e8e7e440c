"""The pair to rule on and the latest rulings as HTML.  Texts are untrusted.  Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.data.pair_view import ON_SCREEN, OUTCOMES, texts
from storage.labeling.adjudication import GivenRuling, WaitingPair
from storage.records import MAX_REASON_LENGTH, ScreenOutcome
from storage.wording import plural

REASON = "ruling-reason"
"""The id of the field for the reason."""
_COLUMNS = (
    Column("Prompt"),
    Column("Ruling", help="In the stored order of the responses: 1 is the first one."),
    Column("Votes", help="The current judgments of the annotators; figures use these."),
    Column("Reason"),
    Column("Adjudicator"),
    Column("Time"),
)
_NOTHING = components.empty(
    "No pair waits for you",
    "Pairs wait here if annotators disagree on them, or if a researcher sends them from Judgments. "
    "Pairs that you judged yourself wait for somebody else.",
)


def waiting(pair: WaitingPair | None, count: int) -> Markup:
    """The next pair without models and votes, and the form for the ruling."""
    if pair is None:
        return _NOTHING
    buttons = [_button(outcome, pair.comparison) for outcome in ON_SCREEN]
    sent = components.badge("sent by a researcher", "info") if pair.sent else ""
    return Markup(
        '<article class="ks-pair">{}<section class="ks-ruling"><div>{} {}</div>'
        '<label>Reason <textarea id="{}" rows="3" maxlength="{}" dir="auto"></textarea></label>'
        '<div class="ks-actions">{}</div></section></article>'
    ).format(
        texts(pair.messages, pair.a, pair.b, titles=("A", "B")),
        components.detail(plural(count, "pair waits", "pairs wait")),
        sent,
        REASON,
        MAX_REASON_LENGTH,
        components.lines(buttons),
    )


def _button(outcome: ScreenOutcome, comparison: str) -> Markup:
    return Markup(
        '<button type="button" class="ks-button" data-action="{}" data-target="{}" data-field="{}">'
        "{}</button>"
    ).format(outcome, comparison, REASON, ON_SCREEN[outcome])


def ruled(ruling: GivenRuling) -> Markup:
    """The answer to a ruling: now the votes are shown."""
    votes = ", ".join(f"{vote.annotator}: {OUTCOMES[vote.outcome]}" for vote in ruling.votes)
    return components.note(
        "good",
        f"Ruling stored: {OUTCOMES[ruling.outcome]}.",
        f"The votes (1 is the first response): {votes or 'none'}.",
    )


def rulings(listed: Sequence[GivenRuling]) -> Markup:
    """The latest rulings with the votes."""
    if not listed:
        return components.empty(
            "No rulings yet", "Rulings appear here with the votes on their pairs."
        )
    rows = [
        (
            components.prose(each.prompt),
            components.badge(OUTCOMES[each.outcome], "good"),
            components.lines(
                Markup('<div dir="auto">{}: {}</div>').format(
                    vote.annotator, OUTCOMES[vote.outcome]
                )
                for vote in each.votes
            ),
            components.prose(each.reason),
            Markup('<span dir="auto">{}</span>').format(each.adjudicator or "command line"),
            components.moment(each.created_at),
        )
        for each in listed
    ]
    return components.table(_COLUMNS, rows, caption="Latest rulings")
