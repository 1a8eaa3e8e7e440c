"""Sends metrics to the trackers in `worker.report_to`: TensorBoard, trackio, wandb.

The default is none.  The trackers are accelerate's; the worker fails at startup if one is not
installed.  Kitestring itself reads only the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers


class Trackers:
    """The trackers of one run; ValueError for a name that is unknown or not installed.

    TensorBoard writes to `folder`/`run`.  The others show the run in a project named `project`.
    """

    def __init__(self, names: Sequence[str], *, run: str, project: str, folder: Path) -> None:
        installed = [str(getattr(kind, "value", kind)) for kind in get_available_trackers()]
        for name in names:
            if name not in LOGGER_TYPE_TO_CLASS:
                known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
                raise ValueError(f"worker.report_to names {name!r}; there are {known}")
            if name not in installed:
                raise ValueError(
                    f"worker.report_to names {name!r}, which is not installed: pip install {name}"
                )
        PartialState()  # trackers ask it whether this is the main process
        self._trackers: list[Any] = []
        for name in names:
            kind = LOGGER_TYPE_TO_CLASS[name]
            if kind.requires_logging_directory:
                tracker = kind(run, logging_dir=str(folder))
            else:
                tracker = kind(project, name=run)
            tracker.start()
            self._trackers.append(tracker)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for tracker in self._trackers:
            tracker.log(dict(values), step=step)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.finish()
