"""The status of a workspace, which `launch.py status` prints; `--json` prints every field of `Status`.

The command is `Studio._status` in commands/studio.py: it polls the workers first, and adds `trouble`,
the sentence on what keeps the loop from going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage import worker_files
from storage.analysis.agreement import Agreement, agreement
from storage.engine.database import Database
from storage.records import Iteration, ModelRole, Phase, Run, RunStatus, Stage
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


@dataclass(frozen=True, kw_only=True)
class IterationStatus:
    """The newest iteration; `labels` and `labels_by_arm` count current judgments."""

    number: int
    phase: Phase
    method: str
    """Of the policy stage, as in PPO."""
    labels_wanted: int
    labels: int
    labels_by_arm: Mapping[str, int]
    verdict: str | None


@dataclass(frozen=True, kw_only=True)
class PolicyStatus:
    """The newest policy; before the first, the SFT reference."""

    id: str
    name: str
    role: ModelRole


@dataclass(frozen=True, kw_only=True)
class RewardModelStatus:
    """The newest reward model; figures are on held-out judgments, None if they are unknown."""

    id: str
    iteration: int | None
    accuracy: float | None
    """Of preferences, without ties."""
    log_loss: float | None
    ece: float | None
    held_out_preferences: int | None


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run of the newest iteration; `name` is that of its stage, or of the policy's method."""

    id: str
    stage: Stage
    name: str
    iteration: int
    status: RunStatus
    attempt: int
    progress: float
    message: str
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """What a workspace holds and where its loop stands."""

    judgments: int
    """Current judgments."""
    comparisons: int
    annotators: int
    """Annotators of any kind who gave the judgments."""
    judgments_by_kind: Mapping[str, int]
    """By kind of annotator."""
    agreement: Agreement
    prompts: Mapping[str, int]
    """By role."""
    iteration: IterationStatus | None
    policy: PolicyStatus | None
    reward_model: RewardModelStatus | None
    runs: tuple[RunState, ...]


def status(db: Database) -> Status:
    """The status now."""
    current = iterations.latest(db)
    listed = runs.listing(db, iteration=current.number) if current else []
    return Status(
        **db.read(_COUNTS)[0],
        judgments_by_kind={row["kind"]: row["n"] for row in db.read(_BY_KIND)},
        agreement=agreement(db),
        prompts=prompts.counts(db),
        iteration=_iteration(db, current) if current else None,
        policy=_policy(db, current),
        reward_model=_reward_model(db),
        runs=tuple(map(_run, listed)),
    )


def _iteration(db: Database, current: Iteration) -> IterationStatus:
    by_arm = worker_files.labels_by_arm(db).get(current.number, {})
    return IterationStatus(
        number=current.number,
        phase=current.phase,
        method=runs.METHODS.get(method := runs.method(db, current), method),
        labels_wanted=current.labels_wanted,
        labels=sum(by_arm.values()),
        labels_by_arm=by_arm,
        verdict=current.verdict,
    )


def _policy(db: Database, current: Iteration | None) -> PolicyStatus | None:
    named = (current.policy_produced or current.policy_sampled) if current else None
    found = [m for role in ("sft", "policy") for m in models.listing(db, role=role)]
    chosen = next((m for m in found if m.id == named), found[-1] if found else None)
    if chosen is None:
        return None
    return PolicyStatus(id=chosen.id, name=chosen.name, role=chosen.role)


def _reward_model(db: Database) -> RewardModelStatus | None:
    newest = models.newest(db, "reward")
    if newest is None:
        return None
    return RewardModelStatus(
        id=newest.id,
        iteration=newest.iteration,
        accuracy=newest.summary.get("accuracy"),
        log_loss=newest.summary.get("log_loss"),
        ece=newest.summary.get("ece"),
        held_out_preferences=newest.summary.get("held_out_preferences"),
    )


def _run(run: Run) -> RunState:
    return RunState(
        id=run.id,
        stage=run.stage,
        name=runs.name(run),
        iteration=run.iteration,
        status=run.status,
        attempt=run.attempt,
        progress=run.progress,
        message=run.message,
        reason=run.reason,
    )
