"""TensorBoard's folder of a workspace: a link to the events of each run, under a name to read."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

from pipeline.runs.rundir import Job

FOLDER = "tensorboard"
TRACKERS = "trackers"
"""The folder in a run directory to which the worker's trackers write."""


def run_name(job: Job) -> str:
    """``iteration-2-ppo``: the name of a run in trackers."""
    return f"iteration-{job.iteration}-{job.kind}"


def link(workspace: Path, job: Job) -> None:
    """Link the run's events in `FOLDER`, if it reports to TensorBoard.

    A further run of the same stage gets a number: ``iteration-2-ppo-2``.  The link leads nowhere
    until the worker has written something.  A folder that cannot be written is no reason to fail.
    """
    if "tensorboard" not in job.config.worker.report_to:
        return
    name, folder = run_name(job), workspace / FOLDER
    target = Path("..", "runs", job.run, TRACKERS, name)
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        for number in count(1):
            place = folder / (name if number == 1 else f"{name}-{number}")
            if not place.is_symlink():
                place.symlink_to(target)
            if place.readlink() == target:
                return
