"""What people do with webhooks: the commands `webhooks …` and the section *Notifications*.

Results are JSON values.  A secret is in a result only when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlsplit

from labeler.webhooks.addresses import require_allowed
from labeler.webhooks.dispatcher import Dispatcher
from labeler.webhooks.signature import SecretLost, fingerprint
from storage.engine.database import Database
from storage.notification_records import (
    EVENTS,
    MAILTO,
    ROTATION,
    DeliveryStatus,
    EventType,
    Webhook,
    require_url,
)
from storage.records import new_id, now
from storage.tables.runs import webhooks
from storage.tables.runs.webhooks import ListedDelivery

MAX_LISTED = 1_000


class Webhooks:
    """The webhooks of an open workspace."""

    def __init__(self, db: Database, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._db = db

    def commands(self) -> dict[str, Callable[..., Any]]:
        """The commands of the command line by name."""
        return {
            "webhooks.add": self.add,
            "webhooks.list": self.listing,
            "webhooks.test": self.test,
            "webhooks.enable": self.enable,
            "webhooks.disable": self.disable,
            "webhooks.remove": self.remove,
            "webhooks.rotate": self.rotate,
            "webhooks.deliveries": self.deliveries,
            "webhooks.resend": self.resend,
        }

    def add(
        self, url: str, events: Sequence[EventType] = EVENTS, description: str = ""
    ) -> dict[str, Any]:
        """Add a webhook; the result has its secret, which is not shown again.

        `url` may be an e-mail address, with or without ``mailto:``; then there is no secret.
        ValueError for a URL that is not valid or names a private address, and for an e-mail address
        if the operator has not set up a mail server or does not allow the domain.
        """
        url = url.strip()
        if "@" in url and "/" not in url and not url.startswith(MAILTO):
            url = MAILTO + url
        require_url(url)
        if url.startswith(MAILTO):
            return self._add_address(url, events, description)
        host = urlsplit(url).hostname or ""
        require_allowed(host, allow_private=self.dispatcher.allow_private)
        id = new_id("wh")
        secret = self.dispatcher.secrets.derived(id, 1)
        made = Webhook(
            id=id,
            url=url,
            events=events,
            description=description.strip(),
            secret_hash=fingerprint(secret),
        )
        return self._view(webhooks.add(self._db, made)) | {"secret": secret}

    def _add_address(
        self, url: str, events: Sequence[EventType], description: str
    ) -> dict[str, Any]:
        self.dispatcher.mail_settings().require_recipient(url.removeprefix(MAILTO))
        made = Webhook(id=new_id("wh"), url=url, events=events, description=description.strip())
        return self._view(webhooks.add(self._db, made))

    def listing(self) -> list[dict[str, Any]]:
        """The webhooks with the numbers of their deliveries."""
        return [self._view(each) for each in webhooks.listing(self._db)]

    def test(self, id: str) -> dict[str, Any]:
        """Send a ping now and return its delivery; a webhook that is disabled gets it too."""
        ping = webhooks.ping(self._db, webhooks.get(self._db, id).id)
        done = self.dispatcher.attempt(ping.id)
        return {"status": done.status, "code": done.code, "error": done.error, "event": done.event}

    def enable(self, id: str) -> dict[str, Any]:
        """Send events again; pending deliveries continue at once."""
        return self._change(id, lambda each: replace(each, active=True, reason=""))

    def disable(self, id: str) -> dict[str, Any]:
        """Send nothing until the webhook is enabled; events of that time are not sent later."""
        return self._change(id, lambda each: replace(each, active=False, reason=""))

    def remove(self, id: str) -> dict[str, Any]:
        """Remove a webhook; its pending deliveries are not sent."""
        return self._change(id, lambda each: replace(each, active=False, removed=True))

    def rotate(self, id: str) -> dict[str, Any]:
        """Replace the secret.  For `ROTATION`, requests have the signatures of both secrets."""
        known = webhooks.get(self._db, id)
        if known.address:
            raise ValueError("an e-mail address has no secret")
        secret = self.dispatcher.secrets.derived(id, known.secret + 1)
        try:
            self.dispatcher.secrets.of(known)
            rotated_at = now()
        except SecretLost:
            rotated_at = None

        def rotated(webhook: Webhook) -> Webhook:
            if webhook.secret != known.secret:
                raise ValueError("the secret was rotated in the meantime; try again")
            return replace(
                webhook,
                secret=webhook.secret + 1,
                secret_hash=fingerprint(secret),
                rotated_at=rotated_at,
            )

        until = (rotated_at + ROTATION).isoformat() if rotated_at else None
        return self._change(id, rotated) | {"secret": secret, "previous_signs_until": until}

    def deliveries(
        self, webhook: str | None = None, status: DeliveryStatus | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        """Deliveries, those with the newest attempt first."""
        if not 1 <= limit <= MAX_LISTED:
            raise ValueError(f"limit is {limit} and must be from 1 to {MAX_LISTED:,}")
        found = webhooks.deliveries(self._db, webhook=webhook, status=status, limit=limit)
        return [_delivery(each) for each in found]

    def resend(self, id: str) -> dict[str, Any]:
        """Send the event of a delivery again, with the same id, and start its attempts anew."""
        return _dates(asdict(webhooks.send_again(self._db, id)))

    def _change(self, id: str, changed: Callable[[Webhook], Webhook]) -> dict[str, Any]:
        return self._view(webhooks.change(self._db, id, changed))

    def _view(self, webhook: Webhook) -> dict[str, Any]:
        counted = webhooks.counts(self._db).get(webhook.id, webhooks.DeliveryCounts())
        return _dates(
            {
                "id": webhook.id,
                "url": webhook.url,
                "events": list(webhook.events),
                "description": webhook.description,
                "active": webhook.active,
                "reason": webhook.reason,
                "rotated_at": webhook.rotated_at,
                "created_at": webhook.created_at,
                **asdict(counted),
            }
        )


def _delivery(listed: ListedDelivery) -> dict[str, Any]:
    return {"type": listed.type, "url": listed.url} | _dates(asdict(listed.delivery))


def _dates(values: dict[str, Any]) -> dict[str, Any]:
    """Times in ISO 8601."""
    return {
        key: value.isoformat(timespec="seconds") if hasattr(value, "isoformat") else value
        for key, value in values.items()
    }
