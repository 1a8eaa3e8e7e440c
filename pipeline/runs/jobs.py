"""The web process's side of a run directory: start, follow, cancel and resume workers.

`launchers/` starts and ends workers, here or on a cluster; rundir.py defines the files.  `Loop.retry`
and `Loop.resume` (pipeline/loop/loop.py) decide what may be continued.

The loop calls `poll` every second.  A run whose worker has ended has succeeded if there is a
result.json, was cancelled if somebody requested it, and has failed otherwise (`_conclude`).  Runs
are not retried automatically.  A worker survives a restart of the web process: `poll` reads the run
directory of every run that is stored as running.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast

from pipeline.config.policy import ENGINE_METHODS
from pipeline.config.sections import Config, WorkerConfig
from pipeline.runs import process, tensorboard
from pipeline.runs.cancellation import WAS_CANCELLED
from pipeline.runs.launchers.choose import cluster_launcher
from pipeline.runs.launchers.launcher import Launcher, LaunchError, State
from pipeline.runs.launchers.local import LocalLauncher
from pipeline.runs.rundir import EventPosition, Job, RunDirectory
from storage.engine.database import Database
from storage.engine.workspace import stamp
from storage.records import Metric, ModelVersion, Run, RunNote, Stage, now
from storage.tables import models
from storage.tables.runs import runs

_STARTS_FROM = {"sft": "policy", "reward": "reference", "policy": "policy"}
"""The key of the job's model that a stage starts from, by the role of the model that it makes."""
FREE_BYTES_NEEDED = 500 * 1024 * 1024
"""Free disk space that every stage needs in addition to its checkpoints, bytes."""

STARTING = "starting the worker"

_UNNEEDED = ("checkpoint", "snapshots", "model")
"""What a retry deletes of the stopped run: weights that nothing reads any more."""


