"""Who is asking: session cookies, bearer tokens, sign-in links, invites and passwords.

Secrets live in `storage.tables.tokens` (only their hashes are stored).  The one exception is the
sign-in link that `serve` prints: it ends with the process, so it is kept in memory.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

from labeler.security.browsers import KnownBrowsers
from labeler.security.passwords import Allowance, Busy, Lockout, check_password, hash_password
from storage.engine.database import Database
from storage.records import Annotator, digest
from storage.tables import annotators, tokens
from storage.tables.tokens import TokenKind

SESSION_LIFETIME = timedelta(days=30)
INVITE_LIFETIME = timedelta(days=7)
REMEMBERED = 60.0
"""Seconds for which a secret that was good is not looked up again (that takes 2 ms of a core).

What changes a person or ends a session is a commit that `Database.people_version` counts, after
which everything is looked up again at once; only the end of a token's time may be noticed this late.
"""
MOST_REMEMBERED = 10_000
_INVITE_ENDED = "This invite link was used already or has expired. Ask for a new one."


class SignInRefused(PermissionError):
    """A sign-in that failed; the message is a sentence for the person."""


@dataclass(frozen=True)
class Identity:
    """Who a request comes from; `bearer` is True when a script's token said so, not the cookie."""

    annotator: Annotator
    bearer: bool


