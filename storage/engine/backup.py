"""Backups while labeling goes on, and the ways back: restore, rebuild, and the proof they agree."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from storage.engine import connection as engine
from storage.engine import replacing
from storage.engine.codec import KINDS, Entry
from storage.engine.database import Database
from storage.engine.files import (
    copy_file,
    digest_file,
    make_folder,
    open_file,
    sync_file,
    sync_folder,
    write_file,
)
from storage.engine.journal import Journal, read_lines
from storage.engine.migrations import migrate
from storage.engine.reconcile import GO_BACK, REWRITE, reconcile, replay, require_own_runs
from storage.engine.schema import require_known
from storage.engine.transaction import Tables, bytes_noted
from storage.engine.workspace import (
    DATABASE,
    JOURNAL,
    SETTINGS,
    WAL,
    lock_workspace,
    make_workspace,
    stamp,
)
from storage.errors import (
    JournalDamaged,
    JournalLost,
    NotFound,
    StorageDamaged,
    explain,
    writing_to,
)
from storage.records import LEASE_LIFETIME, now

_ABOUT = "backup.json"
_FORMAT = 2
_LONGEST_ABOUT = 1 << 20
_COPY = "COPY FROM DATABASE {source} TO {target}"
_COMMITTED = "SELECT value FROM {database}.meta WHERE key = 'journal_bytes'"
# What the file says of times may be anything, infinity included, and nobody else gets a leased pair.
_BOUND_LEASES = """
    UPDATE leases SET granted_at = greatest(least(granted_at, $now), $earliest),
                      expires_at = greatest(least(expires_at, $latest), $earliest)
"""
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_SHOWN = 3
_OTHERWISE = (
    f"Use another backup; to take what the journal says, copy {JOURNAL} alone into a new directory "
    "and run `rebuild` there"
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a backup consists of: `files` maps each name to its size and SHA-256, `records` counts
    what the database holds, by kind."""

    workspace: str
    made_at: str
    files: dict[str, tuple[int, str]]
    records: dict[str, int]
    format: int = _FORMAT


def backup(db: Database, target: Path) -> Path:
    """Copy database, journal and settings into the new directory `target`; returns it.

    Writing goes on meanwhile: the copy is of the moment of one transaction, the journal up to
    where it was committed then.  `target` gets its name when everything is on the disk.  Models
    and the files of runs are not included.  Raises ValueError when `target` exists, and
    StorageDamaged when a line of the journal cannot be read: the backup is made all the same and
    is whole, with a journal written anew from the database.
    """
    target = Path(target).absolute()
    if target.exists():
        raise ValueError(f"{target} exists already; name a new directory for the backup")
    unfinished = target.with_name(f"{target.name}.unfinished-{stamp()}")
    with writing_to(target, "name another directory for the backup"):
        make_folder(unfinished)
    try:
        damage = _copy_workspace(db, unfinished)
        write_file(unfinished / _ABOUT, json.dumps(asdict(_manifest(db.workspace, unfinished))))
        unfinished.rename(target)  # so that a directory of this name is always a whole backup
        sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    if damage:
        raise StorageDamaged(
            f"{target} is a whole backup; its journal was written anew from the database, because "
            f"{damage}. To put the workspace right, stop its server; {REWRITE}"
        )
    return target


def _copy_workspace(db: Database, folder: Path) -> StorageDamaged | None:
    """Copy the three files; returns what is wrong with the workspace's journal."""
    committed = _copy_database(db, folder / DATABASE)
    copy_file(db.workspace / JOURNAL, folder / JOURNAL, committed)
    if (db.workspace / SETTINGS).exists():
        copy_file((db.workspace / SETTINGS).resolve(), folder / SETTINGS)
    try:
        _require_readable(db.workspace / JOURNAL, committed)
    except StorageDamaged as damage:
        (folder / JOURNAL).unlink()
        with engine.connect(folder / DATABASE) as copy, _journal(folder / JOURNAL) as journal:
            reconcile(copy, journal, thorough=True)
        return damage
    return None


