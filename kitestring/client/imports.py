"""Imports with a preview."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kitestring.client.connection import Connection, part, route
from kitestring.client.records import ImportJob
from kitestring.client.rows import parsed

IMPORTS = "/research/api/imports"
ImportKind = Literal["prompts", "sft", "judgments", "preferences", "pairs", "gold", "practice"]
_OVER = ("done", "failed", "cancelled")


class Imports:
    """``studio.imports``: files and datasets of the Hugging Face hub, with a preview."""

    def __init__(self, at: Connection) -> None:
        self._at = at

    @route("POST", "/research/upload/file")
    def upload(self, file: str | Path) -> str:
        """Send a file for an import; returns the id of the upload."""
        path = Path(file)
        return self._at.upload("/research/upload/file", path, name=path.name)["upload"]

    @route("POST", IMPORTS)
    def start(
        self,
        *,
        upload: str | None = None,
        address: str | None = None,
        kind: ImportKind | None = None,
        source: str | None = None,
        names: Mapping[str, str] | None = None,
        role: str | None = None,
        skip_bad: bool = False,
        skip_long: bool = False,
        preview: bool = False,
    ) -> ImportJob:
        """Start a preview or an import of an upload or an ``hf://datasets/…`` address.

        Without `kind`, the columns decide.  `source` is the tool that wrote the file.
        """
        body = {
            "upload": upload, "address": address, "kind": kind, "source": source,
            "names": dict(names or {}), "role": role, "skip_bad": skip_bad, "skip_long": skip_long,
            "preview": preview,
        }  # fmt: skip
        return parsed(ImportJob, self._at.post(IMPORTS, body))

    @route("GET", f"{IMPORTS}/{{id}}")
    def get(self, id: str) -> ImportJob:
        """A preview or an import as it is now."""
        return parsed(ImportJob, self._at.get(f"{IMPORTS}/{part(id)}"))

    @route("POST", f"{IMPORTS}/{{id}}/cancel")
    def cancel(self, id: str) -> ImportJob:
        """Cancel an import that has not started to store; nothing is stored then."""
        return parsed(ImportJob, self._at.post(f"{IMPORTS}/{part(id)}/cancel", again=True))

    @route("GET", "/research/download/left-out")
    def left_out(self, id: str, out: str | Path = "left-out.csv") -> Path:
        """Write all rows that an import left out to a CSV file."""
        return self._at.download("/research/download/left-out", Path(out), id=id)

    def wait(self, job: ImportJob) -> ImportJob:
        """The preview or import when it is over; its `phase` says whether it is done."""
        while job.phase not in _OVER:
            time.sleep(0.2)
            job = self.get(job.id)
        return job
