"""What the generation service needs to know of the loop: its models, and whether a stage runs."""

from __future__ import annotations

from pipeline.loop.stage_inputs import resolved_path
from storage.engine.database import Database
from storage.generation_records import CurrentModels
from storage.tables import iterations, models
from storage.tables.runs import runs, studies


def model_paths(db: Database) -> dict[str, str]:
    """The directory or hub id of every model that was trained here or is the reference, by id."""
    kinds = ("sft", "reward", "policy")
    return {m.id: resolved_path(db, m.path) for m in models.listing(db) if m.role in kinds}


def current_models(db: Database) -> CurrentModels:
    """The models that annotators and researchers try now."""
    reference, reward = models.newest(db, "sft"), models.newest(db, "reward")
    iteration = iterations.latest(db)
    if reference is None or iteration is None:
        return CurrentModels()
    previous = iterations.opponent_of(iteration, iterations.before(db, iteration))
    return CurrentModels(
        policy=iteration.policy_sampled or reference.id,
        reference=reference.id,
        previous=previous,
        reward=reward.id if reward else None,
    )


def running_stage(db: Database) -> str | None:
    """What trains now, as "PPO stage" or "study NAME"; None if nothing does."""
    stage = next((runs.name(run) for run in runs.listing(db) if run.status == "running"), None)
    study = studies.running(db)
    return f"{stage} stage" if stage else study and f"study {study.name}"
