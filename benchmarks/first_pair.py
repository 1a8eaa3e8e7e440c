"""From the command to the first pair on the screen: a fresh workspace on the embedded demo.

    python benchmarks/first_pair.py [--rounds 3]

Each round starts ``launch.py serve`` on an empty directory, opens the printed sign-in link in
headless Chromium (started beforehand), presses its button and waits until a pair can be judged.
Prints one JSON object with the seconds from the start of the process to the link and to the pair.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import chromium  # noqa: E402
from playwright.sync_api import Browser  # noqa: E402


def measure(browser: Browser, folder: Path) -> dict[str, float]:
    """One round; the server is stopped afterwards."""
    command = [sys.executable, str(ROOT / "launch.py"), "serve", "--port", "0", "--workspace"]
    started = time.monotonic()
    server = subprocess.Popen([*command, str(folder)], stdout=subprocess.PIPE, text=True)
    assert server.stdout
    try:
        links = (re.search(r"http://\S+", line) for line in server.stdout)
        link = next(found.group() for found in links if found)
        to_link = time.monotonic() - started
        page = browser.new_page()
        page.goto(link)
        page.get_by_role("button").click()
        page.goto(f"{link.partition('/sign-in')[0]}/label/")
        page.wait_for_selector(".desk[data-state=judging]")
        to_pair = time.monotonic() - started
        page.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate()
    return {"link_s": round(to_link, 2), "first_pair_s": round(to_pair, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with chromium() as browser, tempfile.TemporaryDirectory(prefix="kitestring-first-") as folder:
        rounds = [measure(browser, Path(folder) / str(n)) for n in range(given.rounds)]
    print(json.dumps({"rounds": rounds, "slowest_s": max(r["first_pair_s"] for r in rounds)}))


if __name__ == "__main__":
    main()
