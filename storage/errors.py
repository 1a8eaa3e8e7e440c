"""What can go wrong in a workspace.  Every message is a sentence for the person at the screen."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb


class Conflict(ValueError):
    """What is asked contradicts what is already stored."""


class NotFound(LookupError):
    """Nothing is stored under this id."""


class NotLeased(PermissionError):
    """The annotator was never given this comparison."""


class WorkspaceLocked(RuntimeError):
    """Another process has the workspace open."""


class StorageFull(RuntimeError):
    """The disk refused a write.  Nothing of it was acknowledged; the same request may be repeated."""


class JournalLost(StorageFull):
    """The journal was moved, replaced or cut while it was open: what follows would not be in it."""


class StorageDamaged(RuntimeError):
    """A file of the workspace cannot be read as it was written."""


class JournalDamaged(StorageDamaged):
    """A line of the journal is not as it was written; the message says which one."""


class ReplacementUnfinished(RuntimeError):
    """A restore or rebuild was interrupted while it replaced files of the workspace."""


_CAUSES = {
    errno.ENOSPC: "the disk is full. Free some space and try again",
    errno.EDQUOT: "the disk quota is used up. Free some space and try again",
    errno.EFBIG: "a file may not grow any further (`ulimit -f`). Raise the limit and try again",
    errno.EIO: "the disk reports an error. Make a backup on another disk and replace this one",
    errno.EROFS: "the disk is read-only. Make it writable and try again",
    errno.EACCES: "the user of this program may not do that. Change the owner or the rights of the file",
    errno.EMFILE: "too many files are open. Raise the limit (`ulimit -n 4096`) and start again",
}
_PATHS = {
    errno.ENOENT: "there is no such file or directory. Check the path",
    errno.EEXIST: "this exists already. Name another path",
    errno.ENOTDIR: "a part of this path is a file. Name another path",
    errno.EISDIR: "this is a directory, and a file is needed. Name another path",
    errno.ENAMETOOLONG: "the name is too long. Choose a shorter one",
    errno.ELOOP: "its links lead in a circle. Name another path",
}
"""Mistakes in a path: apart from `_CAUSES`, because a repeated write would fail again."""
_CAUSES[errno.EPERM] = _CAUSES[errno.EACCES]
_CAUSES[errno.ENFILE] = _CAUSES[errno.EMFILE]
# DuckDB passes on what the operating system says, as text.
_SIGNS = {
    "no space left": errno.ENOSPC,
    "quota exceeded": errno.EDQUOT,
    "file too large": errno.EFBIG,
    "input/output error": errno.EIO,
    "read-only file system": errno.EROFS,
    "permission denied": errno.EACCES,
    "too many open files": errno.EMFILE,
}


def explain(error: BaseException) -> str:
    """An error of the operating system as a sentence that names the file and what to do."""
    number = cause_of(error)
    file = getattr(error, "filename", None)
    if number is not None:
        return f"{file}: {_CAUSES[number]}" if file else _CAUSES[number]
    if isinstance(error, OSError) and file and error.errno in _PATHS:
        return f"{file}: {_PATHS[error.errno]}"
    return str(error)


@contextmanager
def writing_to(place: Path, instead: str) -> Iterator[None]:
    """Turn a mistake in the path `place` into a ValueError that names it and ends with `instead`.

    What the disk refuses for another reason stays the OSError that `explain` knows.
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
    return f"{place} cannot be made, because {last} takes no new files"


def cause_of(error: BaseException) -> int | None:
    """The errno behind an error of Python or DuckDB, when it is one that `explain` knows."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _CAUSES else None
    if not isinstance(error, duckdb.Error):
        return None
    text = str(error).lower()
    return next((number for sign, number in _SIGNS.items() if sign in text), None)
