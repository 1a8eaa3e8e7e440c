"""Secrets and signatures by the Standard Webhooks specification (HMAC-SHA256, version v1).

The secrets of all webhooks are derived from one key in `WORKSPACE/webhooks.key` (mode 0600).  The
journal, backups, exports and the evidence package do not contain it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import threading
from datetime import datetime
from pathlib import Path

from storage.engine.files import write_file
from storage.notification_records import Webhook

KEY_FILE = "webhooks.key"
_PREFIX = "whsec_"
_KEY = re.compile(r"[0-9a-f]{64}\n?")


class SecretLost(ValueError):
    """The key is not the one with which the secret of a webhook was made."""


class Secrets:
    """The secrets of a workspace's webhooks."""

    def __init__(self, workspace: Path) -> None:
        self._path = workspace / KEY_FILE
        self._lock = threading.Lock()

    def of(self, webhook: Webhook) -> str:
        """The current secret; SecretLost if `WORKSPACE/webhooks.key` was lost or replaced."""
        secret = self.derived(webhook.id, webhook.secret)
        if not hmac.compare_digest(fingerprint(secret), webhook.secret_hash):
            raise SecretLost(
                f"The secret of this webhook is lost, because {KEY_FILE} is not in this workspace. "
                "Rotate the secret, and give the new one to the receiver."
            )
        return secret

    def signing(self, webhook: Webhook, moment: datetime) -> list[str]:
        """The secrets that sign a request now: the current one, and for a day the previous one."""
        current = self.of(webhook)
        if not webhook.previous_signs(moment):
            return [current]
        return [current, self.derived(webhook.id, webhook.secret - 1)]

    def derived(self, id: str, number: int) -> str:
        """The secret with this number of a webhook, from 32 bytes."""
        raw = hmac.new(self._key(), f"{id}.{number}".encode(), hashlib.sha256).digest()
        return _PREFIX + base64.b64encode(raw).decode()

    def _key(self) -> bytes:
        """The key, created on first use."""
        with self._lock:
            if not self._path.exists():
                write_file(self._path, secrets.token_hex(32) + "\n")
        text = self._path.read_text(encoding="ascii")
        if not _KEY.fullmatch(text):
            raise SecretLost(
                f"{self._path} is damaged. Remove it, then rotate the secret of each webhook."
            )
        return bytes.fromhex(text.strip())


def fingerprint(secret: str) -> str:
    """Recognizes a secret without revealing it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def sign(secret: str, *, id: str, timestamp: int, body: bytes) -> str:
    """The signature of a request: ``v1,`` and the base64 of the HMAC over id, timestamp and body."""
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    signed = b"%s.%d.%s" % (id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
