"""The files of a workspace: their names, the lock, and what is kept aside."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path
from typing import IO

from storage.errors import NotFound, WorkspaceLocked
from storage.records import now

DATABASE = "workspace.duckdb"
WAL = "workspace.duckdb.wal"
JOURNAL = "journal.jsonl"
LOCK = "workspace.lock"
SERVER = "server.json"
SETTINGS = "config.toml"
BACKUPS = "backups"
_WALS_KEPT = 5


def make_workspace(workspace: Path, *, create: bool) -> None:
    """Make the directory, or raise NotFound when there is no workspace and `create` is False."""
    if create:
        make_private(workspace)
    elif not holds_data(workspace):
        raise NotFound(f"{workspace} is not a workspace; make one with `python launch.py init`")


def holds_data(workspace: Path) -> bool:
    """Whether there is a database, or a journal to make one from."""
    return (workspace / DATABASE).exists() or (workspace / JOURNAL).exists()


def make_private(workspace: Path) -> None:
    """Make the directory unless it is there, for its owner alone: DuckDB's files in it are as open as
    the umask leaves them.  One that is there already keeps its rights."""
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)


def publish_server(workspace: Path, *, url: str, token: str) -> None:
    """Write where the live server answers; nobody else can read the file, not even for a moment."""
    path = workspace / SERVER
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps({"url": url, "token": token}))


def read_server(workspace: Path) -> dict[str, str]:
    """``{"url", "token"}`` of the server that has the workspace open."""
    try:
        found = json.loads((workspace / SERVER).read_text())
        return {"url": found["url"], "token": found["token"]}
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{workspace / SERVER} cannot be read; stop the server of this workspace and start it again"
        ) from None


def lock_workspace(workspace: Path) -> IO[str]:
    """Take the workspace for this process until the returned file is closed.

    A file of its own, because closing any handle to the .duckdb file drops DuckDB's lock.
    Raises WorkspaceLocked, naming the server that has it when one says so.
    """
    lock = (workspace / LOCK).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise WorkspaceLocked(_who_has(workspace)) from None
    return lock


def _who_has(workspace: Path) -> str:
    try:
        url = json.loads((workspace / SERVER).read_text())["url"]
    except (OSError, ValueError, KeyError):
        return f"another process has {workspace} open; wait for it to finish or stop it"
    return f"the server at {url} has {workspace} open; use it there or stop it first"


def keep_wal_aside(workspace: Path) -> bool:
    """Copy the write-ahead log of an unclean stop before DuckDB replays it; True if there was one.

    One flipped bit in it makes DuckDB drop all that follows without a word, so the evidence
    is kept (the last few), and the journal is compared in full.
    """
    wal = workspace / WAL
    if not wal.exists() or wal.stat().st_size == 0:
        return False
    backups = workspace / BACKUPS
    backups.mkdir(exist_ok=True)
    copy = backups / f"{WAL}-{stamp()}"
    try:
        shutil.copyfile(wal, copy)
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    copy.chmod(0o600)
    for old in sorted(backups.glob(f"{WAL}-*"))[:-_WALS_KEPT]:
        old.unlink()
    return True


def stamp() -> str:
    """The current time for a file name, e.g. 20260131T235959.123456."""
    return now().strftime("%Y%m%dT%H%M%S.%f")
