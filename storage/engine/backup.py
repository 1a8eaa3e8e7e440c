"""Backup during labeling, restore, rebuild from the journal, and verification."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

import duckdb
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from storage.engine import connection as engine
from storage.engine import replacing
from storage.engine.codec import KINDS, Entry
from storage.engine.database import Database
from storage.engine.files import (
    copy_file,
    digest_file,
    make_folder,
    open_file,
    sync,
    write_file,
)
from storage.engine.journal import Journal, read_lines
from storage.engine.migrations import migrate
from storage.engine.reconcile import GO_BACK, REWRITE, reconcile, replay, require_own_runs
from storage.engine.schema_check import require_known
from storage.engine.transaction import Tables, parse_journal_bytes
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
    cause_of,
    explain,
    first_few,
    writing_to,
)
from storage.records import LEASE_LIFETIME, now

_MANIFEST = "backup.json"
_FORMAT = 2
_MAX_MANIFEST_BYTES = 1 << 20
_COPY = "COPY FROM DATABASE {source} TO {target}"
_COMMITTED = "SELECT value FROM {database}.meta WHERE key = 'journal_bytes'"
# A backup may contain any time, even infinity, and a lease without an end would block its pair.
_BOUND_LEASES = """
    UPDATE leases SET granted_at = greatest(least(granted_at, $now), $earliest),
                      expires_at = greatest(least(expires_at, $latest), $earliest)
