"""Files in a store that fsspec reaches: an object store, or a folder.

Object stores cannot append or rename, and other stores show files that are still being written.  So
nothing depends on either: a small file begins with its own checksum (`write`, `read`); a large one is
described by a small one, which is written after it (`put`, `fetch`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
from fsspec.callbacks import Callback

_WITH_FOLDERS = ("file", "local", "sftp", "ssh", "smb", "hdfs", "ftp")
"""Protocols of stores in which a folder must be made before its files."""
_RENAMING = ("file", "local")
"""Those that would lose an older file if a writer is killed; object stores replace one at once."""
_MODELS = "models"
"""The folder of files that have no run; each is named by its SHA-256."""


class StoreError(Exception):
    """The store cannot be used now; the message says why, in a sentence without its period."""


class Missing(StoreError):
    """The store has no such file."""


class Damaged(StoreError):
    """A file in the store is not the one that was described."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A large file in the store."""

    name: str
    size: int
    sha256: str

    @property
    def is_model(self) -> bool:
        """Whether it is a file for all runs, which never changes."""
        return self.name == f"{_MODELS}/{self.sha256}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Store:
    """The store at a URL such as ``s3://bucket/kitestring``; StoreError without its driver."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._protocol = url.partition("://")[0]
        try:
            # What other machines write must be seen at once.
            self._fs, self._root = fsspec.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            raise StoreError(
                f"{self.url} needs a driver that {sys.executable} does not have: {error}"
            ) from None
        except Exception as error:
            raise StoreError(self._sentence(error)) from error

    def check(self) -> None:
        """StoreError unless files can be written, read and removed."""
        name = f"probe-{uuid4().hex}"
        self.write(name, {"probe": name})
        if self.read(name) != ({"probe": name}, b""):
            raise StoreError(f"{self.url} does not return what was written to it")
        self.remove(name)

    def write(self, name: str, facts: Mapping[str, Any], data: bytes = b"") -> None:
        """Write a small file, which replaces an older one."""
        rest = json.dumps(facts).encode() + b"\n" + data
        with self._asked(name):
            self._make_folder(name)
            path, content = self._path(name), sha256(rest).hexdigest().encode() + b"\n" + rest
            if self._protocol in _RENAMING:
                self._fs.pipe_file(f"{path}.tmp", content)
                self._fs.mv(f"{path}.tmp", path)
            else:
                self._fs.pipe_file(path, content)

    def read(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """The facts and data of a small file; None if it is missing, or not written to its end."""
        try:
            with self._asked(name):
                content = bytes(self._fs.cat_file(self._path(name)))
        except Missing:
            return None
        checksum, _, rest = content.partition(b"\n")
        if sha256(rest).hexdigest().encode() != checksum:
            return None
        facts, _, data = rest.partition(b"\n")
        return json.loads(facts), data

    def put(self, file: Path, name: str, counted: Callable[[int], None] = lambda _: None) -> Stored:
        """Upload a large file; `counted` is told the bytes as they go."""
        size, checksum = checked(file)
        stored = Stored(name=name, size=size, sha256=checksum)
        counter = _Counter(counted)
        with self._asked(name):
            self._make_folder(name)
            self._fs.put_file(str(file), self._path(name), callback=counter)
        counter.complete(size)
        return stored

    def put_model(
        self, file: Path, counted: Callable[[int], None] = lambda _: None, *, checksum: str = ""
    ) -> Stored:
        """Upload a file of a model under its SHA-256, unless the store has it."""
        checksum, size = checksum or checked(file)[1], file.stat().st_size
        stored = Stored(name=f"{_MODELS}/{checksum}", size=size, sha256=checksum)
        if self._size(stored.name) == size:
            counted(size)
            return stored
        return self.put(file, stored.name, counted)

    def fetch(
        self, stored: Stored, to: Path, counted: Callable[[int], None] = lambda _: None
    ) -> None:
        """Download a large file; `to` appears when it is whole.  Damaged if it is another one."""
        draft = to.with_name(f".{to.name}.part")
        to.parent.mkdir(parents=True, exist_ok=True)
        counter = _Counter(counted)
        try:
            with self._asked(stored.name):
                self._fs.get_file(self._path(stored.name), str(draft), callback=counter)
            if checked(draft) != (stored.size, stored.sha256):
                raise Damaged(f"{self.url}/{stored.name} is not the file that was uploaded")
            draft.replace(to)
        finally:
            draft.unlink(missing_ok=True)
        counter.complete(stored.size)

    def exists(self, name: str) -> bool:
        return self._size(name) is not None

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that it contains; nothing if it is missing."""
        with suppress(Missing), self._asked(name):
            self._fs.rm(self._path(name), recursive=True)

    def _size(self, name: str) -> int | None:
        with suppress(Missing), self._asked(name):
            return self._fs.info(self._path(name))["size"]
        return None

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _make_folder(self, name: str) -> None:
        # Not for object stores, some of whose drivers would make a bucket.
        if self._protocol in _WITH_FOLDERS:
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        """Errors of drivers, which raise any kind, as sentences."""
        try:
            yield
        except FileNotFoundError as error:
            raise Missing(f"{self.url}/{name} does not exist") from error
        except Exception as error:
            raise StoreError(self._sentence(error)) from error

    def _sentence(self, error: Exception) -> str:
        first = next(iter(str(error).strip().splitlines()), "").rstrip(". ")
        return f"{self.url} cannot be used ({type(error).__name__}{first and ': ' + first})"


class _Counter(Callback):
    """Passes on the bytes that a driver reports; some report none."""

    def __init__(self, counted: Callable[[int], None]) -> None:
        super().__init__()
        self._counted, self._told = counted, 0

    def relative_update(self, inc: int = 1) -> None:
        self._told += inc
        self._counted(inc)

    def complete(self, size: int) -> None:
        self.relative_update(size - self._told)


def checked(file: Path) -> tuple[int, str]:
    """The size and SHA-256 of a file."""
    with file.open("rb") as handle:
        return os.fstat(handle.fileno()).st_size, file_digest(handle, "sha256").hexdigest()
