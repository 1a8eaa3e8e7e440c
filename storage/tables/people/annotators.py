"""Accounts of annotators and researchers.

Names are unique.  Disabling an account (`set_disabled`) immediately revokes its sessions, invites
and API tokens, and keeps its judgments.  The only researcher who can sign in cannot be disabled or
get another role.
"""

from __future__ import annotations

import itertools
import unicodedata
from dataclasses import replace

from storage.engine import lookup
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound
from storage.records import Annotator, AnnotatorRole, new_id
from storage.tables import settings
from storage.tables.people import tokens

OWNER = "owner"
MAX_NAME_LENGTH = 100
"""Characters of an annotator's name."""
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"
"""Invisible too, but Persian, Hindi and emoji need them."""

_BY_NAME = "SELECT * FROM annotators WHERE name = $name"
_LISTING = "SELECT * FROM annotators ORDER BY created_at, id"
_BY_ID = "SELECT * FROM annotators WHERE id = $id"
_RESEARCHERS = "SELECT id FROM annotators WHERE role = 'researcher' AND NOT disabled"
_EXISTS = "SELECT 1 FROM annotators WHERE id = $id"
_ALIKE = "SELECT name FROM annotators WHERE lower(name) = lower($name) AND name <> $name LIMIT 1"
_NAME_TAKEN = "SELECT 1 FROM annotators WHERE name = $name AND id <> $id"


def require_name(name: str) -> None:
    """ValueError for a name that is too long or has invisible characters."""
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(
            f"an annotator's name has at most {MAX_NAME_LENGTH} characters; {name[:40]!r}… has "
            f"{len(name):,}"
        )
    for each in name:
        if unicodedata.category(each) in _INVISIBLE and each not in _JOINERS:
            raise ValueError(
                f"an annotator's name contains U+{ord(each):04X}, which is invisible: {name!r}"
            )


def add(db: Database, annotator: Annotator) -> Annotator:
    """Store a new annotator; Conflict if the id or the name is taken, in any case of its letters;
    ValueError as in `require_name`.

    Names of imported annotators (`ensure`) may differ in case only, as they do in the file.
    """
    require_name(annotator.name)

    def operation(tx: Transaction) -> Annotator:
        if tx.rows(_EXISTS, id=annotator.id):
            raise Conflict(f"there is already an annotator {annotator.id!r}")
        if alike := tx.rows(_ALIKE, name=annotator.name):
            raise Conflict(
                f"the name {annotator.name!r} is too much like {alike[0]['name']!r}, which is taken; "
                "choose another"
            )
        _save(tx, annotator)
        return annotator

    return db.write(operation)


def ensure(tx: Transaction, annotator: Annotator) -> None:
    """Store the annotator unless the id is stored; Conflict if the name is taken."""
    if not tx.rows(_EXISTS, id=annotator.id):
        _save(tx, annotator)


def owner(db: Database) -> Annotator:
    """The researcher that the link printed by `serve` signs in.

    The name is "owner", unless an imported annotator has that name or a researcher disabled that
    account.
    """
    people = listing(db)
    taken = {person.name.lower() for person in people}
    open_to = [p for p in people if p.role == "researcher" and not p.disabled]
    if OWNER in taken and open_to:
        return next((p for p in open_to if p.name == OWNER), open_to[0])
    names = (f"{OWNER}-{n}" if n > 1 else OWNER for n in itertools.count(1))
    name = next(name for name in names if name not in taken)
    return add(db, Annotator(id=new_id("a"), name=name, role="researcher"))


def set_disabled(db: Database, annotator: str, *, disabled: bool) -> Annotator:
    """Disable an account, which revokes its tokens and keeps its judgments, or enable it.

    NotFound for an unknown id; ValueError if the only researcher would be disabled.
    """

    def operation(tx: Transaction) -> Annotator:
        before = _stored(tx, annotator)
        changed = replace(before, disabled=disabled)
        if disabled:
            _require_another_researcher(tx, before)
        if disabled or before.disabled:  # earlier versions issued tokens for disabled accounts
            tokens.revoke_all(tx, annotator)
        tx.store(changed)
        return changed

    return db.write(operation)


