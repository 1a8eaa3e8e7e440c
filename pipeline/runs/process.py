"""Starts worker processes, and stops them, even those that another process started.

A worker that was asked to stop ends its step and writes a checkpoint.  `grace` says how long it may
take: `CANCEL_GRACE` seconds without progress, or twice its slowest recent step if that is longer.
Then it is killed.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pipeline.config.policy import ENGINE_METHODS
from pipeline.runs.rundir import LOCK_FD, RunDirectory, read_json

CANCEL_GRACE = 60.0
"""Minimum seconds without progress before a worker that was asked to stop is killed."""

_STEPS_ALLOWED = 2.0
"""A step may take this many times as long as the slowest recent one."""
_RECENT = 3
_UNITS = dict.fromkeys(ENGINE_METHODS, "update")
_UNITS |= {"dpo": "step", "reward": "step", "sft": "step"}
"""The unit of work that a stage finishes before it stops with a checkpoint, by `Job.kind`; other
stages stop immediately."""


@dataclass(frozen=True)
class Grace:
    """How long to wait for a worker that was asked to stop."""

    seconds: float
    """Seconds without progress until it is killed."""
    step: float | None
    """Seconds of its slowest recent step; None if no step had ended before the request."""
    since: datetime
    """Time of the last progress: the request, the end of a step, a file of a checkpoint, or its way here."""

    def is_over(self, when: datetime) -> bool:
        return (when - self.since).total_seconds() > self.seconds

    def sentence(self, kind: str) -> str:
        """What the worker does until it stops, and how long the studio waits at most."""
        unit = _UNITS.get(kind)
        limit = f"killed after {_span(self.seconds)} without progress"
        if unit is None:
            return f"stops now; {limit}"
        took = f"; the last {unit}s took up to {_span(self.step)}" if self.step else ""
        return f"finishes this {unit} and saves a checkpoint{took}; {limit}"


def spawn(directory: RunDirectory, lock: int) -> subprocess.Popen[bytes]:
    """Start the worker of a run directory in its own session; it inherits the lock."""
    child = start(directory, lock, outlives=True)
    (directory.path / "pid").write_text(str(child.pid))
    return child


def start(directory: RunDirectory, lock: int, *, outlives: bool) -> subprocess.Popen[bytes]:
    """Start the worker of a run directory, in its own session if it `outlives` this process."""
    with directory.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.worker", str(directory.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=outlives,
            pass_fds=[lock],
            cwd=Path(__file__).parents[2],
            env=os.environ | {LOCK_FD: str(lock)},
        )


def cancel(directory: RunDirectory, when: datetime) -> None:
    """Ask a worker and its child processes to stop, once."""
    if directory.request_cancel(when):
        directory.append_log("asked to stop")
        ask_to_stop(directory)


def ask_to_stop(directory: RunDirectory) -> None:
    """Tell a worker and its child processes that they were asked to stop."""
    _signal(directory, signal.SIGTERM)


def kill(directory: RunDirectory) -> None:
    """End a worker and its child processes now."""
    _signal(directory, signal.SIGKILL)


def kill_if_late(directory: RunDirectory, when: datetime) -> Grace | None:
    """Kill a worker that was asked to stop and makes no progress; None if it was not asked."""
    found = grace(directory)
    if found is not None and found.is_over(when):
        kill(directory)
    return found


def grace(directory: RunDirectory) -> Grace | None:
    """How long a worker that was asked to stop may take; None if it was not asked.

    An update of a large model and its checkpoint take minutes, so the limit depends on the run.
    """
    asked = directory.cancel_requested_at()
    if asked is None:
        return None
    begun = _written_at(directory.path / "job.json")
    if beat := read_json(directory.heartbeat):  # a cluster may have started it hours later
        begun = max(begun, datetime.fromtimestamp(beat["started"], UTC))
    events = directory.progress_events(directory.job().attempt)
    times = [datetime.fromtimestamp(event["time"], UTC) for event in events]
    before, after = [t for t in times if t <= asked], [t for t in times if t > asked]
    steps = _seconds_between(before)[-_RECENT:]
    # The current step counts with its duration so far, which is all there is in the first step.
    longest = max([*steps, *_seconds_between([(before or [begun])[-1], asked])])
    seconds = max(CANCEL_GRACE, _STEPS_ALLOWED * longest)
    # A worker that ends a second step ignores the request; its checkpoints do not extend the limit.
    kept = [*directory.checkpoint.rglob("*"), directory.transfer] if len(after) < 2 else []
    files = [file for file in kept if file.is_file()]
    signs = [asked, *after[:1], *map(_written_at, files)]
    return Grace(seconds, max(steps, default=None), max(signs))


def _seconds_between(moments: list[datetime]) -> list[float]:
    return [(b - a).total_seconds() for a, b in itertools.pairwise(moments)]


def _written_at(file: Path) -> datetime:
    """When a file was last written; 1970 if it was just removed."""
    try:
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except FileNotFoundError:
        return datetime.fromtimestamp(0, UTC)


def _span(seconds: float) -> str:
    """A duration, in the largest unit of which there are two."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _signal(directory: RunDirectory, signum: int) -> None:
    """Signal a worker and its child processes."""
    # The lock is held, so the worker lives and the recorded group id is still its own.
    if directory.is_running():
        with suppress(ProcessLookupError, FileNotFoundError):
            os.killpg(int((directory.path / "pid").read_text()), signum)


def release(children: list[subprocess.Popen[bytes]]) -> None:
    """Release workers without stopping them."""
    for child in children:
        child.poll()
        child.returncode = child.returncode or 0  # no "still running" warning at exit