def _copy_database(db: Database, file: Path) -> int:
    """Copy the tables as they are now; returns how long the journal was when they were committed."""
    cursor = db.cursor()
    name = cursor.execute("SELECT current_database()").fetchall()[0][0]
    attached = f"backup_{stamp().replace('.', '_')}"
    # ATTACH takes no parameters; the path is quoted, the names are ours.
    cursor.execute(f"ATTACH '{str(file).replace(chr(39), chr(39) * 2)}' AS {attached}")
    try:
        cursor.execute(_COPY.format(source=name, target=attached))
        committed = cursor.execute(_COMMITTED.format(database=attached)).fetchall()[0][0]
    finally:
        cursor.execute(f"DETACH {attached}")
    file.chmod(0o600)
    return bytes_noted(committed)


def _manifest(workspace: Path, folder: Path) -> Manifest:
    with engine.connect(folder / DATABASE, read_only=True) as connection:
        records = _counts(Tables(connection))
    names = [name for name in (DATABASE, JOURNAL, SETTINGS) if (folder / name).exists()]
    for name in names:
        sync_file(folder / name)
    return Manifest(
        workspace=str(workspace),
        made_at=now().isoformat(),
        files={name: digest_file(folder / name) for name in names},
        records=records,
    )


def _counts(tables: Tables) -> dict[str, int]:
    return {
        name: tables.rows(f"SELECT count(*) AS n FROM {kind.table}", {})[0]["n"]
        for name, kind in KINDS.items()
    }


def _require_readable(journal: Path, size: int) -> None:
    """Raise StorageDamaged unless the first `size` bytes are whole lines."""
    end = 0
    for line in read_lines(journal, stop=size):
        end = line.end
    if end != size:
        raise JournalDamaged(f"{journal} ends at byte {end}; {size} were written")


def _journal(path: Path) -> closing[Journal]:
    return closing(Journal(path))


def require_whole(backup: Path) -> Manifest:
    """The manifest of a backup, each of whose files is there and as it was written.

    Raises NotFound when `backup` is none, ValueError for one of a newer version and
    StorageDamaged, naming the file, when it is not whole.
    """
    try:
        with open_file(backup / _ABOUT) as file:
            about = json.loads(file.read(_LONGEST_ABOUT))
    except (FileNotFoundError, NotADirectoryError):
        why = (
            "is a backup that was interrupted"
            if ".unfinished-" in backup.name
            else "is not a backup"
        )
        raise NotFound(f"{backup} {why}; name a directory that `backup` made") from None
    except (ValueError, RecursionError):
        raise _unreadable(backup) from None
    manifest = _parsed(backup, about)
    for name in (DATABASE, JOURNAL, *manifest.files):
        if name not in (DATABASE, JOURNAL, SETTINGS):
            raise StorageDamaged(f"{backup / _ABOUT} names {name!r}, which no backup has")
        if name not in manifest.files or not os.path.lexists(backup / name):
            raise StorageDamaged(f"{backup} is not whole: {name} is missing; use another backup")
    for name, (size, digest) in manifest.files.items():
        with open_file(backup / name) as file:
            found = os.fstat(file.fileno()).st_size
        what = f"has {found} of {size} bytes" if found != size else ""
        if not what and digest_file(backup / name) != (size, digest):
            what = "has changed"
        if what:
            raise StorageDamaged(f"{backup} is not whole: {name} {what}; use another backup")
    return manifest


def _parsed(backup: Path, about: Any) -> Manifest:
    """The manifest; of a backup made before there was one, what its files are like now."""
    try:
        if about.get("format", 1) > _FORMAT:
            raise ValueError(
                f"{backup} was made by a newer Kitestring; update Kitestring to restore it"
            )
        if "format" in about:
            manifest = Manifest(**about)
            files = {name: _written(entry) for name, entry in manifest.files.items()}
            _require(all(_is_count(n) for n in manifest.records.values()))
            return replace(manifest, files=files)
        names = [name for name in (DATABASE, JOURNAL, SETTINGS) if (backup / name).exists()]
        files = {name: digest_file(backup / name) for name in names}
        return Manifest(**about, files=files, records={})
    except (TypeError, AttributeError):
        raise _unreadable(backup) from None


