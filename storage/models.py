"""Model versions, with where each came from."""

from __future__ import annotations

from storage import lookup
from storage.database import Database
from storage.records import ModelRole, ModelVersion

_LISTING = """
    SELECT * FROM models WHERE $role IS NULL OR role = $role ORDER BY created_at, id
"""


def add(db: Database, model: ModelVersion) -> ModelVersion:
    """Store a model version; one with the same id is replaced."""
    db.write(lambda tx: tx.store(model))
    return model


def get(db: Database, model: str) -> ModelVersion:
    """The model version with this id, or NotFound."""
    return lookup.by_key(db, ModelVersion, model)


def listing(db: Database, role: ModelRole | None = None) -> list[ModelVersion]:
    """All model versions, or those of one role, oldest first."""
    return lookup.select(db, ModelVersion, _LISTING, role=role)
