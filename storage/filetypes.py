"""Files into rows and back: JSON lines, a JSON array (only read), CSV, parquet.

Every row that is read keeps where it came from, so that whoever reports it can say "line 17".  A row that
cannot be read is a `BadRow`, never an exception: a file is judged as a whole.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

WRITABLE = (".jsonl", ".parquet", ".csv")
_CHAT_COLUMNS = ("prompt", "messages", "chosen", "rejected", "completion")
READABLE = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class Row:
    """One row of a file.  `line` counts from 1: the line it starts on in a text file (in CSV the
    header is line 1), its number in parquet."""

    line: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class BadRow:
    """What is wrong (or odd) with a row, in a sentence."""

    line: int
    reason: str


class BadFile(ValueError):
    """A file that was not imported; `rows` lists everything wrong with it."""

    def __init__(self, path: Path, rows: list[BadRow]) -> None:
        self.rows = sorted(rows, key=lambda row: row.line)
        shown = "".join(f"\n  line {row.line}: {row.reason}" for row in self.rows[:20])
        more = f"\n  … and {len(self.rows) - 20} more" if len(self.rows) > 20 else ""
        what = "1 bad row" if len(self.rows) == 1 else f"{len(self.rows)} bad rows"
        super().__init__(f"nothing was imported from {path.name}, which has {what}:{shown}{more}")


def read_rows(path: Path) -> tuple[list[Row], list[BadRow]]:
    """Every row of a file (or of the parquet files in a directory), and those that are none.

    Raises ``ValueError`` when the file is of no known type or is not what its ending says.
    """
    path = Path(path)
    if path.is_dir():
        return _parquet_rows(sorted(path.rglob("*.parquet")), path)
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    kind = path.suffix.lower()
    if kind not in READABLE:
        raise ValueError(f"{path.name} must end in one of {', '.join(READABLE)}")
    if kind == ".parquet":
        return _parquet_rows([path], path)
    content = path.read_bytes()
    if b"\0" in content[:8192]:
        raise ValueError(
            f"{path.name} is not UTF-8 text but a binary file (or UTF-16): save it as UTF-8, or give it "
            "the ending of what it is"
        )
    if kind == ".csv":
        found = list(_csv_rows(content))
    elif kind == ".json" and content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        found = list(_json_array_rows(content, path))
    else:
        found = list(_json_lines(content))
    return (
        [each for each in found if isinstance(each, Row)],
        [each for each in found if isinstance(each, BadRow)],
    )


def _json_lines(content: bytes) -> Iterator[Row | BadRow]:
    # Split bytes, not text: str.splitlines would also break lines at U+2028 inside a response.
    for line, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            yield _checked(line, json.loads(raw.decode("utf-8"), **STRICT))
        except ValueError as problem:
            yield BadRow(line, f"not JSON: {problem}")
        except RecursionError:
            yield BadRow(line, "nested too deeply to be read")


def _json_array_rows(content: bytes, path: Path) -> Iterator[Row | BadRow]:
    """The elements of one JSON array; after the first that does not parse, the rest is lost."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(f"{path.name} is not UTF-8: {problem}") from None
    decoder = json.JSONDecoder(**STRICT)
    position, line, counted = text.index("[") + 1, 1, 0
    while True:
        position = _skip_blanks(text, position)
        if text[position : position + 1] in ("]", ""):
            break
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError as problem:
            yield BadRow(line, f"not JSON, nothing after it could be read: {problem}")
            return
        except RecursionError:
            yield BadRow(line, "nested too deeply; nothing after it could be read")
            return
        yield _checked(line, value)
        position = _skip_blanks(text, position)
        if text[position : position + 1] == ",":
            position += 1
        elif text[position : position + 1] != "]":
            yield BadRow(line, "not followed by a comma or the end of the array")
            return
    if text[position:].strip() != "]":
        yield BadRow(line, "the array does not end, or something follows it")


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


