"""Authentication: session cookies, bearer tokens, sign-in links, invites and passwords.

`Auth.identify` finds the user of a request; `AccessMiddleware` (access.py) calls it before every
route and checks the user's permissions. `sign_in_with_password` limits wrong passwords: `Lockout`
by name (5, then pauses of a minute and longer) and `Allowance` by address (20), in passwords.py.

`storage.tables.people.tokens` stores the hashes of secrets. Sign-in links are kept in memory, because they
expire with the process.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

from labeler.cookies import read_cookie
from labeler.security.browsers import KnownBrowsers
from labeler.security.passwords import (
    Allowance,
    Busy,
    Lockout,
    Refusals,
    check_password,
    hash_password,
    needs_rehash,
    rehash_password,
)
from storage.audit_records import Actor, acting
from storage.engine.database import Database
from storage.records import Annotator, digest
from storage.tables import audit
from storage.tables.people import annotators, tokens
from storage.tables.people.tokens import TokenKind, hash_secret

SESSION_LIFETIME = timedelta(days=30)
REMEMBERED = 60.0
"""Seconds for which a valid secret is cached; a lookup takes 2 ms of a core.

Every change of an account or session increases `Database.accounts_version`, which invalidates the
cache. Only a token's expiry can be noticed this late.
"""
MAX_REMEMBERED = 10_000
INVITE_ENDED = "This invite link was already used or has expired. Ask for a new one."
TOO_MANY_FAILURES = (
    "Too many failed attempts. Wait {minutes} min, use a browser in which you have signed in before, "
    "or ask for a new invite link."
)
WRONG_SIGN_IN = "The name or the password is wrong."
BUSY_ADDRESS = "Too many wrong passwords came from your network address. Try again later."
WRONG_PASSWORD = "The current password is wrong."
ACCOUNT_CHANGED = "Your account has changed in the meantime. Sign in again."


class SignInRefused(PermissionError):
    """A failed sign-in; the user sees `sentence`, translated, with `values` filled in."""

    def __init__(self, sentence: str, **values: object) -> None:
        super().__init__(sentence.format(**values))
        self.sentence, self.values = sentence, values


class WrongPassword(SignInRefused):
    """The name or the password is wrong."""


@dataclass(frozen=True)
class Identity:
    """The user of a request; `bearer` is True for a script's token, False for the cookie."""

    annotator: Annotator
    bearer: bool

    @property
    def actor(self) -> Actor:
        """The user in the audit log."""
        return Actor(self.annotator.id, "token" if self.bearer else "browser")


