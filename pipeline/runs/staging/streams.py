"""Sends files that grow: as numbered parts, of which only the last one is rewritten.

An object store cannot append, and a long run's events have megabytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pipeline.runs.staging.store import Store

_PART = 256 * 1024
"""Bytes of a part that is not the last one."""
_TAIL = 4096


class Sender:
    """Sends what was appended to a file since `sent`, or all of it if something was removed."""

    def __init__(self, store: Store, folder: str, name: str, file: Path, *, sent: int = 0) -> None:
        self._store, self._folder, self._name, self._file = store, folder, name, file
        self._part, self._start, self._sent = 0, sent, sent
        self._tail = _tail_of(file, sent)

    def send(self) -> None:
        with suppress(FileNotFoundError), self._file.open("rb") as handle:
            if _tail(handle, self._sent) != self._tail:  # a resumed worker has removed events
                self._send(handle, self._part + 1, 0)
            elif handle.seek(0, os.SEEK_END) > self._sent:
                self._send(handle, max(1, self._part), self._start)

    def position(self) -> dict[str, Any]:
        """What the receiver must know: the name, and the number of the last part."""
        return {"name": self._name, "part": self._part}

    def _send(self, handle: IO[bytes], number: int, start: int) -> None:
        while True:
            handle.seek(start)
            data = handle.read(_PART)
            name = part(f"{self._folder}/{self._name}", number)
            self._store.write(name, {"start": start}, data)
            self._part, self._start, self._sent = number, start, start + len(data)
            self._tail = _tail(handle, self._sent)
            if len(data) < _PART:
                return
            number, start = number + 1, self._sent


class Receiver:
    """Applies the parts of one stream in their order; `apply` gets the place and the bytes of each."""

    def __init__(self, store: Store, name: str, apply: Callable[[int, bytes], None]) -> None:
        self._store, self._name, self._apply = store, name, apply
        self._part = 1
        self._applied = (0, 0)

    def receive(self, last: int) -> None:
        """Apply what is new in the parts up to `last`; one that is being rewritten is left for later."""
        while self._part <= last:
            found = self._store.read(part(self._name, self._part))
            if found is None:
                return
            facts, data = found
            if (self._part, len(data)) != self._applied:
                self._apply(facts["start"], data)
                self._applied = (self._part, len(data))
            if self._part == last:
                return
            self._part += 1


def part(name: str, number: int) -> str:
    return f"{name}/{number:06d}"


def write_at(file: Path, start: int, data: bytes) -> None:
    """Make `data` the content of a file from `start` to its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("r+b" if file.exists() else "w+b") as handle:
        handle.seek(start)
        handle.write(data)
        handle.truncate()


def _tail(handle: IO[bytes], end: int) -> bytes:
    """The last bytes before `end`, which identify the line that ends there."""
    handle.seek(max(0, end - _TAIL))
    return handle.read(min(end, _TAIL))


def _tail_of(file: Path, end: int) -> bytes:
    with suppress(FileNotFoundError), file.open("rb") as handle:
        return _tail(handle, end)
    return b""
