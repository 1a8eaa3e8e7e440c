"""Workers on a cluster: jobs of Ray or Slurm that share the workspace's file system with the studio.

Without a shared file system, `pipeline.runs.launchers.staged` adds the exchange of files.

A job is named after its run and attempt, so a studio that was restarted while it submitted one finds
it by name.  Two things say whether its worker lives: the cluster, and the heartbeat that the worker
writes (`pipeline.worker.heartbeat`).  If either says that it is lost, the run has failed.  Then
error.json is written first: a worker that was cut off and comes back sees it and ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline.config.sections import WorkerConfig
from pipeline.runs.launchers.launcher import LaunchError, State
from pipeline.runs.rundir import RunDirectory, read_json, read_text, write_atomically

ASK_EVERY = 5.0
"""Seconds between two questions to the cluster about a job."""


@dataclass(frozen=True)
class JobState:
    """What a cluster says about a job; `detail` is its own word for it."""

    phase: Literal["waiting", "running", "succeeded", "failed", "silent"]
    """A job has succeeded if its worker wrote its result, which this side may see later."""
    detail: str = ""


_NOT_SUBMITTED = JobState(
    "failed", "it has no such job; the studio stopped before it submitted one"
)
_NEVER = object()


class Cluster(Protocol):
    """Runs commands as named jobs.  Every method raises LaunchError if the cluster does not answer."""

    name: str

    def check(self) -> None: ...

    def find(self, name: str) -> str | None:
        """The id of the job of this name, or None."""
        ...

    def submit(self, name: str, command: Sequence[str], *, log: Path, nodes: int) -> str:
        """Start a job, which runs the command once on each node, and return its id."""
        ...

    def look(self, id: str) -> JobState: ...

    def stop(self, id: str) -> None: ...

    def output(self, id: str) -> str:
        """What the job has printed, if it is not in the log of the run."""
        ...


class RemoteLauncher:
    """The workers of a workspace on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        config: WorkerConfig,
        *,
        workspace: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._workspace = workspace
        self._clock = clock
        self._asked: dict[Path, tuple[float, JobState]] = {}
        self._beats: dict[Path, tuple[float, Any]] = {}

    def check(self) -> None:
        self._cluster.check()

    def submit(self, directory: RunDirectory, attempt: int) -> None:
        self._forget(directory)
        command, log = self._command(directory, attempt)
        # Only the policy stage can divide its work.
        nodes = self._config.nodes if directory.job().stage == "policy" else 1
        id = self._cluster.submit(job_name(directory, attempt), command, log=log, nodes=nodes)
        self._store_handle(directory, id)

    def state(self, directory: RunDirectory) -> State:
        if not directory.path.exists() or directory.has_outcome():
            return State("ended")
        job = self._job(directory)
        if job.phase == "failed":
            return self._failed(directory, job)
        silent = self._silent(directory, waits=job.phase == "waiting")
        if silent > self._config.lost_after:
            self.stop(directory)
            return give_up(directory, _silence(directory, job, silent))
        if job.phase == "waiting":
            return State("waiting", f"waits for {self._cluster.name}: {job.detail}")
        # A cluster that does not answer is no reason to give up a worker that does.
        return State("running", job.detail if job.phase == "silent" else None)

    def ask_to_stop(self, directory: RunDirectory) -> None:
        """Nothing: the worker looks for the file `cancel`."""

    def stop(self, directory: RunDirectory) -> None:
        with suppress(LaunchError):  # the job has ended, or its worker sees error.json
            if (id := self._handle(directory)) is not None:
                self._cluster.stop(id)
        self._asked.pop(directory.path, None)

    def shut_down(self) -> None:
        """Nothing: a job does not need the studio."""

    def _command(self, directory: RunDirectory, attempt: int) -> tuple[list[str], Path]:
        """What the job runs, and where its cluster writes what it prints."""
        there = self._there(directory.path)
        command = [self._python, "-m", "pipeline.worker", str(there), str(attempt)]
        return command, there / directory.log.name

    @property
    def _python(self) -> str:
        return self._config.python or sys.executable

    def _forget(self, directory: RunDirectory) -> None:
        """Forget what is known of an earlier attempt."""
        self._asked.pop(directory.path, None)
        self._beats.pop(directory.path, None)

    def _there(self, path: Path) -> Path:
        """A path in the workspace, as the cluster's nodes see it."""
        here = self._workspace.resolve()
        root = Path(self._config.root) if self._config.root else here
        return root / path.resolve().relative_to(here)

    def _handle(self, directory: RunDirectory) -> str | None:
        """The id of the job; after a restart in the middle of `submit`, it is found by its name.

        None if there is no such job.
        """
        if stored := read_json(directory.handle):
            return stored["id"]
        id = self._cluster.find(job_name(directory, directory.job().attempt))
        if id is not None:
            self._store_handle(directory, id)
        return id

    def _store_handle(self, directory: RunDirectory, id: str) -> None:
        write_atomically(directory.handle, json.dumps({"launcher": self._cluster.name, "id": id}))

    def _job(self, directory: RunDirectory) -> JobState:
        """What the cluster says about the job, asked at most every `ASK_EVERY` seconds."""
        known = self._asked.get(directory.path)
        if known is not None and self._clock() - known[0] < ASK_EVERY:
            return known[1]
        try:
            id = self._handle(directory)
            job = self._cluster.look(id) if id is not None else _NOT_SUBMITTED
        except LaunchError as error:
            job = JobState("silent", str(error))
        self._asked[directory.path] = (self._clock(), job)
        return job

    def _silent(self, directory: RunDirectory, *, waits: bool) -> float:
        """Seconds since the worker last wrote its heartbeat, or since this studio first looked.

        Measured by this clock alone: that of a node, or of a file server, may differ.
        """
        beat = read_text(directory.heartbeat)
        since, last = self._beats.get(directory.path, (0.0, _NEVER))
        if waits or beat != last:
            since = self._clock()
            self._beats[directory.path] = (since, beat)
        return self._clock() - since

    def _failed(self, directory: RunDirectory, job: JobState) -> State:
        output = ""
        if read_text(directory.heartbeat) is None:  # it did not come as far as its own log
            with suppress(LaunchError):
                if (id := self._handle(directory)) is not None:
                    output = self._cluster.output(id)
                    directory.append_log(output)
        return give_up(directory, self._reason(job, output))

    def _reason(self, job: JobState, output: str) -> str:  # noqa: ARG002
        """Why a job has failed; `output` is what it printed, if it wrote no log."""
        return f"{self._cluster.name} says: {job.detail}"


def job_name(directory: RunDirectory, attempt: int) -> str:
    """The name of the job of an attempt; a second job of that name is never started."""
    path = str(directory.path.resolve())  # a copy of the workspace has runs of the same ids
    return f"{directory.path.name}-attempt-{attempt}-{sha256(path.encode()).hexdigest()[:8]}"


def give_up(directory: RunDirectory, reason: str) -> State:
    """The end of an attempt for a reason that its worker does not know."""
    if directory.cancel_requested_at() is None:  # else `cancel` stops a worker that comes back
        directory.write_error(reason)
    return State("ended", reason)


def _silence(directory: RunDirectory, job: JobState, silent: float) -> str:
    if job.phase == "succeeded":
        return (
            "the job ended without an outcome in the run directory; worker.root must be the "
            "workspace as the cluster's nodes see it"
        )
    beat = read_json(directory.heartbeat)
    who = f"the worker on {beat['node']}" if beat else "the worker"
    cluster = f" ({job.detail})" if job.phase == "silent" else ""
    return (
        f"{who} has given no sign of life for {silent:.0f} s, so its node may be lost{cluster}; "
        "resume continues from the last checkpoint, on any node"
    )
