"""Webhooks, e-mail addresses, deliveries and events as HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from labeler.html import components
from labeler.html.components import Column, Markup, Tone
from labeler.webhooks.wording import TITLES, told
from storage.notification_records import Event, Webhook
from storage.tables.runs.webhooks import DeliveryCounts, ListedDelivery

_TONES: dict[str, Tone] = {"delivered": "good", "pending": "info", "failed": "bad"}
_WEBHOOKS = (
    Column(
        "Receiver",
        help="The e-mail address, or the host of the URL: its path may contain a token.",
    ),
    Column("Events"),
    Column("State"),
    Column("Deliveries"),
    Column("Last success"),
    Column(""),
)
_DELIVERIES = (
    Column("Last attempt"),
    Column("Event"),
    Column("Receiver"),
    Column("Status"),
    Column("Attempts", "right"),
    Column("Response"),
    Column(""),
)
_EVENTS = (Column("Time"), Column("Event"), Column("What happened"))


def payload(events: Sequence[Event]) -> Markup:
    """The newest events for ``notify.js``, oldest first."""
    content = [
        {"id": each.id, "at": each.created_at.timestamp(), **vars(told(each))}
        for each in reversed(events)
    ]
    return Markup('<div id="ks-events" hidden data-events="{}"></div>').format(json.dumps(content))


def webhooks(
    listed: Sequence[Webhook], counts: Mapping[str, DeliveryCounts], *, now: datetime
) -> Markup:
    """A row for each webhook, with buttons."""
    if not listed:
        return components.empty(
            "No receivers yet",
            "Add the URL of a program, or the e-mail address of a person, that should receive events.",
        )
    rows = (_webhook(each, counts.get(each.id, DeliveryCounts()), now) for each in listed)
    return components.table(_WEBHOOKS, rows, caption="Webhooks and e-mail addresses")


def _webhook(webhook: Webhook, counted: DeliveryCounts, now: datetime) -> tuple[Markup | str, ...]:
    numbers = [f"{counted.delivered:,} delivered"]
    numbers += [f"{counted.pending:,} pending"] * bool(counted.pending)
    numbers += [f"{counted.failed:,} failed"] * bool(counted.failed)
    return (
        _two_lines(webhook.host, webhook.description or webhook.id),
        ", ".join(TITLES[each] for each in webhook.events),
        _state(webhook),
        ", ".join(numbers),
        components.ago(counted.delivered_at, now) if counted.delivered_at else components.DASH,
        _buttons(webhook),
    )


def _state(webhook: Webhook) -> Markup:
    if webhook.active:
        return components.badge("active", "good")
    badge = components.badge("disabled", "bad" if webhook.reason else "neutral")
    return Markup("{}{}").format(badge, components.detail(f" {webhook.reason}"))


def _buttons(webhook: Webhook) -> Markup:
    on_off = ("Disable", "disable") if webhook.active else ("Enable", "enable")
    rotate = _asking(
        "Rotate secret …",
        "rotate",
        webhook,
        "Make a new secret? For a day, requests have the signatures of both secrets.",
    )
    what = "e-mail address" if webhook.address else "webhook"
    buttons = [
        components.button("Send test", "test", webhook.id),
        components.button(*on_off, webhook.id),
        *([] if webhook.address else [rotate]),
        _asking(
            "Remove …", "remove", webhook, f"Remove the {what}? Pending deliveries are not sent."
        ),
    ]
    return Markup('<span class="ks-actions">{}</span>').format(components.lines(buttons))


def _asking(label: str, action: str, webhook: Webhook, question: str) -> Markup:
    """A button that asks first."""
    tone = "bad" if action == "remove" else "neutral"
    return Markup(
        '<button type="button" class="ks-button ks-{}" data-action="{}" data-target="{}" '
        'data-title="{}" data-ask="{}">{}</button>'
    ).format(tone, action, webhook.id, webhook.host, question, label)


def deliveries(listed: Sequence[ListedDelivery], *, now: datetime) -> Markup:
    """A row for each delivery."""
    if not listed:
        return components.empty("No deliveries yet", "They appear here when an event happens.")
    return components.table(
        _DELIVERIES, (_delivery(each, now) for each in listed), caption="Deliveries"
    )


def _delivery(listed: ListedDelivery, now: datetime) -> tuple[Markup | str, ...]:
    found = listed.delivery
    status = components.badge(found.status, _TONES[found.status])
    if found.status == "pending" and not listed.active:
        status = _two_lines(status, "the webhook is disabled")
    elif found.next_at is not None and found.next_at > now:
        pause = components.duration((found.next_at - now).total_seconds())
        status = _two_lines(status, f"next attempt in {pause}")
    said = found.error or (f"{found.code}" if found.code else components.DASH)
    again = components.button("Send again", "resend", found.id)
    return (
        components.moment(found.attempted_at or found.created_at),
        TITLES[listed.type],
        _host(listed.url),
        status,
        components.number(found.attempts),
        said,
        Markup('<span class="ks-actions">{}</span>').format(
            again if found.status != "pending" and listed.type != "ping" else ""
        ),
    )


def events(listed: Sequence[Event]) -> Markup:
    """A row for each event."""
    if not listed:
        return components.empty(
            "No events yet",
            "Enough labels, failed stages, changed verdicts, alarms and flagged pairs appear here.",
        )
    rows = (
        (components.moment(each.created_at), told(each).title, told(each).text) for each in listed
    )
    return components.table(_EVENTS, rows, caption="Events")


def secret(title: str, value: str) -> Markup:
    """A secret with a button that copies it."""
    body = Markup(
        '<div class="ks-copy"><code class="ks-mono">{0}</code>'
        '<button type="button" class="ks-button" data-copy="{0}">Copy</button></div>'
        "Give this secret to the receiver, which verifies requests with it. It is not shown again."
    ).format(value)
    return components.note("good", title, body)


def _two_lines(first: Markup | str, second: str) -> Markup:
    return Markup("{}<br>{}").format(first, components.detail(second))


def _host(url: str) -> str:
    return Webhook(id="", url=url, events=("flag.opened",)).host
