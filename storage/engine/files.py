"""Durable file operations: each returns only when its change is on the disk.

A rename is durable only if the file's content was synced before it and its directory after it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from storage.errors import StorageDamaged

_CHUNK = 1 << 20


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def copy_file(source: Path, target: Path, size: int | None = None) -> tuple[int, str]:
    """Copy the first `size` bytes (None: all) into a file that only its owner can access.

    Returns the number of bytes copied and their SHA-256 in hexadecimal digits.  Errors as for
    `open_file`.
    """
    digest, copied = hashlib.sha256(), 0
    with _created(target) as handle, open_file(source) as old:
        while chunk := old.read(_CHUNK if size is None else min(_CHUNK, size - copied)):
            _write_all(handle, chunk)
            digest.update(chunk)
            copied += len(chunk)
    return copied, digest.hexdigest()


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading; StorageDamaged for a symbolic link, a pipe or a device."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise StorageDamaged(f"{path} is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StorageDamaged(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def digest_file(path: Path) -> tuple[int, str]:
    """The size of a file in bytes and its SHA-256; errors as for `open_file`."""
    with open_file(path) as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, text: str) -> None:
    """Write a file atomically; only its owner can access it."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with _created(temporary) as handle:
            _write_all(handle, text.encode())
        move(temporary, path)
    except OSError:
        if temporary.is_file():
            temporary.unlink()  # the disk may be full
        raise


def probe(path: Path) -> None:
    """Write 64 KiB to a file and remove it; OSError if the disk refuses."""
    try:
        with _created(path) as handle:
            _write_all(handle, bytes(1 << 16))
    finally:
        path.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename within a filesystem; replaces `target`."""
    source.rename(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def make_folder(path: Path) -> None:
    """Make a directory and its missing parents, accessible to the owner only."""
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def _created(path: Path) -> Iterator[int]:
    """The descriptor of a new file for its owner only, synced if the context ends without error."""
    path.unlink(missing_ok=True)  # a file left by a crash may have other permissions
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield handle
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]
