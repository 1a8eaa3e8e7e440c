"""A restore leaves the old workspace, the new one, or one that says how to go on; never a mixture."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from commands.main import app
from pipeline.loop.workspace_config import prepare
from storage.engine import connection as engine
from storage.engine import replacing, schema_check
from storage.engine.backup import backup, finish_restore, rebuild, restore, undo_restore, verify
from storage.engine.database import Database
from storage.engine.files import digest_file
from storage.engine.journal import encode
from storage.engine.migrations import MIGRATIONS, migrate
from storage.engine.workspace import DATABASE, JOURNAL, LOCK, SETTINGS, WAL
from storage.errors import NotFound, ReplacementUnfinished, StorageDamaged
from storage.labeling import queue
from storage.records import Run, now
from storage.tables import settings
from storage.tables.runs import runs
from tests.helpers.fault_world import Killed, stopping
from tests.helpers.storage_world import fill

ROOT = Path(__file__).parents[3]
FILES = (DATABASE, JOURNAL, SETTINGS)


def made(workspace: Path, says: str) -> Path:
    """A closed workspace with three pairs whose setting and configuration say who made it."""
    with Database.open(workspace) as db:
        fill(db)
        settings.put(db, "says", says)
    (workspace / SETTINGS).write_text(says)
    return workspace


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`, a workspace; `new`, another one; `copy`, a backup of that."""
    place = tmp_path_factory.mktemp("templates")
    made(place / "old", "old")
    with Database.open(made(place / "new", "new")) as db:
        backup(db, place / "copy")
    return place


@pytest.fixture
def place(templates: Path, tmp_path: Path) -> Path:
    """Copies of the three for one test."""
    return shutil.copytree(templates, tmp_path / "place")


_known: dict[str, str] = {}
"""What `says` found, by the digests of the files."""


def says(workspace: Path) -> str:
    """Who made it, when database, journal and configuration agree on that.

    Opening and verifying the same bytes again would find the same.
    """
    read = {name: workspace / name for name in (*FILES, WAL)}
    seen = str([path.exists() and digest_file(path) for path in read.values()])
    if seen not in _known or replacing.replacement_pending(workspace):
        with Database.open(workspace) as db:
            assert verify(db).differences == []
            assert (workspace / SETTINGS).read_text() == settings.get(db, "says")
            _known[seen] = settings.get(db, "says")
    return _known[seen]


# -- a backup that is incomplete or damaged is refused before anything is moved --------------------------


def lose(name: str) -> Callable[[Path], None]:
    return lambda copy: (copy / name).unlink()


def halve(name: str) -> Callable[[Path], None]:
    def damage(copy: Path) -> None:
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[: len(content) // 2])

    return damage


def flip(name: str) -> Callable[[Path], None]:
    def damage(copy: Path) -> None:
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)

    return damage