class Doubled(dict[str, Any]):
    """An object that had `twice` two times, of which JSON readers keep the last without a word.

    Not an error at once: whether anybody reads it is known later, and an array goes on behind it.
    """

    twice: str


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _columns(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    doubled = Doubled(found)
    names = [name for name, _ in pairs]
    doubled.twice = next(name for name in names if names.count(name) > 1)
    return doubled


STRICT: dict[str, Any] = {"parse_constant": _no_constant, "object_pairs_hook": _columns}
"""How JSON is read here: options of `json.loads`."""


def _csv_rows(content: bytes) -> Iterator[Row | BadRow]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        yield BadRow(line, f"not UTF-8, nothing could be read: {problem.reason}")
        return
    csv.field_size_limit(2**31 - 1)  # the default refuses a response over 128 KiB
    cells = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    while True:
        line = cells.line_num + 1
        try:
            row = next(cells, None)
        except csv.Error as problem:
            yield BadRow(line, f"not CSV, nothing after it could be read: {problem}")
            return
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = [name.strip() for name in row]
            twice = [name for name, times in Counter(header).items() if name and times > 1]
            if twice:
                yield BadRow(line, f"has two columns {twice[0]}; rename or remove one of them")
                return
        elif len(row) != len(header):
            yield BadRow(line, f"has {len(row)} cells where the header has {len(header)}")
        else:
            values = {n: _csv_cell(n, cell) for n, cell in zip(header, row, strict=True)}
            yield _checked(line, values)


def _csv_cell(column: str, cell: str) -> Any:
    """The text of a cell, or the chat messages that it spells in JSON where a column may hold some.

    Elsewhere, as in response_a, such a text is what somebody wrote.
    """
    if column in _CHAT_COLUMNS and cell.startswith("[{") and '"role"' in cell:
        try:
            value = json.loads(cell, **STRICT)
        except (ValueError, RecursionError):
            return cell
        if all(isinstance(each, dict) and "role" in each for each in value):
            return value
    return cell


def _parquet_rows(files: list[Path], path: Path) -> tuple[list[Row], list[BadRow]]:
    if not files:
        raise ValueError(f"there is no parquet file in {path}")
    rows: list[Row] = []
    for each in files:
        try:
            table = parquet.read_table(each)
        except (pa.ArrowInvalid, OSError) as problem:
            raise ValueError(f"{each.name} is not a parquet file: {problem}") from None
        rows += [Row(len(rows) + n, values) for n, values in enumerate(table.to_pylist(), start=1)]
    return rows, []


def _checked(line: int, value: Any) -> Row | BadRow:
    if not isinstance(value, dict):
        return BadRow(line, "not an object with named columns")
    if isinstance(value, Doubled):
        return BadRow(line, f"has two columns {value.twice}; rename or remove one of them")
    if None in value or "" in value:
        return BadRow(line, "a column has no name")
    return Row(line, value)


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: null, or the NaN that pandas writes in its place."""
    return value is None or (isinstance(value, float) and math.isnan(value))


Writer = Callable[[list[dict[str, Any]]], None]


@contextmanager
def open_writer(path: Path, schema: pa.Schema) -> Iterator[Writer]:
    """A function that appends rows to a new file, whose ending says how.

    In JSON lines times are ISO 8601; in CSV lists and objects are JSON text and null is empty.
    """
    if path.suffix.lower() == ".parquet":
        with parquet.ParquetWriter(path, schema) as table:
            yield lambda rows: table.write_table(pa.Table.from_pylist(rows, schema=schema))
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix.lower() == ".csv":
            cells = csv.writer(file)
            cells.writerow(schema.names)
            yield lambda rows: cells.writerows(
                [_csv_text(row[name]) for name in schema.names] for row in rows
            )
        else:
            yield lambda rows: file.writelines(f"{_json(row)}\n" for row in rows)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=datetime.isoformat)


def _csv_text(value: Any) -> Any:
    if isinstance(value, list | dict):
        return _json(value)
    return value.isoformat() if isinstance(value, datetime) else value
