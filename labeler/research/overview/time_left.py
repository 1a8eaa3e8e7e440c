"""The time left in the action bar: of the stage that runs, or until the labels are collected."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.phases import opening
from labeler.research.reading import PACE_WINDOW, State
from labeler.research.runs.eta import ENOUGH, NEARLY_DONE, Eta, about
from storage.wording import plural

ENOUGH_LABELS = 5
"""Labels in the window that a pace needs."""
LEAST_WINDOW = timedelta(minutes=5)
"""The shortest window that a pace is measured over."""
_ROUNDED_TO = ((36000, 3600), (3600, 900), (600, 300), (0, 60))
"""Seconds from which an estimate of labeling is rounded, and to what."""


@dataclass(frozen=True)
class Pace:
    """Labels per second, and the seconds that it was measured over."""

    per_second: float
    window: float


def shown(state: State, eta: Eta, *, now: datetime) -> Markup:
    """The time left, or nothing if neither a stage runs nor labels are missing."""
    run = state.run
    if run is not None and run.status == "running":
        seconds = eta.seconds_left(run, now=now)
        if run.progress >= 1:
            seconds = 0.0  # the steps are done; what is left, such as storing, has no progress
        return Markup("") if state.cancelling else of_stage(run.stage, seconds)
    return of_labels(state, now=now)


def of_stage(stage: str, seconds: float | None) -> Markup:
    """The time left of a running stage; `seconds` is None while there is no estimate."""
    name = opening(stage)
    where = f"left in {name[:1].lower()}{name[1:]}"
    if seconds is None:
        needed = (
            f"An estimate needs two steps of the stage, at least {ENOUGH:.0f} seconds apart, "
            "while this server runs."
        )
        return _left("Estimating…", where.replace("left in", "time left in"), needed)
    if seconds < NEARLY_DONE:
        return _left("Finishing", f"{name[:1].lower()}{name[1:]}")
    return _left(f"About {about(seconds)}", where)


def of_labels(state: State, *, now: datetime) -> Markup:
    """The time until the labels that the iteration wants, at the recent pace."""
    missing = state.wanted - state.labels
    if state.iteration is None or state.iteration.phase != "labeling" or missing <= 0:
        return Markup("")
    target = f"to {plural(state.wanted, 'label')}"
    pace = pace_of(state.recent_labels, state.first_label, now=now)
    if pace is None:
        value = "Estimating…" if state.recent_labels else "No estimate"
        return _left(value, f"time {target}", _needed(state.recent_labels))
    when = f"{target} at the pace of the last {_window(pace.window)}"
    counted = f"{plural(state.recent_labels, 'label')} in the last hour."
    return _left(f"About {_rounded(missing / pace.per_second)}", when, counted)


def pace_of(recent: int, first: datetime | None, *, now: datetime) -> Pace | None:
    """The pace of `recent` labels in the last `PACE_WINDOW`; None if there are too few.

    If the iteration's `first` label is newer than the window, the window starts with it: then only
    the labels after it took time.
    """
    if first is None:
        return None
    window = min(PACE_WINDOW, now - first)
    counted = recent if now - first > PACE_WINDOW else recent - 1
    if counted < ENOUGH_LABELS or window < LEAST_WINDOW:
        return None
    return Pace(counted / window.total_seconds(), window.total_seconds())


def _needed(recent: int) -> str:
    minutes = int(LEAST_WINDOW.total_seconds() // 60)
    return (
        f"An estimate needs more than {ENOUGH_LABELS} labels in the last hour, over at least "
        f"{minutes} minutes. So far: {plural(recent, 'label')}."
    )


def _window(seconds: float) -> str:
    return "hour" if seconds >= PACE_WINDOW.total_seconds() else f"{int(seconds // 60)} min"


def _rounded(seconds: float) -> str:
    step = next(step for limit, step in _ROUNDED_TO if seconds >= limit)
    return components.duration(max(step, step * round(seconds / step)))


def _left(value: str, detail: str, explained: str = "") -> Markup:
    return Markup('<div class="ks-time-left"><b>{}</b> <span>{}{}</span></div>').format(
        value, detail, components.info(explained)
    )