class Jobs:
    """The runs of one workspace."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._local = LocalLauncher()
        self._clusters: dict[WorkerConfig, Launcher] = {}
        self._event_offsets: dict[str, EventPosition] = {}

    def directory(self, run: Run) -> RunDirectory:
        return RunDirectory(self._db.workspace / run.directory)

    def start(self, job: Job, *, fill: Callable[[Path], Any]) -> Run:
        """Create the run directory, let `fill(inputs)` write the inputs, start a worker.

        If that fails, a failed run with the reason is stored.
        """
        run = _record(job)
        with self._new_directory(run, job) as directory:
            try:
                self.require_machine(job)
                fill(directory.inputs)
            except (ValueError, OSError) as error:
                directory.write_error(str(error))
                return self._finish(run, "failed", str(error))
            # Stored before the worker starts: a crash in between leaves a failed run, which can be
            # retried, and not an unknown worker.
            runs.save(self._db, run)
        return self._submit(run, directory)

    def require_machine(self, job: Job, *, freed: int = 0) -> None:
        """ValueError if the disk has too little space for the stage, LaunchError if a cluster that
        is to run it does not answer; `freed` bytes will be freed before the start."""
        _check_free_space(self._db.workspace, job, freed=freed)
        self._launcher(job.config).check()

    def adopt(self, job: Job, outputs: Path) -> Run:
        """Store a run whose outputs already exist, without a worker."""
        run = replace(_record(job), progress=1.0, message="shipped with the demo")
        with self._new_directory(run, job) as directory:
            shutil.copytree(outputs, directory.outputs, dirs_exist_ok=True)
            directory.write_result({"adopted": True})
            return self._finish(run, "succeeded", None)

    @contextmanager
    def _new_directory(self, run: Run, job: Job) -> Iterator[RunDirectory]:
        """A new run directory; it is removed if the run cannot be stored, and the loop tries again."""
        path = self._db.workspace / run.directory
        try:
            directory = RunDirectory.create(path, job)
            tensorboard.link(self._db.workspace, job)
            yield directory
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def reject(self, run: Run, reason: str) -> Run:
        """Mark a succeeded run as failed, because its outputs cannot be stored."""
        directory = self.directory(run)
        directory.clear_outcome()
        directory.write_error(reason)
        return self._finish(run, "failed", reason)

    def register(
        self,
        run: Run,
        *,
        role: Literal["sft", "reward", "policy"],
        id: str,
        name: str | None = None,
        parent: str | None = "",
        summary: Mapping[str, Any] | None = None,
    ) -> ModelVersion:
        """Move a run's model into `models/` and register it with its lineage.

        Can be called again after a crash.  If another run's model of that id exists, as after a
        restore, it is renamed.
        """
        directory = self.directory(run)
        source, target = directory.model, self._db.workspace / "models" / id
        # After a crash the model may have moved already; then the target is the run's own.
        if source.exists() or not target.exists():
            target.parent.mkdir(exist_ok=True)
            if target.exists():
                target.rename(target.with_name(f"{id}.replaced-{stamp()}"))
            source.rename(target)
        job, snapshot = directory.job(), directory.inputs / "snapshot.txt"
        made = ModelVersion(
            id=id,
            role=role,
            name=name or id,
            path=f"models/{id}",
            parent=job.names.get(_STARTS_FROM[role]) if parent == "" else parent,
            iteration=run.iteration,
            run=run.id,
            reward_model=job.names.get("reward") if role == "policy" else None,
            snapshot=snapshot.read_text() if snapshot.exists() else None,
            summary=summary or {},
        )
        models.add(self._db, made)
        shutil.rmtree(directory.checkpoint, ignore_errors=True)
        return made

    def poll(self) -> list[Run]:
        """Read new events of all running runs; return the runs that ended."""
        ended = []
        self._local.reap()
        for run in runs.listing(self._db):
            if run.status != "running":
                continue
            directory = self.directory(run)
            # Checked before reading the events, so that the last events of an ended run are read.
            state = self._launcher_of(run).state(directory)
            run = self._ingest(run, directory)
            if state.phase == "ended":
                ended.append(self._conclude(run, directory, state))
            else:
                self._wait_for_end(run, directory, state)
        return ended

    def cancel(self, run_id: str) -> None:
        """Ask the worker to stop; `poll` follows it until it ends."""
        run = runs.get(self._db, run_id)
        if run.status != "running":
            ended = "was cancelled" if run.status == "cancelled" else run.status
            raise ValueError(f"{run_id} is not running; it {ended}")
        directory, launcher = self.directory(run), self._launcher_of(run)
        if directory.request_cancel(now()):
            directory.append_log("asked to stop")
            launcher.ask_to_stop(directory)
        self._wait_for_end(run, directory, State("running"))

    def _wait_for_end(self, run: Run, directory: RunDirectory, state: State) -> None:
        """Report what a run waits for; end it if it was asked to stop and takes too long."""
        grace, message = process.grace(directory), state.message
        if grace is not None:
            # A worker that waits for its turn has nothing to save.
            if state.phase == "waiting" or grace.is_over(now()):
                self._launcher_of(run).stop(directory)
            message = grace.sentence(runs.kind(run))
        if message is not None and run.message != message:
            runs.set_message(self._db, run, message)

    def stopped(self, run_id: str) -> Run:
        """A run that failed or was cancelled; ValueError for any other."""
        run = runs.get(self._db, run_id)
        if run.status not in ("failed", "cancelled"):
            raise ValueError(f"{run_id} is {run.status}; only a stopped run can be resumed")
        return run

    def resume(
        self,
        run_id: str,
        overrides: Mapping[str, str] | None = None,
        *,
        machine: WorkerConfig | None = None,
    ) -> Run:
        """Continue a run that failed or was cancelled from its last checkpoint.

        `overrides` may raise `ppo.updates`; ValueError for anything else.  It runs where `machine`
        says, by default where it ran before.
        """
        run = self.stopped(run_id)
        if not self.directory(run).has_checkpoint():
            raise ValueError(f"{run_id} has no checkpoint yet; retry it from the start instead")
        job = replace(_with_more_updates(self.directory(run).job(), overrides or {}), resume=True)
        if machine is not None:
            worker = job.config.worker.placed_as(machine)
            job = replace(job, config=replace(job.config, worker=worker))
        self.require_machine(job)
        return self._start_attempt(replace(run, config=job.config.to_dict()), job)

    def retry(self, run_id: str, job: Job, *, fill: Callable[[Path], Any]) -> Run:
        """Run a failed or cancelled stage again from scratch, as `job`: a new run with new inputs.

        The stopped run stays as it is, except for its checkpoint and other weights, which are
        deleted.  A ValueError leaves them too.
        """
        stopped = self.stopped(run_id)
        leftovers = [self.directory(stopped).path / name for name in _UNNEEDED]
        self.require_machine(job, freed=sum(map(_size, leftovers)))
        job = replace(job, attempt=stopped.attempt + 1)
        # The newest run of a stage is the one that counts, even if the clock was set back.
        created = max(now(), stopped.created_at + timedelta(microseconds=1))
        run = replace(_record(job), created_at=created)
        with self._new_directory(run, job) as directory:
            try:
                fill(directory.inputs)
            except OSError as error:
                raise ValueError(f"the inputs of {run.id} cannot be written: {error}") from error
            runs.save(self._db, run)
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)
        return self._submit(run, directory)

    def shut_down(self) -> None:
        """Release the workers without stopping them."""
        for launcher in (self._local, *self._clusters.values()):
            launcher.shut_down()

    def _start_attempt(self, run: Run, job: Job) -> Run:
        """Start the next attempt of a run."""
        directory, attempt = self.directory(run), run.attempt + 1
        directory.clear_outcome()
        directory.write_job(replace(job, attempt=attempt))
        run = replace(
            run,
            status="running",
            message=STARTING,
            attempt=attempt,
            reason=None,
            started_at=now(),
            finished_at=None,
            ingested_seq=0,
        )
        runs.save(self._db, run)
        return self._submit(run, directory)

    def _submit(self, run: Run, directory: RunDirectory) -> Run:
        try:
            self._launcher_of(run).submit(directory, run.attempt)
        except LaunchError as error:
            # Should the cluster start the job after all, its worker sees this file and ends.
            directory.write_error(str(error))
            return self._finish(run, "failed", str(error))
        return run

    def _launcher_of(self, run: Run) -> Launcher:
        # A run stays where it was started, whatever the settings say now.
        if run.config.get("worker", {}).get("launcher", "local") == "local":
            return self._local  # without parsing all settings every second
        return self._launcher(Config.from_dict(run.config))

    def _launcher(self, config: Config) -> Launcher:
        worker = config.worker
        if worker.launcher == "local":
            return self._local
        if worker not in self._clusters:
            self._clusters[worker] = cluster_launcher(worker, self._db.workspace)
        return self._clusters[worker]

    def _ingest(self, run: Run, directory: RunDirectory) -> Run:
        """Store the events after `run.ingested_seq`; return the updated run."""
        events, place = directory.follow_events(
            run.attempt, run.ingested_seq, self._event_offsets.get(run.id)
        )
        if place is not None:
            self._event_offsets[run.id] = place
        if not events:
            return run
        metrics, notes = reported(run.id, events)
        for event in events:
            if event["kind"] not in ("metrics", "note"):
                run = replace(run, progress=share_done(event), message=event["message"])
        # The first events of a new attempt replace those after its checkpoint.
        replace_from = events[0]["seq"] if run.ingested_seq == 0 and run.attempt > 1 else None
        run = replace(run, ingested_seq=events[-1]["seq"])
        runs.ingest(self._db, run, metrics, notes, replace_from=replace_from)
        return run

    def _conclude(self, run: Run, directory: RunDirectory, state: State) -> Run:
        self._event_offsets.pop(run.id, None)
        run = replace(run, seconds=(run.seconds or 0.0) + _seconds_of_attempt(run, directory))
        if directory.result() is not None:
            return self._finish(replace(run, progress=1.0), "succeeded", None)
        if directory.cancel_requested_at() is not None:
            error = directory.error()
            problem = (
                f"; it ended with an error: {error}" if error not in (None, WAS_CANCELLED) else ""
            )
            # Show the worker's last progress instead of the message about waiting.
            events = directory.progress_events(run.attempt)
            run = replace(run, message=events[-1]["message"] if events else STARTING)
            return self._finish(run, "cancelled", f"cancelled by the researcher{problem}")
        return self._finish(run, "failed", state.message or directory.failure())

    def _finish(self, run: Run, status: Any, reason: str | None) -> Run:
        run = replace(run, status=status, reason=reason, finished_at=now())
        runs.save(self._db, run)
        return run


def reported(run: str, events: Sequence[Mapping[str, Any]]) -> tuple[list[Metric], list[RunNote]]:
    """The metrics, without missing and infinite values, and the notes among events."""
    metrics = [
        Metric(run=run, seq=event["seq"], step=event["step"], name=name, value=float(value))
        for event in events
        if event["kind"] == "metrics"
        for name, value in event["values"].items()
        if value is not None and math.isfinite(value)
    ]
    notes = [
        RunNote(
            run=run,
            seq=event["seq"],
            step=event["step"],
            kind=event["note"],
            name=event["name"],
            message=event["message"],
            payload=event["payload"],
        )
        for event in events
        if event["kind"] == "note"
    ]
    return metrics, notes


def share_done(event: Mapping[str, Any]) -> float:
    """The progress that a progress event reports, from 0 to 1."""
    return event["done"] / event["total"] if event["total"] else 0.0


def _record(job: Job) -> Run:
    """The record of a job's run at its start."""
    return Run(
        id=job.run,
        stage=cast("Stage", job.stage),  # the record refuses a study's
        iteration=job.iteration,
        status="running",
        message=STARTING,
        directory=f"runs/{job.run}",
        attempt=job.attempt,
        config=job.config.to_dict(),
    )