def set_role(db: Database, annotator: str, role: AnnotatorRole) -> Annotator:
    """Give a person another role; sessions and API tokens stay valid and have the new rights.

    NotFound for an unknown id; ValueError for a judge that is no person, and if the only researcher
    would lose the role.
    """

    def operation(tx: Transaction) -> Annotator:
        before = _stored(tx, annotator)
        changed = replace(before, role=role)
        if before.kind != "person":
            raise ValueError(f"{before.name} is not a person; only people can get another role")
        if role != "researcher":
            _require_another_researcher(tx, before)
        tx.store(changed)
        return changed

    return db.write(operation)


def _stored(tx: Transaction, annotator: str) -> Annotator:
    rows = tx.rows(_BY_ID, id=annotator)
    if not rows:
        raise NotFound(f"there is no annotator {annotator!r}")
    return from_row(Annotator, rows[0])


def _require_another_researcher(tx: Transaction, person: Annotator) -> None:
    if [row["id"] for row in tx.rows(_RESEARCHERS)] == [person.id]:
        raise ValueError(f"{person.name} is the only researcher; add another one first")


def accept_invite(db: Database, invite: str, *, password_hash: str) -> Annotator | None:
    """Set the password of the owner of an invite; None if the invite is no longer valid.

    Revokes every token of the owner, including the invite.
    """

    def operation(tx: Transaction) -> Annotator | None:
        owner = tokens.owner(tx, invite, ("invite",))
        if owner is None:
            return None
        return _set_password(tx, owner, password_hash)

    return db.write(operation)


def change_password(db: Database, person: Annotator, password_hash: str) -> Annotator | None:
    """Set another password and revoke every token of the account, sessions included.

    None if the account was disabled, or its password changed, since `person` was read.
    """

    def operation(tx: Transaction) -> Annotator | None:
        current = from_row(Annotator, tx.rows(_BY_ID, id=person.id)[0])
        if current.disabled or current.password_hash != person.password_hash:
            return None
        return _set_password(tx, current, password_hash)

    return db.write(operation)


def _set_password(tx: Transaction, person: Annotator, password_hash: str) -> Annotator:
    changed = replace(person, password_hash=password_hash)
    tokens.revoke_all(tx, person.id)
    tx.store(changed)
    return changed


def replace_password_hash(db: Database, person: Annotator, password_hash: str) -> Annotator:
    """Store another hash of the same password; sessions and tokens stay valid.

    Returns `person` unchanged if they were disabled or set a new password in the meantime.
    """

    def operation(tx: Transaction) -> Annotator:
        current = from_row(Annotator, tx.rows(_BY_ID, id=person.id)[0])
        if current.disabled or current.password_hash != person.password_hash:
            return person
        changed = replace(current, password_hash=password_hash)
        tx.store(changed)
        return changed

    return db.write(operation)


def _save(tx: Transaction, annotator: Annotator) -> None:
    if tx.rows(_NAME_TAKEN, name=annotator.name, id=annotator.id):
        raise Conflict(f"the name {annotator.name!r} is taken; choose another")
    tx.store(annotator)


def get(db: Database, annotator: str) -> Annotator:
    """The annotator with this id, or NotFound."""
    return lookup.by_key(db, Annotator, annotator)


def by_name(db: Database, name: str) -> Annotator | None:
    """The annotator with this name, or None."""
    found = lookup.select(db, Annotator, _BY_NAME, name=name)
    return found[0] if found else None


def listing(db: Database) -> list[Annotator]:
    """All accounts, oldest first."""
    return lookup.select(db, Annotator, _LISTING)


def language(db: Database, annotator: str) -> str | None:
    """The language that the person chose for their pages, or None."""
    return settings.get(db, _LANGUAGE.format(annotator))


def set_language(db: Database, annotator: str, language: str) -> None:
    """Keep the language that the person chose."""
    settings.put(db, _LANGUAGE.format(annotator), language)


_LANGUAGE = "language.{}"
