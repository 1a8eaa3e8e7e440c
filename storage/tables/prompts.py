"""Prompts: conversations that end with the user's turn."""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine import lookup
from storage.engine.database import Database
from storage.records import Prompt, PromptRole

_LISTING = """
    SELECT * FROM prompts
    WHERE ($role IS NULL OR role = $role) AND ($retired OR id NOT IN (FROM retired_prompts))
    ORDER BY created_at, id
"""
_COUNTS = """
    SELECT role, count(*) AS prompts FROM prompts WHERE id NOT IN (FROM retired_prompts)
    GROUP BY role ORDER BY role
"""


def add(db: Database, prompts: Sequence[Prompt]) -> int:
    """Store prompts; returns the number of new ones.  A stored one keeps its role and category."""
    return db.write(lambda tx: tx.store(*prompts))


def get_many(db: Database, prompts: Sequence[str]) -> dict[str, Prompt]:
    """The stored prompts among these ids, by id."""
    return lookup.by_keys(db, Prompt, prompts)


def listing(db: Database, role: PromptRole | None = None, *, retired: bool = False) -> list[Prompt]:
    """Prompts in use, all or those of one role, oldest first; with `retired`, retired ones too."""
    return lookup.select(db, Prompt, _LISTING, role=role, retired=retired)


def counts(db: Database) -> dict[str, int]:
    """The number of prompts in use by role."""
    return {row["role"]: row["prompts"] for row in db.read(_COUNTS)}
