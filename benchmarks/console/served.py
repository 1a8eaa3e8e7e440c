"""The served workspace: `launch.py serve` in its own process, and how researchers sign in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common import ROOT
from benchmarks.label_load import wait_until_up
from storage.engine.database import Database
from storage.records import digest
from storage.tables.people import tokens
from tests.helpers.desk_world import free_port


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server; `cookie` is (url, name, value) of a researcher's session."""

    url: str
    port: int
    cookie: tuple[str, str, str]
    process: psutil.Process

    def memory_mb(self) -> float:
        """Resident memory of the web process, MB."""
        return round(self.process.memory_info().rss / 1e6, 1)

    def cpu_s(self) -> float:
        """CPU seconds of the web process since its start."""
        used = self.process.cpu_times()
        return round(used.user + used.system, 1)


def session(workspace: Path) -> tuple[str, str]:
    """Name and value of a researcher's cookie; the workspace must not be open."""
    with Database.open(workspace) as db:
        secret = tokens.issue(db, "researcher", "session", lifetime=None)
        return f"kitestring-{digest(str(db.workspace.resolve()))[:8]}", secret


@contextmanager
def serving(workspace: Path) -> Iterator[Served]:
    """Serve the workspace until the context ends."""
    name, value = session(workspace)
    port = free_port()
    command = [sys.executable, "launch.py", "serve", "--workspace", str(workspace)]
    process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_until_up(port, process)
        url = f"http://127.0.0.1:{port}"
        yield Served(
            url=url, port=port, cookie=(url, name, value), process=psutil.Process(process.pid)
        )
    finally:
        process.terminate()
        process.wait(60)
