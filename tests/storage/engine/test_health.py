"""Damage that is met while a workspace is open or being opened: what is set aside, refused and said."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from commands.studio import Studio
from labeler.app import _home_routes
from pipeline.loop.workspace_config import prepare
from storage.engine.backup import rebuild, verify
from storage.engine.codec import StoredSetting
from storage.engine.database import Database
from storage.engine.journal import encode
from storage.engine.reconcile import REWRITE
from storage.engine.watch import Watch, check_journal, check_lines, probe_disk
from storage.engine.workspace import DATABASE, JOURNAL, LOCK, WAL
from storage.errors import StorageDamaged, StorageUnavailable, WorkspaceLocked, cause_of, explain
from storage.labeling import judgments, queue
from storage.tables import settings
from tests.helpers.storage_world import fill


def written(workspace: Path, count: int = 4) -> Path:
    """The journal of a closed workspace with the settings n0, n1, …"""
    with Database.open(workspace) as db:
        for n in range(count):
            settings.put(db, f"n{n}", n)
    return workspace / JOURNAL


def values(db: Database) -> dict[str, int]:
    rows = db.read("SELECT key, value FROM settings ORDER BY key")
    return {row["key"]: json.loads(row["value"]) for row in rows}


# -- a damaged tail that was never committed -------------------------------------------------


def test_a_torn_group_that_was_never_committed_is_set_aside(tmp_path, caplog):
    """A power cut kept the length of a group's last write and lost a page in its middle."""
    path = written(tmp_path)
    committed = path.read_bytes()
    group = [encode("setting", {"key": f"lost{n:02}", "value": "x" * 300}) for n in range(40)]
    torn = bytearray(b"".join(group))
    torn[4096:8192] = bytes(4096)
    path.write_bytes(committed + torn)
    with caplog.at_level(logging.WARNING), Database.open(tmp_path) as db:
        kept = 4096 // len(group[0])  # whole lines before the lost page; nobody was told of them
        assert len(values(db)) == 4 + kept
        assert verify(db).differences == []
        settings.put(db, "after", 1)
    aside = (tmp_path / "journal.torn").read_bytes()
    assert aside.rstrip(b"\n") == bytes(torn[kept * len(group[0]) :]).rstrip(b"\n")
    assert str(tmp_path / "journal.torn") in caplog.text
    with Database.open(tmp_path) as db:
        assert values(db)["after"] == 1


def test_damage_within_the_committed_length_is_refused_and_the_way_without_loss_comes_first(
    tmp_path,
):
    path = written(tmp_path)
    flip(path, b'"key":"n1')
    path.write_bytes(path.read_bytes() + encode("setting", {"key": "more", "value": 1}))
    with pytest.raises(StorageDamaged, match="damaged at line 2") as refused:
        Database.open(tmp_path)
    text = str(refused.value)
    assert text.index(REWRITE) < text.index("restore")
    path.rename(tmp_path / "elsewhere")  # as it says
    with Database.open(tmp_path) as db:
        assert values(db) == {"n0": 0, "n1": 1, "n2": 2, "n3": 3}
        assert verify(db).differences == []


def test_without_a_database_a_damaged_journal_is_never_set_aside(tmp_path):
    """Its committed length is not known: it may hold all there is."""
    path = written(tmp_path)
    flip(path, b'"key":"n1')
    before = path.read_bytes()
    (tmp_path / DATABASE).unlink()
    for _ in range(2):  # the first attempt leaves an empty database behind
        with pytest.raises(StorageDamaged, match="The database is empty") as refused:
            Database.open(tmp_path)
        assert REWRITE not in str(refused.value)
    assert path.read_bytes() == before


def test_rebuild_names_the_way_without_loss_while_there_is_a_database(tmp_path):
    path = written(tmp_path)
    flip(path, b'"key":"n1')
    with pytest.raises(StorageDamaged, match=REWRITE):
        rebuild(tmp_path)
    (tmp_path / DATABASE).unlink()
    with pytest.raises(StorageDamaged) as refused:
        rebuild(tmp_path)
    assert REWRITE not in str(refused.value)


def flip(path: Path, marker: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(marker) + len(marker) - 1] ^= 1
    path.write_bytes(content)


# -- the journal of a live server ------------------------------------------------------------


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def put_another(path: Path) -> None:
    move(path)
    path.write_bytes(path.with_name("moved").read_bytes())


def cut(path: Path) -> None:
    os.truncate(path, 10)


