"""Studies with their runs and reports, as the page, the commands and the routes show them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from storage.browsing.runs import KL, REWARD
from storage.engine import lookup
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import STUDY_FOLDERS, Run, RunStatus, Study, StudyKind, StudyRun
from storage.tables.people import annotators
from storage.tables.runs import run_settings, runs, studies

_FLAGS = """
    SELECT run, count(DISTINCT name) AS n FROM run_notes
    WHERE kind = 'flag' AND run IN (SELECT id FROM study_runs) GROUP BY run
"""


@dataclass(frozen=True, kw_only=True)
class StudyRunSummary:
    """A run of a study.

    `changed` has the settings that the repeated run had otherwise.  `reward` and `kl` (nats per
    response) are the last values of training; None for a method that does not train.
    """

    id: str
    study: str
    title: str
    method: str
    status: RunStatus
    attempt: int
    started: datetime
    seconds: float | None
    message: str
    reason: str | None
    changed: Mapping[str, Any]
    reward: float | None
    kl: float | None
    flags: int


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study with the runs that have started, of the number `planned`.

    `plan` and `settings` are as in `storage.records.Study`.  `by` is a name, "" for the operator.
    `stopping` says that somebody cancelled it and its worker still ends its step.
    """

    id: str
    kind: StudyKind
    name: str
    status: RunStatus
    stopping: bool
    repeats: str
    iteration: int
    plan: Mapping[str, Any]
    settings: Mapping[str, str]
    reason: str | None
    progress: float
    message: str
    planned: int
    by: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    runs: list[StudyRunSummary]


@dataclass(frozen=True, kw_only=True)
class StudyDetails(StudySummary):
    """A study with its report, which the command writes too; None until it is finished.

    The report of a sweep has `kl_budget`, `best`, `lead` and `runs`; that of a comparison `kl` and
    `methods`; that of a reward model that was trained again `held_out`, `policies`, `order_before`,
    `order_after`, `swaps`, `gate`, `counts`, `findings` and `notes`.
    """

    report: Mapping[str, Any] | None


def summaries(db: Database) -> list[StudySummary]:
    """All studies, the newest first."""
    listed = studies.runs_of(db)
    values = runs.last_values(db, (REWARD, KL))
    flags = {row["run"]: row["n"] for row in db.read(_FLAGS)}
    all_studies, found = studies.listing(db), []
    repeated = lookup.by_keys(db, Run, [study.repeats for study in all_studies])
    names = {each.id: each.name for each in annotators.listing(db)}
    for study in all_studies:
        base = repeated[study.repeats].config if study.repeats in repeated else {}
        made = [
            _run(run, base, values.get(run.id, {}), flags.get(run.id, 0))
            for run in listed
            if run.study == study.id
        ]
        found.append(_study(db, study, made, by=names.get(study.created_by, "")))
    return found


def details(db: Database, id: str) -> StudyDetails:
    """One study, or NotFound."""
    studies.get(db, id)
    (found,) = [each for each in summaries(db) if each.id == id]
    report = None
    with suppress(FileNotFoundError):
        report = json.loads(report_file(db, id, "json").read_text(encoding="utf-8"))
    return StudyDetails(**vars(found), report=report if found.status == "succeeded" else None)


def plot(db: Database, id: str) -> Path:
    """The plot of a finished study, an SVG file; NotFound without one."""
    if studies.get(db, id).status != "succeeded" or not report_file(db, id, "svg").exists():
        raise NotFound(f"the study {id} has no plot yet")
    return report_file(db, id, "svg")


def report_file(db: Database, id: str, kind: str) -> Path:
    """The file of a study's report, which may not exist."""
    study = studies.get(db, id)
    return db.workspace / STUDY_FOLDERS[study.kind] / study.name / f"{study.kind}.{kind}"


def _run(
    run: StudyRun, base: Mapping[str, Any], last: Mapping[str, float], flags: int
) -> StudyRunSummary:
    return StudyRunSummary(
        id=run.id,
        study=run.study,
        title=run.title,
        method=run.method,
        status=run.status,
        attempt=run.attempt,
        started=run.created_at,
        seconds=run.seconds,
        message=run.message,
        reason=run.reason,
        changed={each.name: each.now for each in run_settings.difference(base, run.config)},
        reward=last.get(REWARD),
        kl=last.get(KL),
        flags=flags,
    )


def _study(db: Database, study: Study, made: list[StudyRunSummary], *, by: str) -> StudySummary:
    folder = db.workspace / STUDY_FOLDERS[study.kind] / study.name
    plan = {key: value for key, value in study.plan.items() if value is not None}
    return StudySummary(
        id=study.id,
        kind=study.kind,
        name=study.name,
        status=study.status,
        stopping=study.status == "running" and (folder / "cancel").exists(),
        repeats=study.repeats,
        iteration=study.iteration,
        plan=plan,
        settings=study.settings,
        reason=study.reason,
        progress=study.progress,
        message=study.message,
        planned=_planned(study),
        by=by,
        created=study.created_at,
        started=study.started_at,
        finished=study.finished_at,
        runs=made,
    )


def _planned(study: Study) -> int:
    """How many runs the study has when it is finished."""
    if study.kind == "sweep":
        return len(study.plan["kl_weight"])
    if study.kind == "compare":
        return len({"sft", *study.plan["methods"]})
    return 1 + study.plan["controls"]
