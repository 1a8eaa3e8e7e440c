"""Where the worker of a run was started, from the files of a worker on a cluster."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.engine.database import Database
from storage.records import Run


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`node` is the host that the worker runs on; None while the job waits for one."""

    launcher: str
    job: str
    node: str | None


def of(db: Database, run: Run) -> Machine | None:
    """The cluster of the newest attempt; None for the studio's own machine."""
    directory = db.workspace / run.directory
    handle = _read(directory / "handle.json")
    if not handle:
        return None
    node = _read(directory / "heartbeat.json").get("node")
    return Machine(launcher=handle["launcher"], job=handle["id"], node=node)


def _read(path: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError):
        return json.loads(path.read_text())
    return {}
