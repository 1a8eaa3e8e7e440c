"""Latency from a key press to the next pair on the screen, in headless Chromium.

    python -m benchmarks.click_to_next [--labels 60]

Runs two rounds on the real server: without changes, and with every request delayed by 300 ms, as on
a slow network.  The time runs from the key event's timestamp to the frame that paints the next pair
(a task queued after the animation frame).  Keys are pressed as soon as the page accepts a verdict
on the pair it shows, so no press is lost or queued.  Every wait has a timeout; the exit status is 1
if one expires.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as TooLate

from benchmarks.common import ROOT, percentiles
from storage.engine.database import Database
from storage.labeling import queue
from storage.tables.people import tokens
from tests.helpers.browser import chromium, new_page
from tests.helpers.desk_demo import believable
from tests.helpers.desk_world import add_pairs, add_person, make_app, serving

LIMIT_S = 30
"""Timeout of each wait, seconds: a thousand times the usual latency, for a busy machine."""

_DESK = (ROOT / "labeler" / "annotate" / "scripts" / "desk.js").read_text(encoding="utf-8")
_UNREAD = re.search(r"^const UNREAD = (\d+);", _DESK, re.MULTILINE)
assert _UNREAD, "labeler/annotate/scripts/desk.js no longer defines UNREAD"
GUARD_MS = int(_UNREAD.group(1)) + 50
"""Milliseconds after which the page accepts a verdict on a new pair; earlier ones are slips."""

# The next pair is in the DOM when the prompt's nodes change; a task after the next frame ends the
# time.
_WATCH = """
() => {
  window.kiteTimes = [];
  window.kiteShown = performance.now();
  let pressed = null;
  addEventListener("keydown", (event) => { pressed = event.timeStamp; }, true);
  new MutationObserver(() => {
    window.kiteShown = performance.now();
    const since = pressed;
    if (since === null) return;
    pressed = null;
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => window.kiteTimes.push(performance.now() - since);
      channel.port2.postMessage(0);
    });
  }).observe(document.querySelector(".prompt"), { childList: true });
}
"""


def measure(page: Page, labels: int) -> dict[str, float | int]:
    """Judge `labels` pairs as fast as the page accepts verdicts."""
    page.evaluate(_WATCH)
    readable = "guard => performance.now() - window.kiteShown >= guard"
    for done in range(labels):
        with in_time(f"pair {done + 1} was never open for a verdict"):
            page.wait_for_function(readable, arg=GUARD_MS)
        page.keyboard.press("12"[done % 2])
        with in_time(f"key press {done + 1} brought no next pair"):
            page.wait_for_function("count => window.kiteTimes.length > count", arg=done)
    with in_time("the last label was not saved"):
        page.wait_for_selector(".status[data-status=saved]")
        # The server's threads are daemons: one still in the database at exit aborts the process.
        page.wait_for_load_state("networkidle")
    times = page.evaluate("window.kiteTimes")
    return {
        "labels": len(times),
        **{f"{share}_ms": time for share, time in percentiles(times).items()},
        "max_ms": round(max(times), 1),
    }


@contextmanager
def in_time(otherwise: str) -> Iterator[None]:
    """Exit with a sentence that says what did not happen within the timeout."""
    try:
        yield
    except TooLate:
        raise SystemExit(f"click_to_next: {otherwise} within {LIMIT_S} s") from None


def delay_requests(page: Page, milliseconds: int) -> None:
    """Let Chromium delay each request, as on a slow network."""
    conditions = {"offline": False, "latency": milliseconds}
    unlimited = {"downloadThroughput": -1, "uploadThroughput": -1}
    page.context.new_cdp_session(page).send(
        "Network.emulateNetworkConditions", {**conditions, **unlimited}
    )


def run(folder: Path, labels: int) -> dict[str, Any]:
    """Run both rounds, each with its own annotator."""
    figures: dict[str, Any] = {}
    with Database.open(folder) as db:
        add_pairs(db, believable(2 * labels + 2 * queue.MAX_SHARE))
        app = make_app(db)
        with serving(app) as server, chromium(full=True) as browser:
            for name in ("near", "delayed_300_ms"):
                who = add_person(db, name)
                secret = tokens.issue(db, who.id, "session", lifetime=None)
                with new_page(
                    browser, cookie=(server.url, app.state.auth.cookie, secret), service_worker=True
                ) as page:
                    if name != "near":
                        delay_requests(page, 300)
                    page.set_default_timeout(LIMIT_S * 1000)
                    start = time.perf_counter()
                    with in_time("the first pair did not appear"):
                        page.goto(f"{server.url}/label/")
                        page.wait_for_selector(".desk[data-state=judging]")
                    first = round(time.perf_counter() - start, 2)
                    figures[name] = {**measure(page, labels), "first_pair_s": first}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=60, help="key presses per round")
    given = parser.parse_args()
    if given.labels < 1:
        parser.error(f"--labels is {given.labels} and must be at least 1")
    with tempfile.TemporaryDirectory(prefix="kitestring-click-") as folder:
        print(json.dumps(run(Path(folder), given.labels)))


if __name__ == "__main__":
    main()