class Auth:
    """Everything that turns secrets into people.  Thread-safe."""

    def __init__(
        self, db: Database, *, accounts_required: bool, public_url: str | None = None
    ) -> None:
        self.db = db
        self.accounts_required = accounts_required
        self.public_url = public_url.rstrip("/") if public_url else None
        self.secure = (public_url or "").startswith("https:")
        self.lockout = Lockout()
        self.allowance = Allowance()
        # Browsers share cookies between the ports of a host: two workspaces need two names.
        own = f"kitestring-{digest(str(db.workspace.resolve()))[:8]}"
        # With the prefix, no other host of the domain can set it, nor a page without TLS.
        self.cookie = f"__Host-{own}" if self.secure else own
        self.browsers = KnownBrowsers(db, own)
        self._links: dict[str, str] = {}  # hash of the secret → annotator id
        self._known: dict[tuple[str, str], tuple[Annotator, float, int]] = {}
        self._told: list[Callable[[], None]] = []

    # Requests

    def identify(self, headers: Mapping[str, str]) -> Identity | None:
        """The person behind a request with these (lower-case) headers, or None.

        A bearer token wins over a cookie; a wrong one is not rescued by a cookie.  Other kinds of
        authorization say nothing here.
        """
        kind, secret = self._secret(headers)
        found = self._check(secret, kind)
        return Identity(found, bearer=kind == "api") if found else None

    def recall(self, headers: Mapping[str, str]) -> Identity | None:
        """As `identify`, but only from memory: None may also mean that it has to be looked up."""
        kind, secret = self._secret(headers)
        found = self._remembered(secret, kind)
        return Identity(found, bearer=kind == "api") if found else None

    def _secret(self, headers: Mapping[str, str]) -> tuple[TokenKind, str]:
        scheme, _, secret = headers.get("authorization", "").strip().partition(" ")
        if scheme.lower() == "bearer":
            return "api", secret.strip()
        # Another scheme is for somebody else, such as a proxy that asks for a password first.
        return "session", self.session_secret(headers)

    def session_secret(self, headers: Mapping[str, str]) -> str:
        """The session cookie's value, or an empty string."""
        return self._cookie(headers, self.cookie)

    def _cookie(self, headers: Mapping[str, str], wanted: str) -> str:
        # Cookies of other programs at this host come along, and http.cookies stops reading at the
        # first one that it cannot parse.
        pairs = (part.partition("=") for part in headers.get("cookie", "").split(";"))
        return next((value.strip() for name, _, value in pairs if name.strip() == wanted), "")

    def _remembered(self, secret: str, kind: TokenKind) -> Annotator | None:
        found, since, version = self._known.get((kind, _hash(secret)), (None, 0.0, -1))
        good = version == self.db.people_version and time.monotonic() - since < REMEMBERED
        return found if good else None

    def _check(self, secret: str, kind: TokenKind) -> Annotator | None:
        if not secret:
            return None
        found = self._remembered(secret, kind)
        if found is None:
            version = self.db.people_version  # before the look: what it misses is then newer
            found = tokens.check(self.db, secret, (kind,))
            if found is not None:
                if len(self._known) >= MOST_REMEMBERED:
                    self._known = {}
                self._known[kind, _hash(secret)] = (found, time.monotonic(), version)
        return found

    def people_changed(self) -> None:
        """Somebody may have been disabled or signed out: tell those who serve people for long.

        Not for the event loop: they ask the database.
        """
        for callback in self._told:
            callback()

    def when_people_change(self, callback: Callable[[], None]) -> None:
        """Call this whenever somebody may no longer be who they were."""
        self._told.append(callback)

    # Links

    def sign_in_url(self, annotator: Annotator, *, landing: str = "/label/") -> str:
        """A link that signs `annotator` in once, as long as this process runs.

        Where accounts are required it is an invite instead (they choose a password), or the plain
        sign-in page once they have one.  Without a public URL it starts with "/".
        """
        if self.accounts_required:
            if annotator.password_hash:
                return f"{self.public_url or ''}/sign-in?next={quote(landing)}"
            return self.invite_url(annotator)
        secret = secrets.token_urlsafe(24)
        self._links[_hash(secret)] = annotator.id
        return f"{self.public_url or ''}/sign-in?token={secret}&next={quote(landing)}"

    def invite_url(self, annotator: Annotator) -> str:
        """A link with which `annotator` sets a (new) password; valid once, for a week."""
        secret = tokens.issue(self.db, annotator.id, "invite", lifetime=INVITE_LIFETIME)
        return f"{self.public_url or ''}/invite?token={quote(secret)}"

    def link_owner(self, secret: str) -> Annotator | None:
        """Whom a sign-in link belongs to; None for a wrong or outdated one."""
        owner = self._links.get(_hash(secret))
        found = annotators.get(self.db, owner) if owner else None
        return found if found and not found.disabled else None

    def use_link(self, secret: str) -> Annotator | None:
        """As `link_owner`, and the link is used up: it stays in histories and in logs of proxies."""
        found = self.link_owner(secret)
        # One of two that press at the same moment gets it.
        return found if self._links.pop(_hash(secret), None) else None

    def invited(self, secret: str) -> Annotator | None:
        """Whom an invite belongs to; None for a wrong, used or expired one."""
        return tokens.check(self.db, secret, ("invite",)) if secret else None

    # Sessions

    def start_session(self, annotator: Annotator) -> str:
        """The value for the session cookie."""
        return tokens.issue(self.db, annotator.id, "session", lifetime=SESSION_LIFETIME)

    def end_session(self, secret: str) -> None:
        """Sign out: the cookie is worth nothing from now on, wherever it was copied to."""
        if secret:
            tokens.revoke(self.db, secret)
            self.people_changed()

    def sign_in_with_password(
        self, name: str, password: str, *, address: str, headers: Mapping[str, str]
    ) -> Annotator:
        """The annotator with this name and password; `Refused` otherwise, `Busy` for too many.

        The answer to an unknown name, a wrong password and a disabled account is the same.  Wrong
        passwords are counted by name and by `address`, those of a browser that the name's owner
        has used before by that browser alone.
        """
        found = annotators.by_name(self.db, name)
        browser = self._known_browser(found, headers)
        counted = name if browser is None else f"{name}\0{browser}"
        wait = self.lockout.attempt(counted)
        if wait > 0:
            minutes = max(1, round(wait / 60))
            raise SignInRefused(
                f"Too many failed attempts. Wait {minutes} min, use a browser in which you have "
                "signed in before, or ask for a new invite link."
            )
        try:
            right = self._check_password(found, password, address=address, browser=browser)
        except Busy:
            self.lockout.forgive(counted)
            raise
        if found is None or found.disabled or not right:
            raise SignInRefused("That name and password do not match.")
        self.lockout.succeeded(counted)
        return found

    def _check_password(
        self, found: Annotator | None, password: str, *, address: str, browser: str | None
    ) -> bool:
        stored = found.password_hash if found else None
        if browser is not None:
            return check_password(password, stored, known=True)
        wait = self.allowance.take(address)
        if wait > 0:
            raise Busy("Too many wrong passwords came from your address. Try again soon.", wait)
        right = check_password(password, stored)
        if right:
            self.allowance.give_back(address)
        return right

    def _known_browser(self, found: Annotator | None, headers: Mapping[str, str]) -> str | None:
        if found is None or not (value := self._cookie(headers, self.browsers.cookie(found))):
            return None
        return self.browsers.recognize(found, value)

    def set_password(self, invite: str, password: str) -> Annotator:
        """Use up an invite.  Every older session and token of the person ends with it."""
        # Asked first, so that strangers cannot keep the machine busy with passwords, and again
        # when it is used: somebody may have disabled the person while the password was hashed.
        if self.invited(invite) is None:
            raise SignInRefused(_INVITE_ENDED)
        changed = annotators.accept_invite(self.db, invite, password_hash=hash_password(password))
        if changed is None:
            raise SignInRefused(_INVITE_ENDED)
        self.people_changed()
        self.lockout.succeeded(changed.name)
        return changed


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
