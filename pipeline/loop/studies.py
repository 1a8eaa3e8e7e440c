"""Studies under the loop's supervision: started, followed, cancelled and continued.

`poll` reads the folders of all studies, those that a command runs in a terminal too, and stores what
they do as `Study` and `StudyRun`.  A study runs in a process of its own, which survives a restart of
the web process as workers do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.config.sections import Config
from pipeline.loop.retraining import RULE, plan_retraining, read_rule, write_inputs
from pipeline.runs import process
from pipeline.runs.cancellation import WAS_CANCELLED
from pipeline.runs.jobs import STARTING, reported, share_done
from pipeline.runs.repeat import newest_ppo_run
from pipeline.runs.rundir import LOCK_FD, EventPosition, RunDirectory
from pipeline.runs.study_folder import (
    MAX_BETA,
    METHODS,
    Part,
    Spec,
    StudyFolder,
    all_folders,
    claim,
    planned,
    starting,
)
from storage.engine.database import Database
from storage.errors import Conflict
from storage.records import RunStatus, Study, StudyKind, StudyRun, now
from storage.reports import RetrainOffer, StudyOffer
from storage.retraining import retrain_offer, trained_model
from storage.tables import audit
from storage.tables.runs import runs, studies

MAX_VALUES = 20
"""Values of β in a sweep that the page starts."""
MAX_SNAPSHOTS = 50
_GONE = "its folder is not in this workspace, as after a restore"


class Studies:
    """The studies of one workspace.  Methods may be called from any thread.

    `lock` is the loop's, `busy` says why the loop cannot spare the machine, and `permitted` gets the
    settings of the repeated run and those that change, and raises ValueError for one that a
    researcher may not choose.
    """

    def __init__(
        self,
        db: Database,
        *,
        lock: threading.RLock,
        busy: Callable[[], str | None],
        permitted: Callable[[Config, Mapping[str, str]], None],
    ) -> None:
        self._db = db
        self._lock = lock
        self._busy = busy
        self._permitted = permitted
        self._children: list[subprocess.Popen[bytes]] = []
        self._positions: dict[str, EventPosition] = {}
        self._offered: RetrainOffer | None = None

    def offer(self) -> StudyOffer:
        """What a study would repeat now, or why none can start."""
        refused = self._refused()
        retrain = self._offered_retraining(refused)
        try:
            source = newest_ppo_run(self._db.workspace)
        except ValueError:
            return StudyOffer(
                reason="There is no policy run to repeat yet. Train once, then start a study.",
                methods=METHODS,
                retrain=retrain,
            )
        job = source.job()
        return StudyOffer(
            run=source.path.name,
            method=runs.METHODS.get(job.kind, job.kind),
            iteration=job.iteration,
            kl_weight=job.config.ppo.kl_weight,
            reason=refused,
            methods=METHODS,
            retrain=retrain,
        )

    def _offered_retraining(self, refused: str | None) -> RetrainOffer | None:
        """The reward model that a study would train again; None if there is none."""
        try:
            model, _ = trained_model(self._db)
        except ValueError:
            return None
        if self._offered is None or self._offered.model != model.id:
            self._offered = retrain_offer(self._db, model)  # pages ask every few seconds
        return replace(self._offered, reason=refused)

    def _refused(self) -> str | None:
        """Why no study can start: the loop trains, or another study runs."""
        if (refused := self._busy()) is not None:
            return refused
        running = studies.running(self._db)
        return running and f"The study {running.name} is running. Wait until it ends, or cancel it."

    def start(
        self,
        kind: StudyKind,
        name: str,
        plan: Mapping[str, Any],
        settings: Mapping[str, str] = {},
        *,
        created_by: str = "",
    ) -> Study:
        """Start a study, or continue the one with the same name and values.

        ValueError for a wrong value, Conflict if the name is taken or nothing can start now.
        """
        if kind == "retrain":
            return self._start_retraining(name, plan, settings, created_by=created_by)
        checked, workspace = checked_plan(kind, plan), self._db.workspace
        if (reason := self.offer().reason) is not None:
            raise Conflict(reason)
        # Without the lock: importing a function of the shaping may take half a minute.
        self._permitted(newest_ppo_run(workspace).job().config, settings)
        with self._lock:
            if (reason := self.offer().reason) is not None:
                raise Conflict(reason)
            return self._begin(
                planned(workspace, kind, name, checked, settings, created_by=created_by)
            )

    def _start_retraining(
        self, name: str, plan: Mapping[str, Any], settings: Mapping[str, str], *, created_by: str
    ) -> Study:
        """Start a study that trains a reward model again without some judgments."""
        if settings:
            raise ValueError(
                "a reward model is trained again with its own settings; give no others"
            )
        given = {key: value for key, value in plan.items() if value is not None}
        rule = read_rule(**{key: given[key] for key in RULE if key in given})
        with self._lock:
            if (reason := self._refused()) is not None:
                raise Conflict(reason)
            spec = plan_retraining(
                self._db, rule,
                iteration=given.get("iteration"), controls=given.get("controls", 0),
                name=name, created_by=created_by,
            )  # fmt: skip
            return self._begin(spec)

    def _begin(self, spec: Spec) -> Study:
        """Start the study, or continue it; Conflict if another one has its name."""
        folder = StudyFolder(self._db.workspace, spec.kind, spec.name)
        known, retrains = folder.spec(), spec.kind == "retrain"
        # With other values a sweep would be another one, but controls can be added.  A folder that
        # does not say what it does is of an earlier version, or of a retraining that was only planned.
        unknown = known is None and folder.path.exists() and not retrains
        if unknown or (known and known.differs(spec, values=not retrains)):
            raise Conflict(
                f"The name {spec.name} is taken by a study with other values. Choose another name."
            )
        if retrains:
            write_inputs(self._db, spec)
        found = self._spawn(folder, spec)
        audit.note(
            self._db, "study.started", found.id,
            plan=dict(spec.plan), settings=dict(spec.settings),
        )  # fmt: skip
        return found

    def resume(self, id: str) -> Study:
        """Continue a study that failed or was cancelled; its finished runs are not repeated."""
        with self._lock:
            study = studies.get(self._db, id)
            folder = StudyFolder(self._db.workspace, study.kind, study.name)
            spec = folder.spec()
            if study.status == "running":
                raise Conflict(f"The study {study.name} is running.")
            if study.status == "succeeded":
                raise Conflict(f"The study {study.name} is finished. There is nothing to continue.")
            if spec is None:
                raise Conflict(f"The study {study.name} cannot be continued: {_GONE}.")
            if spec.plan.get("gold"):
                raise Conflict(
                    "This study uses a function given with --gold. Continue it with the same "
                    "command in a terminal."
                )
            reason = self._refused() if study.kind == "retrain" else self.offer().reason
            if reason is not None:
                raise Conflict(reason)
            found = self._spawn(folder, spec)
            audit.note(self._db, "study.continued", id)
            return found

    def cancel(self, id: str) -> Study:
        """Ask a study to stop: its worker ends its step and keeps a checkpoint."""
        with self._lock:
            self.poll()
            study = studies.get(self._db, id)
            if study.status != "running":
                raise Conflict(f"The study {study.name} is not running.")
            StudyFolder(self._db.workspace, study.kind, study.name).stop(now())
            audit.note(self._db, "study.cancelled", id)
            self.poll()
            return studies.get(self._db, id)

    def active(self) -> Study | None:
        """The study that runs now, one of a command in a terminal too."""
        return studies.running(self._db)

    def poll(self) -> None:
        """Store what the studies have done since the last call."""
        self._children = [child for child in self._children if child.poll() is None]
        stored = {study.id: study for study in studies.listing(self._db)}
        for folder in all_folders(self._db.workspace):
            spec, known = folder.spec(), stored.pop(folder.id, None)
            if spec is None:
                continue
            active = folder.is_active()
            if active or known is None or known.status == "running" or _restarted(known, spec):
                self._store(folder, spec, known, active=active)
        for lost in stored.values():
            if lost.status == "running":
                self._lose(lost)

    def shut_down(self) -> None:
        """Release running studies without stopping them."""
        process.release(self._children)

    def _spawn(self, folder: StudyFolder, spec: Spec) -> Study:
        workspace = self._db.workspace
        with starting(workspace):
            try:
                lock = claim(workspace, folder, spec)
            except (ValueError, RuntimeError) as error:
                raise Conflict(str(error)) from None
        with lock, folder.log.open("ab") as log:
            self._children.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "pipeline.studies"),
                        *(str(workspace), folder.kind, folder.name),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[lock.fileno()],
                    cwd=Path(__file__).parents[2],
                    env=os.environ | {LOCK_FD: str(lock.fileno())},
                )
            )
            (folder.path / "pid").write_text(str(self._children[-1].pid))
        self.poll()
        return studies.get(self._db, folder.id)

    def _store(self, folder: StudyFolder, spec: Spec, known: Study | None, *, active: bool) -> None:
        """Store a study and its runs; their events first, so that an ended study has all of them."""
        stored = {run.id: run for run in studies.runs_of(self._db, folder.id)}
        parts = folder.parts(spec)
        made = [
            self._store_run(folder, part, stored.get(f"{folder.id}/{part.label}"), active=active)
            for part in parts
        ]
        found = [run for run in made if run is not None]
        status, reason = _outcome(folder, active=active)
        study = Study(
            id=folder.id,
            kind=folder.kind,
            name=folder.name,
            status=status,
            repeats=spec.repeats,
            iteration=spec.iteration,
            plan=spec.plan,
            settings=spec.settings,
            reason=reason,
            progress=1.0 if status == "succeeded" else sum(r.progress for r in found) / len(parts),
            message=_message(found, len(parts)) if status == "running" else "",
            created_by=spec.created_by,
            created_at=datetime.fromisoformat(spec.created_at),
            started_at=datetime.fromisoformat(spec.started_at),
            finished_at=None if status == "running" else now(),
        )
        if known is None or _facts(study) != _facts(known):
            studies.save(self._db, study)
        elif (study.progress, study.message) != (known.progress, known.message):
            studies.set_progress(self._db, study)

    def _store_run(
        self, folder: StudyFolder, part: Part, known: StudyRun | None, *, active: bool
    ) -> StudyRun | None:
        """Store the run of a value or a method; None if it has not started."""
        first = part.directories[0]
        begun = [each for each in part.directories if (each.path / "job.json").exists()]
        if first not in begun:
            return None
        job = first.job()
        run = known or StudyRun(
            id=f"{folder.id}/{part.label}",
            study=folder.id,
            title=part.title,
            method=part.method,
            status="running",
            directory=str(first.path.relative_to(self._db.workspace)),
            config=job.config.to_dict(),
        )
        if job.attempt > run.attempt:
            run = replace(run, attempt=job.attempt, ingested_seq=0)
        status, reason = _run_outcome(part, begun, active=active)
        finished = None if status == "running" else run.finished_at or now()
        seconds = sum((each.result() or {}).get("seconds", 0.0) for each in begun) or None
        changed = replace(run, status=status, reason=reason, finished_at=finished, seconds=seconds)
        if known is None or replace(changed, finished_at=known.finished_at) != known:
            studies.save(self._db, changed)
        return self._ingest(changed, part, begun)

    def _ingest(self, run: StudyRun, part: Part, begun: list[RunDirectory]) -> StudyRun:
        """Store new events of the first directory, and the progress of all."""
        events, place = part.directories[0].follow_events(
            run.attempt, run.ingested_seq, self._positions.get(run.id)
        )
        if place is not None:
            self._positions[run.id] = place
        metrics, notes = reported(run.id, events)
        told = [event for event in events if event["kind"] == "progress"][-1:]
        if len(begun) > 1:  # the events of measuring are few and not stored
            told = begun[-1].progress_events(begun[-1].job().attempt)[-1:]
        done = [1.0 if each.result() is not None else 0.0 for each in begun]
        if not done[-1]:
            before = 0.0 if len(begun) > 1 else run.progress * len(part.directories)
            done[-1] = share_done(told[-1]) if told else before
        message = told[-1]["message"] if told else run.message or STARTING
        replace_from = (
            events[0]["seq"] if events and not run.ingested_seq and run.attempt > 1 else None
        )
        seen = replace(
            run,
            progress=sum(done) / len(part.directories),
            message=message,
            ingested_seq=events[-1]["seq"] if events else run.ingested_seq,
        )
        if seen != run:
            studies.ingest(self._db, seen, metrics, notes, replace_from=replace_from)
        return seen

    def _lose(self, study: Study) -> None:
        """Mark a study whose folder is missing as failed."""
        ended = {"status": "failed", "reason": _GONE, "finished_at": now()}
        running = [r for r in studies.runs_of(self._db, study.id) if r.status == "running"]
        studies.save(self._db, replace(study, **ended), *(replace(run, **ended) for run in running))


def checked_plan(kind: StudyKind, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a sweep or a comparison that a researcher sent, complete; ValueError for a wrong
    value."""
    if kind == "sweep":
        weights = [float(each) for each in dict.fromkeys(plan.get("kl_weight") or [])]
        if not 1 <= len(weights) <= MAX_VALUES:
            raise ValueError(f"a sweep has between 1 and {MAX_VALUES} values of β")
        for weight in weights:
            if not 0 <= weight <= MAX_BETA:
                raise ValueError(f"β = {weight:g} is not between 0 and {MAX_BETA:g}")
        return {"kl_weight": weights, "kl_budget": _positive("KL budget", plan.get("kl_budget", 5))}
    methods = [*dict.fromkeys(plan.get("methods") or [])]
    if not methods or set(methods) - set(METHODS):
        raise ValueError(f"choose methods to compare; there are {', '.join(METHODS)}")
    snapshots = plan.get("snapshots", 5)
    if not (isinstance(snapshots, int) and 0 <= snapshots <= MAX_SNAPSHOTS):
        raise ValueError(f"snapshots must be a whole number from 0 to {MAX_SNAPSHOTS}")
    return {
        "methods": methods,
        "kl": _positive("KL", plan.get("kl", 2)),
        "snapshots": snapshots,
        "gold": None,
    }


