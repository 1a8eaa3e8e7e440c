"""Workers: start one, and reach one that outlives whoever started it."""

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

from pipeline.runs.rundir import LOCK_FD, RunDirectory

PATIENCE = 60.0
"""Seconds without a sign of life that every worker is given which was asked to stop."""

_STEPS_ALLOWED = 2.0
"""A step may take this many times as long as the slowest of the last ones."""
_RECENT = 3
_UNITS = {"ppo": "update", "rloo": "update", "dpo": "step", "reward": "step", "sft": "step"}
"""What a stage, or a method that improves the policy, finishes, with a checkpoint, when it is asked to stop; the others stop at once."""


@dataclass(frozen=True)
class Grace:
    """How long a worker that was asked to stop is waited for, in seconds without a sign of life."""

    seconds: float
    step: float | None
    """What its slowest recent step took; None where the request came before the end of one."""
    since: datetime
    """Its last sign of life: the request, the end of a step, or a file of a checkpoint."""

    def is_over(self, when: datetime) -> bool:
        return (when - self.since).total_seconds() > self.seconds

    def sentence(self, kind: str) -> str:
        """What is waited for, for how long at most and why."""
        unit = _UNITS.get(kind)
        limit = f"killed after {_span(self.seconds)} without progress"
        if unit is None:
            return f"stops now; {limit}"
        took = f"; the last {unit}s took up to {_span(self.step)}" if self.step else ""
        return f"finishes this {unit} and saves a checkpoint{took}; {limit}"


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
            cwd=Path(__file__).parents[2],
            env=os.environ | {LOCK_FD: str(lock)},
        )


def cancel(directory: RunDirectory, when: datetime) -> None:
    """Ask a worker and everything it started to stop, once."""
    if directory.cancel_asked() is None:
        directory.ask_to_cancel(when)
        directory.say("asked to stop")
        _signal(directory, signal.SIGTERM)


def kill_if_late(directory: RunDirectory, when: datetime) -> Grace | None:
    """Kill a worker that was asked to stop and shows no sign of life; None where it was not asked.

    An update of a large model and its checkpoint take minutes, so the time follows the run.
    """
    asked = directory.cancel_asked()
    if asked is None:
        return None
    grace = _grace(directory, asked)
    if grace.is_over(when):
        _signal(directory, signal.SIGKILL)
    return grace


def _grace(directory: RunDirectory, asked: datetime) -> Grace:
    begun = _written_at(directory.path / "job.json")
    events = directory.progress_events(directory.job().attempt)
    told = [datetime.fromtimestamp(event["time"], UTC) for event in events]
    before, after = [t for t in told if t <= asked], [t for t in told if t > asked]
    steps = _seconds_between(before)[-_RECENT:]
    # The step at work has taken this long already; the first one has nothing to be compared with.
    longest = max([*steps, *_seconds_between([(before or [begun])[-1], asked])])
    seconds = max(PATIENCE, _STEPS_ALLOWED * longest)
    # A worker that ends a second step was not listening: what it does then buys no time.
    kept = directory.checkpoint.rglob("*") if len(after) < 2 else ()
    files = [file for file in kept if file.is_file()]
    signs = [asked, *after[:1], *map(_written_at, files)]
    return Grace(seconds, max(steps, default=None), max(signs))


def _seconds_between(moments: list[datetime]) -> list[float]:
    return [(b - a).total_seconds() for a, b in itertools.pairwise(moments)]


def _written_at(file: Path) -> datetime:
    """When a file was last written; long ago where it has just been removed."""
    try:
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)
    except FileNotFoundError:
        return datetime.fromtimestamp(0, UTC)


def _span(seconds: float) -> str:
    """A length of time, in the largest unit that it has two of."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


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