def _written(entry: Any) -> tuple[int, str]:
    _require(isinstance(entry, list) and len(entry) == 2)
    size, digest = entry
    _require(_is_count(size) and isinstance(digest, str))
    return size, digest


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _require(holds: bool) -> None:
    if not holds:
        raise TypeError("a value of another type than a manifest has")


def _unreadable(backup: Path) -> StorageDamaged:
    return StorageDamaged(f"{backup / _ABOUT} cannot be read; use another backup")


def restore(backup: Path, workspace: Path) -> Path | None:
    """Put a backup in place of a workspace's database, journal and settings.

    The backup is checked and copied first; then what was there is moved to `backups/`.  Returns
    where, or None in a new workspace.  A restore that is killed leaves the old workspace, the new
    one, or one that `Database.open` refuses until `replacing.finish` or `replacing.undo`.

    Raises NotFound when `backup` is none, StorageDamaged when it is not whole or contradicts
    itself, WorkspaceLocked while another process has the workspace.
    """
    backup, workspace = Path(backup).absolute(), Path(workspace).absolute()
    manifest = require_whole(backup)
    make_workspace(workspace, create=True)
    with lock_workspace(workspace):
        replacing.require_settled(workspace)
        _discard_new(workspace)  # DuckDB would replay the log of a copy that was not completed
        try:
            for name, written in manifest.files.items():
                if copy_file(backup / name, replacing.new(workspace, name)) != written:
                    raise StorageDamaged(f"{backup / name} changed while it was read")
            _require_consistent(backup, workspace, manifest)
        except BaseException:
            _discard_new(workspace)
            raise
        return replacing.replace(
            workspace, tuple(manifest.files), outdated=(WAL,), what=f"restoring {backup}"
        )


def finish_restore(workspace: Path) -> None:
    """Complete a restore or rebuild that was interrupted.  Raises NotFound where there was none."""
    with _interrupted(workspace) as place:
        replacing.finish(place)


def undo_restore(workspace: Path) -> None:
    """Put back the files that an interrupted restore or rebuild was replacing; NotFound likewise."""
    with _interrupted(workspace) as place:
        replacing.undo(place)


@contextmanager
def _interrupted(workspace: Path) -> Iterator[Path]:
    workspace = Path(workspace).absolute()
    if not workspace.is_dir():
        raise NotFound(f"there is no workspace {workspace}")
    with lock_workspace(workspace):
        yield workspace


def _discard_new(workspace: Path) -> None:
    for name in (DATABASE, JOURNAL, SETTINGS):
        replacing.new(workspace, name).unlink(missing_ok=True)
    (workspace / f"{DATABASE}.new.wal").unlink(missing_ok=True)


def _require_consistent(backup: Path, workspace: Path, manifest: Manifest) -> None:
    """Open the copy of the database and compare it with the copy of the journal."""
    journal = replacing.new(workspace, JOURNAL)
    try:
        with engine.connect(replacing.new(workspace, DATABASE), sealed=True) as connection:
            with _told_of(backup):
                require_known(connection)
                migrate(connection)
                tables = Tables(connection)
                committed = tables.journal_bytes()
            _require_readable(journal, journal.stat().st_size)
            live = {name: tables.everything(kind) for name, kind in KINDS.items()}
            differences = _differences(live, journal, committed)
            counted = _counts(tables)
            with _journal(journal) as opened:
                reconcile(connection, opened, thorough=False)
            require_own_runs(tables)
            _bound_leases(connection)
            connection.execute("CHECKPOINT")
    except duckdb.Error as error:
        raise StorageDamaged(f"{backup / DATABASE} cannot be read: {error}") from error
    differences += [
        f"{manifest.records[name]} {name} records were copied, {n} are there"
        for name, n in counted.items()
        if manifest.records.get(name, n) != n
    ]
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise StorageDamaged(
            f"the database and the journal of {backup} contradict each other "
            f"({'; '.join(differences[:_SHOWN])}{more}). {_OTHERWISE}"
        )


@contextmanager
def _told_of(backup: Path) -> Iterator[None]:
    """Have what is wrong with the database name the file and the ways out."""
    try:
        yield
    except StorageDamaged as error:
        raise StorageDamaged(f"{backup / DATABASE}: {error}. {_OTHERWISE}") from None


