"""The records of notifications: events, the webhooks that receive them, and deliveries.

Imports only `storage.records`, as `gate_records` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from storage.records import check_choice, digest, now

EventType = Literal[
    "labels.reached", "stage.failed", "gate.verdict", "alarm.raised", "flag.opened", "ping"
]
PING: EventType = "ping"
"""Sent by `webhooks test` to one webhook; no webhook can subscribe to it."""
EVENTS: tuple[EventType, ...] = tuple(each for each in get_args(EventType) if each != PING)
"""What a webhook can subscribe to."""
DeliveryStatus = Literal["pending", "delivered", "failed"]
ROTATION = timedelta(days=1)
"""How long the previous secret signs too, after a rotation."""
MAX_URL_LENGTH = 2_000
MAX_DESCRIPTION_LENGTH = 200
MAILTO = "mailto:"
MAX_ADDRESS_LENGTH = 254
"""By RFC 5321."""
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(
    rf"[\w!#$'*+/=^`{{|}}~-]+(?:\.[\w!#$'*+/=^`{{|}}~-]+)*@{_LABEL}(?:\.{_LABEL})*", re.ASCII
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in the workspace; `id` follows from its cause."""

    id: str
    type: EventType
    data: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("event", self.type, EventType)

    @classmethod
    def of(cls, type: EventType, *cause: str, **data: Any) -> Event:
        """An event whose id depends on the type and the ids of its cause: it is recorded once."""
        return cls(id=f"evt_{digest(type, *cause)}", type=type, data=data)


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A receiver of events: an endpoint gets signed POST requests, a ``mailto:`` URL gets e-mails.

    `secret` is the number of the current secret, which increases with each rotation; `secret_hash`
    recognizes it.  Neither reveals it: secrets are derived from a key that is not in the journal.
    `reason` says why the studio has disabled the webhook; it is empty if a person did.
    """

    id: str
    url: str
    events: Sequence[EventType]
    description: str = ""
    active: bool = True
    reason: str = ""
    removed: bool = False
    secret: int = 1
    secret_hash: str = ""
    rotated_at: datetime | None = None
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        require_url(self.url)
        for each in self.events:
            check_choice("event", each, EVENTS)
        chosen = tuple(each for each in EVENTS if each in self.events)
        if not chosen:
            raise ValueError(f"a webhook needs at least one event: {', '.join(EVENTS)}")
        object.__setattr__(self, "events", chosen)
        if len(self.description) > MAX_DESCRIPTION_LENGTH or not self.description.isprintable():
            raise ValueError(
                f"a description has at most {MAX_DESCRIPTION_LENGTH} printable characters"
            )

    @property
    def host(self) -> str:
        """The address without path and query, which may contain a token."""
        if self.address:
            return self.address
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def address(self) -> str:
        """The e-mail address, or "" for an endpoint."""
        return self.url.removeprefix(MAILTO) if self.url.startswith(MAILTO) else ""

    def previous_signs(self, moment: datetime) -> bool:
        """Whether the previous secret still signs."""
        return self.rotated_at is not None and moment < self.rotated_at + ROTATION


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One event for one webhook: its state after `attempts` attempts.

    `next_at` is the time of the next attempt while the delivery is pending.  `code` is the status
    code of the last response, None without one; `error` says why the last attempt failed.
    """

    id: str
    webhook: str
    event: str
    status: DeliveryStatus = "pending"
    attempts: int = 0
    next_at: datetime | None = None
    code: int | None = None
    error: str = ""
    attempted_at: datetime | None = None
    created_at: datetime = field(default_factory=now)

    def __post_init__(self) -> None:
        check_choice("status of a delivery", self.status, DeliveryStatus)


def require_url(url: str) -> None:
    """ValueError for a URL to which no webhook can be sent."""
    if len(url) > MAX_URL_LENGTH or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(
            f"the URL of a webhook has at most {MAX_URL_LENGTH:,} characters, all of them ASCII and "
            "no spaces"
        )
    if url.startswith(MAILTO):
        require_address(url.removeprefix(MAILTO))
        return
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"the URL of the webhook is not valid: {error}") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ValueError(
            "the URL of a webhook starts with https:// or http:// and names a host; for e-mail, give "
            "an address such as ann@example.org"
        )
    if port == 0:
        raise ValueError("the port in the URL of a webhook is from 1 to 65535")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of a webhook has no user name; verify the signature instead")
    if parts.fragment:
        raise ValueError("the URL of a webhook has no fragment (#…)")


def require_address(address: str) -> None:
    """ValueError for text that is not one e-mail address, such as one with another header."""
    if len(address) > MAX_ADDRESS_LENGTH or not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"{address[:MAX_ADDRESS_LENGTH]!r} is not an e-mail address such as ann@example.org"
        )
