"""Times the demo from the command to the first pair on the screen, in a new workspace.

    python -m benchmarks.first_pair [--rounds 3]

Each round starts ``launch.py serve`` on an empty directory, opens the printed sign-in link in
headless Chromium (started beforehand), presses its button, which leads to the desk, and waits until
a pair can be judged.  Every wait has a timeout; the exit status is 1 if one expires.  Prints one
JSON object with the seconds from the start of the process to the link and to the pair, and the
server's CPU seconds until then, which are comparable even on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as TooLate

from benchmarks.common import ROOT
from tests.helpers.browser import chromium

LIMIT_S = 180
"""Timeout for the link and for the pair, seconds; a busy machine takes a minute."""


def measure(browser: Browser, folder: Path) -> dict[str, float]:
    """Run one round, then stop the server."""
    command = [sys.executable, str(ROOT / "launch.py"), "serve", "--port", "0", "--workspace"]
    started = time.monotonic()
    server = subprocess.Popen([*command, str(folder)], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    watch = threading.Timer(LIMIT_S, server.kill)  # unblocks the read of its output
    watch.start()
    try:
        links = (re.search(r"http://\S+", line) for line in server.stdout)
        link = next((found.group() for found in links if found), None)
        if link is None:
            raise SystemExit(f"first_pair: the server printed no link within {LIMIT_S} s")
        watch.cancel()
        to_link = time.monotonic() - started
        page = browser.new_page()
        page.set_default_timeout(LIMIT_S * 1000)
        page.goto(link)
        page.get_by_role("button").click()
        page.wait_for_selector(".desk[data-state=judging]")
        to_pair = time.monotonic() - started
        cpu = psutil.Process(server.pid).cpu_times()
        page.close()
    except TooLate:
        raise SystemExit(f"first_pair: no pair was on the screen within {LIMIT_S} s") from None
    finally:
        watch.cancel()
        server.send_signal(signal.SIGINT)
        server.communicate()
    return {
        "link_s": round(to_link, 2),
        "first_pair_s": round(to_pair, 2),
        "server_cpu_s": round(cpu.user + cpu.system, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="fresh workspaces, one after another")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds is {given.rounds} and must be at least 1")
    with (
        chromium(full=True) as browser,
        tempfile.TemporaryDirectory(prefix="kitestring-first-") as folder,
    ):
        rounds = [measure(browser, Path(folder) / str(n)) for n in range(given.rounds)]
    print(json.dumps({"rounds": rounds, "slowest_s": max(r["first_pair_s"] for r in rounds)}))


if __name__ == "__main__":
    main()
