"""How long a run has still to go, from how fast it was while we watched."""

from __future__ import annotations

import threading
from datetime import datetime

from labeler.view import time_left
from storage.records import Run

ENOUGH = 0.02
"""Share of the work that must have been watched before its speed is believed."""


class Pace:
    """Remembers where each attempt stood when it was first looked at.  Thread-safe.

    A run's own start does only for its first attempt: a resumed one begins at its checkpoint.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[tuple[str, int], tuple[datetime, float]] = {}

    def seconds_left(self, run: Run, *, now: datetime) -> float | None:
        """Seconds until the run is done, or None while it is too early to say."""
        key = (run.id, run.attempt)
        with self._lock:
            began, progress = self._first.setdefault(key, (now, run.progress))
            # A new attempt first shows the old one's progress, then falls back.
            if run.progress < progress:
                began, progress = self._first[key] = (now, run.progress)
        watched = run.progress - progress
        if watched >= ENOUGH:
            seconds = (now - began).total_seconds()
            return time_left(progress=watched / (1 - progress), seconds=seconds)
        if run.attempt == 1:
            return time_left(progress=run.progress, seconds=(now - run.created_at).total_seconds())
        return None
