"""The status of a workspace, as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from storage import worker_files
from storage.analysis.agreement import agreement
from storage.engine.database import Database
from storage.records import Iteration, Run
from storage.tables import iterations, models, prompts, runs

_COUNTS = """
    SELECT (SELECT count(*) FROM current_judgments) AS judgments,
           (SELECT count(*) FROM comparisons) AS comparisons,
           (SELECT count(DISTINCT annotator) FROM current_judgments) AS annotators
"""
_BY_KIND = """
    SELECT a.kind, count(*) AS n
    FROM current_judgments AS j JOIN annotators AS a ON a.id = j.annotator
    GROUP BY a.kind ORDER BY a.kind
"""


def status(db: Database) -> dict[str, Any]:
    """What `launch.py status --json` prints.

    `judgments` is the number of current judgments, `judgments_by_kind` the same by kind of
    annotator, `annotators` the number of people who gave them.  `iteration` is the newest one or
    None, `runs` are its runs, and `policy` and `reward_model` are those in use.
    """
    current = iterations.latest(db)
    return {
        **db.read(_COUNTS)[0],
        "judgments_by_kind": {row["kind"]: row["n"] for row in db.read(_BY_KIND)},
        "agreement": asdict(agreement(db)),
        "prompts": dict(prompts.counts(db)),
        "iteration": _iteration(db, current) if current else None,
        "policy": _policy(db, current),
        "reward_model": _reward_model(db),
        "runs": [_run(r) for r in runs.listing(db, iteration=current.number)] if current else [],
    }


def _iteration(db: Database, current: Iteration) -> dict[str, Any]:
    by_arm = worker_files.labels_by_arm(db).get(current.number, {})
    return {
        "number": current.number,
        "phase": current.phase,
        "method": runs.METHODS.get(method := runs.method(db, current), method),
        "labels_wanted": current.labels_wanted,
        "labels": sum(by_arm.values()),
        "labels_by_arm": by_arm,
        "verdict": current.verdict,
    }


def _policy(db: Database, current: Iteration | None) -> dict[str, Any] | None:
    """The newest policy; before the first, the SFT reference."""
    named = (current.policy_produced or current.policy_sampled) if current else None
    found = [m for role in ("sft", "policy") for m in models.listing(db, role=role)]
    chosen = next((m for m in found if m.id == named), found[-1] if found else None)
    if chosen is None:
        return None
    return {"id": chosen.id, "name": chosen.name, "role": chosen.role}


def _reward_model(db: Database) -> dict[str, Any] | None:
    """The newest reward model; `accuracy` and `ece` are measured on held-out preferences, no ties."""
    newest = models.newest(db, "reward")
    if newest is None:
        return None
    measured = ("accuracy", "log_loss", "ece", "held_out_preferences")
    figures = {name: newest.summary.get(name) for name in measured}
    return {"id": newest.id, "iteration": newest.iteration, **figures}


def _run(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "stage": run.stage,
        "name": runs.name(run),
        "iteration": run.iteration,
        "status": run.status,
        "attempt": run.attempt,
        "progress": run.progress,
        "message": run.message,
        "reason": run.reason,
    }
