"""The estimated remaining time of a run, from its observed speed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime

from labeler.html import components
from storage.records import Run

ENOUGH = 4.0
"""Seconds of observed progress before the first estimate; the page polls every two seconds."""

NEARLY_DONE = 10.0
"""Seconds left below which a run is said to finish."""


def about(seconds: float) -> str:
    """Seconds as a duration with the precision of an estimate: a minute, ten or five seconds."""
    step = 60 if seconds >= 300 else 10 if seconds >= 60 else 5
    return components.duration(step * round(seconds / step))


@dataclass
class _Watch:
    """The progress of one attempt since its first observed increase."""

    progress: float
    first: tuple[datetime, float] | None = None
    last: datetime | None = None
    rises: int = 0


class Eta:
    """Records each attempt's progress since its first increase. Thread-safe.

    The time before that increase does not show the speed: the worker is loading models, or the step
    started before the page was opened.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[tuple[str, int], _Watch] = {}

    def seconds_left(self, run: Run, *, now: datetime) -> float | None:
        """Seconds until the run is done, or None if it is too early to say."""
        key = (run.id, run.attempt)
        with self._lock:
            watch = self._watched.get(key)
            # A resumed attempt first shows the old attempt's progress, then falls back.
            if watch is None or run.progress < watch.progress:
                watch = self._watched[key] = _Watch(run.progress)
            if run.progress > watch.progress:
                watch.progress, watch.last = run.progress, now
                if watch.first is None:
                    watch.first = (now, run.progress)
                else:
                    watch.rises += 1
            return _left(watch, now)


def _left(watch: _Watch, now: datetime) -> float | None:
    if watch.first is None or watch.last is None or not watch.rises:
        return None
    began, progress = watch.first
    spent = (watch.last - began).total_seconds()
    if spent < ENOUGH:
        return None
    left = (1 - watch.progress) * spent / (watch.progress - progress)
    # Count down between increases, but at most by the mean time of one.
    waited = min((now - watch.last).total_seconds(), spent / watch.rises)
    return max(0.0, left - waited)
