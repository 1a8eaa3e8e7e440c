"""Tokens for signing in.  Only their SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from storage.engine import lookup
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound
from storage.records import INVITE_LIFETIME, Annotator, Token, TokenKind, now

_CHECK = """
    SELECT a.* FROM tokens AS t JOIN annotators AS a ON a.id = t.annotator
    WHERE t.hash = $hash AND list_contains($kinds, t.kind) AND NOT t.revoked AND NOT a.disabled
      AND (t.expires_at IS NULL OR t.expires_at > $now)
"""
_WAYS = """
    WITH live AS (
        SELECT annotator, kind FROM tokens
        WHERE NOT revoked AND (expires_at IS NULL OR expires_at > $now))
    SELECT a.id, (SELECT count(*) FROM live WHERE annotator = a.id AND kind = 'invite') AS invites,
           (SELECT count(*) FROM live WHERE annotator = a.id AND kind = 'api') AS tokens,
           (SELECT count(*) FROM linked_identities WHERE annotator = a.id) AS linked
    FROM annotators AS a
"""
_ANNOTATOR = "SELECT name, disabled FROM annotators WHERE id = $id"
_LIVE = "SELECT * FROM tokens WHERE annotator = $annotator AND NOT revoked"
_BY_HASH = "SELECT * FROM tokens WHERE hash = $hash"


def issue(db: Database, annotator: str, kind: TokenKind, *, lifetime: timedelta | None) -> str:
    """A new secret for this annotator; with `lifetime` None it never expires.

    NotFound for an unknown annotator; Conflict for a disabled one, because the token would become
    valid when the account is enabled.
    """
    secret = secrets.token_urlsafe(32)
    created = now()
    token = Token(
        hash=hash_secret(secret),
        annotator=annotator,
        kind=kind,
        created_at=created,
        expires_at=None if lifetime is None else created + lifetime,
    )

    def operation(tx: Transaction) -> None:
        found = tx.rows(_ANNOTATOR, id=annotator)
        if not found:
            raise NotFound(f"there is no annotator {annotator!r}")
        if found[0]["disabled"]:
            raise Conflict(f"{found[0]['name']!r} is disabled; enable the account first")
        tx.store(token)

    db.write(operation)
    return secret


def issue_invite(db: Database, annotator: str, *, address: str) -> str:
    """A link for this annotator to set a new password; valid once, for `INVITE_LIFETIME`.

    `address` is the studio's URL without a final slash; empty for a link that starts with "/".
    Errors as for `issue`.
    """
    secret = issue(db, annotator, "invite", lifetime=INVITE_LIFETIME)
    return f"{address}/invite?token={quote(secret)}"


def check(db: Database, secret: str, kinds: Collection[TokenKind]) -> Annotator | None:
    """The owner of a secret; None if it is unknown, expired or revoked, or its owner disabled."""
    found = lookup.select(db, Annotator, _CHECK, **_token_parameters(secret, kinds))
    return found[0] if found else None


def owner(tx: Transaction, secret: str, kinds: Collection[TokenKind]) -> Annotator | None:
    """Like `check`, in a transaction."""
    found = tx.rows(_CHECK, **_token_parameters(secret, kinds))
    return from_row(Annotator, found[0]) if found else None


def _token_parameters(secret: str, kinds: Collection[TokenKind]) -> dict[str, Any]:
    return {"hash": hash_secret(secret), "kinds": list(kinds), "now": now()}


def revoke(db: Database, secret: str) -> None:
    """Revoke one secret, if it is known."""
    db.write(lambda tx: _revoke(tx, _BY_HASH, hash=hash_secret(secret)))


def revoke_kinds(db: Database, annotator: str, kinds: Collection[TokenKind]) -> int:
    """Revoke the secrets of these kinds of an annotator; returns how many there were."""

    def operation(tx: Transaction) -> int:
        live = [from_row(Token, row) for row in tx.rows(_LIVE, annotator=annotator)]
        chosen = [replace(token, revoked=True) for token in live if token.kind in kinds]
        tx.store(*chosen)
        return len(chosen)

    return db.write(operation)


@dataclass(frozen=True)
class Ways:
    """How an annotator can sign in: valid invites and API tokens, and accounts at OpenID providers."""

    invites: int = 0
    tokens: int = 0
    linked: int = 0


def ways(db: Database) -> dict[str, Ways]:
    """The ways of every annotator by id, besides a password."""
    return {row.pop("id"): Ways(**row) for row in db.read(_WAYS, now=now())}


def revoke_all(tx: Transaction, annotator: str) -> None:
    """Revoke every secret of an annotator."""
    _revoke(tx, _LIVE, annotator=annotator)


def _revoke(tx: Transaction, sql: str, **parameters: str) -> None:
    live = [from_row(Token, row) for row in tx.rows(sql, **parameters)]
    tx.store(*(replace(token, revoked=True) for token in live))


def hash_secret(secret: str) -> str:
    """The hash under which a secret is stored: 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
