"""The files of a workspace: their names, permissions and lock, and copies of write-ahead logs."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from storage.engine.files import copy_file, sync, write_file
from storage.errors import NotFound, StorageDamaged, WorkspaceLocked, writing_to
from storage.records import now

DATABASE = "workspace.duckdb"
WAL = "workspace.duckdb.wal"
JOURNAL = "journal.jsonl"
LOCK = "workspace.lock"
SERVER = "server.json"
SETTINGS = "config.toml"
BACKUPS = "backups"
_WALS_KEPT = 5
_LOG = logging.getLogger(__name__)


def make_workspace(workspace: Path, *, create: bool) -> None:
    """Make the directory, or raise NotFound when there is no workspace and `create` is False."""
    if not create:
        require_data(workspace)
    make_private(workspace)


def require_data(workspace: Path) -> None:
    """Raise NotFound if there is no workspace."""
    if not holds_data(workspace):
        raise NotFound(f"{workspace} is not a workspace; create one with `python launch.py init`")


def holds_data(workspace: Path) -> bool:
    """Whether the directory has a database, or a journal to make one from."""
    return (workspace / DATABASE).exists() or (workspace / JOURNAL).exists()


def make_private(workspace: Path) -> None:
    """Make the directory if needed and restrict it to its owner, because the umask decides who can
    read the files that DuckDB and the workers write in it.

    A directory of another user, or with the sticky bit (`/tmp`), keeps its mode, and a warning is
    logged.  On return, the directory and its new parents would survive a power cut.
    """
    missing = [folder for folder in (workspace, *workspace.parents) if not folder.exists()]
    with writing_to(workspace, "name another directory with --workspace"):
        workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    # An existing one may have been made by a process that was killed before it synced the name.
    for folder in missing or [workspace]:
        with suppress(PermissionError):  # a parent without read permission
            sync(folder.parent)
    found = workspace.stat()
    rights = stat.S_IMODE(found.st_mode)
    if not rights & 0o077:
        return
    if found.st_uid == os.geteuid() and not rights & stat.S_ISVTX:
        workspace.chmod(rights & 0o700)
        _LOG.warning("other users could read %s; only its owner can now", workspace)
    else:
        _LOG.warning(
            "other users can read %s; move the workspace into a directory of your own", workspace
        )


def publish_server(workspace: Path, *, url: str, token: str) -> None:
    """Write the address and the token of the live server to a file that only its owner can read."""
    write_file(workspace / SERVER, json.dumps({"url": url, "token": token}))


def read_server(workspace: Path) -> dict[str, str]:
    """``{"url", "token"}`` of the server that has the workspace open."""
    try:
        found = json.loads((workspace / SERVER).read_text())
        return {"url": found["url"], "token": found["token"]}
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{workspace / SERVER} cannot be read; restart the server of this workspace"
        ) from None


def lock_workspace(workspace: Path) -> IO[str]:
    """Lock the workspace for this process until the returned file is closed.

    The lock is a separate file, because closing any handle to the .duckdb file drops DuckDB's lock.
    Raises WorkspaceLocked, naming the server if it published its address, and StorageDamaged if a
    file of the workspace is not a regular file.
    """
    _require_regular_files(workspace)
    lock = (workspace / LOCK).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise WorkspaceLocked(_who_has(workspace)) from None
    return lock


def _require_regular_files(workspace: Path) -> None:
    """Refuse links: two workspaces could write one journal, and a restore would replace only the
    link."""
    for name in (DATABASE, WAL, JOURNAL, LOCK):
        path = workspace / name
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise StorageDamaged(
                f"{path} is not a regular file; put the file itself there (only the workspace's "
                "directory can be a link)"
            )


def _who_has(workspace: Path) -> str:
    try:
        url = read_server(workspace)["url"]
    except (OSError, ValueError):
        return f"another process has {workspace} open; wait for it to finish or stop it"
    return f"the server at {url} has {workspace} open; use it there or stop it first"


def keep_wal_aside(workspace: Path) -> bool:
    """Copy the write-ahead log of an unclean stop before DuckDB replays it; True if there was one.

    DuckDB silently drops everything after a flipped bit.  So the newest five logs are kept for
    diagnosis, and the caller compares all records with the journal.
    """
    wal = workspace / WAL
    if not wal.exists() or wal.stat().st_size == 0:
        return False
    backups = workspace / BACKUPS
    backups.mkdir(exist_ok=True)
    copy = backups / f"{WAL}-{stamp()}"
    try:
        copy_file(wal, copy)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    for old in sorted(backups.glob(f"{WAL}-*"))[:-_WALS_KEPT]:
        old.unlink()
    return True


def stamp() -> str:
    """The current time for a file name, e.g. 20260131T235959.123456."""
    return now().strftime("%Y%m%dT%H%M%S.%f")
