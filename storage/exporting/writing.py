"""Writes rows to a file: JSON lines, CSV or parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

WRITABLE = (".jsonl", ".parquet", ".csv")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""From OWASP's page on CSV injection; the last four are full-width forms."""

Writer = Callable[[list[dict[str, Any]]], None]


@contextmanager
def open_writer(path: Path, schema: pa.Schema, *, csv_safe: bool = False) -> Iterator[Writer]:
    """A function that appends rows to a new file, in the format that the suffix names.

    JSON lines have times in ISO 8601.  CSV has lists and objects as JSON text, and empty cells for
    null; `csv_safe` puts an apostrophe before cells that a spreadsheet would run as formulas.
    """
    if path.suffix.lower() == ".parquet":
        with parquet.ParquetWriter(path, schema) as table:
            yield lambda rows: table.write_table(pa.Table.from_pylist(rows, schema=schema))
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix.lower() != ".csv":
            yield lambda rows: file.writelines(f"{_json(row)}\n" for row in rows)
            return
        cell = safe_text if csv_safe else _csv_text
        cells = csv.writer(file)
        cells.writerow(schema.names)
        yield lambda rows: cells.writerows(
            [cell(row[name]) for name in schema.names] for row in rows
        )


def is_formula(value: Any) -> bool:
    """Whether a spreadsheet would run this CSV cell as a formula."""
    return isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA_STARTS)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=datetime.isoformat)


def _csv_text(value: Any) -> Any:
    if isinstance(value, list | dict):
        return _json(value)
    return value.isoformat() if isinstance(value, datetime) else value


def safe_text(value: Any) -> Any:
    """A cell of a CSV with an apostrophe before it if a spreadsheet would run it as a formula."""
    text = _csv_text(value)
    return f"'{text}" if is_formula(text) else text
