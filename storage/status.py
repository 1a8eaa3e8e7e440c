"""The status of a workspace, which `launch.py status` prints; `--json` prints all fields.

The command is `Studio._status` in commands/studio.py; it polls the workers and sets `trouble` and
`label_budget`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage import worker_files
from storage.analysis.agreement import Agreement, agreement
from storage.analysis.checks import (
    CheckResult,
    PracticeState,
    active,
    check_results,
    in_all,
    practice_state,
)
from storage.engine.database import Database
from storage.labeling import gold
from storage.records import Iteration, ModelRole, Phase, Run, RunStatus, Stage
from storage.reports import LabelBudget, from_json
from storage.tables import iterations, models, prompts, settings
from storage.tables.people import annotators
from storage.tables.runs import run_resources, runs
from storage.tables.runs.run_resources import ResourceUse

_COUNTS = """
    SELECT (SELECT count(*) FROM current_judgments) AS judgments,
           (SELECT count(*) FROM comparisons ANTI JOIN checks ON checks.comparison = comparisons.id)
               AS comparisons,
           (SELECT count(DISTINCT annotator) FROM current_judgments) AS annotators
"""
_EDITS = "SELECT count(*) AS n FROM current_judgments WHERE edit <> ''"
_BY_KIND = """
    SELECT a.kind, count(*) AS n
    FROM current_judgments AS j JOIN annotators AS a ON a.id = j.annotator
    GROUP BY a.kind ORDER BY a.kind
"""


@dataclass(frozen=True, kw_only=True)
class IterationStatus:
    """The newest iteration; `labels` and `labels_by_arm` count current judgments, and `labels` leaves
    out live turns."""

    number: int
    phase: Phase
    method: str
    """Of the policy stage, as in PPO."""
    labels_wanted: int
    labels: int
    labels_by_arm: Mapping[str, int]
    verdict: str | None


@dataclass(frozen=True, kw_only=True)
class CheckFigures:
    """Checks of one kind; `share` and its 95% interval are None before the first answer."""

    answered: int
    matched: int
    """As expected, or as before."""
    share: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class AnnotatorCheckFigures:
    """The checks of one annotator."""

    name: str
    gold: CheckFigures
    reask: CheckFigures
    practice: CheckFigures
    practice_state: PracticeState


@dataclass(frozen=True, kw_only=True)
class ChecksStatus:
    """The pairs that measure annotators."""

    gold_pairs: int
    """Those that annotators can get."""
    gold_candidates: int
    """Pairs that could become gold pairs."""
    practice_pairs: int
    practice_asked: bool
    """Whether annotators first judge the practice pairs."""
    gold: CheckFigures
    """Of all annotators together."""
    reask: CheckFigures
    annotators: tuple[AnnotatorCheckFigures, ...]
    """Those who answered a check."""


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
    accuracy: float | None = None
    """Of preferences, without ties."""
    log_loss: float | None = None
    ece: float | None = None
    held_out_preferences: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run of the newest iteration; `name` is its stage, or for a policy run the method."""

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
    """Counts of a workspace's records, and the state of its loop."""

    judgments: int
    """Current judgments, without those of checks."""
    comparisons: int
    annotators: int
    """Annotators of any kind with current judgments."""
    judgments_by_kind: Mapping[str, int]
    """By kind of annotator."""
    edits: int
    """Current judgments with an edit."""
    agreement: Agreement
    checks: ChecksStatus
    prompts: Mapping[str, int]
    """By role."""
    iteration: IterationStatus | None
    policy: PolicyStatus | None
    reward_model: RewardModelStatus | None
    runs: tuple[RunState, ...]
    resources: ResourceUse | None = None
    """What the worker of the running stage uses; None while none runs."""
    label_budget: LabelBudget | None = None
    """How many more labels the newest iteration needs."""
    trouble: str | None = None
    """Why the loop cannot continue, as a sentence."""


def status(db: Database) -> Status:
    """The current status."""
    current = iterations.latest(db)
    listed = runs.listing(db, iteration=current.number) if current else []
    return Status(
        **db.read(_COUNTS)[0],
        judgments_by_kind={row["kind"]: row["n"] for row in db.read(_BY_KIND)},
        edits=db.read(_EDITS)[0]["n"],
        agreement=agreement(db),
        checks=_checks(db),
        prompts=prompts.counts(db),
        iteration=_iteration(db, current) if current else None,
        policy=_policy(db, current),
        reward_model=_reward_model(db),
        runs=tuple(map(_run, listed)),
        resources=next((run_resources.used(db, r) for r in listed if r.status == "running"), None),
    )


def _checks(db: Database) -> ChecksStatus:
    results, plan = check_results(db), settings.check_plan_of(db)
    practice_pairs = active(db, "practice")
    together = in_all(results)
    return ChecksStatus(
        gold_pairs=active(db, "gold"),
        gold_candidates=gold.candidates(db),
        practice_pairs=practice_pairs,
        practice_asked=plan.practice,
        gold=_check_figures(together.gold),
        reask=_check_figures(together.reask),
        annotators=tuple(
            AnnotatorCheckFigures(
                name=person.name,
                gold=_check_figures(results[person.id].gold),
                reask=_check_figures(results[person.id].reask),
                practice=_check_figures(results[person.id].practice),
                practice_state=practice_state(
                    results[person.id].practice, pairs=practice_pairs, mark=plan.practice_mark
                ),
            )
            for person in annotators.listing(db)
            if person.id in results
        ),
    )


def _check_figures(found: CheckResult) -> CheckFigures:
    return CheckFigures(
        answered=found.answered, matched=found.matched, share=found.share, interval=found.interval
    )


def _iteration(db: Database, current: Iteration) -> IterationStatus:
    by_arm = worker_files.labels_by_arm(db).get(current.number, {})
    return IterationStatus(
        number=current.number,
        phase=current.phase,
        method=runs.METHODS.get(method := runs.method(db, current), method),
        labels_wanted=current.labels_wanted,
        labels=worker_files.labels_in(db, current),
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
    named = {"id": newest.id, "iteration": newest.iteration}
    return from_json(RewardModelStatus, {**newest.summary, **named})


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