class Auth:
    """Finds the user to whom a secret belongs. Thread-safe.

    `provider` is the name of the OpenID provider on the sign-in page.
    """

    def __init__(
        self,
        db: Database,
        *,
        accounts_required: bool,
        public_url: str | None = None,
        provider: str | None = None,
    ) -> None:
        self.db = db
        self.accounts_required = accounts_required
        self.provider = provider
        self.public_url = public_url.rstrip("/") if public_url else None
        self.secure = (public_url or "").startswith("https:")
        self.lockout = Lockout()
        self.allowance = Allowance()
        self.refusals = Refusals()
        # Browsers share cookies between the ports of a host, so each workspace needs its own name.
        own = f"kitestring-{digest(str(db.workspace.resolve()))[:8]}"
        # With the prefix `__Host-`, other hosts of the domain and pages without TLS cannot set it.
        self.cookie = f"__Host-{own}" if self.secure else own
        self.browsers = KnownBrowsers(db, own)
        self._links: dict[str, str] = {}  # hash of the secret → annotator id
        self._known: dict[tuple[str, str], tuple[Annotator, float, int]] = {}
        self._listeners: list[Callable[[], None]] = []

    # Requests

    def identify(self, headers: Mapping[str, str]) -> Identity | None:
        """The user of a request with these headers (names in lower case), or None.

        With a bearer token, even a wrong one, the cookie is ignored. Other authorization schemes
        are ignored.
        """
        kind, secret = self._secret(headers)
        found = self._check(secret, kind)
        return Identity(found, bearer=kind == "api") if found else None

    def recall(self, headers: Mapping[str, str]) -> Identity | None:
        """Like `identify`, only from the cache: None can also mean that a lookup is needed."""
        kind, secret = self._secret(headers)
        found = self._remembered(secret, kind)
        return Identity(found, bearer=kind == "api") if found else None

    def _secret(self, headers: Mapping[str, str]) -> tuple[TokenKind, str]:
        scheme, _, secret = headers.get("authorization", "").strip().partition(" ")
        if scheme.lower() == "bearer":
            return "api", secret.strip()
        # Another scheme is, for example, for a proxy that asks for a password.
        return "session", self.session_secret(headers)

    def session_secret(self, headers: Mapping[str, str]) -> str:
        """The session cookie's value, or an empty string."""
        return read_cookie(headers, self.cookie)

    def _remembered(self, secret: str, kind: TokenKind) -> Annotator | None:
        found, since, version = self._known.get((kind, hash_secret(secret)), (None, 0.0, -1))
        good = version == self.db.accounts_version and time.monotonic() - since < REMEMBERED
        return found if good else None

    def _check(self, secret: str, kind: TokenKind) -> Annotator | None:
        if not secret:
            return None
        found = self._remembered(secret, kind)
        if found is None:
            version = self.db.accounts_version  # before the lookup, so that a later change is newer
            found = tokens.check(self.db, secret, (kind,))
            if found is not None:
                if len(self._known) >= MAX_REMEMBERED:
                    self._known = {}
                self._known[kind, hash_secret(secret)] = (found, time.monotonic(), version)
        return found

    def accounts_changed(self) -> None:
        """Run the callbacks of `when_accounts_change` after an account or session has changed.

        Do not call it in the event loop, because the callbacks query the database.
        """
        for callback in self._listeners:
            callback()

    def when_accounts_change(self, callback: Callable[[], None]) -> None:
        """Register a callback that `accounts_changed` runs."""
        self._listeners.append(callback)

    # Links

    def sign_in_url(self, annotator: Annotator, *, landing: str = "/label/") -> str:
        """A link that signs `annotator` in once while this process runs.

        If accounts are required, it is an invite to choose a password, or the sign-in page for
        people who have one. Without a public URL it starts with "/".
        """
        if self.accounts_required:
            if annotator.password_hash:
                return f"{self.public_url or ''}/sign-in?next={quote(landing)}"
            return self.invite_url(annotator)
        secret = secrets.token_urlsafe(24)
        self._links[hash_secret(secret)] = annotator.id
        return f"{self.public_url or ''}/sign-in?token={secret}&next={quote(landing)}"

    def invite_url(self, annotator: Annotator) -> str:
        """A link for `annotator` to set a new password; valid once, for a week."""
        return tokens.issue_invite(self.db, annotator.id, address=self.public_url or "")

    def link_owner(self, secret: str) -> Annotator | None:
        """The account that a sign-in link signs in; None if the link is invalid or was used."""
        owner = self._links.get(hash_secret(secret))
        found = annotators.get(self.db, owner) if owner else None
        return found if found and not found.disabled else None

    def use_link(self, secret: str) -> Annotator | None:
        """Like `link_owner`, and invalidate the link, which stays in browser histories and logs."""
        found = self.link_owner(secret)
        # Only one of two simultaneous requests succeeds.
        return found if self._links.pop(hash_secret(secret), None) else None

    def invited(self, secret: str) -> Annotator | None:
        """The account of an invite; None if the invite is invalid, used or expired."""
        return tokens.check(self.db, secret, ("invite",)) if secret else None

    # Sessions

    def start_session(self, annotator: Annotator) -> str:
        """Start a session and return the value of its cookie."""
        with acting(Actor(annotator.id, "browser")):
            return tokens.issue(self.db, annotator.id, "session", lifetime=SESSION_LIFETIME)

    def end_session(self, secret: str) -> None:
        """Sign out: invalidate the cookie and all copies of it."""
        if secret:
            tokens.revoke(self.db, secret)
            self.accounts_changed()

    def sign_in_with_password(
        self, name: str, password: str, *, address: str, headers: Mapping[str, str]
    ) -> Annotator:
        """The annotator with this name and password; otherwise `SignInRefused` or `Busy`.

        An unknown name, a wrong password and a disabled account get the same answer. Wrong
        passwords are counted by name and by `address`, or only by browser if the account's owner
        has used the browser before.
        """
        found = annotators.by_name(self.db, name)
        browser = self._known_browser(found, headers)
        counted = name if browser is None else f"{name}\0{browser}"
        wait = self.lockout.attempt(counted)
        if wait > 0:
            minutes = max(1, round(wait / 60))
            raise SignInRefused(TOO_MANY_FAILURES, minutes=minutes)
        try:
            right = self._check_password(found, password, address=address, browser=browser)
        except Busy:
            self.lockout.forgive(counted)
            raise
        if found is None or found.disabled or not right:
            self._note_refusal(found, address)
            raise WrongPassword(WRONG_SIGN_IN)
        self.lockout.succeeded(counted)
        return self._with_current_hash(found, password)

    def _note_refusal(self, found: Annotator | None, address: str) -> None:
        """Note a refused sign-in in the audit log; names that no account has are not stored,
        because people type passwords there by mistake."""
        account = found.id if found else ""
        if attempts := self.refusals.count(account):
            audit.refused_sign_in(self.db, account, address=address, attempts=attempts)

    def _with_current_hash(self, person: Annotator, password: str) -> Annotator:
        """Hash the password again if the stored hash is an old one."""
        if person.password_hash is None or not needs_rehash(person.password_hash):
            return person
        try:
            renewed = rehash_password(password)
        except Busy:  # the next sign-in tries again
            return person
        return annotators.replace_password_hash(self.db, person, renewed)

    def _check_password(
        self, found: Annotator | None, password: str, *, address: str, browser: str | None
    ) -> bool:
        stored = found.password_hash if found else None
        if browser is not None:
            return check_password(password, stored, known=True)
        wait = self.allowance.take(address)
        if wait > 0:
            raise Busy(BUSY_ADDRESS, wait)
        right = check_password(password, stored)
        if right:
            self.allowance.give_back(address)
        return right

    def _known_browser(self, found: Annotator | None, headers: Mapping[str, str]) -> str | None:
        if found is None or not (value := read_cookie(headers, self.browsers.cookie(found))):
            return None
        return self.browsers.recognize(found, value)

    def change_password(
        self, person: Annotator, old: str, new: str, *, address: str, headers: Mapping[str, str]
    ) -> Annotator:
        """Replace a person's own password. All sessions and tokens of the account end.

        `SignInRefused` or `Busy` as for a sign-in with `old`; ValueError for an unsuitable `new`.
        """
        try:
            found = self.sign_in_with_password(person.name, old, address=address, headers=headers)
        except WrongPassword:
            raise WrongPassword(WRONG_PASSWORD) from None
        changed = annotators.change_password(self.db, found, hash_password(new))
        if changed is None:
            raise SignInRefused(ACCOUNT_CHANGED)
        self.accounts_changed()
        return changed

    def set_password(self, invite: str, password: str) -> Annotator:
        """Use an invite to set a password. All older sessions and tokens of the account end."""
        # The invite is checked before hashing, so that anonymous clients cannot keep the machine
        # busy, and again when it is used, because the account may have been disabled meanwhile.
        if (owner := self.invited(invite)) is None:
            raise SignInRefused(INVITE_ENDED)
        hashed = hash_password(password)
        with acting(Actor(owner.id, "browser")):
            changed = annotators.accept_invite(self.db, invite, password_hash=hashed)
        if changed is None:
            raise SignInRefused(INVITE_ENDED)
        self.accounts_changed()
        self.lockout.succeeded(changed.name)
        return changed