@pytest.mark.parametrize("harm", [move, put_another, cut])
def test_writes_are_refused_while_the_journal_is_not_the_one_that_was_opened(tmp_path, harm):
    with Database.open(tmp_path) as db:
        fill(db)
        (pair,) = queue.lease(db, "ann", 1).pairs
        harm(db.journal.path)
        label = {"comparison": pair.comparison.id, "annotator": "ann", "outcome": "a"}
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match="nothing was stored") as refused:
                judgments.judge(db, id="j", **label)
            assert str(db.journal.path) in str(refused.value)
        assert db.health.public() == ("writes are refused", 503)
        assert db.read("SELECT id FROM judgments") == []
        assert not verify(db).same
        if harm is move:
            (tmp_path / "moved").rename(db.journal.path)  # as the sentence says
            judgments.judge(db, id="j", **label)
            assert db.health.public() == ("ok", 200)
            assert verify(db).same


def test_a_lost_journal_is_noticed_without_a_write_and_its_return_too(tmp_path):
    with Database.open(tmp_path) as db:
        settings.put(db, "a", 1)
        assert check_journal(db) is False
        move(db.journal.path)
        assert check_journal(db) is True
        assert str(db.journal.path) in (db.health.trouble or "")
        probe_disk(db)
        assert db.health.refused
        (tmp_path / "moved").rename(db.journal.path)
        probe_disk(db)
        assert db.health.public() == ("ok", 200)


def test_damage_of_the_journal_is_found_in_the_background_after_a_clean_stop(tmp_path):
    path = written(tmp_path, 30)
    flip(path, b'"key":"n12')
    with Database.open(tmp_path) as db, Watch(db, every=0.05, pause=0.0, rest=0.0):
        wait_for(lambda: db.health.damaged)
        assert "damaged at line 13" in db.health.damaged
        assert REWRITE in db.health.damaged
        assert db.health.public() == ("the journal is damaged", 200)
        settings.put(db, "labels", "go on")
    assert not (tmp_path / ".disk-probe").exists()


def test_the_background_check_reads_every_committed_line_and_no_further(tmp_path, monkeypatch):
    monkeypatch.setattr("storage.engine.watch._CHUNK", 500)
    path = written(tmp_path, 50)
    with Database.open(tmp_path) as db:
        with path.open("ab") as file:
            file.write(b"a group on its way")
        assert len(list(check_lines(db, 0.0))) >= 5
        assert db.health.damaged is None
        os.truncate(path, db.committed)
        flip(path, b'"key":"n49')
        list(check_lines(db, 0.0))
        assert "line 50" in (db.health.damaged or "")
        flip(path, b'"key":"n48')
        list(check_lines(db, 0.0))
        assert "line 49" in (db.health.damaged or "")


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# -- files that are not the workspace's own --------------------------------------------------


@pytest.mark.parametrize("name", [DATABASE, WAL, JOURNAL, LOCK])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_that_is_a_link_or_a_pipe_is_refused(tmp_path, name, kind):
    workspace, elsewhere = tmp_path / "w", tmp_path / "elsewhere"
    Database.open(workspace).close()
    (workspace / name).touch()
    (workspace / name).rename(elsewhere)
    if kind == "link":
        (workspace / name).symlink_to(elsewhere)
    else:
        os.mkfifo(workspace / name)
    for act in (Database.open, rebuild):
        with pytest.raises(StorageDamaged, match=f"{name} is not a regular file"):
            act(workspace)


def test_the_workspace_itself_may_be_a_link_and_is_locked_by_either_name(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "w")
    with Database.open(tmp_path / "w"), pytest.raises(WorkspaceLocked, match="another process has"):
        Database.open(tmp_path / "link")
    Database.open(tmp_path / "link").close()


# -- a disk that refuses ---------------------------------------------------------------------


def test_a_disk_that_refuses_shows_until_it_takes_writes_again(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Database.open(tmp_path) as db:
        assert db.health.public() == ("ok", 200)
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", full)
            probe_disk(db)  # nobody has written yet
            assert db.health.public() == ("writes are refused", 503)
            with pytest.raises(StorageUnavailable, match="Free some space"):
                settings.put(db, "a", 1)
            probe_disk(db)
            assert "disk is full" in (db.health.trouble or "")
        probe_disk(db)
        assert db.health.trouble is None


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EACCES, "owner or the permissions"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "disk reports an error"),
    ],
)
def test_errors_of_the_system_are_sentences(number, advice):
    for error in (
        OSError(number, os.strerror(number), "/data/x"),
        duckdb.IOException(f'IO Error: Cannot open file "x": {os.strerror(number)}'),
    ):
        said = explain(error)
        assert advice in said
        assert "Errno" not in said
    assert "/data/x" in explain(OSError(number, os.strerror(number), "/data/x"))


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOENT, "x: there is no such file or directory. Check the path"),
        (errno.ENAMETOOLONG, "x: the name is too long. Choose a shorter one"),
        (errno.ENOTDIR, "x: a part of this path is a file. Name another path"),
    ],
)
def test_a_mistake_in_a_path_is_a_sentence_and_no_trouble_of_the_disk(number, advice):
    error = OSError(number, os.strerror(number), "x")
    assert explain(error) == advice
    assert cause_of(error) is None


