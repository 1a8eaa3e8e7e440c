"""What a launcher does: start a worker somewhere, say whether it lives, end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.runs.rundir import RunDirectory


class LaunchError(ValueError):
    """A worker cannot be started; the message says why and what to do."""


class NoAnswer(LaunchError):
    """A cluster has not answered; it may have started the worker, and may answer later."""


@dataclass(frozen=True)
class State:
    """`message` says what a worker waits for, or why it ended, if the launcher has to say anything."""

    phase: Literal["waiting", "running", "ended"]
    message: str | None = None


class Launcher(Protocol):
    """Starts, follows and ends the workers of run directories."""

    def check(self) -> None:
        """LaunchError unless a worker could be started now."""
        ...

    def submit(self, directory: RunDirectory, attempt: int) -> None:
        """Start the worker and store its handle in the run directory; LaunchError if it cannot."""
        ...

    def state(self, directory: RunDirectory) -> State:
        """Whether the worker of the newest attempt waits, runs or has ended."""
        ...

    def ask_to_stop(self, directory: RunDirectory) -> None:
        """Called after `RunDirectory.request_cancel`: tell the worker to look at it."""
        ...

    def stop(self, directory: RunDirectory) -> None:
        """End the worker now."""
        ...

    def shut_down(self) -> None:
        """Release the workers without ending them."""
        ...
