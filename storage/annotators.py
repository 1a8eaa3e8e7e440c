"""Annotators and researchers: the people (and simulated ones) who sign in."""

from __future__ import annotations

import dataclasses

from storage import lookup, tokens
from storage.database import Database
from storage.errors import Conflict, NotFound
from storage.records import Annotator
from storage.transaction import Transaction

_BY_NAME = "SELECT * FROM annotators WHERE name = $name"
_LISTING = "SELECT * FROM annotators ORDER BY created_at, id"
_EXISTS = "SELECT 1 FROM annotators WHERE id = $id"
_NAME_TAKEN = "SELECT 1 FROM annotators WHERE name = $name AND id <> $id"


def add(db: Database, annotator: Annotator) -> Annotator:
    """Store a new annotator; Conflict when the name is taken or the id says something else."""

    def operation(tx: Transaction) -> Annotator:
        if tx.rows(_EXISTS, id=annotator.id):
            raise Conflict(f"there is already an annotator {annotator.id!r}; replace it instead")
        _save(tx, annotator)
        return annotator

    return db.write(operation)


def ensure(tx: Transaction, annotator: Annotator) -> None:
    """Store the annotator unless one of this id is; Conflict when the name is taken."""
    if not tx.rows(_EXISTS, id=annotator.id):
        _save(tx, annotator)


def replace(db: Database, annotator: Annotator) -> Annotator:
    """Store the annotator in place of the one with the same id, or NotFound."""

    def operation(tx: Transaction) -> Annotator:
        if not tx.rows(_EXISTS, id=annotator.id):
            raise NotFound(f"there is no annotator {annotator.id!r}")
        _save(tx, annotator)
        return annotator

    return db.write(operation)


def set_disabled(db: Database, annotator: Annotator, *, disabled: bool) -> Annotator:
    """Close an account, which ends its sessions and tokens and keeps its judgments, or reopen it.

    ValueError for the only researcher: nobody could let anybody in any more.
    """
    open_to = [a.id for a in listing(db) if a.role == "researcher" and not a.disabled]
    if disabled and open_to == [annotator.id]:
        raise ValueError(f"{annotator.name} is the only researcher; add another one first")
    changed = replace(db, dataclasses.replace(annotator, disabled=disabled))
    if disabled:
        tokens.revoke_all(db, annotator.id)
    return changed


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
    """Everybody, oldest first."""
    return lookup.select(db, Annotator, _LISTING)
