"""Frames, from Chromium's trace, while a person points at and zooms an overlay of smoothed curves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, FloatRect, Page

from benchmarks.common import percentiles
from benchmarks.console.browser import SETTLE_MS, first_content
from benchmarks.console.served import Served
from tests.helpers.browser import new_page

_TRACED = ("devtools.timeline", "disabled-by-default-devtools.timeline.frame", "cc", "benchmark")
_SCRIPT = frozenset({"FireAnimationFrame", "EventDispatch", "TimerFire", "FunctionCall"})
_CONTROL = """
<body style="margin:0"><p id="follower" style="position:absolute;margin:0">control</p><script>
  addEventListener("mousemove", (event) => { document.querySelector("p").style.left = event.x + "px"; });
</script></body>
"""
"""A page that does nothing but to move one word with the pointer."""
_SMOOTH = """() => {
  const slider = document.querySelector("#compare input[type=range]");
  slider.value = 0.9;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""


def overlay(
    browser: Browser, served: Served, runs: Sequence[str], *, seconds: float
) -> dict[str, Any]:
    """Frames of the overlay of these runs, and of a page with one word as the machine's limit."""
    with new_page(browser, cookie=served.cookie, width=1440, height=1000) as page:
        address = f"{served.url}/research/?tab=runs&section=compare&runs={','.join(runs)}"
        first_content(page, address, "Runs: Compare")
        chart = page.locator("#compare .u-over").first
        chart.wait_for()
        page.evaluate(_SMOOTH)
        page.wait_for_timeout(SETTLE_MS)
        chart.scroll_into_view_if_needed()
        charts = page.locator("#compare .u-over").count()
        box = chart.bounding_box()
        assert box is not None
        drawn = traced(page, lambda: brush(page, box, seconds))
    with new_page(browser, width=1440, height=1000) as page:
        page.set_content(_CONTROL)
        control = traced(page, lambda: brush(page, box, seconds))
    return {"runs": len(runs), "charts": charts, **drawn, "control": control}


def brush(page: Page, box: FloatRect, seconds: float) -> int:
    """Point along the chart, then drag to zoom, again and again; returns the moves of the mouse."""
    left, middle, width = box["x"] + 5, box["y"] + box["height"] / 2, int(box["width"]) - 10
    moved = 0

    def along(start: float, share: float) -> None:
        nonlocal moved
        for x in range(0, int(share * width), 8):
            page.mouse.move(left + start * width + x, middle)
            moved += 1

    until = page.evaluate("performance.now()") + 1000 * seconds
    for turn in itertools.count(1):
        along(0, 1)
        page.mouse.move(left + 0.2 * width, middle)
        page.mouse.down()
        along(0.2, 0.5)
        page.mouse.up()
        if turn % 3 == 0:
            page.mouse.dblclick(left + 40, middle)
        if page.evaluate("performance.now()") > until:
            return moved
    raise AssertionError


def traced(page: Page, act: Callable[[], int]) -> dict[str, Any]:
    """What Chromium draws during `act`, which returns the moves of the mouse."""
    with trace(page) as events:
        moved = act()
    found = frames(events)
    return found | {"moves_per_second": round(moved / found.pop("seconds"), 1)}


@contextmanager
def trace(page: Page) -> Iterator[list[dict[str, Any]]]:
    """The events of Chromium's trace, complete when the context has ended."""
    session = page.context.new_cdp_session(page)
    events: list[dict[str, Any]] = []
    done: list[Any] = []
    session.on("Tracing.dataCollected", lambda data: events.extend(data["value"]))
    session.on("Tracing.tracingComplete", lambda data: done.append(data))
    config = {"includedCategories": list(_TRACED)}
    session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": config})
    yield events
    session.send("Tracing.end")
    while not done:
        page.wait_for_timeout(50)


def frames(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Milliseconds between drawn frames, dropped frames, and the scripts' milliseconds per frame."""
    drawn = sorted(event["ts"] / 1000 for event in events if event["name"] == "DrawFrame")
    gaps = [after - before for before, after in itertools.pairwise(drawn)]
    if not gaps:
        raise ValueError("Chromium's trace has no drawn frames")
    seconds = (drawn[-1] - drawn[0]) / 1000
    return {
        "seconds": seconds,
        "frames": len(drawn),
        "frames_per_second": round(len(gaps) / seconds, 1),
        "ms_between_frames": percentiles(gaps, (50, 95, 99)),
        "dropped": sum(event["name"] == "DroppedFrame" for event in events),
        "script_ms_per_frame": round(script(events) / len(drawn), 2),
    }


def script(events: Sequence[Mapping[str, Any]]) -> float:
    """Milliseconds in which scripts ran; a call within another one counts once."""
    total = 0.0
    ends: dict[tuple[int, int], float] = {}  # of the last call, by process and thread
    calls = [event for event in events if event["name"] in _SCRIPT and "dur" in event]
    for event in sorted(calls, key=lambda event: event["ts"]):
        thread, end = (event["pid"], event["tid"]), event["ts"] + event["dur"]
        if event["ts"] >= ends.get(thread, 0.0):
            total += event["dur"] / 1000
            ends[thread] = end
    return total
