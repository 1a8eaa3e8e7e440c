"""Accounts and flagged pairs as HTML. Names and comments are untrusted. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, get_args

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.reading import OpenFlag, Work
from storage.records import Annotator, AnnotatorRole, as_messages

_COLUMNS = (
    Column("Name"),
    Column("Role"),
    Column("Judged", "right", "Current judgments in all iterations."),
    Column("Today", "right", "Since midnight UTC."),
    Column("Skipped", "right"),
    Column("Last", "right"),
    Column(""),
)


def people(work: Sequence[Work], *, now: datetime) -> Markup:
    """A row for each person, with buttons."""
    if not work:
        return components.empty(
            "No annotators yet", "Add an annotator and send them the invite link."
        )
    return components.table(_COLUMNS, (_row(item, now) for item in work), caption="Annotators")


def _row(item: Work, now: datetime) -> Sequence[Any]:
    return (
        _name(item),
        item.annotator.role,
        components.number(item.judged),
        components.number(item.today),
        components.number(item.skips),
        components.ago(item.latest, now) if item.latest else components.DASH,
        _actions(item),
    )


def _actions(item: Work) -> Markup:
    person = item.annotator
    buttons = (
        [components.button("Enable", "enable", person.id)]
        if person.disabled
        else [
            components.button("Invite link", "invite", person.id),
            *([_change_role(person)] if person.kind == "person" else []),
            components.button("Disable", "disable", person.id, tone="bad"),
        ]
    )
    return Markup('<span class="ks-actions">{}</span>').format(components.lines(buttons))


def _change_role(person: Annotator) -> Markup:
    return Markup(
        '<button type="button" class="ks-button" data-action="role" data-target="{}" '
        'data-title="Role of {}" data-role="{}" data-roles="{}">Role …</button>'
    ).format(person.id, person.name, person.role, " ".join(get_args(AnnotatorRole)))


def _name(item: Work) -> Markup:
    person = item.annotator
    marks = []
    if person.kind != "person":
        marks.append(components.badge(person.kind))
    if person.disabled:
        marks.append(components.badge("disabled", "warn"))
    return Markup('<span><b dir="auto">{}</b> {}</span>').format(
        person.name, Markup(" ").join(marks)
    )


def flags(rows: Sequence[OpenFlag], *, now: datetime) -> Markup:
    """Flagged pairs, each with its texts and buttons that answer and clear the flag."""
    if not rows:
        return components.empty(
            "No open flags", "Annotators do not see a flagged pair until you clear its flag here."
        )
    return components.lines(_flag(row, now) for row in rows)


def _flag(row: OpenFlag, now: datetime) -> Markup:
    messages = as_messages(json.loads(row.messages))
    comment = row.comment or "(no comment)"
    annotator = row.annotator or "unknown annotator"
    answer = Markup(
        '<button type="button" class="ks-button" data-action="answer" data-target="{}" '
        'data-title="Answer to {}" data-comment="{}">Answer</button>'
    ).format(row.id, annotator, comment)
    return Markup(
        '<article class="ks-sample"><header><div>{}<div class="ks-detail">{} · {}</div>{}</div>'
        '<span class="ks-actions">{}{}</span>'
        '</header><div class="ks-side">{}</div><div class="ks-sides">'
        '<div class="ks-side">{}</div><div class="ks-side">{}</div></div></article>'
    ).format(
        components.prose(comment),
        annotator,
        components.ago(row.created_at, now),
        components.lines(_answered(text) for text in row.answers or ()),
        answer,
        components.button("Clear", "clear", row.id),
        components.conversation(messages),
        components.prose(row.first),
        components.prose(row.second),
    )


def _answered(text: str) -> Markup:
    return Markup('<div class="ks-answer"><span class="ks-role">Answer</span>{}</div>').format(
        components.prose(text)
    )


def invite(name: str, link: str) -> Markup:
    """An invite link with a button that copies it."""
    body = Markup(
        '<div class="ks-copy"><code class="ks-mono">{0}</code>'
        '<button type="button" class="ks-button" data-copy="{0}">Copy</button></div>'
        "The link works once and expires after a week. Whoever opens it sets the password and is "
        "signed in."
    ).format(link)
    return components.note("good", f"Send this link to {name}.", body)
