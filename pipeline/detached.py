"""Workers: start one, and reach one that outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pipeline.rundir import LOCK_FD, RunDirectory

PATIENCE = 60.0
"""Seconds a worker may take to stop in good order, at the end of an update, before it is killed."""


def spawn(directory: RunDirectory, lock: int) -> subprocess.Popen[bytes]:
    """Start the worker of a run directory in a session of its own; it inherits the held lock."""
    child = start(directory, lock, outlives=True)
    (directory.path / "pid").write_text(str(child.pid))
    return child


def start(directory: RunDirectory, lock: int, *, outlives: bool) -> subprocess.Popen[bytes]:
    """Start the worker of a run directory, in our session unless it `outlives` us."""
    with directory.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.worker", str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=outlives,
            pass_fds=[lock],
            cwd=Path(__file__).parent.parent,
            env=os.environ | {LOCK_FD: str(lock)},
        )


def cancel(directory: RunDirectory, when: datetime) -> None:
    """Ask a worker and everything it started to stop, once."""
    if directory.cancel_asked() is None:
        directory.ask_to_cancel(when)
        directory.say("asked to stop")
        _signal(directory, signal.SIGTERM)


def kill_if_late(directory: RunDirectory, when: datetime) -> None:
    """Kill a worker that was asked to stop and has not for `PATIENCE` seconds."""
    asked = directory.cancel_asked()
    if asked and (when - asked).total_seconds() > PATIENCE:
        _signal(directory, signal.SIGKILL)


def _signal(directory: RunDirectory, signum: int) -> None:
    """Reach a worker and everything it started."""
    # The lock proves the worker lives, so the recorded group id is still its own.
    if directory.is_running():
        with suppress(ProcessLookupError, FileNotFoundError):
            os.killpg(int((directory.path / "pid").read_text()), signum)


def let_go(children: list[subprocess.Popen[bytes]]) -> None:
    """Forget workers without stopping them."""
    for child in children:
        child.poll()
        child.returncode = child.returncode or 0  # no "still running" warning at exit
