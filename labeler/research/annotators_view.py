"""Who judges, how, and how far they agree.  Pure; names and comments are strangers'."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from labeler import view
from labeler.research.reading import Work
from labeler.view import Column, Markup
from storage.records import as_messages

_COLUMNS = (
    Column("Name"),
    Column("Judged", "right", "Current judgments over all iterations."),
    Column("Today", "right", "Since midnight UTC."),
    Column("Median time", "right", "From seeing a pair to answering it."),
    Column(
        "Left",
        "right",
        "Share of decided judgments that went to the response on the left. Sides are tossed "
        "fairly: far from 50% means a side is favoured. Marked where chance alone is unlikely.",
    ),
    Column("Ties", "right", "Share of judgments that are ties."),
    Column("Both bad", "right", "Share of judgments that say both are bad."),
    Column("Skipped", "right"),
    Column("Last", "right"),
    Column(""),
)


def side_bias(left_rate: float | None, decided: int) -> float | None:
    """How many standard errors the left rate is from one half; None without decisions.

    Under a fair toss the rate has the standard error √(¼ / n).
    """
    if left_rate is None or decided == 0:
        return None
    return (left_rate - 0.5) / math.sqrt(0.25 / decided)


def people(work: Sequence[Work], *, now: datetime) -> Markup:
    """One row a person, with what may be done about him."""
    if not work:
        return view.empty("Nobody yet", "Add an annotator and send the invite link.")
    return view.table(_COLUMNS, (_row(item, now) for item in work), caption="Annotators")


def _row(item: Work, now: datetime) -> Sequence[Any]:
    return (
        _name(item),
        view.number(item.judged),
        view.number(item.today),
        view.duration(item.median_seconds),
        _left(item),
        view.percent(item.tie_rate),
        view.percent(item.both_bad_rate),
        view.number(item.skips),
        view.ago(item.latest, now) if item.latest else view.DASH,
        _actions(item),
    )


def _actions(item: Work) -> Markup:
    person = item.annotator
    buttons = (
        [view.button("Enable", "enable", person.id)]
        if person.disabled
        else [
            view.button("Invite link", "invite", person.id),
            view.button("Disable", "disable", person.id, tone="bad"),
        ]
    )
    return Markup('<span class="ks-actions">{}</span>').format(view.lines(buttons))


def _name(item: Work) -> Markup:
    person = item.annotator
    marks = []
    if person.role == "researcher":
        marks.append(view.badge("researcher", "info"))
    if person.kind != "person":
        marks.append(view.badge(person.kind))
    if person.disabled:
        marks.append(view.badge("disabled", "warn"))
    return Markup('<span><b dir="auto">{}</b> {}</span>').format(
        person.name, Markup(" ").join(marks)
    )


def _left(item: Work) -> Markup | str:
    bias = side_bias(item.left_rate, item.decided)
    text = view.percent(item.left_rate)
    # Three standard errors: one honest person in 370 is marked.
    return view.badge(text, "warn") if bias is not None and abs(bias) > 3 else text


def agreement(found: Mapping[str, Any], names: Sequence[str]) -> Markup:
    """Percent agreement, α and the κ of each pair of annotators."""
    if not found["items"]:
        return view.empty(
            "No agreement to show yet",
            "It needs comparisons that two people judged; labeling.overlap sets their share.",
        )
    tiles = view.tiles(
        [
            view.tile(
                "Agreement",
                view.percent(found["percent"], 1),
                "of pairs of judgments say the same",
            ),
            view.tile(
                "Krippendorff's α",
                view.number(found["alpha"]),
                "1 perfect · 0 chance",
                help="Agreement corrected for chance over all annotators and outcomes (nominal). "
                "Careful people often reach only .3 to .6 on open questions.",
            ),
            view.tile(
                "Judged twice or more",
                view.number(found["items"]),
                "comparisons, which it rests on",
            ),
        ]
    )
    return view.lines([tiles, Markup("<br>"), _kappas(found["kappa"], names)])


def _kappas(kappa: Mapping[str, float | None], names: Sequence[str]) -> Markup:
    """Every pair that shares comparisons, the best agreed first."""
    pairs = [(one, other) for one in names for other in names if f"{one}|{other}" in kappa]
    pairs.sort(key=lambda pair: -_or_low(kappa[f"{pair[0]}|{pair[1]}"]))
    rows = [(one, other, _kappa(kappa[f"{one}|{other}"])) for one, other in pairs]
    columns = [
        Column("Annotator"),
        Column("Annotator"),
        Column("Cohen's κ", "right", "Agreement of the two, corrected for what chance gives."),
    ]
    return view.table(columns, rows, caption="Agreement of each pair of annotators")


def _or_low(value: float | None) -> float:
    return -2.0 if value is None else value


def _kappa(value: float | None) -> Markup | str:
    if value is None:
        return view.DASH
    tone: view.Tone = "good" if value >= 0.6 else "neutral" if value >= 0.2 else "warn"
    return view.badge(f"{value:.3f}".replace("-", "−"), tone)


def flags(rows: Sequence[Mapping[str, Any]], *, now: datetime) -> Markup:
    """Reported problems, each with what it is about and a button that clears it."""
    if not rows:
        return view.empty("No open flags", "A flagged pair leaves every queue until cleared here.")
    return view.lines(_flag(row, now) for row in rows)


def _flag(row: Mapping[str, Any], now: datetime) -> Markup:
    messages = as_messages(json.loads(row["messages"]))
    return Markup(
        '<article class="ks-sample"><header><div>{}<div class="ks-detail">{} · {}</div></div>{}'
        '</header><div class="ks-side">{}</div><div class="ks-sides">'
        '<div class="ks-side">{}</div><div class="ks-side">{}</div></div></article>'
    ).format(
        view.prose(row["comment"] or "(no comment)"),
        row["annotator"] or "somebody",
        view.ago(row["created_at"], now),
        view.button("Clear", "clear", row["id"]),
        view.conversation(messages),
        view.prose(row["first"]),
        view.prose(row["second"]),
    )


def invite(name: str, link: str) -> Markup:
    """A link to pass on, with a button that copies it."""
    body = Markup(
        '<div style="display:flex;gap:8px;flex-wrap:wrap;align-items:center;margin-top:6px">'
        '<code class="ks-mono" style="overflow-wrap:anywhere">{0}</code>'
        '<button type="button" class="ks-button" data-copy="{0}">Copy</button></div>'
        "Valid once, for a week. Whoever opens it chooses a password and is signed in."
    ).format(link)
    return view.note("good", f"Send this link to {name}.", body)
