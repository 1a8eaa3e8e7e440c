"""Imports that researchers start on the page: previews and imports in threads, with their progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labeler.research.jobs import KEPT, Job, Jobs
from labeler.uploads import MAX_REPORTED_ROWS, MAX_ROWS, Uploads
from storage.engine.database import Database
from storage.errors import Conflict
from storage.importing.apart import import_apart
from storage.importing.detect import Detected, ImportKind, detect
from storage.importing.files.hub_files import PREFIX, local_file
from storage.importing.files.long_rows import TooLong
from storage.importing.files.row_notes import BadFile, BadRow
from storage.importing.request import ImportRequest, run_import
from storage.importing.sheet import ImportReport
from storage.records import PromptRole

MAX_HUB_BYTES = 500_000_000
"""Bytes of a dataset of the hub that the page imports."""
MAX_HUB_ROWS = 1_000_000
MAX_SHOWN_TEXT = 2_000
"""Characters of a text in the preview."""
NOTES = "left-out.csv"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a researcher asks for: an uploaded file or an address of the hub.

    Without `kind`, the columns decide what the file contains.
    """

    upload: str | None = None
    address: str | None = None
    kind: ImportKind | None = None
    source: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    role: PromptRole | None = None
    skip_bad: bool = False
    skip_long: bool = False
    preview: bool = False

    def __post_init__(self) -> None:
        if bool(self.upload) == bool(self.address):
            raise ValueError("name an uploaded file or an address of the hub, and not both")
        if self.address and not self.address.startswith(PREFIX):
            raise ValueError(f"an address begins with {PREFIX}, as in {PREFIX}OWNER/NAME")
        if self.kind is None and self.source is not None:
            raise ValueError("say what the file of another tool contains: judgments or gold pairs")


@dataclass(kw_only=True)
class ImportJob(Job):
    """A preview or an import; `report` if it succeeded, `bad` if rows can't be imported."""

    wanted: Wanted
    file: str
    detected: Detected | None = None
    report: ImportReport | None = None
    bad: BadFile | None = None
    notes_file: Path | None = None

    @property
    def what(self) -> str:
        return "" if self.wanted.preview else self.file

    def view(self) -> dict[str, Any]:
        """The job as JSON values."""
        kind, source = self.wanted.kind, self.wanted.source
        if self.detected:
            kind, source = self.detected.kind, self.detected.source
        storing = self.control.total is not None and not self.over
        return {
            "id": self.id, "preview": self.wanted.preview, "file": self.file, "kind": kind,
            "source": source, "detected": self.detected.because if self.detected else None,
            "phase": "storing" if storing else self.phase,
            "stored": self.control.stored, "total": self.control.total, "error": self.error or None,
            "report": _report(self.report) if self.report else None,
            "left_out": self._left_out(),
        }  # fmt: skip

    def _left_out(self) -> dict[str, Any]:
        """The rows that are not imported: how many for each reason, and the first of them."""
        rows, count, long, other = list[BadRow](), 0, 0, 0
        if self.report:
            rows, count = self.report.skipped, self.report.skipped_in_all
            long, other = self.report.long_in_all, self.report.left_out_in_all
        elif self.bad:
            rows, count, long, other = self.bad.rows, self.bad.count, self.bad.long, 0
        shown = [{"row": r.line, "why": r.why, "reason": r.reason} for r in rows]
        return {
            "count": count, "bad": count - long - other, "long": long, "left out": other,
            "rows": shown[:MAX_REPORTED_ROWS],
        }  # fmt: skip


class Imports(Jobs[ImportJob]):
    """The previews and imports of a server."""

    def __init__(
        self, db: Database, uploads: Uploads, too_long: Callable[[], TooLong | None]
    ) -> None:
        super().__init__("import", too_late="the rows are being stored", workspace=db.workspace)
        self._db = db
        self._uploads = uploads
        self._too_long = too_long

    def begin(self, wanted: Wanted) -> ImportJob:
        """Start a preview or an import; ValueError if it cannot start."""
        file = self._uploads.file(wanted.upload).name if wanted.upload else str(wanted.address)
        if wanted.kind is not None:
            _request(wanted, wanted.kind, wanted.source, None)  # refuses what contradicts itself
        return self.start(ImportJob(wanted=wanted, file=file), self._import, _few)

    def _import(self, job: ImportJob) -> None:
        try:
            self._open(job)
        except BadFile as bad:
            job.bad = bad
            raise ValueError(bad.summary) from None
        # A preview keeps the file for the import that follows it.
        if job.wanted.upload and not job.wanted.preview:
            with suppress(ValueError):
                self._uploads.file(job.wanted.upload).unlink()

    def _open(self, job: ImportJob) -> None:
        wanted = job.wanted
        if wanted.upload:
            file = self._uploads.file(wanted.upload)
            self._read(job, file, file.parent)
            return
        job.phase = "downloading"
        folder = self._uploads.new_folder()
        with local_file(str(wanted.address), folder=folder, max_bytes=MAX_HUB_BYTES) as file:
            self._read(job, file, folder)

    def _read(self, job: ImportJob, file: Path, folder: Path) -> None:
        """Detect the kind if it is not named, and import the file."""
        wanted, job.phase = job.wanted, "reading"
        kind, source = wanted.kind, wanted.source
        most = MAX_ROWS if wanted.upload else MAX_HUB_ROWS
        if kind is None:
            job.detected = import_apart(detect, self._db, file, control=job.control, max_rows=most)
            kind, source = job.detected.kind, job.detected.source
        job.notes_file = folder / f"{job.id}.notes"
        request = replace(_request(wanted, kind, source, job.notes_file), max_rows=most)
        job.report = run_import(
            self._db, file, request, too_long=self._too_long(), control=job.control
        )


def _few(waiting: Sequence[ImportJob]) -> None:
    if len(waiting) >= KEPT:
        raise Conflict("too many imports are waiting; try again when they are finished")


def _request(
    wanted: Wanted, kind: ImportKind, source: str | None, notes_file: Path | None
) -> ImportRequest:
    """The import; a preview leaves out every row that cannot be imported, to name them all."""
    return ImportRequest(
        kind=kind,
        source=source,
        names=wanted.names,
        role=wanted.role,
        skip_bad=wanted.preview or wanted.skip_bad,
        skip_long=wanted.preview or wanted.skip_long,
        dry_run=wanted.preview,
        notes_file=notes_file,
    )


def _report(report: ImportReport) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "added": report.added,
        "known": report.known,
        "rows_shown": [_short(row) for row in report.preview],
        "warnings": [
            {"row": w.line, "reason": w.reason} for w in report.warnings[:MAX_REPORTED_ROWS]
        ],
        "warnings_in_all": report.warnings_in_all,
    }


def _short(value: Any) -> Any:
    """A value of the preview with its long texts cut."""
    if isinstance(value, str):
        return value if len(value) <= MAX_SHOWN_TEXT else f"{value[:MAX_SHOWN_TEXT]}…"
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value[:20]]
    return value
