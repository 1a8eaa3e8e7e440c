"""Power cuts, full disks and kills: what was acknowledged is there once, the rest may be sent again."""

from __future__ import annotations

import errno
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from storage.engine.backup import rebuild, verify
from storage.engine.database import Database
from storage.engine.journal import Journal, encode
from storage.errors import StorageDamaged, StorageUnavailable
from storage.labeling import judgments, queue
from storage.tables import settings
from tests.helpers.storage_world import child, fill, outcome_of


def given(db: Database, n: int = 3) -> list[str]:
    return [pair.comparison.id for pair in queue.lease(db, "ann", n).pairs]


def judge(db: Database, id: str, comparison: str) -> None:
    judgments.judge(db, id=id, comparison=comparison, annotator="ann", outcome="a")


def stored(db: Database) -> set[str]:
    return {row["id"] for row in db.read("SELECT id FROM judgments")}


def journaled(workspace: Path) -> list[str]:
    """Ids of the journal's judgments, each as often as it is there."""
    lines = Journal(workspace / "journal.jsonl").lines()
    return [line.entry["id"] for line in lines if line.kind == "judgment"]


# -- order ----------------------------------------------------------------------------------


def test_acknowledged_after_commit_and_committed_after_fsync(tmp_path, monkeypatch):
    with Database.open(tmp_path) as db:
        fill(db)
        (comparison,) = given(db, 1)
        order: list[str] = []
        sync, commit = db.journal.sync, db._commit

        def noted_sync() -> None:
            assert journaled(tmp_path) == ["j"]  # written whole before it is synced
            sync()
            order.append("fsync")

        def noted_commit(connection) -> None:
            commit(connection)
            order.append("commit")

        monkeypatch.setattr(db.journal, "sync", noted_sync)
        monkeypatch.setattr(db, "_commit", noted_commit)
        judge(db, "j", comparison)
        order.append("acknowledged")
        assert order == ["fsync", "commit", "acknowledged"]


def test_a_group_costs_one_fsync(tmp_path, monkeypatch):
    with Database.open(tmp_path) as db:
        started, go = threading.Event(), threading.Event()
        held = threading.Thread(target=db.write, args=(lambda _: started.set() or go.wait(30),))
        held.start()
        assert started.wait(30)
        writers = [threading.Thread(target=settings.put, args=(db, f"k{n}", n)) for n in range(10)]
        for writer in writers:
            writer.start()
        while db._waiting.qsize() < 10:
            pass
        syncs: list[int] = []
        monkeypatch.setattr(db.journal, "sync", lambda: syncs.append(1))
        go.set()
        for thread in [held, *writers]:
            thread.join(30)
        assert len(syncs) == 1
        assert db.read("SELECT count(*) AS n FROM settings") == [{"n": 10}]


# -- faults in a living process -------------------------------------------------------------


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def failed_commit(_: object) -> None:
    raise duckdb.IOException("could not write to file: No space left on device")


@pytest.mark.parametrize("fault", ["before fsync", "before commit"])
def test_a_fault_is_not_acknowledged_and_the_same_label_can_be_sent_again(
    tmp_path, monkeypatch, fault
):
    with Database.open(tmp_path) as db:
        fill(db)
        c0, c1, c2 = given(db)
        judge(db, "j0", c0)
        before = db.journal.path.read_bytes()
        with monkeypatch.context() as broken:
            if fault == "before fsync":
                broken.setattr(db.journal, "sync", no_space)
            else:
                broken.setattr(db, "_commit", failed_commit)
            for _ in range(2):
                with pytest.raises(StorageUnavailable, match="Free some space"):
                    judge(db, "j1", c1)
        assert db.journal.path.read_bytes() == before
        assert stored(db) == {"j0"}
        judge(db, "j1", c1)
        judge(db, "j2", c2)
        assert stored(db) == {"j0", "j1", "j2"}
        assert verify(db).differences == []
    with Database.open(tmp_path) as db:
        assert stored(db) == {"j0", "j1", "j2"}
        assert journaled(tmp_path) == ["j0", "j1", "j2"]


