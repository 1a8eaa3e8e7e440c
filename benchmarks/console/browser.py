"""What Chromium measures on the console: first content, filters, and frames of an overlay."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, FloatRect, Page

from benchmarks.common import percentiles
from benchmarks.console.served import Served
from tests.helpers.browser import new_page

CONTENT: Mapping[str, str] = {
    "Overview: Loop": ".ks-steps-row",
    "Overview: Iterations": "#iterations table",
    "Runs: Run": "#run-card > *",
    "Runs: Compare": "#compare tbody tr",
    "Models: Verdicts": "#standing .ks-card, #leaderboard table",
    "Models: Reward model": "#reward-figures > *",
    "Models: Playground": "#playground textarea",
    "Models: Samples": "#samples .ks-sample, #samples .ks-card",
    "Models: Lineage": "#lineage-graph svg",
    "Data: Judgments": "#judgments [data-open]",
    "Data: Prompts": "#prompts-table table",
    "Team: People": "#people table",
    "Team: Guidelines": "#guidelines textarea",
    "Team: Judgment form": "#scale input",
}
"""What a person came for, by section; of another section, the first text or field in its panel."""
LIMIT_MS = 30_000
SETTLE_MS = 1000
"""Milliseconds in which a page finishes its first requests; its timers never stop asking."""

_OPEN_PANEL = (
    """[...document.querySelectorAll("#sections [role=tabpanel]")].find(p => p.checkVisibility())"""
)
_SEEN = f"""
selector => {{
  const panel = {_OPEN_PANEL};
  if (!panel) return false;
  const shown = (each) => each.checkVisibility() && each.getBoundingClientRect().height > 0;
  const all = selector ? [...panel.querySelectorAll(selector)]
    : [...panel.querySelectorAll("*")].filter((each) => !each.children.length);
  return all.some(shown) && performance.now();
}}
"""


def sections(page: Page) -> list[tuple[str, str]]:
    """Name and address of each section, as the navigation lists them."""
    return page.evaluate("""
        () => [...new Map([...document.querySelectorAll(".ks-section-links a, .ks-page-links a")]
            .map(link => [link.dataset.tab, link.getAttribute("href")])).entries()]
    """)


def first_content(page: Page, url: str, name: str) -> float:
    """Milliseconds from the start of the navigation until the section's content is visible."""
    page.goto(url, wait_until="commit")
    seen = page.wait_for_function(_SEEN, arg=CONTENT.get(name, ""), polling="raf", timeout=LIMIT_MS)
    return float(seen.json_value())


def opened(page: Page, name: str) -> float:
    """Milliseconds from a click on the section's link until its content is visible."""
    start = page.evaluate("""name => {
        const links = [...document.querySelectorAll(".ks-section-links a, .ks-page-links a")];
        const start = performance.now();
        links.find(link => link.dataset.tab === name).click();
        return start;
    }""", name)  # fmt: skip
    page.wait_for_function(
        f"""name => {{
            const panel = {_OPEN_PANEL}, tab = document.querySelector("#sections [aria-selected=true]");
            return panel && tab.textContent.trim() === name;
        }}""",
        arg=name, polling="raf",
    )  # fmt: skip
    seen = page.wait_for_function(_SEEN, arg=CONTENT.get(name, ""), polling="raf", timeout=LIMIT_MS)
    return float(seen.json_value()) - start


@contextmanager
def watching(page: Page, selector: str) -> Iterator[list[float]]:
    """Appends the milliseconds from the last input in the block to the change of the element."""
    page.evaluate(
        """selector => {
        window.kiteInput = null; window.kiteChanged = null;
        const before = document.querySelector(selector).innerText;
        const input = () => { window.kiteInput = performance.now(); };
        for (const kind of ["input", "mousedown"]) addEventListener(kind, input, true);
        const look = () => {
          if (document.querySelector(selector).innerText !== before) window.kiteChanged = performance.now();
          else requestAnimationFrame(look);
        };
        look();
        window.kiteStop = () => {
          for (const kind of ["input", "mousedown"]) removeEventListener(kind, input, true);
        };
    }""",
        selector,
    )
    times: list[float] = []
    yield times
    page.wait_for_function("window.kiteChanged !== null", polling="raf", timeout=LIMIT_MS)
    times.append(page.evaluate("window.kiteStop(), window.kiteChanged - window.kiteInput"))


def choose(page: Page, field: str, number: int) -> None:
    """Choose an option of a list by its place."""
    page.locator(f"{field} input").click()
    page.get_by_role("option").nth(number).click()


