"""The researcher's console on a large workspace, in headless Chromium.

    python -m benchmarks console [--rounds 3] [--seconds 10] [--workspace DIR]

Fills a workspace with 200 policy runs of 2,000 updates and 100,000 judgments by 40 people, serves it
with `launch.py serve`, and measures: the time from the navigation to the first content of every
section, with an empty browser cache, and of a section that is opened by its link; the filters; the
frames, from Chromium's trace, while a person points at and zooms an overlay of ten smoothed runs;
and the resident memory of the web process after that.  ``--workspace`` keeps the workspace in that
folder and uses it again.  Prints one JSON object, times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as TooLate

from benchmarks.common import percentiles
from benchmarks.console import browser as measured
from benchmarks.console.served import Served, serving
from benchmarks.console.world import Size, World
from pipeline.loop.workspace_config import prepare
from storage.engine.database import Database
from tests.helpers.browser import chromium, new_page

FIRST = "Overview: Loop"
COMPARED = 10


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


def first_contents(browser: Browser, served: Served, rounds: int) -> dict[str, Any]:
    """The times of each section, cold and opened by its link."""
    with new_page(browser, cookie=served.cookie, width=1440) as page:
        measured.first_content(page, f"{served.url}/research/", FIRST)
        listed = measured.sections(page)
    cold: defaultdict[str, list[float]] = defaultdict(list)
    warm: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, address in listed:
            with new_page(browser, cookie=served.cookie, width=1440) as page:
                cold[name].append(measured.first_content(page, served.url + address, name))
        with new_page(browser, cookie=served.cookie, width=1440) as page:
            measured.first_content(page, f"{served.url}/research/", FIRST)
            for name, _ in listed[1:]:
                warm[name].append(measured.opened(page, name))
    return {
        "cold": {name: percentiles(times) for name, times in cold.items()},
        "opened": {name: percentiles(times) for name, times in warm.items()},
    }


def measure(workspace: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All measurements on one served workspace."""
    stored = fill(workspace, Size.tiny() if given.tiny else Size())
    compared = stored.pop("compared")
    load = os.getloadavg()[0]
    with serving(workspace) as served, chromium() as browser:
        found = {"stored": stored, "cores": os.cpu_count(), "load": load}
        found["memory_mb_at_start"] = served.memory_mb()
        found["first_content"] = first_contents(browser, served, given.rounds)
        filters: defaultdict[str, list[float]] = defaultdict(list)
        for round in range(given.rounds):
            for name, time_of in measured.filters(browser, served, round).items():
                filters[name].append(time_of)
        found["filters"] = {name: percentiles(times) for name, times in filters.items()}
        found["overlay"] = measured.overlay(browser, served, compared, seconds=given.seconds)
        found["memory_mb"] = served.memory_mb()
    return found | {"load_at_end": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of brushing")
    parser.add_argument("--workspace", type=Path, help="a folder to keep and to use again")
    parser.add_argument("--tiny", action="store_true", help="a small workspace")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kitestring-console-") as folder:
        try:
            found = measure(given.workspace or Path(folder) / "workspace", given)
        except TooLate as error:
            raise SystemExit(f"console: {error}") from None
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
