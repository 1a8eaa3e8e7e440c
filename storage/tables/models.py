"""Model versions and their lineage."""

from __future__ import annotations

from storage.engine import lookup
from storage.engine.database import Database
from storage.records import ModelRole, ModelVersion, TrainedRewardModel

_LISTING = """
    SELECT * FROM models WHERE $role IS NULL OR role = $role ORDER BY created_at, id
"""

MODELS = "models"
"""The folder of trained models in the workspace."""
_REWARD_RUNS = "SELECT id, directory FROM runs WHERE stage = 'reward'"


def add(db: Database, model: ModelVersion) -> ModelVersion:
    """Store a model version; it replaces one with the same id."""
    db.write(lambda tx: tx.store(model))
    return model


def get(db: Database, model: str) -> ModelVersion:
    """The model version with this id, or NotFound."""
    return lookup.by_key(db, ModelVersion, model)


def listing(db: Database, role: ModelRole | None = None) -> list[ModelVersion]:
    """All model versions, or those of one role, oldest first."""
    return lookup.select(db, ModelVersion, _LISTING, role=role)


def newest(db: Database, role: ModelRole) -> ModelVersion | None:
    """The newest model version of this role."""
    found = listing(db, role=role)
    return found[-1] if found else None


def missing(db: Database) -> list[ModelVersion]:
    """Model versions whose directory under models/ is missing; backups do not include models."""
    return [
        model
        for model in listing(db)
        if model.path.startswith(f"{MODELS}/") and not (db.workspace / model.path).is_dir()
    ]


def reward_models(db: Database) -> list[TrainedRewardModel]:
    """Reward models, newest first."""
    directories = {row["id"]: row["directory"] for row in db.read(_REWARD_RUNS)}
    return [
        TrainedRewardModel(model=m.id, summary=m.summary, directory=directories.get(m.run or ""))
        for m in reversed(listing(db, role="reward"))
    ]