def _positive(name: str, value: Any) -> float:
    if not 0 < float(value) <= MAX_BETA:
        raise ValueError(f"{name} must be a number of nats above 0")
    return float(value)


def _restarted(known: Study, spec: Spec) -> bool:
    """Whether the study was started again since it was stored."""
    return known.started_at != datetime.fromisoformat(spec.started_at)


def _facts(study: Study) -> Study:
    """Without what changes while a study runs."""
    return replace(study, progress=0.0, message="", finished_at=None)


def _outcome(folder: StudyFolder, *, active: bool) -> tuple[RunStatus, str | None]:
    if active:
        return "running", None
    if folder.result() is not None:
        return "succeeded", None
    if folder.cancel_requested_at() is not None:
        return "cancelled", None
    return "failed", folder.error() or "its process was killed or crashed; continue the study"


def _run_outcome(
    part: Part, begun: list[RunDirectory], *, active: bool
) -> tuple[RunStatus, str | None]:
    """The status of a run, whose directories are worked on one after another."""
    last = begun[-1]
    if last.result() is not None and last is part.directories[-1]:
        return "succeeded", None
    if last.is_running() or (active and last.result() is not None):
        return "running", None
    if last.result() is not None:
        return "cancelled", "its policy is trained, but not measured"
    if last.cancel_requested_at() is not None or last.error() == WAS_CANCELLED:
        return "cancelled", None
    return "failed", last.failure()


def _message(found: list[StudyRun], planned_runs: int) -> str:
    """What the study does, as ``β = 0.05 (2 of 4): update 120 of 400``."""
    if not found:
        return "starting"
    newest = found[-1]
    return f"{newest.title} ({len(found)} of {planned_runs}): {newest.message}"