def halve_at_a_line(copy: Path) -> None:
    content = (copy / JOURNAL).read_bytes()
    (copy / JOURNAL).write_bytes(content[: content.index(b"\n", len(content) // 2) + 1])


def forget_the_manifest(copy: Path) -> None:
    """As backups were before: without a list of files, so that only their content can tell."""
    about = json.loads((copy / "backup.json").read_text())
    kept = {name: about[name] for name in ("workspace", "made_at")}
    (copy / "backup.json").write_text(json.dumps(kept))


def of_a_newer_version(copy: Path) -> None:
    (copy / "backup.json").write_text(json.dumps({"format": 3, "anything": 1}))


def with_an_unknown_record(copy: Path) -> None:
    with duckdb.connect(str(copy / DATABASE)) as connection:
        connection.execute("INSERT INTO migrations VALUES ('m999_later', now())")
    forget_the_manifest(copy)


def with_a_run_elsewhere(copy: Path) -> None:
    entry = {"id": "r", "stage": "policy", "iteration": 1, "status": "failed"}
    with (copy / JOURNAL).open("ab") as journal:
        journal.write(encode("run", {**entry, "directory": "../../etc"}))
    (copy / DATABASE).unlink()
    with duckdb.connect(str(copy / DATABASE)):
        pass
    forget_the_manifest(copy)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no journal": (lose(JOURNAL), "journal.jsonl is missing"),
    "no database": (lose(DATABASE), "workspace.duckdb is missing"),
    "no settings": (lose(SETTINGS), "config.toml is missing"),
    "half a journal": (halve(JOURNAL), r"journal.jsonl has \d+ of \d+ bytes"),
    "half a database": (halve(DATABASE), r"workspace.duckdb has \d+ of \d+ bytes"),
    "a flipped bit": (flip(JOURNAL), "journal.jsonl has changed"),
    "newer": (of_a_newer_version, "newer Kitestring"),
}
BROKEN_OLD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no journal": (lose(JOURNAL), "journal.jsonl is missing"),
    "half a journal": (halve(JOURNAL), "ends at byte"),
    "half a journal of whole lines": (halve_at_a_line, "contradict each other"),
    "a flipped bit": (flip(JOURNAL), "damaged at line"),
    "half a database": (halve(DATABASE), "cannot be read"),
    "newer": (with_an_unknown_record, "another version"),
    "a run outside": (with_a_run_elsewhere, "not in runs/|contradict"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_backup_that_is_not_whole_is_refused_and_nothing_is_moved(place, how):
    damage, sentence = BROKEN[how]
    damage(place / "copy")
    refuses(place, sentence)


@pytest.mark.parametrize("how", BROKEN_OLD)
def test_a_backup_without_a_manifest_is_judged_by_its_content(place, how):
    damage, sentence = BROKEN_OLD[how]
    forget_the_manifest(place / "copy")
    damage(place / "copy")
    refuses(place, sentence)


def refuses(place: Path, sentence: str) -> None:
    before = files(place / "old")
    with pytest.raises((StorageDamaged, ValueError), match=sentence):
        restore(place / "copy", place / "old")
    assert files(place / "old") == before


def files(workspace: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(workspace)): path.read_bytes()
        for path in sorted(workspace.rglob("*"))
        if path.is_file() and path.name != LOCK
    }


def test_a_whole_backup_is_restored_with_and_without_a_manifest(place):
    restore(place / "copy", place / "old")
    assert says(place / "old") == "new"
    forget_the_manifest(place / "copy")
    restore(place / "copy", place / "third")
    assert says(place / "third") == "new"


# -- a backup of other files than a backup has -----------------------------------------------


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replaced(copy: Path) -> None:
        (copy / name).unlink()
        make(copy / name)

    return replaced


def says_instead(**changes: object) -> Callable[[Path], None]:
    def replaced(copy: Path) -> None:
        about = json.loads((copy / "backup.json").read_text())
        (copy / "backup.json").write_text(json.dumps(about | changes))

    return replaced


def about_journal(entry: object) -> Callable[[Path], None]:
    def replaced(copy: Path) -> None:
        about = json.loads((copy / "backup.json").read_text())
        about["files"][JOURNAL] = entry
        (copy / "backup.json").write_text(json.dumps(about))

    return replaced


UNREADABLE = "backup.json cannot be read; use another backup"
IRREGULAR = "is not a regular file"
ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (instead(JOURNAL, os.mkfifo), IRREGULAR),
    "an endless device": (instead(JOURNAL, lambda p: p.symlink_to("/dev/zero")), IRREGULAR),
    "a link": (instead(SETTINGS, lambda p: p.symlink_to(__file__)), IRREGULAR),
    "a link to nothing": (instead(SETTINGS, lambda p: p.symlink_to("nowhere")), IRREGULAR),
    "a folder": (instead(DATABASE, Path.mkdir), IRREGULAR),
    "a pipe for the manifest": (instead("backup.json", os.mkfifo), IRREGULAR),
    "an endless manifest": (
        instead("backup.json", lambda p: p.symlink_to("/dev/zero")),
        IRREGULAR,
    ),
    "a deep manifest": (instead("backup.json", lambda p: p.write_text("[" * 100_000)), UNREADABLE),
    "bytes": (instead("backup.json", lambda p: p.write_bytes(b"\xff\xfe\0")), UNREADABLE),
    "a list": (instead("backup.json", lambda p: p.write_text("[]")), UNREADABLE),
    "format": (says_instead(format="x"), UNREADABLE),
    "no format": (says_instead(format=None), UNREADABLE),
    "files": (says_instead(files=[1]), UNREADABLE),
    "records": (says_instead(records=5), UNREADABLE),
    "a record": (says_instead(records={"prompt": "5"}), UNREADABLE),
    "more": (says_instead(extra=1), UNREADABLE),
    "no entry": (about_journal(None), UNREADABLE),
    "a short entry": (about_journal([1]), UNREADABLE),
    "a text": (about_journal("ab"), UNREADABLE),
    "another size": (about_journal([1, "ab"]), r"journal.jsonl has \d+ of 1 bytes"),
    "a size of another type": (about_journal(["1", "ab"]), UNREADABLE),
}


@pytest.mark.parametrize("how", ODD)
def test_a_backup_of_odd_files_is_refused_with_a_sentence_and_ends(place, how):
    damage, sentence = ODD[how]
    damage(place / "copy")
    refuses(place, sentence)


def test_a_file_of_another_size_is_not_read(place, monkeypatch):
    with (place / "copy" / JOURNAL).open("r+b") as journal:
        journal.truncate(1 << 40)  # a hole: to digest a terabyte takes hours
    digested: list[str] = []

    def digest(path: Path) -> tuple[int, str]:
        digested.append(path.name)
        assert path.name != JOURNAL
        return digest_file(path)

    monkeypatch.setattr("storage.engine.backup.digest_file", digest)
    refuses(place, r"journal.jsonl has \d+ of \d+ bytes")
    assert digested == [DATABASE]


# -- a backup whose database holds SQL of somebody else -------------------------------------

_AS_VIEW = "ALTER TABLE {0} RENAME TO kept; CREATE VIEW {0} AS SELECT * FROM kept"
STRANGE: dict[str, tuple[str, str]] = {
    "a view for a table": (_AS_VIEW.format("settings"), "the table 'kept', the view 'settings'"),
    "a view for the migrations": (_AS_VIEW.format("migrations"), "the view 'migrations'"),
    "another view of ours": (
        "CREATE OR REPLACE VIEW open_flags AS SELECT * FROM flags",
        "the view 'open_flags'",
    ),
    "a view beside": ("CREATE VIEW more AS SELECT 1", "the view 'more'"),
    "a macro for a function": ("CREATE MACRO md5(x) AS 'same'", "the macro 'md5'"),
    "a macro for the list of tables": (
        "CREATE MACRO duckdb_tables() AS TABLE SELECT 1 AS x; "
        "CREATE MACRO duckdb_settings() AS TABLE SELECT 'memory_limit' AS name, '1 GiB' AS value",
        "the macro 'duckdb_settings'",
    ),
    "a trigger": (
        "CREATE TRIGGER t AFTER INSERT ON meta FOR EACH STATEMENT INSERT INTO settings VALUES ('a', 'b')",
        "the trigger 't'",
    ),
    "a computed column": (
        "ALTER TABLE settings RENAME TO kept; CREATE TABLE settings "
        "(key VARCHAR PRIMARY KEY, text VARCHAR, value JSON AS (text::JSON))",
        "the table 'settings'",
    ),
    "a default": ("ALTER TABLE prompts ALTER source SET DEFAULT 'x'", "the table 'prompts'"),
    "an index": ("CREATE INDEX quick ON prompts (category)", "the index 'quick'"),
    "a sequence": ("CREATE SEQUENCE numbers", "the sequence 'numbers'"),
    "a type": ("CREATE TYPE mood AS ENUM ('good')", "the type 'mood'"),
    "a schema": (
        "CREATE SCHEMA system; CREATE MACRO new.system.duckdb_views() AS TABLE SELECT 1 AS x",
        "the schema 'system'",
    ),
    "a table less": ("DROP TABLE leases", "lacks objects of its schema: the table 'leases'"),
}


def stranger(copy: Path, sql: str) -> None:
    with duckdb.connect(str(copy / DATABASE)) as connection:
        connection.execute(sql.replace("new.", f"{Path(DATABASE).stem}."))
    forget_the_manifest(copy)


@pytest.mark.parametrize("how", STRANGE)
def test_a_backup_whose_database_holds_other_sql_is_refused(place, how):
    sql, named = STRANGE[how]
    stranger(place / "copy", sql)
    refuses(place, named)


@pytest.mark.parametrize("how", STRANGE)
def test_a_workspace_whose_database_holds_other_sql_is_not_opened(place, how):
    sql, named = STRANGE[how]
    stranger_at = place / "new"
    (stranger_at / "backup.json").write_text('{"workspace": "", "made_at": ""}')
    stranger(stranger_at, sql)
    with pytest.raises(StorageDamaged, match=named):
        Database.open(stranger_at)
    rebuild(stranger_at)
    assert says(stranger_at) == "new"


NO_LENGTHS = ["'much'", "'-1'", "' 7'", "'1_000'", "'٣'", "''", f"'{'9' * 5000}'", "NULL"]


@pytest.mark.parametrize("value", NO_LENGTHS)
def test_a_backup_that_notes_no_length_of_its_journal_is_refused(place, value):
    stranger(place / "copy", f"UPDATE meta SET value = {value} WHERE key = 'journal_bytes'")
    refuses(place, r"copy/.* is not a number of bytes\. Use another backup")


@pytest.mark.parametrize("value", NO_LENGTHS)
def test_a_workspace_that_notes_no_length_of_its_journal_is_not_opened(place, value):
    with duckdb.connect(str(place / "new" / DATABASE)) as connection:
        connection.execute(f"UPDATE meta SET value = {value} WHERE key = 'journal_bytes'")
    with pytest.raises(
        StorageDamaged, match=r"is not a number of bytes\. .* `python launch\.py rebuild`"
    ):
        Database.open(place / "new")
    rebuild(place / "new")
    assert says(place / "new") == "new"


@pytest.mark.parametrize(
    ("granted", "expires"),
    [
        ("now()", "'infinity'"),
        ("'infinity'", "'infinity'"),
        ("'-infinity'", "'infinity'"),
        ("'200000-01-01 00:00+00'", "'200000-01-02 00:00+00'"),
        ("now() + INTERVAL 1 YEAR", "now() + INTERVAL 2 YEAR"),
    ],
)
def test_leases_in_a_backup_end_when_one_given_now_would(place, granted, expires):
    """Three pairs want one judgment each; somebody who never comes holds them all."""
    stranger(
        place / "copy",
        "INSERT INTO leases BY NAME SELECT id AS comparison, 'nobody' AS annotator, "
        f"{granted} AS granted_at, {expires} AS expires_at FROM comparisons",
    )
    restore(place / "copy", place / "old")
    with Database.open(place / "old") as db:
        moment = now()
        assert queue.lease(db, "ann", 4).pairs == []
        assert queue.leased_to_others(db, "ann") == 3
        db.clock = lambda: moment + timedelta(minutes=30)
        assert len(queue.lease(db, "ann", 4).pairs) == 3


def test_leases_in_a_backup_stay_where_they_end_sooner(place):
    stranger(
        place / "copy",
        "INSERT INTO leases BY NAME SELECT id AS comparison, 'bob' AS annotator, "
        "now() - INTERVAL 25 MINUTE AS granted_at, now() + INTERVAL 5 MINUTE AS expires_at "
        "FROM comparisons",
    )
    with duckdb.connect(str(place / "copy" / DATABASE)) as connection:
        before = connection.execute("SELECT * FROM leases ORDER BY ALL").fetchall()
    restore(place / "copy", place / "old")
    with duckdb.connect(str(place / "old" / DATABASE)) as connection:
        assert connection.execute("SELECT * FROM leases ORDER BY ALL").fetchall() == before


def test_a_database_in_a_backup_reads_no_file_while_it_is_checked(tmp_path):
    with engine.connect(tmp_path / "x.duckdb", sealed=True) as connection:
        with pytest.raises(duckdb.PermissionException):
            connection.execute(f"SELECT * FROM read_text('{__file__}')")
        with pytest.raises(duckdb.InvalidInputException):
            connection.execute("SET enable_external_access = true")


def test_the_schema_of_every_earlier_version_is_known(tmp_path):
    """As a start left it that was stopped, too."""
    for count in range(len(MIGRATIONS) + 1):
        with engine.connect(tmp_path / f"{count}.duckdb") as connection:
            schema_check.require_known(connection)
            migrate(connection, MIGRATIONS[:count])
        with engine.connect(tmp_path / f"{count}.duckdb") as connection:
            schema_check.require_known(connection)
            migrate(connection)
            schema_check.require_known(connection)


# -- a restore that is stopped ---------------------------------------------------------------


def stopped_restores(place: Path, tmp_path: Path, every: int, *, kill: bool) -> set[str]:
    """Stop restores at every so many steps; returns which outcomes there were."""
    counted = shutil.copytree(place / "old", tmp_path / "counted")
    with stopping() as steps:
        restore(place / "copy", counted)
    outcomes: set[str] = set()
    for at in range(0, len(steps), every):
        workspace = shutil.copytree(place / "old", tmp_path / f"at-{at}")
        try:
            with stopping(at, kill=kill):
                restore(place / "copy", workspace)
        except (Killed, OSError):
            outcomes.add(outcome := what_is_left(workspace))
        else:  # making a directory that is there was refused, and nobody needs it
            assert steps.calls[at][0] == "mkdir"
            outcome = what_is_left(workspace)
            assert outcome == "new"
        if outcome == "refused":
            other = shutil.copytree(workspace, tmp_path / f"undone-{at}")
            finish_restore(workspace)
            assert says(workspace) == "new", at
            undo_restore(other)
            assert says(other) == "old", at
        shutil.rmtree(workspace)
    return outcomes


def what_is_left(workspace: Path) -> str:
    """ "old", "new", or "refused" with a sentence that names both ways out."""
    try:
        return says(workspace)
    except ReplacementUnfinished as error:
        return "refused" if {"--finish`", "--undo`"} <= {*str(error).split()} else str(error)


@pytest.mark.parametrize("kill", [True, False])
def test_a_restore_stopped_at_some_steps_leaves_the_old_the_new_or_a_refusal(place, tmp_path, kill):
    assert stopped_restores(place, tmp_path, 11, kill=kill) >= {"old", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("kill", [True, False])
def test_a_restore_stopped_at_any_step_leaves_the_old_the_new_or_a_refusal(place, tmp_path, kill):
    # At the last step, when the marker is gone, the new one is complete.
    assert stopped_restores(place, tmp_path, 1, kill=kill) == {"old", "new", "refused"}


OLD = {DATABASE: "old", WAL: "old", JOURNAL: "old"}
NEW = {DATABASE: "new", JOURNAL: "new", SETTINGS: "new"}


def about_to_replace(workspace: Path) -> Path:
    """Plain files in place of a database: three old ones, no settings, and three new ones."""
    workspace.mkdir(parents=True)
    for name, content in OLD.items():
        (workspace / name).write_text(content)
    for name, content in NEW.items():
        replacing.replacement_path(workspace, name).write_text(content)
    return workspace


def content(workspace: Path) -> dict[str, str]:
    names = (DATABASE, WAL, JOURNAL, SETTINGS)
    return {n: (workspace / n).read_text() for n in names if (workspace / n).exists()}


def run_replace(workspace: Path) -> None:
    replacing.replace(workspace, FILES, outdated=(WAL,), what="restoring")


def interrupted(tmp_path: Path) -> list[Path]:
    """A workspace for each step at which a replacement was killed that needs to be settled."""
    counted = about_to_replace(tmp_path / "counted")
    with stopping() as steps:
        run_replace(counted)
    assert content(counted) == NEW
    left: list[Path] = []
    for at in range(len(steps)):
        workspace = about_to_replace(tmp_path / f"at-{at}")
        with stopping(at), pytest.raises(Killed):
            run_replace(workspace)
        if (workspace / replacing.MARKER).exists():
            with pytest.raises(ReplacementUnfinished):
                replacing.refuse_pending_replacement(workspace)
            left.append(workspace)
        else:
            assert content(workspace) in (OLD, NEW)
    return left


ENDS = {replacing.finish: NEW, replacing.undo: OLD}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("then", ENDS)
def test_finish_and_undo_may_be_killed_at_any_step_and_repeated_or_reversed(
    tmp_path, first, then, every
):
    left = interrupted(tmp_path)[::every]
    assert len(left) > 2
    for number, workspace in enumerate(left):
        at = 0
        while True:
            again = shutil.copytree(workspace, tmp_path / f"again-{number}-{at}")
            try:
                with stopping(at):
                    first(again)
            except Killed:
                if (again / replacing.MARKER).exists():
                    then(again)
                    assert content(again) == ENDS[then], (workspace, at)
                else:
                    assert content(again) == ENDS[first], (workspace, at)
            else:
                assert content(again) == ENDS[first]
                assert not (again / replacing.MARKER).exists()
                break
            at += 1
        assert at >= 2


def test_every_file_is_synced_before_it_counts_and_its_folder_after(tmp_path):
    """The marker counts on the new files, every later rename on the one before it."""
    workspace = about_to_replace(tmp_path / "w")
    with stopping() as steps:
        run_replace(workspace)
    synced = [arguments[0] for name, arguments in steps.calls if name == "fsync"]
    marker = next(
        n
        for n, (name, arguments) in enumerate(steps.calls)
        if name == "rename" and arguments[1].endswith(replacing.MARKER)
    )
    before = {arguments[0] for name, arguments in steps.calls[:marker] if name == "fsync"}
    assert {str(replacing.replacement_path(workspace, name)) for name in FILES} <= before
    assert f"{workspace / replacing.MARKER}.tmp" in before
    for n, (name, arguments) in enumerate(steps.calls):
        if name == "rename":
            following = [a[0] for call, a in steps.calls[n + 1 : n + 3] if call == "fsync"]
            touched = {str(Path(arguments[0]).parent), str(Path(arguments[1]).parent)}
            assert touched <= set(following), arguments
    assert len(synced) > 10


def test_a_marker_that_names_other_files_moves_nothing(tmp_path):
    workspace = about_to_replace(tmp_path / "w")
    plan = {
        "what": "x",
        "files": ["../secret"],
        "outdated": [],
        "present": [],
        "aside": "backups/a",
    }
    (workspace / replacing.MARKER).write_text(json.dumps(plan))
    for attempt in (replacing.finish, replacing.undo, replacing.refuse_pending_replacement):
        with pytest.raises(StorageDamaged, match="cannot be read"):
            attempt(workspace)


def test_undo_keeps_the_old_file_when_the_new_one_was_deleted_by_hand(tmp_path):
    workspace = interrupted(tmp_path)[0]  # nothing is moved yet
    for name in NEW:
        replacing.replacement_path(workspace, name).unlink()
    with pytest.raises(StorageDamaged, match="undo"):
        replacing.finish(workspace)
    replacing.undo(workspace)
    assert content(workspace) == OLD


def test_there_is_nothing_to_finish_where_nothing_was_interrupted(place):
    for attempt in (finish_restore, undo_restore):
        with pytest.raises(NotFound, match="was interrupted"):
            attempt(place / "old")
        with pytest.raises(NotFound, match="no workspace"):
            attempt(place / "nowhere")


def test_a_restore_or_rebuild_waits_until_an_interrupted_one_is_settled(place):
    shutil.copy(place / "copy" / DATABASE, replacing.replacement_path(place / "old", DATABASE))
    with stopping(12), pytest.raises(Killed):
        replacing.replace(place / "old", (DATABASE,), what="restoring x")
    for attempt in (lambda: restore(place / "copy", place / "old"), lambda: rebuild(place / "old")):
        with pytest.raises(ReplacementUnfinished, match="restoring x was interrupted"):
            attempt()


def test_every_command_refuses_a_workspace_whose_restore_was_interrupted(tmp_path):
    workspace, here = tmp_path / "w", ("--workspace", str(tmp_path / "w"))
    prepare(workspace, None, [], [])
    with Database.open(workspace) as db:
        backup(db, tmp_path / "copy")
    for way in (("--finish",), ("--undo",)):
        with pytest.raises(NotFound, match="was interrupted"):
            command("restore", *way, *here)
    for unclear in ((), (str(tmp_path / "copy"), "--undo"), ("--finish", "--undo")):
        with pytest.raises(ValueError, match="name one of"):
            command("restore", *unclear, *here)
    for name in FILES:
        shutil.copy(tmp_path / "copy" / name, replacing.replacement_path(workspace, name))
    with stopping() as steps:
        replacing.replace(workspace, FILES, what="restoring x")
    for name in FILES:
        shutil.copy(tmp_path / "copy" / name, replacing.replacement_path(workspace, name))
    with stopping(len(steps) - 4), pytest.raises(Killed):
        replacing.replace(workspace, FILES, what="restoring x")
    for name in (
        "status",
        "serve --port 0",
        "rebuild",
        "users add Zoe",
    ):
        with pytest.raises(ReplacementUnfinished, match="--finish"):
            command(*name.split(), *here)
    assert "old files" in command("restore", "--undo", *here)
    command("status", *here)


def command(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


@pytest.fixture(scope="module")
def interrupted_restores(
    templates: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[frozenset[str], Path]:
    """Interrupted restores, one for each set of old and new files that are in place."""
    place = tmp_path_factory.mktemp("interrupted")
    left: dict[frozenset[str], Path] = {}
    counted = shutil.copytree(templates / "old", place / "counted")
    with stopping() as steps:
        restore(templates / "copy", counted)
    begin = next(n for n, (_, a) in enumerate(steps.calls) if str(a[-1]).endswith(replacing.MARKER))
    for at in range(begin, len(steps)):
        workspace = shutil.copytree(templates / "old", place / f"at-{at}")
        with stopping(at), pytest.raises(Killed):
            restore(templates / "copy", workspace)
        names = frozenset(path.name for path in workspace.iterdir() if path.name != LOCK)
        if replacing.MARKER in names:
            left.setdefault(names, workspace)
    return left


@pytest.fixture
def left(
    interrupted_restores: dict[frozenset[str], Path], tmp_path: Path
) -> dict[frozenset[str], Path]:
    """Copies of them for one test."""
    return {
        names: shutil.copytree(workspace, tmp_path / workspace.name)
        for names, workspace in interrupted_restores.items()
    }


def test_every_door_names_the_ways_out_wherever_a_restore_was_interrupted(place, left, tmp_path):
    """Also where neither the database nor the journal has its name."""
    new_files = {f"{name}.new" for name in FILES}
    assert any(not names & {DATABASE, JOURNAL} and new_files <= names for names in left)
    assert len(left) == 2 * len(FILES) + 1
    for names, workspace in left.items():
        for attempt in (
            lambda at=workspace: Database.open(at),
            lambda at=workspace: Database.open(at, create=False),
            lambda at=workspace: rebuild(at),
            lambda at=workspace: restore(place / "copy", at),
        ):
            with pytest.raises(ReplacementUnfinished, match=r"--finish.*--undo"):
                attempt()
        assert names == {path.name for path in workspace.iterdir()} - {LOCK}
        other = shutil.copytree(workspace, tmp_path / f"{workspace.name}-undone")
        finish_restore(workspace)
        assert says(workspace) == "new"
        undo_restore(other)
        assert says(other) == "old"


def test_a_workspace_whose_restore_lost_its_marker_does_not_begin_empty(left):
    for names, workspace in left.items():
        (workspace / replacing.MARKER).unlink()
        if names & {DATABASE, JOURNAL}:  # one of the two makes the other again
            with Database.open(workspace) as db:
                assert settings.get(db, "says") in ("old", "new")
            continue
        before = files(workspace)
        for attempt in (
            lambda at=workspace: Database.open(at),
            lambda at=workspace: Database.open(at, create=False),
            lambda at=workspace: rebuild(at),
            lambda at=workspace: finish_restore(at),
            lambda at=workspace: undo_restore(at),
        ):
            with pytest.raises(
                StorageDamaged, match=r"old files are in .*/replaced-.* end in \.new"
            ):
                attempt()
        assert files(workspace) == before
        (aside,) = (workspace / "backups").iterdir()
        for path in aside.iterdir():  # as the message says
            path.rename(workspace / path.name)
        assert says(workspace) == "old"


@pytest.mark.parametrize(
    "lost",
    [name if name == DATABASE else pytest.param(name, marks=pytest.mark.slow) for name in FILES],
)
def test_the_way_that_is_left_is_named_when_a_file_of_the_other_is_gone(left, tmp_path, lost):
    for workspace in left.values():
        (aside,) = (workspace / "backups").iterdir()
        if replacing.replacement_path(workspace, lost).exists():
            without_new = shutil.copytree(workspace, tmp_path / f"{workspace.name}-without-new")
            replacing.replacement_path(without_new, lost).unlink()
            refuses_to(finish_restore, without_new, r"\.new is gone.*--undo` puts")
            undo_restore(without_new)
            assert says(without_new) == "old"
        if (aside / lost).exists():
            (aside / lost).unlink()
            refuses_to(undo_restore, workspace, rf"{lost} is gone.*--finish` completes")
            finish_restore(workspace)
            assert says(workspace) == "new"


def test_neither_way_is_named_when_both_files_are_gone(left):
    workspace = next(at for names, at in left.items() if not names & {*FILES})
    (aside,) = (workspace / "backups").iterdir()
    (aside / JOURNAL).unlink()
    replacing.replacement_path(workspace, JOURNAL).unlink()
    for attempt in (finish_restore, undo_restore):
        refuses_to(attempt, workspace, r"journal.jsonl is gone.*journal.jsonl\.new is gone.*backup")


def refuses_to(attempt: Callable[[Path], None], workspace: Path, sentence: str) -> None:
    before = files(workspace)
    with pytest.raises(StorageDamaged, match=sentence):
        attempt(workspace)
    assert files(workspace) == before


def killed_while_it_checks(backup: Path, workspace: Path) -> None:
    """Restore in a process that ends while the log of the new database is not folded in."""
    code = f"""
import os
from pathlib import Path
from storage.engine import backup
def die(connection):
    connection.execute("INSERT INTO settings VALUES ('stale', '1')")
    os._exit(9)
backup._bound_leases = die
backup.restore(Path({str(backup)!r}), Path({str(workspace)!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 9


def test_a_restore_takes_nothing_from_one_that_was_killed_before(place):
    killed_while_it_checks(place / "copy", place / "old")
    assert (place / "old" / f"{DATABASE}.new.wal").stat().st_size > 0
    restore(place / "copy", place / "old")
    assert says(place / "old") == "new"


# -- a backup that is stopped ----------------------------------------------------------------


def test_a_backup_stopped_at_any_step_is_none_or_whole(templates, tmp_path):
    with Database.open(shutil.copytree(templates / "new", tmp_path / "w")) as db:
        with stopping() as steps:
            backup(db, tmp_path / "counted")
        for at in range(0, len(steps), 4):
            with stopping(at), pytest.raises(Killed):
                backup(db, tmp_path / f"b-{at}")
        backups = [path for path in tmp_path.glob("b-*") if ".unfinished-" not in path.name]
        unfinished = list(tmp_path.glob("b-*.unfinished-*"))
        assert len(backups) < len(unfinished)
    for n, copy in enumerate(backups):
        restore(copy, tmp_path / f"restored-{n}")
        assert says(tmp_path / f"restored-{n}") == "new"
    for copy in unfinished:
        if not (copy / "backup.json").exists():
            with pytest.raises(NotFound, match="was interrupted"):
                restore(copy, tmp_path / "nowhere")


def test_a_backup_is_on_the_disk_before_it_has_its_name(templates, tmp_path):
    with (
        Database.open(shutil.copytree(templates / "new", tmp_path / "w")) as db,
        stopping() as steps,
    ):
        target = backup(db, tmp_path / "copy")
    named = next(
        n for n, (name, a) in enumerate(steps.calls) if name == "rename" and a[1] == str(target)
    )
    synced = {Path(a[0]).name for name, a in steps.calls[:named] if name == "fsync"}
    assert {*FILES, "backup.json.tmp"} <= synced
    assert ("fsync", (str(tmp_path),)) in steps.calls[named:]


def test_a_backup_counts_what_it_holds(templates):
    about = json.loads((templates / "copy" / "backup.json").read_text())
    assert about["records"]["comparison"] == 3
    assert about["files"].keys() == set(FILES)
    assert about["files"][JOURNAL][0] == (templates / "copy" / JOURNAL).stat().st_size


def test_a_full_disk_while_restoring_leaves_the_workspace_alone(place, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = files(place / "old")
    with monkeypatch.context() as broken:
        broken.setattr("storage.engine.files.os.write", full)
        with pytest.raises(OSError, match="space"):
            restore(place / "copy", place / "old")
    assert files(place / "old") == before


@pytest.mark.parametrize("command", ["restore", "rebuild"])
def test_a_disk_that_is_full_before_the_files_are_exchanged_keeps_nothing(
    place, monkeypatch, command
):
    """The last file that is written says which files are exchanged."""
    kept = os.write

    def full(handle: int, data: bytes) -> int:
        if b'"what"' in bytes(data[:20]):
            kept(handle, b"{")
            raise OSError(errno.ENOSPC, "No space left on device")
        return kept(handle, data)

    old = place / "old"
    before = sorted(old.rglob("*"))
    with monkeypatch.context() as broken:
        broken.setattr("storage.engine.files.os.write", full)
        with pytest.raises(OSError, match="space"):
            restore(place / "copy", old) if command == "restore" else rebuild(old)
    assert {*sorted(old.rglob("*"))} - {*before} <= {old / "backups", old / "workspace.lock"}
    with Database.open(old) as db:
        assert verify(db).same


# -- what verify says of a journal that lost its half ----------------------------------------


@pytest.mark.parametrize("how", [halve(JOURNAL), halve_at_a_line, lose(JOURNAL)])
def test_verify_tells_when_the_journal_lost_its_half(place, how):
    with Database.open(place / "old") as db:
        how(place / "old")
        report = verify(db)
    assert not report.same
    assert "journal.jsonl" in report.differences[0]


# -- run directories -------------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["../../etc", "/etc", "runs", "runs/../../x", "models/m", ""])
def test_a_run_outside_its_folder_is_refused_at_every_door(place, directory):
    with pytest.raises(ValueError, match="not in runs/"):
        Run(id="r", stage="policy", iteration=1, status="failed", directory=directory)
    workspace = place / "old"
    with Database.open(workspace) as db:
        good = Run(id="r", stage="policy", iteration=1, status="failed", directory="runs/r")
        runs.save(db, good)
    lines = (workspace / JOURNAL).read_bytes().splitlines(keepends=True)
    [at] = [n for n, line in enumerate(lines) if json.loads(line)["record"] == "run"]
    entry = json.loads(lines[at])
    kind, _ = entry.pop("record"), entry.pop("crc")
    lines[at] = encode(kind, entry | {"directory": directory})
    (workspace / JOURNAL).write_bytes(b"".join(lines))
    with pytest.raises(StorageDamaged, match="not in runs/"):
        rebuild(workspace)
    with duckdb.connect(str(workspace / DATABASE)) as connection:
        connection.execute("UPDATE runs SET directory = $d", {"d": directory})
    with pytest.raises(StorageDamaged, match="not in runs/"):
        Database.open(workspace)


def test_a_rebuild_from_values_of_a_wrong_type_is_refused_in_a_sentence(tmp_path):
    place = made(tmp_path / "w", "ours")
    before = digest_file(place / DATABASE)
    with (place / JOURNAL).open("ab") as journal:
        journal.write(encode("prompt", {"id": "p", "role": "train", "created_at": "yesterday"}))
    with pytest.raises(StorageDamaged, match=r"value of a wrong type .*launch\.py restore"):
        rebuild(place)
    assert digest_file(place / DATABASE) == before
    assert not replacing.replacement_path(place, DATABASE).exists()
