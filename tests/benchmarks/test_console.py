"""What the console benchmark reads from Chromium's trace."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.console.overlay import frames, script

MAIN, WORKER = 1, 2


def event(name: str, ts: float, dur: float | None = None, tid: int = MAIN) -> dict[str, Any]:
    """An event of a trace; times in milliseconds."""
    times = {"ts": 1000 * ts} | ({} if dur is None else {"dur": 1000 * dur})
    return {"name": name, "pid": 1, "tid": tid} | times


def test_scripts_count_once_and_on_every_thread() -> None:
    trace = [
        event("FunctionCall", 11, 2),  # within the frame's callbacks
        event("FireAnimationFrame", 10, 5),
        event("Paint", 20, 9),
        event("TimerFire", 30, 1),
        event("FunctionCall", 12, 4, tid=WORKER),
    ]
    assert script(trace) == pytest.approx(5 + 1 + 4)


def test_frames_a_second_come_from_the_drawn_frames() -> None:
    drawn = [0, 10, 20, 60, 80]
    trace = [*(event("DrawFrame", at) for at in drawn), event("DroppedFrame", 30)]
    found = frames([*trace, event("FireAnimationFrame", 5, 3)])
    # Four gaps in 80 ms: 50 a second.  In order they are 10, 10, 20 and 40 ms.
    assert (found["frames"], found["frames_per_second"], found["dropped"]) == (5, 50.0, 1)
    assert found["ms_between_frames"] == {"p50": 20.0, "p95": 40.0, "p99": 40.0}
    assert found["script_ms_per_frame"] == 0.6


def test_a_trace_without_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="no drawn frames"):
        frames([event("Paint", 1, 1)])