"""
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_ALTERNATIVE = (
    f"Use another backup; to keep the records of the journal, copy {JOURNAL} alone into a new "
    "directory and run `rebuild` there"
)
_Count = Annotated[int, Field(strict=True, ge=0)]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `backup.json`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    workspace: str
    made_at: str
    files: dict[str, tuple[_Count, str]]
    """Size in bytes and SHA-256 of each file."""
    records: dict[str, _Count]
    """The number of records in the database, by kind."""
    format: _Count = _FORMAT


_PARSED_MANIFEST = TypeAdapter(Manifest)
_JSON_OBJECT = TypeAdapter(dict[str, Any])


def backup(db: Database, target: Path) -> Path:
    """Copy database, journal and settings into the new directory `target`; returns it.

    Writes continue meanwhile: database and journal are copied as of one transaction.  `target`
    appears only when the backup is complete.  Models and the files of runs are not included.
    Raises ValueError if `target` exists or the disk refuses it.  Raises StorageDamaged if a line of
    the journal cannot be read; the backup is complete in this case too, with a journal written from
    the database.
    """
    target = Path(target).absolute()
    if target.exists():
        raise ValueError(f"{target} already exists; name a new directory for the backup")
    unfinished = target.with_name(f"{target.name}.unfinished-{stamp()}")
    with writing_to(target, "name another directory for the backup"):
        make_folder(unfinished)
    try:
        damage = _copy_workspace(db, unfinished)
        write_file(unfinished / _MANIFEST, json.dumps(asdict(_manifest(db.workspace, unfinished))))
        unfinished.rename(target)  # so a directory of this name is always a complete backup
        sync(target.parent)
    except BaseException as error:
        shutil.rmtree(unfinished)
        if cause_of(error) is None:
            raise
        raise ValueError(f"no backup was made at {target}: {explain(error)}") from error
    if damage:
        raise StorageDamaged(
            f"{target} is a complete backup; its journal was written from the database, because "
            f"{damage}. To repair the workspace, stop its server; {REWRITE}"
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
    """Copy the tables as they are now; returns the length of the journal at that commit."""
    cursor = db.cursor()
    name = cursor.execute("SELECT current_database()").fetchall()[0][0]
    attached = f"backup_{stamp().replace('.', '_')}"
    # ATTACH takes no parameters; the path is quoted, the names are constant.
    cursor.execute(f"ATTACH '{str(file).replace(chr(39), chr(39) * 2)}' AS {attached}")
    try:
        cursor.execute(_COPY.format(source=name, target=attached))
        committed = cursor.execute(_COMMITTED.format(database=attached)).fetchall()[0][0]
    finally:
        cursor.execute(f"DETACH {attached}")
    file.chmod(0o600)
    return parse_journal_bytes(committed)


def _manifest(workspace: Path, folder: Path) -> Manifest:
    with engine.connect(folder / DATABASE, read_only=True) as connection:
        records = _counts(Tables(connection))
    names = [name for name in (DATABASE, JOURNAL, SETTINGS) if (folder / name).exists()]
    for name in names:
        sync(folder / name)
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


def _require_intact(backup: Path) -> Manifest:
    """The manifest of a backup, after a check that every file is there and unchanged.

    Raises NotFound if `backup` is no backup, ValueError if a newer version made it, and
    StorageDamaged, naming the file, if it is incomplete or damaged.
    """
    manifest = _read_manifest(backup)
    for name in (DATABASE, JOURNAL, *manifest.files):
        if name not in (DATABASE, JOURNAL, SETTINGS):
            raise StorageDamaged(f"{backup / _MANIFEST} names {name!r}, which is not a backup file")
        if name not in manifest.files or not os.path.lexists(backup / name):
            raise StorageDamaged(f"{backup} is incomplete: {name} is missing; use another backup")
    for name, (size, digest) in manifest.files.items():
        with open_file(backup / name) as file:
            found = os.fstat(file.fileno()).st_size
        what = f"has {found} of {size} bytes" if found != size else ""
        if not what and digest_file(backup / name) != (size, digest):
            what = "has changed"
        if what:
            raise StorageDamaged(f"{backup} is damaged: {name} {what}; use another backup")
    return manifest


def _read_manifest(backup: Path) -> Manifest:
    """The manifest; for a backup of format 1, computed from its files."""
    try:
        with open_file(backup / _MANIFEST) as file:
            about = _JSON_OBJECT.validate_json(file.read(_MAX_MANIFEST_BYTES))
        version = about.setdefault("format", 1)
        if version == 1:
            names = [name for name in (DATABASE, JOURNAL, SETTINGS) if (backup / name).exists()]
            about |= {"files": {name: digest_file(backup / name) for name in names}, "records": {}}
        if not isinstance(version, int) or version <= _FORMAT:
            return _PARSED_MANIFEST.validate_python(about)
    except (FileNotFoundError, NotADirectoryError):
        interrupted = ".unfinished-" in backup.name
        why = "is a backup that was interrupted" if interrupted else "is not a backup"
        raise NotFound(f"{backup} {why}; name a directory that `backup` made") from None
    except ValidationError:
        raise StorageDamaged(f"{backup / _MANIFEST} cannot be read; use another backup") from None
    raise ValueError(f"{backup} was made by a newer Kitestring; update Kitestring to restore it")


def restore(backup: Path, workspace: Path) -> Path | None:
    """Put a backup in place of a workspace's database, journal and settings.

    The backup is checked and copied first; then the old files are moved to a folder in `backups/`,
    which is returned (None in a new workspace).  A restore that is killed leaves the old workspace,
    the new one, or one that `Database.open` refuses until `finish_restore` or `undo_restore`.

    Raises NotFound if `backup` is no backup, StorageDamaged if it is incomplete, damaged or
    inconsistent, and WorkspaceLocked while another process has the workspace open.
    """
    backup, workspace = Path(backup).absolute(), Path(workspace).absolute()
    manifest = _require_intact(backup)
    make_workspace(workspace, create=True)
    with lock_workspace(workspace), _preparing(workspace):
        for name, written in manifest.files.items():
            if copy_file(backup / name, replacing.replacement_path(workspace, name)) != written:
                raise StorageDamaged(f"{backup / name} changed while it was read")
        _require_consistent(backup, workspace, manifest)
        return replacing.replace(
            workspace, tuple(manifest.files), outdated=(WAL,), what=f"restoring {backup}"
        )


def finish_restore(workspace: Path) -> None:
    """Complete an interrupted restore or rebuild.  Raises NotFound if there is none."""
    with _interrupted(workspace) as place:
        replacing.finish(place)


def undo_restore(workspace: Path) -> None:
    """Put back the files of before an interrupted restore or rebuild; NotFound if there is none."""
    with _interrupted(workspace) as place:
        replacing.undo(place)


@contextmanager
def _interrupted(workspace: Path) -> Iterator[Path]:
    workspace = Path(workspace).absolute()
    if not workspace.is_dir():
        raise NotFound(f"there is no workspace {workspace}")
    with lock_workspace(workspace):
        yield workspace


@contextmanager
def _preparing(workspace: Path) -> Iterator[None]:
    """A context in which files NAME.new are written and put in place.

    An error removes them, unless the replacement has begun.
    """
    replacing.refuse_pending_replacement(workspace)
    _discard_new(workspace)  # DuckDB would replay the log of an incomplete copy
    try:
        yield
    except BaseException:
        if not replacing.replacement_pending(workspace):
            _discard_new(workspace)
        raise


def _discard_new(workspace: Path) -> None:
    for name in (DATABASE, JOURNAL, SETTINGS):
        replacing.replacement_path(workspace, name).unlink(missing_ok=True)
    (workspace / f"{DATABASE}.new.wal").unlink(missing_ok=True)


def _require_consistent(backup: Path, workspace: Path, manifest: Manifest) -> None:
    """Open the copy of the database and compare it with the copy of the journal."""
    journal = replacing.replacement_path(workspace, JOURNAL)
    try:
        with engine.connect(
            replacing.replacement_path(workspace, DATABASE), sealed=True
        ) as connection:
            try:
                require_known(connection)
                migrate(connection)
                tables = Tables(connection)
                committed = tables.journal_bytes()
            except StorageDamaged as error:
                raise StorageDamaged(f"{backup / DATABASE}: {error}. {_ALTERNATIVE}") from None
            _require_readable(journal, journal.stat().st_size)
            live = {name: tables.stored(kind) for name, kind in KINDS.items()}
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
        f"{_MANIFEST} lists {manifest.records[name]} {name} records, the database has {n}"
        for name, n in counted.items()
        if manifest.records.get(name, n) != n
    ]
    if differences:
        raise StorageDamaged(
            f"the database and the journal of {backup} contradict each other "
            f"({first_few(differences, '; ')}). {_ALTERNATIVE}"
        )


def _bound_leases(connection: duckdb.DuckDBPyConnection) -> None:
    """Limit every lease to the end of a lease that is granted now."""
    moment = now()
    bounds = {"now": moment, "latest": moment + LEASE_LIFETIME, "earliest": _EARLIEST}
    connection.execute(_BOUND_LEASES, bounds)


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """The result of `rebuild`: records by kind, lines of the journal, bytes of an incomplete last
    line, and the folder of the old database."""

    records: dict[str, int]
    lines: int
    torn_bytes: int
    set_aside: str | None


def rebuild(workspace: Path) -> Rebuilt:
    """Make a new database from the journal alone; the old one is moved to a folder in `backups/`.

    Data that is not journaled (leases; metrics, notes and progress of runs) is lost.  Raises
    NotFound without a journal, WorkspaceLocked, or StorageDamaged naming the first line that cannot
    be read; on an error the old database stays in place.
    """
    workspace = Path(workspace).absolute()
    if not (workspace / JOURNAL).exists() and not replacing.replacement_pending(workspace):
        raise NotFound(f"{workspace / JOURNAL} does not exist: there is nothing to rebuild from")
    with lock_workspace(workspace), _preparing(workspace):
        records, lines, torn_bytes = _rebuild(workspace)
        aside = replacing.replace(
            workspace, (DATABASE,), outdated=(WAL,), what="rebuilding the database"
        )
    set_aside = str(aside) if aside else None
    return Rebuilt(records=records, lines=lines, torn_bytes=torn_bytes, set_aside=set_aside)


def _rebuild(workspace: Path) -> tuple[dict[str, int], int, int]:
    """Write the new database beside the old one; returns the first three fields of `Rebuilt`."""
    file = replacing.replacement_path(workspace, DATABASE)
    try:
        with (
            _journal(workspace / JOURNAL) as journal,
            engine.connect(file, sealed=True) as connection,
        ):
            migrate(connection)
            tables = Tables(connection)
            connection.execute("BEGIN")
            lines = replay(tables, journal.lines())
            tables.store_journal_bytes(journal.size)
            connection.execute("COMMIT")
            require_own_runs(tables)
            records = _counts(tables)
    except JournalDamaged as error:
        has_database = (workspace / DATABASE).exists()
        keep = f"If {DATABASE} can be opened, {REWRITE}. Or " if has_database else ""
        raise StorageDamaged(f"{error}. {keep}{GO_BACK}") from None
    except duckdb.Error as error:  # the line is whole, but a column does not accept its value
        what = str(error).partition("\n")[0]
        raise StorageDamaged(
            f"{workspace / JOURNAL} contains a value of a wrong type ({what}). {GO_BACK}"
        ) from None
    return records, lines, journal.torn_bytes


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `verify`; `differences` has a sentence for each difference."""

    same: bool
    records: int
    differences: list[str]


