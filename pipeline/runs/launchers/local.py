"""Workers on this machine: processes whose lock says whether they live."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pipeline.runs import process
from pipeline.runs.launchers.launcher import State
from pipeline.runs.rundir import RunDirectory

EXIT_TIMEOUT = 2.0
"""Seconds to wait for the process of a finished worker; other threads may keep it alive longer."""


class LocalLauncher:
    """Starts workers that inherit the lock of their run directory; `pid` is their handle."""

    def __init__(self) -> None:
        self._children: dict[Path, subprocess.Popen[bytes]] = {}
        self._lingering: list[subprocess.Popen[bytes]] = []

    def check(self) -> None:
        """This machine always answers."""

    def submit(self, directory: RunDirectory, attempt: int) -> None:  # noqa: ARG002
        with directory.hold_lock() as lock:
            self._children[directory.path] = process.spawn(directory, lock.fileno())

    def state(self, directory: RunDirectory) -> State:
        if directory.is_running():
            return State("running")
        return State("ended", directory.failure(self._exit_status(directory)))

    def ask_to_stop(self, directory: RunDirectory) -> None:
        process.ask_to_stop(directory)

    def stop(self, directory: RunDirectory) -> None:
        process.kill(directory)

    def reap(self) -> None:
        """Take note of finished workers whose processes have ended at last."""
        self._lingering = [child for child in self._lingering if child.poll() is None]

    def shut_down(self) -> None:
        """Release the workers without ending them."""
        process.release([*self._children.values(), *self._lingering])
        self._children.clear()
        self._lingering.clear()

    def _exit_status(self, directory: RunDirectory) -> int | None:
        """The exit status of a worker that has ended; None if an earlier server started it."""
        child = self._children.pop(directory.path, None)
        if child is None:
            return None
        try:
            child.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            # The worker has released the lock, so its work is done.
            self._lingering.append(child)
        return child.returncode