def filters(browser: Browser, served: Served, round: int) -> dict[str, float]:
    """Milliseconds of each filter: from the last input to the changed number of rows."""
    found: dict[str, float] = {}

    def timed(page: Page, name: str, watched: str, act: Any) -> None:
        with watching(page, watched) as times:
            act()
        found[name] = times[0]
        page.wait_for_timeout(SETTLE_MS)

    with new_page(browser, cookie=served.cookie, width=1440) as page:
        first_content(page, f"{served.url}/research/?tab=data", "Data: Judgments")
        page.wait_for_timeout(SETTLE_MS)
        total = "#judgments-total"
        timed(
            page,
            "judgments: annotator",
            total,
            lambda: choose(page, "#judgments-annotator", 1 + round % 3),
        )
        timed(
            page,
            "judgments: outcome",
            total,
            lambda: choose(page, "#judgments-outcome", 1 + round % 3),
        )
        timed(
            page,
            "judgments: text",
            total,
            lambda: page.locator("#judgments-text textarea, #judgments-text input").fill("needle"),
        )
        first_content(page, f"{served.url}/research/?tab=data&section=prompts", "Data: Prompts")
        page.wait_for_timeout(SETTLE_MS)
        timed(page, "prompts: role", "#prompts-total", lambda: choose(page, "#prompts-role", 1))
        timed(
            page,
            "prompts: text",
            "#prompts-total",
            lambda: page.locator("#prompts-text textarea, #prompts-text input").fill(
                f"Question {round}"
            ),
        )
        first_content(page, f"{served.url}/research/?tab=runs&section=compare", "Runs: Compare")
        page.wait_for_timeout(SETTLE_MS)
        timed(
            page,
            "runs: search",
            "#compare [role=status]",
            lambda: page.locator("#compare input[type=search]").fill("run-1-policy"),
        )
    return found  # fmt: skip


def overlay(
    browser: Browser, served: Served, runs: Sequence[str], *, seconds: float
) -> dict[str, Any]:
    """Frames while a person points at, brushes and zooms an overlay of smoothed curves."""
    with new_page(browser, cookie=served.cookie, width=1440, height=1000) as page:
        address = f"{served.url}/research/?tab=runs&section=compare&runs={','.join(runs)}"
        first_content(page, address, "Runs: Compare")
        page.locator("#compare .u-over").first.wait_for()
        page.evaluate("""() => {
            const slider = document.querySelector("#compare input[type=range]");
            slider.value = 0.9;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }""")
        page.wait_for_timeout(SETTLE_MS)
        page.locator("#compare .u-over").first.scroll_into_view_if_needed()
        box = page.locator("#compare .u-over").first.bounding_box()
        assert box is not None
        points = page.evaluate("document.querySelectorAll('#compare .u-over').length")
        session = page.context.new_cdp_session(page)
        events: list[dict[str, Any]] = []
        session.on("Tracing.dataCollected", lambda data: events.extend(data["value"]))
        session.send(
            "Tracing.start",
            {
                "transferMode": "ReportEvents",
                "traceConfig": {
                    "includedCategories": [
                        "devtools.timeline",
                        "disabled-by-default-devtools.timeline.frame",
                        "cc",
                        "benchmark",
                    ]
                },
            },
        )
        page.evaluate("performance.mark('kite-start')")
        brush(page, box, seconds)
        done: list[Any] = []
        session.on("Tracing.tracingComplete", lambda data: done.append(data))
        session.send("Tracing.end")
        while not done:
            page.wait_for_timeout(50)
        return {"charts": points} | frames(events)  # fmt: skip


def brush(page: Page, box: FloatRect, seconds: float) -> None:
    """Point along the chart, then drag to zoom, again and again."""
    page.evaluate("seconds => { window.kiteUntil = performance.now() + 1000 * seconds; }", seconds)
    left, middle = box["x"] + 5, box["y"] + box["height"] / 2
    turn = 0
    while page.evaluate("performance.now() < window.kiteUntil"):
        for x in range(0, int(box["width"]) - 10, 8):
            page.mouse.move(left + x, middle)
        page.mouse.move(left + box["width"] * 0.2, middle)
        page.mouse.down()
        for x in range(0, int(box["width"] * 0.5), 8):
            page.mouse.move(left + box["width"] * 0.2 + x, middle)
        page.mouse.up()
        turn += 1
        if turn % 3 == 0:
            page.mouse.dblclick(left + 40, middle)


def frames(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Milliseconds between drawn frames, and dropped frames, from a trace of Chromium."""
    drawn = sorted(event["ts"] / 1000 for event in events if event["name"] == "DrawFrame")
    gaps = [after - before for before, after in itertools.pairwise(drawn)]
    seconds = (drawn[-1] - drawn[0]) / 1000 if gaps else 0.0
    return {
        "frames": len(drawn),
        "frames_per_second": round(len(gaps) / seconds, 1) if seconds else 0.0,
        "ms_between_frames": percentiles(gaps, (50, 95, 99)),
        "dropped": sum(event["name"] == "DroppedFrame" for event in events),
    }
