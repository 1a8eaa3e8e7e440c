"""The researcher's console on a large workspace, in headless Chromium.

    python -m benchmarks console [--rounds 3] [--seconds 10] [--workspace DIR] [--beside]

Fills a workspace with 200 policy runs of 2,000 updates and 100,000 judgments by 40 people, serves it
with `launch.py serve`, and measures: the time from the navigation to the first content of every
section, with an empty browser cache, and of a section that is opened by its link; the filters, from
the event to the painted number of rows; the frames, from Chromium's trace, while a person points at
and zooms an overlay of ten smoothed runs; and the web process: its resident memory at the start,
after the sections, and at the end, and its CPU seconds.  ``--beside`` keeps five more pages open,
whose timers ask during all measurements but those of first contents.  ``--workspace`` keeps the
workspace in that folder and uses it again.  Prints one JSON object, times in milliseconds; the
progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as TooLate

from benchmarks.common import percentiles
from benchmarks.console import browser as measured
from benchmarks.console.overlay import overlay
from benchmarks.console.served import Served, serving
from benchmarks.console.world import Size, World
from pipeline.loop.workspace_config import prepare
from storage.engine.database import Database
from tests.helpers.browser import chromium, new_page

COMPARED = 10
Times = defaultdict[str, list[float]]


def say(what: str) -> None:
    """Progress, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def fill(workspace: Path, size: Size) -> dict[str, Any]:
    """Fill the workspace, unless it is there; returns what it has."""
    began = time.perf_counter()
    fresh = not workspace.exists()
    prepare(workspace, None, [], ["worker.threads=1"])
    with Database.open(workspace) as db:
        if fresh:
            World(db, size).fill()
        counts = {
            table: db.read(f"SELECT count(*) AS n FROM {table}")[0]["n"]
            for table in ("judgments", "runs", "metrics")
        }
        runs = db.read("SELECT id FROM runs WHERE stage = 'policy' ORDER BY created_at, id")
    compared = [row["id"] for row in runs[-COMPARED:]]
    return counts | {"seed_s": round(time.perf_counter() - began, 1), "compared": compared}


def first_contents(browser: Browser, served: Served, given: argparse.Namespace) -> dict[str, Any]:
    """The times of each section: until it can be read and is ready, and opened by its link."""
    with new_page(browser, cookie=served.cookie, width=1440) as page:
        measured.first_content(page, f"{served.url}/research/", measured.FIRST)
        listed = measured.sections(page)
    if given.tiny:  # the first section of each page
        listed = [*{name.split(":")[0]: (name, at) for name, at in reversed(listed)}.values()]
    read, ready, warm = Times(list), Times(list), Times(list)
    for round in range(given.rounds):
        for name, address in listed:
            with new_page(browser, cookie=served.cookie, width=1440) as page:
                took = measured.first_content(page, served.url + address, name)
            read[name].append(took.read)
            ready[name].append(took.ready)
            say(f"round {round + 1}, {name}: {took.read:.0f} ms, ready after {took.ready:.0f} ms")
        with new_page(browser, cookie=served.cookie, width=1440) as page:
            measured.first_content(page, f"{served.url}/research/", measured.FIRST)
            for name, _ in listed:
                if name != measured.FIRST:
                    warm[name].append(measured.opened(page, name))
    times = {"read": read, "ready": ready, "opened": warm}
    return {name: _percentiles(each) for name, each in times.items()}


def _percentiles(times: Times) -> dict[str, dict[str, float]]:
    return {name: percentiles(each) for name, each in times.items()}


def filters(browser: Browser, served: Served, rounds: int) -> dict[str, Any]:
    times = Times(list)
    for round in range(rounds):
        for name, took in measured.filters(browser, served, round).items():
            times[name].append(took)
            say(f"round {round + 1}, {name}: {took:.0f} ms")
    return _percentiles(times)


def measure(workspace: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All measurements on one served workspace."""
    say("filling the workspace")
    stored = fill(workspace, Size.tiny() if given.tiny else Size())
    compared = stored.pop("compared")
    found: dict[str, Any] = {"stored": stored, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    say("starting the server and Chromium")
    with serving(workspace) as served, chromium(full=True) as browser:
        found["memory_mb"] = {"start": served.memory_mb()}
        found["first_content"] = first_contents(browser, served, given)
        found["memory_mb"]["sections"] = served.memory_mb()
        with measured.others(browser, served) if given.beside else nullcontext():
            found["filters"] = filters(browser, served, given.rounds)
            say("brushing the overlay")
            found["overlay"] = overlay(browser, served, compared, seconds=given.seconds)
        found["memory_mb"]["end"] = served.memory_mb()
        found["cpu_s"] = served.cpu_s()
    return found | {"load_at_end": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of brushing")
    parser.add_argument("--workspace", type=Path, help="a folder to keep and to use again")
    parser.add_argument("--beside", action="store_true", help="keep five more pages open")
    parser.add_argument("--tiny", action="store_true", help="a small workspace, few sections")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kitestring-console-") as folder:
        try:
            found = measure(given.workspace or Path(folder) / "workspace", given)
        except TooLate as error:
            raise SystemExit(f"console: {error}") from None
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