def test_every_writer_of_a_failed_group_is_told(tmp_path, monkeypatch):
    with Database.open(tmp_path) as db:
        fill(db, 16)
        pairs = given(db, 16)
        told: list[object] = []

        def send(n: int) -> None:
            try:
                judge(db, f"j{n}", pairs[n])
                told.append("acknowledged")
            except StorageUnavailable:
                told.append("refused")

        monkeypatch.setattr(db.journal, "sync", no_space)
        threads = [threading.Thread(target=send, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert told == ["refused"] * 16
        assert stored(db) == set()


FULL_DISK = """
import resource, sys, threading
from pathlib import Path
from tests.helpers.storage_world import fill
from storage.labeling import judgments, queue
from storage.engine.backup import rebuild, verify
from storage.engine.database import Database
from storage.errors import StorageDamaged, StorageUnavailable

db = Database.open(Path(sys.argv[1]))
fill(db, 3)
pairs = queue.lease(db, "ann", 3).pairs
if sys.argv[2].endswith(".wal"):  # make it by far the longer one of the two
    db.write(lambda tx: tx.insert("metrics", [
        {"run": "r", "seq": n, "step": n, "name": "kl" * 20, "value": n / 7} for n in range(9000)]))
files = [p for p in Path(sys.argv[1]).iterdir() if p.name.startswith(sys.argv[2])]
size = max(p.stat().st_size for p in files)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def send(n):
    judgments.judge(db, id=f"j{n}", comparison=pairs[n].comparison.id, annotator="ann", outcome="a",
                    comment="long " * 2000)

send(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, hard))
for _ in range(3):
    try:
        send(1)
        print("acknowledged")
    except StorageUnavailable as error:
        print("StorageUnavailable" if "Raise the limit" in str(error) else error)
print("reads", [r["id"] for r in db.read("SELECT id FROM judgments")])
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
send(1)
send(2)
print("stored", sorted(r["id"] for r in db.read("SELECT id FROM judgments")))
print("same", verify(db).same)
db.close()
"""


@pytest.mark.parametrize("file", ["journal.jsonl", "workspace.duckdb.wal"])
def test_a_disk_that_is_really_full_refuses_and_goes_on_when_there_is_space(tmp_path, file):
    """The kernel refuses to lengthen the journal, or the database's own log."""
    status, said = outcome_of(child(FULL_DISK, str(tmp_path), file))
    assert said.splitlines() == [
        *["StorageUnavailable"] * 3,
        "reads ['j0']",
        "stored ['j0', 'j1', 'j2']",
        "same True",
    ]
    assert status == 0


def test_a_database_that_gave_up_after_a_fatal_error_is_started_afresh(tmp_path, monkeypatch):
    with Database.open(tmp_path) as db:
        fill(db)
        c0, c1, _ = given(db)
        judge(db, "j0", c0)

        def gives_up(connection: duckdb.DuckDBPyConnection) -> None:
            connection.close()
            raise duckdb.FatalException("the database has been invalidated")

        with monkeypatch.context() as broken:
            broken.setattr(db, "_commit", gives_up)
            with pytest.raises(StorageUnavailable):
                judge(db, "j1", c1)
        assert stored(db) == {"j0"}  # reading goes on
        judge(db, "j1", c1)
        assert stored(db) == {"j0", "j1"}
        assert verify(db).differences == []


# -- a process that dies between two steps ---------------------------------------------------

DIES = """
import os, sys
from pathlib import Path
from tests.helpers.storage_world import fill
from storage.labeling import judgments, queue
from storage.engine.database import Database

db = Database.open(Path(sys.argv[1]))
fill(db, 3)
pairs = [pair.comparison.id for pair in queue.lease(db, "ann", 3).pairs]
judgments.judge(db, id="j0", comparison=pairs[0], annotator="ann", outcome="a")
if sys.argv[2] == "before fsync":
    db.journal.sync = lambda: os._exit(9)
elif sys.argv[2] == "before commit":
    db._commit = lambda connection: os._exit(9)
else:
    commit = db._commit
    db._commit = lambda connection: (commit(connection), os._exit(9))
judgments.judge(db, id="j1", comparison=pairs[1], annotator="ann", outcome="b")
print("acknowledged")
"""


@pytest.mark.parametrize("when", ["before fsync", "before commit", "before the answer"])
def test_a_death_between_two_steps_leaves_journal_and_tables_agreeing(tmp_path, when):
    status, said = outcome_of(child(DIES, str(tmp_path), when))
    assert (status, said) == (9, "")  # never acknowledged
    with Database.open(tmp_path) as db:
        assert verify(db).differences == []
        assert journaled(tmp_path) == sorted(stored(db))
        assert "j0" in stored(db)
        pair = db.read("SELECT comparison FROM leases WHERE comparison = 'c1-1'")[0]["comparison"]
        judgments.judge(db, id="j1", comparison=pair, annotator="ann", outcome="b")  # sent again
        assert stored(db) == {"j0", "j1"}
        assert journaled(tmp_path) == ["j0", "j1"]
        assert list((tmp_path / "backups").glob("workspace.duckdb.wal-*"))  # the evidence is kept


# -- one file behind the other ---------------------------------------------------------------


def labeled(workspace: Path) -> None:
    """j0 is stored, then both files are copied to old/, then j1 is stored and settings change."""
    with Database.open(workspace) as db:
        fill(db)
        pairs = given(db)
        settings.put(db, "version", "old")
        judge(db, "j0", pairs[0])
    old = workspace / "old"
    old.mkdir()
    for name in ("workspace.duckdb", "journal.jsonl"):
        shutil.copy(workspace / name, old / name)
    with Database.open(workspace) as db:
        judge(db, "j1", pairs[1])
        settings.put(db, "version", "new")


@pytest.mark.parametrize("behind", ["workspace.duckdb", "journal.jsonl"])
def test_whichever_file_is_older_catches_up(tmp_path, behind):
    labeled(tmp_path)
    shutil.copy(tmp_path / "old" / behind, tmp_path / behind)
    with Database.open(tmp_path) as db:
        assert stored(db) == {"j0", "j1"}
        assert settings.get(db, "version") == "new"
        assert verify(db).differences == []
        assert journaled(tmp_path) == ["j0", "j1"]


@pytest.mark.parametrize("lost", ["workspace.duckdb", "journal.jsonl"])
def test_either_file_alone_makes_the_other(tmp_path, lost):
    labeled(tmp_path)
    (tmp_path / lost).unlink()
    with Database.open(tmp_path) as db:
        assert stored(db) == {"j0", "j1"}
        assert settings.get(db, "version") == "new"
        assert verify(db).differences == []


def test_after_an_unclean_stop_a_hole_in_the_tables_is_found_by_id(tmp_path):
    """A flipped bit in DuckDB's log drops rows silently. Comparing numbers of lines would miss it."""
    labeled(tmp_path)
    with Database.open(tmp_path) as db:
        db.write(lambda tx: tx.execute("DELETE FROM judgments WHERE id = 'j0'"))
    assert Database.open(tmp_path).close() is None  # a clean start compares lengths only …
    outcome_of(child(DIES_AT_ONCE, str(tmp_path)))
    with Database.open(tmp_path) as db:  # … one after a kill compares every record
        assert stored(db) == {"j0", "j1"}


def test_after_an_unclean_stop_a_label_that_reads_differently_in_the_two_is_named(tmp_path):
    labeled(tmp_path)
    with Database.open(tmp_path) as db:
        db.write(lambda tx: tx.execute("UPDATE judgments SET outcome = 'tie' WHERE id = 'j0'"))
    outcome_of(child(DIES_AT_ONCE, str(tmp_path)))
    with pytest.raises(StorageDamaged, match=r"'j0' differs .* rebuild"):
        Database.open(tmp_path)
    rebuild(tmp_path)
    with Database.open(tmp_path) as db:
        (row,) = db.read("SELECT outcome FROM judgments WHERE id = 'j0'")
        assert row["outcome"] in ("first", "second")


DIES_AT_ONCE = """
import os, sys
from pathlib import Path
from storage.tables import settings
from storage.engine.database import Database
db = Database.open(Path(sys.argv[1]))
settings.put(db, "x", 1)
os._exit(9)
"""


OPENS_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from storage.engine.database import Database

workspace = Path(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
log = (workspace / "workspace.duckdb.wal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (log + int(sys.argv[2]), hard))
try:
    Database.open(workspace).close()
    print("opened")
except Exception as error:
    print(type(error).__name__, "try again" in str(error), "rebuild" in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
with Database.open(workspace) as db:
    print(sorted(row["id"] for row in db.read("SELECT id FROM judgments")))
"""


@pytest.mark.parametrize("room", [-1, 0])
def test_opening_on_a_full_disk_asks_for_space_and_calls_nothing_damaged(tmp_path, room):
    """After an unclean stop: with no room for a copy of the log, or for the tables."""
    labeled(tmp_path)
    outcome_of(child(DIES_AT_ONCE, str(tmp_path)))
    with (tmp_path / "journal.jsonl").open("ab") as journal:  # to be stored when it opens
        journal.write(encode("setting", {"key": "late", "value": "long " * 200}))
    status, said = outcome_of(child(OPENS_ON_A_FULL_DISK, str(tmp_path), str(room)))
    assert said.splitlines() == ["StorageUnavailable True False", "['j0', 'j1']"]
    assert status == 0


# -- kill -9 under load ----------------------------------------------------------------------

LABELS = """
import sys, threading, uuid
from pathlib import Path
from storage.labeling import judgments, queue
from storage.engine.database import Database

db = Database.open(Path(sys.argv[1]))
speak = threading.Lock()

def label(who):
    while True:
        for pair in queue.lease(db, who, 2).pairs:
            id = str(uuid.uuid4())
            judgments.judge(db, id=id, comparison=pair.comparison.id, annotator=who, outcome="a")
            with speak:
                print(id, pair.comparison.id, who, flush=True)

for n in range(6):
    threading.Thread(target=label, args=(f"w{n}",), daemon=True).start()
threading.Event().wait()
"""


def kill_under_load(workspace: Path, kills: int) -> None:
    with Database.open(workspace) as db:
        fill(db, 400 * kills)
    acknowledged: list[tuple[str, ...]] = []
    for kill in range(kills):
        process = child(LABELS, str(workspace))
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(20 + 7 * kill)]
        finally:
            process.send_signal(signal.SIGKILL)
        with process:
            # From the same files, since `communicate` would pass over what they hold already.
            assert process.stderr is not None
            rest, errors = process.stdout.read(), process.stderr.read()
        # What it managed to say before it died counts; a last line may be cut short.
        assert "" not in lines, f"it ended by itself: {errors}"
        lines += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        acknowledged += [tuple(line.split()) for line in lines]
        assert errors == ""
    with Database.open(workspace) as db:
        rows = db.read("SELECT id, comparison, annotator FROM judgments")
        assert verify(db).differences == []
    found = Counter((r["id"], r["comparison"], r["annotator"]) for r in rows)
    assert max(found.values()) == 1
    assert set(acknowledged) <= set(found)  # none lost
    assert max(Counter(r["comparison"] for r in rows).values()) == 1  # leases survived, too
    # At most what was under way in each of the six threads is stored without an answer.
    assert len(found) - len(acknowledged) <= 6 * kills


def test_three_kills_under_load_lose_and_double_nothing(tmp_path):
    kill_under_load(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_kills_under_load_lose_and_double_nothing(tmp_path):
    kill_under_load(tmp_path, 20)
