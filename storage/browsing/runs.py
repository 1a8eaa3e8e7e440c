"""Runs beside each other: their last figures and their curves.

A run's own page reads its metrics with `storage.tables.runs.runs.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from storage.engine.database import Database
from storage.records import RunLabel, RunStatus, Stage
from storage.tables import iterations
from storage.tables.runs import run_labels, run_settings, runs, studies

MOST_COMPARED = 10
"""Runs whose curves are read at a time: more lines cannot be told apart."""
POINTS = 2000
"""Points of a curve; a longer one is thinned evenly."""
REWARD = "reward/mean"
KL = "kl/reference"
SECONDS = ("speed/rollout_seconds", "speed/score_seconds", "speed/update_seconds")
"""The metrics that add up to the wall-clock seconds of an update."""

_FLAGS = """
    SELECT run, count(DISTINCT name) AS n FROM run_notes WHERE kind = 'flag' GROUP BY run
"""
_CURVES = """
    WITH chosen AS (
        SELECT run, step, name, value FROM metrics
        WHERE run IN (SELECT unnest($runs)) AND name IN (SELECT unnest($names))
        QUALIFY row_number() OVER (PARTITION BY run, name, step ORDER BY seq DESC) = 1),
    numbered AS (
        SELECT *, row_number() OVER (PARTITION BY run, name ORDER BY step) AS place,
               count(*) OVER (PARTITION BY run, name) AS many
        FROM chosen)
    SELECT run, name, step, value FROM numbered
    QUALIFY row_number() OVER (
        PARTITION BY run, name, CASE WHEN many <= $points THEN place
                                     ELSE (place - 1) * $points // many END
        ORDER BY step DESC) = 1
    ORDER BY run, name, step
"""
_SECONDS = """
    SELECT run, step, sum(value) AS seconds FROM (
        SELECT run, step, name, arg_max(value, seq) AS value FROM metrics
        WHERE run IN (SELECT unnest($runs)) AND name IN (SELECT unnest($names))
        GROUP BY run, step, name)
    GROUP BY run, step ORDER BY run, step
"""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a list; `policy` is the model that it made, if it made one.

    `name` and `note` are those that a researcher gave, or "".
    `changed` has the settings that the newest earlier run of its kind had otherwise.  `reward` and
    `kl` (nats per response) are the last values reported; None if the run reports none.
    """

    id: str
    name: str
    note: str
    stage: Stage
    method: str
    iteration: int
    status: RunStatus
    attempt: int
    started: datetime
    seconds: float | None
    policy: str | None
    changed: Mapping[str, Any]
    reward: float | None
    kl: float | None
    flags: int


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric of a run: `values[i]` at `steps[i]`, in increasing order of steps."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RaisedFlag:
    """A red flag at a step of a run."""

    step: int
    name: str
    message: str


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """Curves of a run by metric, and its red flags; `seconds` is the time worked after each step,
    empty if the run reports no times."""

    run: str
    curves: dict[str, Curve]
    seconds: Curve
    flags: list[RaisedFlag]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The curves of several runs; `metrics` are all metrics that any of them reports."""

    metrics: list[str]
    runs: list[RunCurves]


def summaries(db: Database) -> list[RunSummary]:
    """All runs, the newest first."""
    listed = runs.listing(db)
    values = runs.last_values(db, (REWARD, KL))
    made = {each.number: each.policy_produced for each in iterations.listing(db)}
    raised = {row["run"]: row["n"] for row in db.read(_FLAGS)}
    changed = run_settings.changed_in_all(listed)
    labels = run_labels.by_run(db)
    unnamed = RunLabel(run="")
    return [
        RunSummary(
            id=run.id,
            name=labels.get(run.id, unnamed).name,
            note=labels.get(run.id, unnamed).note,
            stage=run.stage,
            method=runs.name(run) if run.stage == "policy" else "",
            iteration=run.iteration,
            status=run.status,
            attempt=run.attempt,
            started=run.created_at,
            seconds=runs.working_seconds(db, run),
            policy=made.get(run.iteration) if run.stage == "policy" else None,
            changed={each.name: each.now for each in changed[run.id]},
            reward=values.get(run.id, {}).get(REWARD),
            kl=values.get(run.id, {}).get(KL),
            flags=raised.get(run.id, 0),
        )
        for run in reversed(listed)
    ]


def compare(
    db: Database, ids: Sequence[str], names: Sequence[str] = (REWARD, KL), *, points: int = POINTS
) -> Comparison:
    """The curves of the metrics `names` of these runs, also of studies, in this order.

    ValueError for no run, for too many, or for one named twice; NotFound for an unknown one.
    """
    if not 1 <= len(ids) <= MOST_COMPARED:
        raise ValueError(f"compare between 1 and {MOST_COMPARED} runs; {len(ids)} were named")
    if len(set(ids)) != len(ids):
        raise ValueError("each run may be named once")
    for id in ids:
        if "/" in id:
            studies.run(db, id)
        else:
            runs.get(db, id)
    curves: dict[str, dict[str, Curve]] = {id: {} for id in ids}
    rows = db.read(_CURVES, runs=list(ids), names=list(names), points=points)
    for row in rows:
        curve = curves[row["run"]].setdefault(row["name"], Curve())
        curve.steps.append(row["step"])
        curve.values.append(row["value"])
    seconds = _seconds(db, ids)
    return Comparison(
        metrics=runs.metric_names(db, ids),
        runs=[
            RunCurves(run=id, curves=curves[id], seconds=seconds[id], flags=_flags(db, id))
            for id in ids
        ],
    )


def _seconds(db: Database, ids: Sequence[str]) -> dict[str, Curve]:
    """The seconds worked up to each step, from the times of the single steps."""
    found = {id: Curve() for id in ids}
    for row in db.read(_SECONDS, runs=list(ids), names=list(SECONDS)):
        curve = found[row["run"]]
        curve.steps.append(row["step"])
        curve.values.append(row["seconds"] + (curve.values[-1] if curve.values else 0.0))
    return found


def _flags(db: Database, run: str) -> list[RaisedFlag]:
    return [
        RaisedFlag(step=note.step, name=note.name, message=note.message)
        for note in runs.notes(db, run, "flag")
    ]
