"""The journal: one fsynced JSON line for each record that cannot be derived again, in order.

A line is the entry's JSON object with two more fields.  `record` comes first and names the kind
(some records have a field `kind` of their own).  `crc` comes last: the CRC-32 of the bytes before
it.  Only the last line can be incomplete after a crash.  It was never acknowledged, and opening the
journal sets it aside.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.engine.codec import KINDS, Entry
from storage.engine.files import sync
from storage.errors import JournalDamaged, JournalLost

_LOG = logging.getLogger(__name__)
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_CRC = b',"crc":"'
_TAIL = len(_CRC) + 8 + len(b'"}')


@dataclass(frozen=True)
class Line:
    """One journaled entry; `number` counts from 1, `end` is the byte after its newline."""

    number: int
    end: int
    kind: str
    entry: Entry


def encode(kind: str, entry: Entry) -> bytes:
    """The line for an entry.  Raises ValueError for text that is not valid UTF-8."""
    text = _JSON.encode({"record": kind, **entry})
    try:
        body = text[:-1].encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text of this {kind} contains half of a surrogate pair "
            f"({text[error.start]!a}), which UTF-8 cannot represent; send whole characters"
        ) from None
    return b'%s%s%08x"}\n' % (body, _CRC, zlib.crc32(body))


def decode(raw: bytes) -> tuple[str, Entry]:
    """Kind and entry of one line without its newline; ValueError for a damaged one."""
    if not is_intact(raw):
        raise ValueError("its checksum does not match")
    try:
        entry = json.loads(raw[:-_TAIL] + b"}")
        kind = entry.pop("record")
        known = KINDS.get(kind)
    except (KeyError, TypeError, RecursionError):
        raise ValueError("it contains no record, although its checksum matches") from None
    if known is None:
        raise ValueError(f"the record kind {kind!r} is unknown; a newer Kitestring wrote it")
    if not isinstance(entry.get(known.key), str | int):
        raise ValueError(f"its {kind} has no {known.key}")
    return kind, known.upgrade(entry) if known.upgrade else entry


def is_intact(raw: bytes) -> bool:
    """Whether the checksum of a line, given without its newline, matches."""
    return raw[-_TAIL:] == b'%s%08x"}' % (_CRC, zlib.crc32(raw[:-_TAIL]))


class Journal:
    """The open journal of a workspace.  Not safe for concurrent use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # The file's directory entry must survive a power cut too.
        sync(path.parent)
        self.size = os.fstat(self._file).st_size
        self.torn_bytes = self._drop_torn_line()

    def append(self, lines: list[bytes]) -> None:
        """Write the lines and wait for the disk; on OSError the file keeps its length.

        Raises JournalLost, with nothing written, if the file was moved, replaced or truncated.
        """
        data = memoryview(b"".join(lines))
        self.require_in_place()
        try:
            self._cut_if_longer()
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            self.sync()
        except OSError:
            self.truncate(self.size)
            raise
        self.size += len(data)

    def require_in_place(self) -> None:
        """Raise JournalLost unless the path still names the open file, at its full length.

        Data appended to an unlinked file would disappear when the process ends.
        """
        open_file = os.fstat(self._file)
        try:
            found = self.path.stat()
        except FileNotFoundError:
            what = "is gone"
        else:
            if (found.st_dev, found.st_ino) != (open_file.st_dev, open_file.st_ino):
                what = "was replaced by another file"
            elif open_file.st_size < self.size:
                what = f"was truncated from {self.size} to {open_file.st_size} bytes"
            else:
                return
        raise JournalLost(
            f"{self.path} {what}; nothing was stored. Put the file back, or restart to rewrite the "
            "journal from the database"
        )

    def truncate(self, size: int) -> None:
        """Remove the lines after `size`, whose transaction failed.

        If the disk refuses, the next append tries again, or the next start stores them: storing a
        write that was not acknowledged is allowed.
        """
        self.size = size
        with suppress(OSError):
            self._cut_if_longer()

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        os.fsync(self._file)

    def lines(self, start: int = 0) -> Iterator[Line]:
        """The entries from byte `start`; JournalDamaged names the first line that is unreadable."""
        return read_lines(self.path, start, stop=self.size)

    def ends_a_line(self, offset: int) -> bool:
        """Whether a line ends exactly at byte `offset`."""
        return offset == 0 or (offset <= self.size and os.pread(self._file, 1, offset - 1) == b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _cut_if_longer(self) -> None:
        if os.fstat(self._file).st_size > self.size:
            os.ftruncate(self._file, self.size)
            self.sync()

    def _drop_torn_line(self) -> int:
        """Set aside an incomplete write at the end of the file; returns its number of bytes.

        It is the text after the last newline, or else a last line whose checksum fails: a power
        cut can keep a file's length and lose its content.
        """
        end = self._after_newline(self.size)
        begin = self._after_newline(end - 1)
        if end == self.size > 0 and not is_intact(os.pread(self._file, end - begin - 1, begin)):
            end = begin
        return self._set_aside(end)

    def set_aside_damage(self, start: int) -> int:
        """Set aside the first damaged line after byte `start` and all lines after it; returns the
        number of bytes.

        Only for lines that the database never committed: a power cut can keep a file's length and
        lose pages in the middle of a group, none of which was acknowledged.
        """
        end = start
        for after, raw in raw_lines(self.path, start):
            if not is_intact(raw):
                break
            end = after
        return self._set_aside(end)

    def _set_aside(self, end: int) -> int:
        """Move the content after byte `end` to a file beside the journal; returns its size."""
        torn = os.pread(self._file, self.size - end, end)
        if torn:
            kept = self.path.with_suffix(".torn")
            with kept.open("ab") as aside:
                aside.write(torn + b"\n")
                aside.flush()
                os.fsync(aside.fileno())
            sync(kept.parent)
            self.size = end
            self._cut_if_longer()
            _LOG.warning(
                "the last %d bytes of %s were damaged by an interrupted write; they are kept in %s",
                *(len(torn), self.path, kept),
            )
        return len(torn)

    def _after_newline(self, end: int) -> int:
        """The byte after the last newline before byte `end`; 0 where there is none."""
        while end > 0:
            begin = max(0, end - 65536)
            newline = os.pread(self._file, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0


def raw_lines(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The complete lines from byte `start`, where one begins, up to byte `stop`.

    Yields the byte after each line and its content without the newline.
    """
    end = start
    with path.open("rb") as file:
        file.seek(start)
        for raw in file:
            end += len(raw)
            if not raw.endswith(b"\n") or (stop is not None and end > stop):
                return
            yield end, raw[:-1]


def read_lines(path: Path, start: int = 0, *, stop: int | None = None) -> Iterator[Line]:
    """The entries of a journal file from byte `start`, where a line begins, up to byte `stop`.

    JournalDamaged names the first line that is unreadable.
    """
    for number, (end, raw) in enumerate(raw_lines(path, start, stop), 1):
        try:
            kind, entry = decode(raw)
        except ValueError as error:
            where = f"byte {end}" if start else f"line {number}"
            raise JournalDamaged(f"{path} is damaged at {where}: {error}") from None
        yield Line(number, end, kind, entry)
