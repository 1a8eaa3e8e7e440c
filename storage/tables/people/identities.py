"""Accounts at OpenID providers that open accounts here.

An account there is its issuer and its subject, which never change; names and e-mail addresses can.
A linked account stays linked to the same account here.
"""

from __future__ import annotations

import hashlib
import itertools
import json

from storage.engine import lookup
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.records import Annotator, AnnotatorRole, LinkedIdentity, new_id
from storage.tables.people import annotators, tokens

_OWNER = """
    SELECT a.* FROM linked_identities AS i JOIN annotators AS a ON a.id = i.annotator
    WHERE i.id = $id
"""
_UNUSED = """
    SELECT a.* FROM annotators AS a
    WHERE lower(a.name) = lower($name) AND a.kind = 'person' AND a.password_hash IS NULL
      AND NOT a.disabled AND a.id NOT IN (SELECT annotator FROM linked_identities)
"""
_NAMED = "SELECT 1 FROM annotators WHERE name = $name"
_LISTING = "SELECT * FROM linked_identities ORDER BY created_at, id"


def owner(db: Database, *, issuer: str, subject: str) -> Annotator | None:
    """The account that this account at a provider opens, which may be disabled; or None."""
    found = lookup.select(db, Annotator, _OWNER, id=_id(issuer, subject))
    return found[0] if found else None


def accept_invite(db: Database, invite: str, *, issuer: str, subject: str) -> Annotator | None:
    """Link the owner of an invite; None if the invite is no longer valid.

    Revokes every token of the owner, including the invite.  Conflict if the account at the provider
    opens another account.
    """

    def operation(tx: Transaction) -> Annotator | None:
        person = tokens.owner(tx, invite, ("invite",))
        if person is not None:
            _link(tx, person, issuer, subject)
            tokens.revoke_all(tx, person.id)
        return person

    return db.write(operation)


def claim(db: Database, name: str, *, issuer: str, subject: str) -> Annotator | None:
    """Link the account with this name, upper and lower case alike, if nobody has used it yet: it
    has no password and no other link, and is enabled.  None if there is no such account."""

    def operation(tx: Transaction) -> Annotator | None:
        rows = tx.rows(_UNUSED, name=name)
        if len(rows) != 1:
            return None
        person = from_row(Annotator, rows[0])
        _link(tx, person, issuer, subject)
        return person

    return db.write(operation)


def create(db: Database, name: str, role: AnnotatorRole, *, issuer: str, subject: str) -> Annotator:
    """A new account with this name, or with a number behind it if it is taken; ValueError as in
    `annotators.require_name`."""
    annotators.require_name(name)

    def operation(tx: Transaction) -> Annotator:
        names = (f"{name} ({n})" if n > 1 else name for n in itertools.count(1))
        free = next(each for each in names if not tx.rows(_NAMED, name=each))
        person = Annotator(id=new_id("a"), name=free, role=role)
        tx.store(person)
        _link(tx, person, issuer, subject)
        return person

    return db.write(operation)


def listing(db: Database) -> list[LinkedIdentity]:
    """All links, oldest first."""
    return lookup.select(db, LinkedIdentity, _LISTING)


def _link(tx: Transaction, person: Annotator, issuer: str, subject: str) -> None:
    # Storing another annotator under the same id is a Conflict.
    tx.store(
        LinkedIdentity(id=_id(issuer, subject), annotator=person.id, issuer=issuer, subject=subject)
    )


def _id(issuer: str, subject: str) -> str:
    # 256 bits, because people can choose a subject at some providers.
    return hashlib.sha256(json.dumps([issuer, subject]).encode()).hexdigest()
