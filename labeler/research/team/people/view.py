"""Accounts and flagged pairs as HTML. Names and comments are untrusted. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.reading import OpenFlag, Work
from labeler.research.team.people import reliability_view
from storage.analysis.annotator_fit import AnnotatorEstimate
from storage.analysis.checks import CheckResult, PracticeState
from storage.analysis.reliability import AnnotatorFigures
from storage.records import AnnotatorRole, as_messages
from storage.tables.people.tokens import Ways
from storage.wording import plural

_COLUMNS = (
    Column("Person"),
    Column(
        "Judged", "right", "Current judgments in all iterations. Small: those since midnight UTC."
    ),
    Column(
        "Pace",
        "right",
        "Median time from seeing a pair to judging it. Small: judgments per hour of work; pauses of "
        "more than five minutes are left out.",
    ),
    Column(
        "Agreement",
        "right",
        "Share of the other annotators' judgments of the same pairs that agree. Small: its 95% "
        "interval, and the number of pairs that others also judged.",
    ),
    Column(
        "Gold",
        "right",
        "Share of gold pairs that were answered as expected. Small: its 95% interval, the number of "
        "gold pairs, and whether practice is passed.",
    ),
    Column(
        "Reliability",
        "right",
        "How strongly the choices depend on the reward, fitted with the newest reward model: 1 is "
        "average, 0 means no dependence. Small: its 95% interval.",
    ),
    Column("Last", "right", "The last current judgment."),
    Column(
        "Signs in with",
        "left",
        "A password, an account at an OpenID provider, and what is open: invites that were not used yet, API tokens of scripts.",
    ),
    Column(""),
)


@dataclass(frozen=True, kw_only=True)
class Person:
    """What the table shows of one person; None where there is nothing yet."""

    work: Work
    figures: AnnotatorFigures | None = None
    per_hour: float | None = None
    gold: CheckResult = field(default_factory=CheckResult)
    practice: PracticeState | None = None
    estimate: AnnotatorEstimate | None = None
    remarks: Sequence[str] = ()
    ways: Ways = field(default_factory=Ways)


def people(persons: Sequence[Person], *, now: datetime) -> Markup:
    """A row for each person, with a button that opens what can be done."""
    if not persons:
        return components.empty("Nobody yet", "Add a person and send them the invite link.")
    return components.table(_COLUMNS, (_row(each, now) for each in persons), caption="People")


def _row(each: Person, now: datetime) -> Sequence[Any]:
    work, figures = each.work, each.figures
    today = f"{work.today} today" if work.today else ""
    skipped = f"{work.skips} skipped" if work.skips else ""
    seconds = figures.median_seconds if figures else None
    hourly = f"{each.per_hour:.0f} per hour" if each.per_hour is not None else ""
    return (
        _name(each),
        components.figure(components.number(work.judged), today, skipped),
        components.figure(components.duration(seconds), hourly) if seconds else components.DASH,
        _agreement(figures),
        _gold(each),
        reliability_view.slope(each.estimate),
        components.ago(work.latest, now) if work.latest else components.DASH,
        _ways(each),
        _manage(each),
    )


def _agreement(figures: AnnotatorFigures | None) -> Markup | str:
    if figures is None or figures.agreement is None:
        return components.DASH
    return reliability_view.shared_agreement(figures)


def _gold(each: Person) -> Markup | str:
    practice = f"practice {each.practice}" if each.practice else ""
    if each.gold.interval is None:
        return components.figure(components.DASH, practice) if practice else components.DASH
    spread = components.interval(*each.gold.interval)
    pairs = plural(each.gold.answered, "pair")
    return components.figure(components.percent(each.gold.share), spread, pairs, practice)


def _ways(each: Person) -> str:
    person = each.work.annotator
    if person.disabled:
        return components.DASH
    ways = each.ways
    found = [
        "password" if person.password_hash else "",
        "OpenID" if ways.linked else "",
        plural(ways.invites, "invite") if ways.invites else "",
        plural(ways.tokens, "API token") if ways.tokens else "",
    ]
    return ", ".join(filter(None, found)) or "nothing yet"


def _manage(each: Person) -> Markup:
    person = each.work.annotator
    return Markup(
        '<button type="button" class="ks-button" data-action="manage" data-target="{}" '
        'data-title="{}" data-role="{}" data-roles="{}" data-disabled="{}" data-open="{}" '
        'aria-label="Manage {}">Manage …</button>'
    ).format(
        person.id,
        person.name,
        person.role,
        " ".join(get_args(AnnotatorRole)) if person.kind == "person" else "",
        "yes" if person.disabled else "",
        each.ways.invites + each.ways.tokens,
        person.name,
    )


def _name(each: Person) -> Markup:
    person = each.work.annotator
    tone: components.Tone = "info" if person.role == "researcher" else "neutral"
    marks = [components.badge(person.role, tone)] if person.role != "annotator" else []
    if person.kind != "person":
        marks.append(components.badge(person.kind))
    if person.disabled:
        marks.append(components.badge("disabled", "warn"))
    said = components.lines(components.badge(words, "warn") for words in each.remarks)
    return Markup('<span class="ks-words"><span><b dir="auto">{}</b> {}</span>{}</span>').format(
        person.name, Markup(" ").join(marks), said
    )


def token(name: str, secret: str) -> Markup:
    """A new API token with a button that copies it."""
    body = Markup(
        '<div class="ks-copy"><code class="ks-mono">{0}</code>'
        '<button type="button" class="ks-button" data-copy="{0}">Copy</button></div>'
        "It is shown only now, and does not expire. A script sends it as <code>Authorization: Bearer "
        "TOKEN</code>."
    ).format(secret)
    return components.note("good", f"API token of {name}", body)


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
