"""Reading records from the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from storage.engine.codec import from_row, kind_of
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import PromptRole

T = TypeVar("T")


def select(db: Database, record_type: type[T], sql: str, /, **parameters: Any) -> list[T]:
    """The rows of a query as records."""
    return [from_row(record_type, row) for row in db.read(sql, **parameters)]


def by_key(db: Database, record_type: type[T], key: Any) -> T:
    """The record with this key, or NotFound."""
    found = by_keys(db, record_type, [key])
    if not found:
        raise NotFound(f"there is no {kind_of(record_type).name} {key!r}")
    return found[key]


def by_keys(db: Database, record_type: type[T], keys: Sequence[Any]) -> dict[Any, T]:
    """The stored records among these keys, by key."""
    kind = kind_of(record_type)
    # Table and key are names of the schema, from the table of kinds.
    sql = f"SELECT * FROM {kind.table} WHERE {kind.key} IN (SELECT unnest($keys))"
    return {row[kind.key]: from_row(record_type, row) for row in db.read(sql, keys=list(keys))}


_MODELS = "SELECT id FROM models WHERE id IN (SELECT unnest($ids))"


def known_models(reader: Reader, ids: set[str]) -> set[str]:
    """The members of `ids` that are ids of stored models."""
    return {row["id"] for row in reader.rows(_MODELS, ids=list(ids))}


_ROLES = "SELECT id, role FROM prompts WHERE id IN (SELECT unnest($ids))"


def prompt_roles(reader: Reader, ids: Sequence[str]) -> dict[str, PromptRole]:
    """The roles of the stored prompts among `ids`, by id."""
    return {row["id"]: row["role"] for row in reader.rows(_ROLES, ids=list(ids))}


class Reader(Protocol):
    """Something that runs queries: a transaction or a snapshot of the database."""

    def rows(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]: ...
