"""Rows of a file: JSON lines, a JSON array, CSV or parquet.

Every row has the number of its line, for reports.  A row that cannot be read is a `BadRow` and not
an exception, so that all bad rows of a file are reported together.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.importing.files.parquet_batches import TooLarge, batches
from storage.importing.files.row_notes import BadRow, RowNotes

_MIB = 2**20
_CHAT_COLUMNS = ("prompt", "messages", "chosen", "rejected", "completion")
_MARKS = (b",", b"[", b"{")
MAX_MARKS = 1_000_000
"""Limit for commas and brackets in an uploaded file; in prose, they are one in 60 characters."""
READABLE = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file.  `line` counts from 1: in JSON lines and CSV the line where the row starts
    (the header of a CSV is line 1), in parquet and a JSON array the number of the row."""

    line: int
    values: Mapping[str, Any]


def read_rows(path: Path, *, max_rows: int | None = None) -> tuple[list[Row], RowNotes]:
    """The rows of a file (or of the parquet files in a directory), and notes on the bad ones.

    Raises ``ValueError`` for an unknown type, for content that does not match the file's ending,
    and for more than `max_rows` rows, good or bad.
    """
    path = Path(path)
    rows: list[Row] = []
    bad = RowNotes()
    for each in rows_of(path, max_rows):
        if isinstance(each, Row):
            rows.append(each)
        else:
            bad.append(each)
        _require_few(path, len(rows) + bad.count, max_rows)
    return rows, bad


def _require_few(path: Path, rows: int, max_rows: int | None) -> None:
    if max_rows is not None and rows > max_rows:
        raise ValueError(
            f"{path.name} has more than {max_rows:,} rows, the limit for uploads; split it, or import it "
            "from a terminal with `python launch.py import`"
        )


def _require_few_marks(path: Path) -> None:
    """Refuse a file of mostly commas and brackets, because each empty cell or list takes 100
    bytes of memory."""
    marks = 0
    with path.open("rb") as file:
        while part := file.read(_MIB):
            marks += sum(map(part.count, _MARKS))
    if marks > MAX_MARKS:
        raise ValueError(
            f"{path.name} has {marks:,} commas and brackets; the limit for uploads is "
            f"{MAX_MARKS:,}. Split it, or import it from a terminal with `python launch.py import`"
        )


def rows_of(path: Path, max_rows: int | None) -> Iterator[Row | BadRow]:
    """The rows one by one; text is read line by line, except for a JSON array."""
    if path.is_dir():
        return _parquet_rows(sorted(path.rglob("*.parquet")), path)
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    kind = path.suffix.lower()
    if kind not in READABLE:
        raise ValueError(f"{path.name} must end in one of {', '.join(READABLE)}")
    if kind == ".parquet":
        return _parquet_rows([path], path)
    with path.open("rb") as file:
        begin = file.read(8192)
    if b"\0" in begin:
        raise ValueError(
            f"{path.name} is a binary file or UTF-16, not UTF-8 text: save it as UTF-8, or correct "
            "its extension"
        )
    if (line := _undecodable(path)) is not None:
        raise ValueError(f"{path.name} is not UTF-8 (see line {line}); save it as UTF-8")
    if max_rows is not None:
        _require_few_marks(path)
    if kind == ".csv":
        return _csv_rows(path)
    if kind == ".json" and _begins_array(path):
        return _json_array_rows(path.read_bytes())
    if kind == ".json":
        _require_lines(path)
    return _json_lines(path)


def _begins_array(path: Path) -> bool:
    with path.open("rb") as file:
        for line in file:
            if text := line.removeprefix(codecs.BOM_UTF8).lstrip():
                return text.startswith(b"[")
    return False


def _require_lines(path: Path) -> None:
    """Refuse one JSON object over several lines, such as the answer of another tool's server."""
    with path.open("rb") as file:
        first = next((line for line in file if line.removeprefix(codecs.BOM_UTF8).strip()), b"")
    if not first or _parsed(first) is not None:
        return
    whole = _parsed(path.read_bytes())
    if isinstance(whole, dict):
        lists = [name for name, value in whole.items() if isinstance(value, list)]
        part = f"the list in {lists[0][:60]}" if lists else "them"
        raise ValueError(
            f"{path.name} is one JSON object, and rows are a JSON array: save {part} as [ … ]"
        )


def _parsed(content: bytes) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def _json_lines(path: Path) -> Iterator[Row | BadRow]:
    # Reads bytes, because str.splitlines would also split at U+2028 inside a response.
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            text = raw.removeprefix(codecs.BOM_UTF8) if line == 1 else raw
            if not text.strip():
                continue
            try:
                yield _checked(line, json.loads(text.rstrip(b"\n").decode("utf-8"), **STRICT))
            except ValueError as problem:
                yield BadRow(line, f"not JSON: {problem}")
            except RecursionError:
                yield BadRow(line, "nested too deeply to be read")