def _seconds_of_attempt(run: Run, directory: RunDirectory) -> float:
    """Seconds that the worker of the newest attempt took; it has ended.

    Without a result, the last file that it wrote is its end: the web process may notice later.
    """
    result = directory.result()
    if result and "seconds" in result:
        return float(result["seconds"])
    start = (run.started_at or run.created_at).timestamp()
    written = [
        file.stat().st_mtime
        for name in ("events.jsonl", "log.txt", "error.json")
        if (file := directory.path / name).exists()
    ]
    return max(0.0, max(written, default=start) - start)


def _with_more_updates(job: Job, overrides: Mapping[str, str]) -> Job:
    """The job with more updates; ValueError for any other change."""
    if not overrides:
        return job
    by_engine = job.kind in ENGINE_METHODS
    if set(overrides) != {"ppo.updates"} or not by_engine:
        raise ValueError(
            "a resumed stage keeps its settings, except ppo.updates of a PPO stage, which may be "
            "raised; retry the stage to change others"
        )
    config, planned = job.config.override(overrides), job.config.ppo.updates
    if config.ppo.updates < planned:
        raise ValueError(
            f"ppo.updates={config.ppo.updates} is less than the {planned} that the stage was "
            "started with; a resume may raise it, not lower it"
        )
    return replace(job, config=config)


def _check_free_space(workspace: Path, job: Job, *, freed: int = 0) -> None:
    """ValueError if the disk has too little space; `freed` bytes will be freed before the start."""
    policy = job.models.get("policy")
    needed = FREE_BYTES_NEEDED + _policies_written(job) * (_size(Path(policy)) if policy else 0)
    free = shutil.disk_usage(workspace).free + freed
    if free < needed:
        raise ValueError(
            f"the {job.stage} stage needs about {needed / 1e9:.1f} GB of free disk space for "
            f"{workspace}, and {free / 1e9:.1f} GB are left; free some space and retry"
        )


def _policies_written(job: Job) -> int:
    """Upper bound on the disk space that a stage writes, in multiples of the policy's size."""
    if job.stage in ("sampling", "evaluate"):
        return 0
    if job.kind in ENGINE_METHODS and job.config.ppo.lora_rank:
        return 2  # the model with its adapters merged; checkpoints contain only the adapters
    if job.stage == "policy" and job.config.optimize.method == "best-of-n":
        return 2  # the reference's weights, and the reward model
    return 8  # weights; two checkpoints with weights and both moments of Adam; a reserve


def _size(folder: Path) -> int:
    """Bytes of the files in a folder; 0 if it does not exist."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
