"""Cookies for browsers in which a user has signed in before; a lockout does not apply to them.

Without them, an attacker's five wrong passwords would lock out the owner of the name. See OWASP's
"Slow Down Online Guessing Attacks with Device Cookies".
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta

from storage.engine.database import Database
from storage.records import Annotator, digest
from storage.tables import settings

LIFETIME = timedelta(days=365)
PATH = "/sign-in"
"""The path to which browsers send the cookie."""

_SECRET = "browser_secret"


class KnownBrowsers:
    """Creates and checks the cookies; each is valid until its owner's password hash changes."""

    def __init__(self, db: Database, prefix: str) -> None:
        self._db = db
        self._prefix = prefix
        self._key: bytes | None = None

    def cookie(self, annotator: Annotator) -> str:
        """The name of this annotator's cookie; annotators may share a browser."""
        return f"{self._prefix}-known-{digest(annotator.id)[:8]}"

    def mark(self, annotator: Annotator) -> str:
        """The value of a new cookie."""
        browser = secrets.token_urlsafe(16)
        return f"{browser}.{self._signature(annotator, browser)}"

    def recognize(self, annotator: Annotator, value: str) -> str | None:
        """The id of the browser that sent this value; None if its signature is invalid."""
        browser, _, signature = value.partition(".")
        right = self._signature(annotator, browser)
        return browser if hmac.compare_digest(signature.encode(), right.encode()) else None

    def _signature(self, annotator: Annotator, browser: str) -> str:
        # The password hash has a random salt, so each change of the password changes it.
        signed = "\0".join((annotator.id, annotator.password_hash or "", browser))
        return hmac.new(self._secret(), signed.encode(), hashlib.sha256).hexdigest()

    def _secret(self) -> bytes:
        if self._key is None:
            self._key = settings.secret(self._db, _SECRET)
        return self._key