def _json_array_rows(content: bytes) -> Iterator[Row | BadRow]:
    """The elements of one JSON array, up to the first that does not parse.

    They are counted, because tools write the whole array on one line.
    """
    text = content.decode("utf-8-sig")
    decoder = json.JSONDecoder(**STRICT)
    position, number = text.index("[") + 1, 0
    while True:
        position = _skip_blanks(text, position)
        if text[position : position + 1] in ("]", ""):
            break
        number += 1
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError as problem:
            yield BadRow(number, f"not JSON, nothing after it could be read: {problem}")
            return
        except RecursionError:
            yield BadRow(number, "nested too deeply; nothing after it could be read")
            return
        yield _checked(number, value)
        position = _skip_blanks(text, position)
        if text[position : position + 1] == ",":
            position += 1
        elif text[position : position + 1] != "]":
            yield BadRow(number, "not followed by a comma or the end of the array")
            return
    if text[position:].strip() != "]":
        yield BadRow(max(number, 1), "the array has no end, or other text follows it")


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


class DuplicateKeys(dict[str, Any]):
    """A JSON object in which the name `twice` occurs more than once; parsers keep only the last.

    It is not an error by itself: the value may never be used, and the rest of an array is valid.
    """

    twice: str


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _columns(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    doubled = DuplicateKeys(found)
    times = Counter(name for name, _ in pairs)
    doubled.twice = next(name for name, count in times.items() if count > 1)
    return doubled


STRICT: dict[str, Any] = {"parse_constant": _no_constant, "object_pairs_hook": _columns}
"""Options of `json.loads`: refuse NaN and Infinity, and detect repeated names."""


def _csv_rows(path: Path) -> Iterator[Row | BadRow]:
    csv.field_size_limit(2**31 - 1)  # the default refuses a response over 128 KiB
    header: list[str] | None = None
    with path.open(encoding="utf-8-sig", newline="") as file:
        cells = csv.reader(file, strict=True)
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
            if header is not None:
                yield _csv_row(line, header, row)
                continue
            header = [name.strip() for name in row]
            _require_commas(path, header)
            twice = [name for name, times in Counter(header).items() if name and times > 1]
            if twice:
                yield BadRow(line, f"has two columns {twice[0]}; rename or remove one of them")
                return


def _require_commas(path: Path, header: list[str]) -> None:
    """Refuse semicolons and tabs, which spreadsheets write in many countries."""
    for separator, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and separator in header[0]:
            raise ValueError(f"{path.name} seems to be separated by {word}; save it with commas")


def _undecodable(path: Path) -> int | None:
    """The first line that is not UTF-8; it makes the whole file invalid."""
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with path.open("rb") as file:
        while True:
            part = file.read(_MIB)
            try:
                decoder.decode(part, final=not part)
            except UnicodeDecodeError as problem:
                return line + problem.object.count(b"\n", 0, problem.start)
            if not part:
                return None
            line += part.count(b"\n")


def _csv_row(line: int, header: list[str], row: list[str]) -> Row | BadRow:
    if len(row) != len(header):
        return BadRow(line, f"has {len(row)} cells where the header has {len(header)}")
    return _checked(line, {n: _csv_cell(n, cell) for n, cell in zip(header, row, strict=True)})


def _csv_cell(column: str, cell: str) -> Any:
    """The text of a cell; in columns that may have chat messages, its JSON.

    In other columns, such as response_a, the same text may be a response.
    """
    if column in _CHAT_COLUMNS and cell.startswith("[{") and '"role"' in cell:
        try:
            value = json.loads(cell, **STRICT)
        except (ValueError, RecursionError):
            return cell
        if all(isinstance(each, dict) and "role" in each for each in value):
            return value
    return cell


def _parquet_rows(files: list[Path], path: Path) -> Iterator[Row]:
    if not files:
        raise ValueError(f"there is no parquet file in {path}")
    line = 0
    try:
        for batch in batches(files):
            try:
                rows = batch.to_pylist()
            except (OverflowError, LookupError, NotImplementedError) as problem:
                raise ValueError(
                    f"{path.name} has a value after row {line} that cannot be read: {problem}"
                ) from None
            for values in rows:
                line += 1
                yield Row(line, values)
    except TooLarge as problem:
        raise ValueError(
            f"{path.name} takes more than {problem.allowed // _MIB} MiB of memory, too much for its "
            "size; split it into smaller files, or convert it to JSON lines"
        ) from None


def _checked(line: int, value: Any) -> Row | BadRow:
    if not isinstance(value, dict):
        return BadRow(line, "not an object with named columns")
    if isinstance(value, DuplicateKeys):
        return BadRow(line, f"has two columns {value.twice}; rename or remove one of them")
    if None in value or "" in value:
        return BadRow(line, "a column has no name")
    return Row(line, value)


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: null, or NaN, which pandas writes instead."""
    return value is None or (isinstance(value, float) and math.isnan(value))