def verify(db: Database) -> Verification:
    """Compare the live database, record by record, with one made from its journal.

    Writes continue meanwhile: the database is read in one snapshot, which includes the length of
    the journal.
    """
    if unreadable := Tables(db.cursor()).unreadable():
        return Verification(same=False, records=0, differences=unreadable)
    with db.snapshot():
        tables = Tables(db.cursor())
        size = tables.journal_bytes()
        live = {name: tables.stored(kind) for name, kind in KINDS.items()}
    differences = _differences(live, db.workspace / JOURNAL, size)
    try:
        db.journal.require_in_place()
    except JournalLost as error:
        differences.insert(0, str(error))
    count = sum(map(len, live.values()))
    return Verification(same=not differences, records=count, differences=differences)


def _differences(live: dict[str, dict[Any, Entry]], journal: Path, size: int) -> list[str]:
    """Sentences on how the first `size` bytes of the journal differ from the records in `live`."""
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
            rebuilt = tables.stored(kind)
            for key in sorted(live[name].keys() | rebuilt.keys(), key=str):
                difference = _difference(live[name].get(key), rebuilt.get(key), kind.volatile)
                if difference:
                    differences.append(f"{name} {key!r}: {difference}")
    return differences


def _difference(live: Entry | None, rebuilt: Entry | None, volatile: frozenset[str]) -> str:
    if live is None:
        return "only in the journal"
    if rebuilt is None:
        return "only in the database"
    # As text, because NaN does not equal itself.
    fields = [
        name for name in live if name not in volatile and repr(live[name]) != repr(rebuilt[name])
    ]
    return f"differs in {', '.join(fields)}" if fields else ""
