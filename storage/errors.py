"""Errors of a workspace.  The user sees every message."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb


class Conflict(ValueError):
    """The request contradicts a stored record."""


class NotFound(LookupError):
    """Nothing is stored under this id."""


class NotLeased(PermissionError):
    """The annotator did not receive this comparison."""


class WorkspaceLocked(RuntimeError):
    """Another process has the workspace open."""


class StorageUnavailable(RuntimeError):
    """The disk refused a write.  Nothing was stored; the caller may retry."""


class JournalLost(StorageUnavailable):
    """The journal was moved, replaced or truncated while it was open."""


class StorageDamaged(RuntimeError):
    """A file of the workspace is damaged."""


class JournalDamaged(StorageDamaged):
    """A line of the journal is damaged; the message says which one."""


class ReplacementUnfinished(RuntimeError):
    """A restore or rebuild was interrupted while it replaced files of the workspace."""


_CAUSES = {
    errno.ENOSPC: "the disk is full. Free some space and try again",
    errno.EDQUOT: "the disk quota is used up. Free some space and try again",
    errno.EFBIG: "the file has reached its size limit (`ulimit -f`). Raise the limit and try again",
    errno.EIO: "the disk reports an error. Make a backup on another disk and replace this one",
    errno.EROFS: "the disk is read-only. Make it writable and try again",
    errno.EACCES: "permission denied. Change the owner or the permissions of the file",
    errno.EMFILE: "too many files are open. Raise the limit (`ulimit -n 4096`) and start again",
}
_PATHS = {
    errno.ENOENT: "there is no such file or directory. Check the path",
    errno.EEXIST: "it already exists. Name another path",
    errno.ENOTDIR: "a part of this path is a file. Name another path",
    errno.EISDIR: "it is a directory, not a file. Name another path",
    errno.ENAMETOOLONG: "the name is too long. Choose a shorter one",
    errno.ELOOP: "its symbolic links form a loop. Name another path",
}
"""Mistakes in a path.  They are not in `_CAUSES`, because a repeated write would fail again."""
_CAUSES[errno.EPERM] = _CAUSES[errno.EACCES]
_CAUSES[errno.ENFILE] = _CAUSES[errno.EMFILE]
# DuckDB reports errors of the operating system as text.
_MESSAGES = {
    "no space left": errno.ENOSPC,
    "quota exceeded": errno.EDQUOT,
    "file too large": errno.EFBIG,
    "input/output error": errno.EIO,
    "read-only file system": errno.EROFS,
    "permission denied": errno.EACCES,
    "too many open files": errno.EMFILE,
}


def explain(error: BaseException) -> str:
    """A sentence with the file and what to do for an error of the operating system; the text of any
    other error."""
    number = cause_of(error)
    file = getattr(error, "filename", None)
    if number is not None and not file:
        return _CAUSES[number]
    if number is not None:
        advice = _CAUSES[number]
        if number in (errno.EACCES, errno.EPERM) and (parent := _parent_of_missing(str(file))):
            advice = f"permission denied. Change the owner or the permissions of {parent}"
        return f"{file}: {advice}"
    if isinstance(error, OSError) and file and error.errno in _PATHS:
        return f"{file}: {_PATHS[error.errno]}"
    return str(error)


def _parent_of_missing(file: str) -> Path | None:
    """The directory that refuses a file which does not exist; None if it exists."""
    if os.path.lexists(file):
        return None
    # `Path.exists` raises for a directory that may not be searched.
    return next(each for each in Path(file).absolute().parents if os.path.lexists(each))


@contextmanager
def writing_to(place: Path, instead: str) -> Iterator[None]:
    """Turn a mistake in the path `place` into a ValueError that ends with the advice `instead`.

    Other errors of the operating system are raised unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _PATHS:
            raise
        raise ValueError(f"{_mistake(place, error)}; {instead}") from None


def _mistake(place: Path, error: OSError) -> str:
    if error.errno == errno.ENAMETOOLONG:
        return f"the name {place} is too long"
    last = next(path for path in (place, *place.absolute().parents) if path.exists())
    if not last.is_dir():
        return f"{last} is not a directory"
    return f"{place} cannot be created, because {last} does not accept new files"


def cause_of(error: BaseException) -> int | None:
    """The errno of an error of Python or DuckDB after which a retry may succeed, otherwise None."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _CAUSES else None
    if not isinstance(error, duckdb.Error):
        return None
    text = str(error).lower()
    return next((number for sign, number in _MESSAGES.items() if sign in text), None)


def first_few(items: Sequence[str], separator: str) -> str:
    """Three of the items, and the number of the others."""
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return separator.join(items[:3]) + more
