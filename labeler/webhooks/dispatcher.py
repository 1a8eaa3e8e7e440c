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

from labeler.html.components import sentence
from labeler.webhooks import mail, mail_settings, sender
from labeler.webhooks.mail_settings import MailSettings
from labeler.webhooks.signature import SecretLost, Secrets, sign
from storage.engine.database import Database
from storage.errors import NotFound, StorageUnavailable
from storage.notification_records import Delivery, Event
from storage.records import now
from storage.tables.runs import webhooks
from storage.tables.runs.webhooks import SCHEDULE, Attempt, Prepared

_LOG = logging.getLogger(__name__)
_EVERY = 1.0
"""Seconds between two looks into the outbox."""
_PATIENCE = 2.0
"""Seconds for which a stopping server waits for open requests."""
_DISK_PAUSE = 60.0
"""Seconds before a webhook is tried again, if the disk refused to store the last result."""
AGENT = "Kitestring-Webhooks/1"


class Dispatcher:
    """Sends the deliveries of one workspace; a context manager that runs in the background.

    `seconds` limits an attempt; by default 15 s for a request and 30 s for an e-mail.
    """

    def __init__(
        self,
        db: Database,
        *,
        allow_private: bool = False,
        schedule: Sequence[timedelta] = SCHEDULE,
        every: float = _EVERY,
        seconds: float | None = None,
    ) -> None:
        self.allow_private = allow_private
        self.address = ""
        """The studio's URL, for links in e-mails; a server sets it."""
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

    def mail_settings(self) -> MailSettings:
        """The settings of the mail server; ValueError if there are none or they are wrong."""
        found = mail_settings.read(self._db.workspace)
        if found is None:
            raise ValueError(mail_settings.NOT_SET_UP.format(file=mail_settings.FILE))
        return found

    def _send(self, prepared: Prepared) -> Attempt:
        return self._mail(prepared) if prepared.webhook.address else self._post(prepared)

    def _mail(self, prepared: Prepared) -> Attempt:
        to = prepared.webhook.address
        try:
            settings = self.mail_settings()
            settings.require_recipient(to)
        except ValueError as error:
            return Attempt(error=sentence(str(error)))
        made = mail.message(
            prepared.event,
            to,
            settings,
            id=prepared.delivery.id,
            workspace=self._db.workspace.name,
            address=self.address,
        )
        return mail.send(made, settings, seconds=self._seconds or mail.TOTAL_SECONDS)

    def _post(self, prepared: Prepared) -> Attempt:
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
            webhook.url,
            body,
            headers,
            allow_private=self.allow_private,
            seconds=self._seconds or sender.TOTAL_SECONDS,
        )


def payload(event: Event) -> bytes:
    """The body of a request; the same at every attempt."""
    content = {
        "type": event.type,
        "timestamp": event.created_at.isoformat(),
        "data": dict(event.data),
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
