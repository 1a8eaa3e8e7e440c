"""Backups while labeling goes on, and the ways back: restore, rebuild, and the proof they agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from storage import engine
from storage.codec import KINDS, Entry
from storage.database import Database
from storage.errors import NotFound, StorageDamaged
from storage.journal import Journal, read_lines
from storage.migrations import migrate
from storage.reconcile import replay
from storage.records import now
from storage.transaction import Tables
from storage.workspace import (
    BACKUPS,
    DATABASE,
    JOURNAL,
    SETTINGS,
    WAL,
    lock_workspace,
    make_workspace,
    stamp,
)

_ABOUT = "backup.json"
_NEW = f"{DATABASE}.new"
_COPY = "COPY FROM DATABASE {source} TO {target}"


def backup(db: Database, target: Path) -> Path:
    """Copy database, journal and settings into the new directory `target`; returns it.

    Writing goes on meanwhile: the database is copied in one snapshot, the journal after it, so
    that it is at least as far, and opening the copy makes them agree.  Models and the files of
    runs are not included.  Raises ValueError when `target` exists, and StorageDamaged when a line
    of the journal cannot be read: the copy is made all the same, since its database may be whole.
    """
    target = Path(target).absolute()
    if target.exists():
        raise ValueError(f"{target} exists already; name a new directory for the backup")
    unfinished = target.with_name(f"{target.name}.unfinished-{stamp()}")
    unfinished.mkdir(parents=True, mode=0o700)
    try:
        _copy_database(db, unfinished / DATABASE)
        size = db.journal.size
        _copy_start(db.workspace / JOURNAL, unfinished / JOURNAL, size)
        if (db.workspace / SETTINGS).exists():
            shutil.copyfile(db.workspace / SETTINGS, unfinished / SETTINGS)
        about = {"workspace": str(db.workspace), "made_at": now().isoformat()}
        (unfinished / _ABOUT).write_text(json.dumps(about))
        unfinished.rename(target)  # so that a directory of this name is always a whole backup
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    _require_readable(db.workspace / JOURNAL, size, target)
    return target


def _require_readable(journal: Path, size: int, copy: Path) -> None:
    try:
        for _ in read_lines(journal, stop=size):
            pass
    except StorageDamaged as error:
        raise StorageDamaged(f"{copy} is made, but its journal is no better: {error}") from None


def _copy_database(db: Database, file: Path) -> None:
    cursor = db.cursor()
    name = cursor.execute("SELECT current_database()").fetchall()[0][0]
    attached = f"backup_{stamp().replace('.', '_')}"
    # ATTACH takes no parameters; the path is quoted, the names are ours.
    cursor.execute(f"ATTACH '{str(file).replace(chr(39), chr(39) * 2)}' AS {attached}")
    try:
        cursor.execute(_COPY.format(source=name, target=attached))
    finally:
        cursor.execute(f"DETACH {attached}")
    file.chmod(0o600)


def _copy_start(source: Path, target: Path, size: int) -> None:
    """Copy the first `size` bytes."""
    target.touch(mode=0o600)
    with source.open("rb") as old, target.open("wb") as new:
        while size > 0 and (chunk := old.read(min(size, 1 << 20))):
            size -= len(chunk)
            new.write(chunk)


def restore(backup: Path, workspace: Path) -> Path | None:
    """Put a backup in place of a workspace's database, journal and settings.

    What was there is moved to `backups/`; returns where, or None in a new workspace.  Raises
    NotFound when `backup` is none, WorkspaceLocked while another process has the workspace.
    """
    backup, workspace = Path(backup).absolute(), Path(workspace).absolute()
    if not (backup / _ABOUT).exists():
        raise NotFound(f"{backup} is not a backup; name a directory that `backup` made")
    make_workspace(workspace, create=True)
    with lock_workspace(workspace):
        kept = [SETTINGS] if (backup / SETTINGS).exists() else []
        aside = _set_aside(workspace, (DATABASE, WAL, JOURNAL, *kept))
        for name in (*kept, JOURNAL, DATABASE):
            shutil.copyfile(backup / name, workspace / name)
            (workspace / name).chmod(0o600)
    return aside


def _set_aside(workspace: Path, names: tuple[str, ...]) -> Path | None:
    present = [name for name in names if (workspace / name).exists()]
    if not present:
        return None
    aside = workspace / BACKUPS / f"replaced-{stamp()}"
    aside.mkdir(parents=True)
    for name in present:
        (workspace / name).rename(aside / name)
    return aside


def rebuild(workspace: Path) -> dict[str, Any]:
    """Make the database again from the journal alone; the old one is moved to `backups/`.

    Returns {"records": {kind: how many}, "lines", "torn_bytes", "set_aside"}.  What is not
    journaled (leases, metrics, notes and progress of runs) starts empty.  Raises NotFound
    without a journal, WorkspaceLocked, or StorageDamaged naming the first line it cannot read;
    the old database then stays where it is.
    """
    workspace = Path(workspace).absolute()
    if not (workspace / JOURNAL).exists():
        raise NotFound(f"{workspace / JOURNAL} does not exist: there is nothing to rebuild from")
    with lock_workspace(workspace):
        journal = Journal(workspace / JOURNAL)
        new = workspace / _NEW
        for leftover in (new, workspace / f"{_NEW}.wal"):
            leftover.unlink(missing_ok=True)
        try:
            report = _rebuilt(new, journal)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        finally:
            journal.close()
        aside = _set_aside(workspace, (DATABASE, WAL))
        new.rename(workspace / DATABASE)
    return {**report, "set_aside": str(aside) if aside else None}


def _rebuilt(file: Path, journal: Journal) -> dict[str, Any]:
    with engine.connect(file) as connection:
        migrate(connection)
        tables = Tables(connection)
        connection.execute("BEGIN")
        lines = replay(tables, journal.lines())
        tables.note_journal_bytes(journal.size)
        connection.execute("COMMIT")
        records = {
            name: tables.rows(f"SELECT count(*) AS n FROM {kind.table}", {})[0]["n"]
            for name, kind in KINDS.items()
        }
    return {"records": records, "lines": lines, "torn_bytes": journal.torn_bytes}


def verify(db: Database) -> dict[str, Any]:
    """Compare the live database with one made from its journal, record by record.

    Returns {"same": bool, "records": how many were compared, "differences": ["judgment 'x': …"]}.
    Runs beside writing: the database is read in one snapshot, which knows how long the journal
    was.
    """
    size, live = _snapshot(db)
    with engine.connect() as connection:
        migrate(connection)
        tables = Tables(connection)
        differences: list[str] = []
        try:
            replay(tables, read_lines(db.workspace / JOURNAL, stop=size))
        except StorageDamaged as error:
            differences.append(str(error))
        for name, kind in KINDS.items():
            rebuilt = tables.everything(kind)
            for key in sorted(live[name].keys() | rebuilt.keys(), key=str):
                difference = _difference(live[name].get(key), rebuilt.get(key), kind.volatile)
                if difference:
                    differences.append(f"{name} {key!r}: {difference}")
    count = sum(map(len, live.values()))
    return {"same": not differences, "records": count, "differences": differences}


def _snapshot(db: Database) -> tuple[int, dict[str, dict[Any, Entry]]]:
    with db.snapshot():
        tables = Tables(db.cursor())
        return tables.journal_bytes(), {n: tables.everything(kind) for n, kind in KINDS.items()}


def _difference(
    live: dict[str, Any] | None, rebuilt: dict[str, Any] | None, volatile: frozenset[str]
) -> str:
    if live is None:
        return "only in the journal"
    if rebuilt is None:
        return "only in the database"
    # As text: a metric that is not a number equals itself here.
    fields = [
        name for name in live if name not in volatile and repr(live[name]) != repr(rebuilt[name])
    ]
    return f"differs in {', '.join(fields)}" if fields else ""
