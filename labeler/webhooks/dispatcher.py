"""Sends pending deliveries in threads of their own, away from the writer thread and from annotators.

One thread looks into the outbox.  Each webhook has at most one request at a time, in a thread of its
own, so a dead receiver delays no other webhook.  An attempt is stored after its response: if the
process is killed in between, the event is sent again, with the same id.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from labeler.webhooks import sender
from labeler.webhooks.signature import SecretLost, Secrets, sign
from storage.engine.database import Database
from storage.errors import NotFound, StorageUnavailable
from storage.notification_records import Delivery, Event
from storage.records import now
from storage.tables import webhooks
from storage.tables.webhooks import SCHEDULE, Attempt, Prepared

_LOG = logging.getLogger(__name__)
_EVERY = 1.0
"""Seconds between two looks into the outbox."""
_PATIENCE = 2.0
"""Seconds for which a stopping server waits for open requests."""
_DISK_PAUSE = 60.0
"""Seconds before a webhook is tried again, if the disk refused to store the last result."""
AGENT = "Kitestring-Webhooks/1"


class Dispatcher:
    """Sends the deliveries of one workspace; a context manager that runs in the background."""

    def __init__(
        self,
        db: Database,
        *,
        allow_private: bool = False,
        schedule: Sequence[timedelta] = SCHEDULE,
        every: float = _EVERY,
        seconds: float = sender.TOTAL_SECONDS,
    ) -> None:
        self.allow_private = allow_private
        self.secrets = Secrets(db.workspace)
        self._db = db
        self._schedule = schedule
        self._every, self._seconds = every, seconds
        self._stop = threading.Event()
        self._turns: dict[str, threading.Lock] = {}
        self._senders: dict[str, threading.Thread] = {}
        self._seen = -1
        self._next: datetime | None = None

    def __enter__(self) -> Dispatcher:
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for thread in list(self._senders.values()):
            thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.step()
            except StorageUnavailable:
                self._seen = -1  # the disk is full; look again
            except Exception:
                _LOG.exception("The outbox of webhooks cannot be read")

    def step(self) -> None:
        """Start a thread for each webhook that has deliveries due and no thread."""
        due_before = self._next is not None and self._next <= now()
        if self._db.committed == self._seen and not due_before:
            return
        seen, moment = self._db.committed, now()
        outbox = webhooks.outbox(self._db)
        for webhook in dict.fromkeys(due.webhook for due in outbox if due.next_at <= moment):
            self._start(webhook)
        self._seen = seen
        self._next = min((due.next_at for due in outbox), default=None)

    def _start(self, webhook: str) -> None:
        running = self._senders.get(webhook)
        if running is not None and running.is_alive():
            return
        thread = threading.Thread(
            target=self._drain, args=(webhook,), name=f"webhook {webhook}", daemon=True
        )
        self._senders[webhook] = thread
        thread.start()

    def _drain(self, webhook: str) -> None:
        """Send what is due to one webhook."""
        # The next look starts another thread.  RuntimeError: the workspace was closed.
        with suppress(NotFound, RuntimeError):
            while not self._stop.is_set():
                moment = now()
                due = [
                    each.id
                    for each in webhooks.outbox(self._db)
                    if each.webhook == webhook and each.next_at <= moment
                ]
                if not due:
                    return
                for delivery in due:
                    if self._stop.is_set():
                        return
                    try:
                        self.attempt(delivery)
                    except StorageUnavailable:
                        # The result was not stored, so the event will be sent again: not soon.
                        self._stop.wait(_DISK_PAUSE)
                        return

    def attempt(self, delivery: str) -> Delivery:
        """Make one attempt, in this thread, and store its result.

        Waits for the webhook's open request.  Does nothing if the delivery is not pending any more.
        """
        webhook = delivery.partition(".")[0]
        with self._turns.setdefault(webhook, threading.Lock()):
            prepared = webhooks.prepared(self._db, delivery)
            if prepared.delivery.status != "pending":
                return prepared.delivery
            result = self._send(prepared)
            return webhooks.store_attempt(self._db, delivery, result, schedule=self._schedule)

    def _send(self, prepared: Prepared) -> Attempt:
        event, webhook, moment = prepared.event, prepared.webhook, now()
        body = payload(event)
        try:
            signing = self.secrets.signing(webhook, moment)
        except SecretLost as error:
            return Attempt(error=str(error))
        stamp = int(moment.timestamp())
        signatures = [sign(each, id=event.id, timestamp=stamp, body=body) for each in signing]
        headers = {
            "Content-Type": "application/json",
            "User-Agent": AGENT,
            "webhook-id": event.id,
            "webhook-timestamp": str(stamp),
            "webhook-signature": " ".join(signatures),
        }
        return sender.post(
            webhook.url, body, headers, allow_private=self.allow_private, seconds=self._seconds
        )


def payload(event: Event) -> bytes:
    """The body of a request; the same at every attempt."""
    content = {
        "type": event.type,
        "timestamp": event.created_at.isoformat(),
        "data": dict(event.data),
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