def _bound_leases(connection: duckdb.DuckDBPyConnection) -> None:
    """End every lease when one given now would end, at the latest."""
    moment = now()
    bounds = {"now": moment, "latest": moment + LEASE_LIFETIME, "earliest": _EARLIEST}
    connection.execute(_BOUND_LEASES, bounds)


def rebuild(workspace: Path) -> dict[str, Any]:
    """Make the database again from the journal alone; the old one is moved to `backups/`.

    Returns {"records": {kind: how many}, "lines", "torn_bytes", "set_aside"}.  What is not
    journaled (leases, metrics, notes and progress of runs) starts empty.  Raises NotFound
    without a journal, WorkspaceLocked, or StorageDamaged naming the first line it cannot read;
    the old database then stays where it is.
    """
    workspace = Path(workspace).absolute()
    if not (workspace / JOURNAL).exists() and replacing.is_settled(workspace):
        raise NotFound(f"{workspace / JOURNAL} does not exist: there is nothing to rebuild from")
    with lock_workspace(workspace):
        replacing.require_settled(workspace)
        _discard_new(workspace)
        try:
            with _journal(workspace / JOURNAL) as journal:
                report = _rebuilt(replacing.new(workspace, DATABASE), journal)
        except JournalDamaged as error:
            _discard_new(workspace)
            keep = (
                f"If {DATABASE} can be opened, {REWRITE}. Or "
                if (workspace / DATABASE).exists()
                else ""
            )
            raise StorageDamaged(f"{error}. {keep}{GO_BACK}") from None
        except duckdb.Error as error:  # each line is whole, and one says what no column takes
            _discard_new(workspace)
            what = str(error).partition("\n")[0]
            raise StorageDamaged(
                f"{workspace / JOURNAL} holds a value of a wrong type ({what}). {GO_BACK}"
            ) from None
        except BaseException:
            _discard_new(workspace)
            raise
        aside = replacing.replace(
            workspace, (DATABASE,), outdated=(WAL,), what="rebuilding the database"
        )
    return {**report, "set_aside": str(aside) if aside else None}


def _rebuilt(file: Path, journal: Journal) -> dict[str, Any]:
    with engine.connect(file, sealed=True) as connection:
        migrate(connection)
        tables = Tables(connection)
        connection.execute("BEGIN")
        lines = replay(tables, journal.lines())
        tables.note_journal_bytes(journal.size)
        connection.execute("COMMIT")
        require_own_runs(tables)
        records = _counts(tables)
    return {"records": records, "lines": lines, "torn_bytes": journal.torn_bytes}


def verify(db: Database) -> dict[str, Any]:
    """Compare the live database with one made from its journal, record by record.

    Returns {"same": bool, "records": how many were compared, "differences": ["judgment 'x': …"]}.
    Runs beside writing: the database is read in one snapshot, which knows how long the journal
    was.
    """
    if unreadable := Tables(db.cursor()).unreadable():
        return {"same": False, "records": 0, "differences": unreadable}
    size, live = _snapshot(db)
    differences = _differences(live, db.workspace / JOURNAL, size)
    try:
        db.journal.require_in_place()
    except JournalLost as error:
        differences.insert(0, str(error))
    count = sum(map(len, live.values()))
    return {"same": not differences, "records": count, "differences": differences}


def _differences(live: dict[str, dict[Any, Entry]], journal: Path, size: int) -> list[str]:
    """What the first `size` bytes of the journal say otherwise than the records of `live`."""
    differences: list[str] = []
    with engine.connect(sealed=True) as connection:
        migrate(connection)
        tables = Tables(connection)
        try:
            replay(tables, read_lines(journal, stop=size))
            _require_readable(journal, size)
        except JournalDamaged as error:
            differences.append(f"{error}. To lose nothing, {REWRITE}")
        except OSError as error:
            differences.append(explain(error))
        for name, kind in KINDS.items():
            rebuilt = tables.everything(kind)
            for key in sorted(live[name].keys() | rebuilt.keys(), key=str):
                difference = _difference(live[name].get(key), rebuilt.get(key), kind.volatile)
                if difference:
                    differences.append(f"{name} {key!r}: {difference}")
    return differences


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
