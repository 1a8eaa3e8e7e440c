"""An import as the command line, the HTTP routes and the page request it: one path for all."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from storage.control import Control
from storage.engine.database import Database
from storage.exporting.writing import safe_text
from storage.importing import imports
from storage.importing.apart import import_apart
from storage.importing.detect import ImportKind
from storage.importing.files.long_rows import LengthCheck, TooLong
from storage.importing.files.row_notes import MAX_NOTES, BadFile, BadRow, keeping
from storage.importing.sheet import ImportReport
from storage.importing.sources.registry import Origin
from storage.importing.target import Target
from storage.records import PromptRole
from storage.tables import audit

IMPORTERS: Mapping[ImportKind, Callable[..., ImportReport]] = {
    "prompts": imports.import_prompts,
    "sft": imports.import_sft,
    "judgments": imports.import_judgments,
    "preferences": imports.import_preferences,
    "pairs": imports.import_pairs,
    "gold": imports.import_gold,
    "practice": imports.import_practice,
}
IMPORTED_ROLES: tuple[PromptRole, ...] = ("train", "held-out", "audit", "sft")
"""Roles that an import can give to new prompts."""


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """What to import and how; ``ValueError`` if it contradicts itself.

    `source` is the tool that wrote the file, with the `names` of its fields (`--map`).  `role` is for
    all new prompts.  `notes_file` receives all rows that are not imported as CSV.
    """

    kind: ImportKind
    source: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    role: PromptRole | None = None
    skip_bad: bool = False
    skip_long: bool = False
    dry_run: bool = False
    max_rows: int | None = None
    notes_file: Path | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ImportKind):
            raise ValueError(f"the kind {self.kind!r} must be one of {', '.join(IMPORTERS)}")
        if self.source is not None:
            Origin(self.source, self.names).require_kind(self.kind)
        elif self.names:
            raise ValueError("names of fields are for another tool's file; say which tool wrote it")
        if self.role is not None and self.role not in IMPORTED_ROLES:
            raise ValueError(f"the role {self.role!r} must be one of {', '.join(IMPORTED_ROLES)}")
        if self.role and self.kind == "sft":
            raise ValueError("demonstrations have the role sft; import them without a role")


def run_import(
    db: Database,
    file: Path,
    request: ImportRequest,
    *,
    too_long: TooLong | None = None,
    apart: bool = True,
    control: Control | None = None,
) -> ImportReport:
    """Import a file, in a process of its own if `apart`, and note it in the audit log.

    Raises `BadFile`, `ImportInterrupted`, `ImportCancelled`, and ``ValueError``.
    """
    if apart:
        report = import_apart(
            import_file, db, file, request=request, too_long=too_long, control=control
        )
    else:
        report = import_file(db, file, request=request, too_long=too_long)
    added = {kind: count for kind, count in report.added.items() if count}
    if added and not request.dry_run:
        audit.note(db, "import", request.kind, file=Path(file).name, added=added)
    return report


def import_file(
    db: Database | Target, file: Path, *, request: ImportRequest, too_long: TooLong | None = None
) -> ImportReport:
    """The importer that a request names, with its options."""
    options: dict[str, Any] = {}
    if request.role:
        options["role"] = request.role
    if request.source:
        options["origin"] = Origin(request.source, request.names)
    # The file of notes has all of them; without it, memory is for the first ones only.
    most = request.max_rows or MAX_NOTES if request.notes_file else MAX_NOTES
    try:
        with keeping(most):
            report = IMPORTERS[request.kind](
                db, file, skip_bad=request.skip_bad, dry_run=request.dry_run,
                max_rows=request.max_rows, length=LengthCheck(too_long, skip=request.skip_long),
                **options,
            )  # fmt: skip
    except BadFile as bad:
        _write_notes(request.notes_file, bad.rows)
        raise bad.shortened() from None
    _write_notes(request.notes_file, report.skipped)
    del report.skipped[MAX_NOTES:], report.warnings[MAX_NOTES:]
    return report


def _write_notes(path: Path | None, rows: list[BadRow]) -> None:
    """All rows that were left out as CSV; a cell cannot become a formula of a spreadsheet."""
    if path is None:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        cells = csv.writer(file)
        cells.writerow(("row", "left out because", "reason"))
        cells.writerows((row.line, row.why, safe_text(row.reason)) for row in rows)
