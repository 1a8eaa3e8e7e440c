"""Workers on a cluster without a shared file system: their files travel through `worker.staging`.

`StagedAttempt` keeps the local run directory up to date, so what `RemoteLauncher` reads there holds for
these workers too.  This launcher adds what is different: a job starts after its files were sent, and a
run ends after the worker's files were fetched.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.runs.launchers.launcher import LaunchError, NoAnswer, State
from pipeline.runs.launchers.remote import JobState, RemoteLauncher, give_up, job_name
from pipeline.runs.rundir import RunDirectory
from pipeline.runs.staging.attempt import StagedAttempt
from pipeline.runs.staging.layout import LAST_WORDS
from pipeline.runs.staging.store import Store

_PATIENCE = 30.0
"""Seconds that a store may take to answer a check."""
_LOGS = PurePosixPath("/tmp")
"""Where Slurm writes what a job prints before it has its own log: every node has this folder."""


class StagedLauncher(RemoteLauncher):
    """The workers of a workspace on one cluster, without a shared file system."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attempts: dict[Path, StagedAttempt] = {}
        self._stopped: set[Path] = set()

    def check(self) -> None:
        super().check()
        _require_store(self._config.staging)

    def submit(self, directory: RunDirectory, attempt: int) -> None:
        """Send the files; `state` submits the job when they have arrived."""
        self._forget(directory)
        self._open(directory, attempt, uploads=True)

    def state(self, directory: RunDirectory) -> State:
        state = None
        if directory.path.exists() and not directory.has_outcome():
            try:
                state = self._in_transit(directory)
            except LaunchError as error:
                state = State("waiting", str(error))
                if directory.path in self._stopped:
                    state = give_up(directory, str(error))
        state = state or super().state(directory)
        if state.phase == "ended":
            self._close(directory)
        return state

    def ask_to_stop(self, directory: RunDirectory) -> None:
        if (attempt := self._attempts.get(directory.path)) is not None:
            attempt.wake()

    def stop(self, directory: RunDirectory) -> None:
        self._stopped.add(directory.path)
        super().stop(directory)

    def shut_down(self) -> None:
        for attempt in self._attempts.values():
            attempt.close("studio ends")
        self._attempts.clear()

    def _in_transit(self, directory: RunDirectory) -> State | None:
        """The state of a run whose files do not say it; None if they do."""
        attempt = self._attempt(directory)
        if attempt.uploading:
            stopped = directory.path in self._stopped
            return _given_up(directory, attempt) if stopped else _waits(attempt)
        if self._handle(directory) is None:
            try:
                super().submit(directory, directory.job().attempt)
            except NoAnswer:  # asked again; the job is found by its name if it was started
                raise
            except LaunchError as error:
                return give_up(directory, str(error))
        job = self._job(directory)
        if job.phase in ("failed", "succeeded"):
            return self._settled(directory, attempt, job)
        if attempt.problem:  # nothing is known of the worker
            self._silent(directory, waits=True)
            if job.phase == "silent" and directory.path in self._stopped:
                return _given_up(directory, attempt)
            return State("running", attempt.message())
        if self._silent(directory, waits=job.phase == "waiting") > self._config.lost_after:
            return self._settled(directory, attempt, job)
        attempt.unsettle()
        state = super().state(directory)
        return State("running", attempt.message()) if state == State("running") else state

    def _settled(
        self, directory: RunDirectory, attempt: StagedAttempt, job: JobState
    ) -> State | None:
        """The state of a run whose worker has ended or is lost; None if all that it left is here."""
        if not attempt.settle():
            if attempt.problem and directory.path in self._stopped:
                return _given_up(directory, attempt)
            return State("running", attempt.message())
        if job.phase == "succeeded" and not directory.has_outcome():
            return give_up(directory, "the job ended without an outcome in worker.staging")
        return None

    def _attempt(self, directory: RunDirectory) -> StagedAttempt:
        """The exchange of files, after a restart of the studio a new one."""
        found = self._attempts.get(directory.path)
        if found is None:
            uploads = self._handle(directory) is None
            found = self._open(directory, directory.job().attempt, uploads=uploads)
        return found

    def _open(self, directory: RunDirectory, attempt: int, *, uploads: bool) -> StagedAttempt:
        made = StagedAttempt(
            self._config.staging, directory, job_name(directory, attempt), uploads=uploads
        )
        self._attempts[directory.path] = made
        return made

    def _close(self, directory: RunDirectory) -> None:
        attempt = self._attempts.pop(directory.path, None)
        if attempt is not None:
            attempt.close("finished" if attempt.finished else "given up")

    def _forget(self, directory: RunDirectory) -> None:
        super()._forget(directory)
        self._stopped.discard(directory.path)

    def _command(self, directory: RunDirectory, attempt: int) -> tuple[list[str], Path]:
        name = job_name(directory, attempt)
        arguments = [
            self._config.staging,
            name,
            *([self._config.root] if self._config.root else []),
        ]
        command = [self._python, "-m", "pipeline.worker.staged", *arguments]
        return command, Path(_LOGS / f"{name}.log")

    def _reason(self, job: JobState, output: str) -> str:
        # A node without the store's driver cannot say so through the store.
        said = re.findall(rf"^{LAST_WORDS}(.+)$", output, re.MULTILINE)
        return said[-1] if said else super()._reason(job, output)


def _waits(attempt: StagedAttempt) -> State:
    return State("waiting", attempt.message() or "sends its files to worker.staging")


def _given_up(directory: RunDirectory, attempt: StagedAttempt) -> State:
    if attempt.problem:
        directory.append_log(f"what the worker left was not fetched: {attempt.problem}")
    return give_up(directory, "stopped before its files were exchanged")


def _require_store(url: str) -> None:
    """LaunchError unless the store can be written and read."""
    raised: list[Exception] = []
    answered = threading.Event()

    def check() -> None:
        try:
            Store(url).check()
        except Exception as error:
            raised.append(error)
        answered.set()

    threading.Thread(target=check, name="check of worker.staging", daemon=True).start()
    if not answered.wait(_PATIENCE):
        raise LaunchError(f"worker.staging={url} did not answer in {_PATIENCE:.0f} s")
    for error in raised:
        raise LaunchError(
            f"{error}. Check worker.staging, and the credentials that its driver reads in this account"
        ) from error
