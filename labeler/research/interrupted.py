"""The jobs that have started and are not over, in a file: after a restart, those that it interrupted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from labeler.html import components
from labeler.html.components import Markup
from storage.engine.files import write_file
from storage.records import new_id

_SERVER = new_id("server")
"""This process: jobs of all others were interrupted."""
_FOLDER = "jobs"
AGAIN = {
    "import": "Import it again: records that are stored already are not stored twice.",
    "push": "Push it again: the hub has either the complete push or nothing of it.",
}
"""What to do, by the name of the jobs."""


class Started:
    """The jobs of one kind, `name`, in a workspace. Thread-safe within a process."""

    def __init__(self, workspace: Path, name: str) -> None:
        self._file = workspace / _FOLDER / f"{name}.json"
        self._name = name
        self._lock = threading.Lock()

    def begin(self, id: str, what: str) -> None:
        """A job has started; those that were interrupted before are forgotten."""
        self._change(lambda jobs: jobs | {id: what})

    def end(self, id: str) -> None:
        """A job is over."""
        self._change(lambda jobs: {each: what for each, what in jobs.items() if each != id})

    def interrupted(self) -> dict[str, str]:
        """What the jobs were doing that a restart interrupted, by id, until the next one starts."""
        server, jobs = self._read()
        return {} if server == _SERVER else jobs

    def sentence(self, what: str) -> str:
        """What happened to an interrupted job, and what to do."""
        return f"The {self._name} of {what} was interrupted, because the server stopped."

    def note(self) -> Markup:
        """A warning for the page, or nothing."""
        found = list(self.interrupted().values())
        return components.stack(
            *(components.note("warn", self.sentence(what), AGAIN[self._name]) for what in found)
        )

    def _change(self, changed: Callable[[dict[str, str]], dict[str, str]]) -> None:
        with self._lock, suppress(OSError):  # a full disk: the job itself is more important
            server, jobs = self._read()
            made = changed(jobs if server == _SERVER else {})
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            write_file(self._file, json.dumps({"server": _SERVER, "jobs": made}))

    def _read(self) -> tuple[str, dict[str, str]]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return str(found["server"]), {str(k): str(v) for k, v in found["jobs"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return "", {}
