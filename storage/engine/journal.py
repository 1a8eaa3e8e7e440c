"""The journal: one JSON line for everything that cannot be derived again, in order, fsynced.

A line is the entry's JSON object with two fields around it: `record` first, which kind it is
(some records have a field `kind` of their own), and last `crc`, the CRC-32 of the line's bytes before it, so that a flipped bit is found and not replayed.  A line
that a crash cut short is at the end, and was never acknowledged: opening sets it aside.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.engine.codec import KINDS, Entry
from storage.engine.files import sync_folder
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
    """The line for an entry.  Raises ValueError where the text cannot be written as UTF-8."""
    text = _JSON.encode({"record": kind, **entry})
    try:
        body = text[:-1].encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text of this {kind} holds half of a surrogate pair "
            f"({text[error.start]!a}), which no file can keep; send whole characters"
        ) from None
    return b'%s%s%08x"}\n' % (body, _CRC, zlib.crc32(body))


def decode(raw: bytes) -> tuple[str, Entry]:
    """Kind and entry of one line without its newline; ValueError for a damaged one."""
    if not _is_whole(raw):
        raise ValueError("its checksum does not match")
    try:
        entry = json.loads(raw[:-_TAIL] + b"}")
        kind = entry.pop("record")
        known = KINDS.get(kind)
    except (KeyError, TypeError, RecursionError):
        raise ValueError("it contains no record, although its checksum matches") from None
    if known is None:
        raise ValueError(f"a record {kind!r} is unknown here; a newer Kitestring wrote it")
    if not isinstance(entry.get(known.key), str | int):
        raise ValueError(f"its {kind} has no {known.key}")
    return kind, known.upgrade(entry) if known.upgrade else entry


def _is_whole(raw: bytes) -> bool:
    return raw[-_TAIL:] == b'%s%08x"}' % (_CRC, zlib.crc32(raw[:-_TAIL]))


class Journal:
    """The open journal of a workspace; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # The file's own name must survive a power cut as well as its content.
        sync_folder(path.parent)
        self.size = os.fstat(self._file).st_size
        self.torn_bytes = self._drop_torn_line()

    def append(self, lines: list[bytes]) -> None:
        """Write the lines and wait for the disk; on OSError the file is as long as before.

        Raises JournalLost, with nothing written, when the file was moved, replaced or cut.
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
        """Raise JournalLost unless the file of this name is the open one and as long as written.

        What is appended to a file without its name is gone when the program ends.
        """
        held = os.fstat(self._file)
        back = "put the file back, or restart: it is then written anew from the database"
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise JournalLost(f"{self.path} is gone; nothing was stored. {back}") from None
        if (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            raise JournalLost(
                f"{self.path} is another file than was opened; nothing was stored. {back}"
            )
        if held.st_size < self.size:
            raise JournalLost(
                f"{self.path} was cut from {self.size} to {held.st_size} bytes; nothing was stored. {back}"
            )

    def truncate(self, size: int) -> None:
        """Take back lines after `size`: their transaction failed and nobody was told of them.

        When even that fails the lines stay until the next append, which tries again first, or
        until the next start, which stores them: kept but not acknowledged is allowed.
        """
        self.size = size
        try:
            self._cut_if_longer()
        except OSError:
            return

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        os.fsync(self._file)

    def lines(self, start: int = 0, *, first_number: int = 1) -> Iterator[Line]:
        """The entries from byte `start`; JournalDamaged names the first line that is unreadable."""
        yield from read_lines(self.path, start, stop=self.size, first_number=first_number)

    def ends_a_line(self, offset: int) -> bool:
        """Whether a line ends exactly at byte `offset`."""
        return offset == 0 or (offset <= self.size and os.pread(self._file, 1, offset - 1) == b"\n")

    def close(self) -> None:
        """Close the file; appending afterwards is an error."""
        os.close(self._file)

    def _cut_if_longer(self) -> None:
        if os.fstat(self._file).st_size > self.size:
            os.ftruncate(self._file, self.size)
            self.sync()

    def _drop_torn_line(self) -> int:
        """Cut what a crash left half-written at the end; returns how many bytes that was.

        That is what follows the last newline, or else a last line whose checksum fails (a
        power cut can keep a file's length and lose its content).  The bytes are kept in a
        file beside the journal.
        """
        end = self._after_newline(self.size)
        begin = self._after_newline(end - 1)
        if end == self.size and end > 0:
            last = os.pread(self._file, end - begin, begin)
            end = end if _is_whole(last[:-1]) else begin
        return self._set_aside(end)

    def set_aside_damage(self, start: int) -> int:
        """Cut the first damaged line after byte `start`, and all that follows it; returns how many
        bytes that was.

        For what the database never committed: a power cut can keep a file's length and lose pages
        in the middle of a group, none of which was acknowledged.
        """
        end = start
        with self.path.open("rb") as file:
            file.seek(start)
            for raw in file:
                if not raw.endswith(b"\n") or not _is_whole(raw[:-1]):
                    break
                end += len(raw)
        return self._set_aside(end)

    def _set_aside(self, end: int) -> int:
        """Cut what follows byte `end`, once it is safe in a file beside the journal."""
        torn = os.pread(self._file, self.size - end, end)
        if torn:
            kept = self.path.with_suffix(".torn")
            with kept.open("ab") as aside:
                aside.write(torn + b"\n")
                aside.flush()
                os.fsync(aside.fileno())
            sync_folder(kept.parent)
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


def read_lines(
    path: Path, start: int = 0, *, stop: int | None = None, first_number: int = 1
) -> Iterator[Line]:
    """The entries of a journal file from byte `start` (where a line begins) up to `stop`."""
    with path.open("rb") as file:
        file.seek(start)
        end = start
        for number, raw in enumerate(file, first_number):
            end += len(raw)
            if stop is not None and end > stop:
                return
            if not raw.endswith(b"\n"):
                return  # a crash cut it short; it was never acknowledged
            try:
                kind, entry = decode(raw[:-1])
            except ValueError as error:
                where = f"line {number}" if first_number == 1 and start == 0 else f"byte {end}"
                raise JournalDamaged(f"{path} is damaged at {where}: {error}") from None
            yield Line(number, end, kind, entry)


def check_stretch(path: Path, start: int, number: int, *, bytes_least: int) -> tuple[int, int]:
    """Check the lines from byte `start`, where line `number` begins, until enough bytes are read.

    Returns where the next line begins and its number; JournalDamaged names a damaged one.
    """
    end = start
    with path.open("rb") as file:
        file.seek(start)
        while end - start < bytes_least and (raw := file.readline()):
            if not _is_whole(raw.removesuffix(b"\n")):
                raise JournalDamaged(
                    f"{path} is damaged at line {number}: its checksum does not match"
                )
            end, number = end + len(raw), number + 1
    if end == start:
        raise JournalDamaged(f"{path} ends at byte {end}, before what was committed")
    return end, number
