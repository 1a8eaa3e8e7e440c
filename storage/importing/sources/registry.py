"""The formats that `import --from` reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storage.importing.files.filetypes import Row, is_missing
from storage.importing.files.row_notes import BadFile, BadRow, RowNotes
from storage.importing.sources.arena import ARENA
from storage.importing.sources.argilla import ARGILLA
from storage.importing.sources.helpsteer3 import HELPSTEER3
from storage.importing.sources.label_studio import LABEL_STUDIO
from storage.importing.sources.source import Kind, Source

SOURCES: Mapping[str, Source] = {
    "argilla": ARGILLA,
    "label-studio": LABEL_STUDIO,
    "arena": ARENA,
    "helpsteer3": HELPSTEER3,
}


@dataclass(frozen=True)
class Origin:
    """The tool that wrote a file, with the names that the user gave (`--map`)."""

    name: str
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in SOURCES:
            raise ValueError(f"--from is {self.name!r} and must be one of {', '.join(SOURCES)}")
        SOURCES[self.name].require_options(self.names)

    def require_kind(self, kind: str) -> None:
        """ValueError if files of the tool have nothing for this import."""
        SOURCES[self.name].require_kind(kind)

    def rows(
        self, path: Path, rows: Iterable[Row], kind: Kind
    ) -> tuple[list[Row], RowNotes, RowNotes, RowNotes]:
        """The rows of an import of this kind, the bad rows, what else was left out, and warnings.

        Raises `BadFile` if no row has the format's columns.
        """
        source, rows = SOURCES[self.name], list(rows)
        self._require_columns(path, rows)
        made: list[Row] = []
        bad, left_out, warnings = RowNotes(), RowNotes(), RowNotes()
        warned: set[str] = set()
        for row in rows:
            present = {name: v for name, v in row.values.items() if not is_missing(v)}
            try:
                found = source.translate(present, self.names)
            except ValueError as problem:
                bad.append(BadRow(row.line, str(problem)))
                continue
            except (
                AttributeError,
                LookupError,
                TypeError,
            ):  # a value of a type that no tool writes
                bad.append(BadRow(row.line, f"does not have the form of {source.title}"))
                continue
            made += [Row(row.line, values) for values in getattr(found, kind)]
            if kind == "judgments":
                for reason in found.left_out:
                    left_out.append(BadRow(row.line, f"left out: {reason}", "left out"))
                for warning in found.warnings:
                    if warning not in warned:
                        warnings.append(BadRow(row.line, warning))
                    warned.add(warning)
        return made, bad, left_out, warnings

    def _require_columns(self, path: Path, rows: Iterable[Row]) -> None:
        source = SOURCES[self.name]
        columns = dict.fromkeys(name for row in rows for name in row.values)
        missing = [
            BadRow(1, f"no row has a column {' or '.join(group)}, as {source.title} have; the columns are "
                   f"{', '.join(list(columns)[:50])}")
            for group in source.needs
            if columns and not any(name in columns for name in group)
        ]  # fmt: skip
        if missing:
            raise BadFile(path, RowNotes(missing))