def test_any_other_error_stays_as_it_is():
    assert explain(ValueError("permission denied by somebody")) == "permission denied by somebody"
    assert explain(FileNotFoundError("nothing")) == "nothing"


def test_a_write_that_is_refused_for_lack_of_files_may_be_sent_again(tmp_path, monkeypatch):
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Database.open(tmp_path) as db:
        with monkeypatch.context() as broken:
            broken.setattr(db.journal, "sync", none_left)
            with pytest.raises(StorageUnavailable, match="ulimit -n"):
                db.write(lambda tx: tx.store(StoredSetting(key="a", value=1)))
        settings.put(db, "a", 2)
        assert values(db) == {"a": 2}


def test_healthz_says_what_is_wrong_to_anybody_and_names_no_file(tmp_path):
    web = FastAPI()
    with Database.open(tmp_path) as db, TestClient(web) as client:
        web.include_router(_home_routes(db))
        assert (client.get("/healthz").json(), client.get("/healthz").status_code) == (
            {"status": "ok"},
            200,
        )
        db.health.damaged = f"{db.journal.path} is damaged"
        answer = client.get("/healthz")
        assert (answer.json(), answer.status_code) == ({"status": "the journal is damaged"}, 200)
        move(db.journal.path)
        with pytest.raises(StorageUnavailable):
            settings.put(db, "a", 1)
        answer = client.get("/healthz")
        assert (answer.json(), answer.status_code) == ({"status": "writes are refused"}, 503)


def test_the_status_says_that_the_journal_is_gone(tmp_path):
    config = prepare(tmp_path / "w", None, [], [])
    Database.open(tmp_path / "w").close()
    with closing(Studio(tmp_path / "w", config)) as studio:
        move(studio.db.journal.path)
        check_journal(studio.db)
        assert str(studio.db.journal.path) in studio.call("status")["trouble"]


# -- the clock -------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["", "rebuild", "journal lost", "database lost"])
def test_undo_takes_back_the_latest_act_though_the_clock_was_set_back(tmp_path, monkeypatch, then):
    """Judged at noon, skipped an hour earlier by the clock: the skip is the latest."""
    with Database.open(tmp_path) as db:
        fill(db)
        pairs = [pair.comparison.id for pair in queue.lease(db, "ann", 3).pairs]
        judgments.judge(db, id="b", comparison=pairs[0], annotator="ann", outcome="a")
        real = db.clock
        earlier = timedelta(hours=1)
        monkeypatch.setattr(db, "clock", lambda: real() - earlier)
        judgments.skip(db, id="a", comparison=pairs[1], annotator="ann")
        judgments.judge(db, id="c", comparison=pairs[2], annotator="ann", outcome="b")
        judgments.undo(db, id="w", annotator="ann", replaces="c")
    if then == "rebuild":
        rebuild(tmp_path)
    elif then:
        (tmp_path / (JOURNAL if then == "journal lost" else DATABASE)).unlink()
    with Database.open(tmp_path) as db:
        assert judgments.latest(db, "ann") == "a"
        assert judgments.undo(db, id="w2", annotator="ann").id == "a"
        assert judgments.undo(db, id="w3", annotator="ann").id == "b"


def test_the_order_of_acts_has_no_gaps_so_that_a_rebuild_gives_the_same(tmp_path, monkeypatch):
    """A group that was rolled back, and a line that is there twice, use no number up."""

    def no_space() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    numbers = "SELECT id, seq FROM skips UNION ALL SELECT id, seq FROM flags ORDER BY seq"
    with Database.open(tmp_path) as db:
        fill(db)
        pairs = [pair.comparison.id for pair in queue.lease(db, "ann", 3).pairs]
        judgments.skip(db, id="one", comparison=pairs[0], annotator="ann")
        with monkeypatch.context() as broken:
            broken.setattr(db.journal, "sync", no_space)
            with pytest.raises(StorageUnavailable):
                judgments.skip(db, id="two", comparison=pairs[1], annotator="ann")
        judgments.flag(db, id="two", comparison=pairs[1], annotator="ann")
        judgments.skip(db, id="three", comparison=pairs[2], annotator="ann")
        expected = [{"id": "one", "seq": 1}, {"id": "two", "seq": 2}, {"id": "three", "seq": 3}]
        assert db.read(numbers) == expected
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    (first,) = [line for line in lines if b'"id":"one"' in line]
    (tmp_path / JOURNAL).write_bytes(b"".join(lines[:-1]) + first + lines[-1])
    rebuild(tmp_path)
    with Database.open(tmp_path) as db:
        assert db.read(numbers) == expected
