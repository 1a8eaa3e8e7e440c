"""The recorder of file changes, the disks that a power cut leaves, and a workspace on them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kills.ledger import FAULTS, Ledger
from benchmarks.powercuts import recording
from benchmarks.powercuts.__main__ import NAMED, Cuts, missed
from benchmarks.powercuts.check import examine, faults
from benchmarks.powercuts.disk import Disk
from benchmarks.powercuts.recording import Record
from storage.engine import replacing
from storage.engine.backup import backup, restore
from storage.engine.database import Database
from storage.engine.workspace import DATABASE, JOURNAL, LOCK
from storage.tables import settings
from tests.helpers.fault_world import Killed

ROOT = Path(__file__).parents[2]

needs_a_compiler = pytest.mark.skipif(
    recording.compiler() is None and os.environ.get("CI") != "true",
    reason="the recorder is written in C: install cc, gcc or clang",
)


def recorded(tmp_path: Path, code: str) -> tuple[Path, list[Record]]:
    """Run Python code in a folder of its own, under the recorder."""
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    library = recording.build(tmp_path)
    command = [sys.executable, "-c", f"import os; os.chdir({str(root)!r})\n{code}"]
    assert recording.run(command, library=library, root=root, log=log) == 0
    return root, list(recording.read(log))


def replayed(root: Path, records: list[Record]) -> Disk:
    disk = Disk(root)
    for record in records:
        disk.do(record)
    return disk


def states(disk: Disk, n: int = 200) -> list[dict[str, bytes | None]]:
    return [disk.cut(random.Random(seed)) for seed in range(n)]


EVERY_CALL = """
import shutil
from pathlib import Path
Path("folder/below").mkdir(parents=True)
with open("a", "wb", buffering=0) as file:
    file.write(b"0123456789" * 1000)
    os.pwrite(file.fileno(), b"in the middle", 5000)
    os.writev(file.fileno(), [b"two", b"parts"])
    os.pwritev(file.fileno(), [b"more", b"parts"], 12000)
    file.truncate(11000)
    os.posix_fallocate(file.fileno(), 0, 13000)
with open("a", "ab") as file:
    file.write(b"at the end")
shutil.copyfile("a", "folder/copy")
os.truncate("folder/copy", 100)
source, target = os.open("a", os.O_RDONLY), os.open("ranged", os.O_RDWR | os.O_CREAT)
os.copy_file_range(source, target, 500, 20, 30)
os.link("a", "folder/linked")
os.rename("folder/copy", "renamed")
Path("moved").write_text("x")
os.replace("moved", "folder/below/moved")
os.rename("folder", "other")
Path("gone").write_text("x")
os.unlink("gone")
Path("empty").mkdir()
os.rmdir("empty")
again = os.open("gone", os.O_WRONLY | os.O_CREAT)  # perhaps with the inode of another
os.write(os.dup(again), b"new")
folder = os.open("other", os.O_RDONLY)
os.mkdir("relative", dir_fd=folder)
os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
"""


@needs_a_compiler
def test_the_recorder_sees_every_change(tmp_path):
    root, records = recorded(tmp_path, EVERY_CALL)
    disk = replayed(root, records)
    assert missed(disk, root) == []
    whole = disk.whole()
    assert whole["gone"] == b"new"
    assert whole["other/linked"] == whole["a"]
    assert whole["a"] is not None
    assert whole["a"].endswith(b"at the end")
    assert {"other/relative", "other/file", "ranged", "renamed"} <= whole.keys()


@needs_a_compiler
def test_a_change_that_it_cannot_see_is_refused(tmp_path):
    code = """
import mmap
with open("a", "w+b") as file:
    file.truncate(4096)
    mmap.mmap(file.fileno(), 4096)[0] = 1
"""
    root, records = recorded(tmp_path, code)
    with pytest.raises(ValueError, match="cannot be replayed"):
        replayed(root, records)


@needs_a_compiler
def test_a_difference_between_log_and_files_is_found(tmp_path):
    root, records = recorded(tmp_path, "open('a', 'w').write('seen')")
    (root / "a").write_text("not seen")
    assert missed(replayed(root, records), root) == ["a"]


@needs_a_compiler
def test_what_is_synced_is_kept_and_what_is_not_may_be_lost_or_torn(tmp_path):
    code = """
file = os.open("a", os.O_WRONLY | os.O_CREAT)
os.write(file, b"s" * 1000)
os.fsync(file)
os.fsync(os.open(".", os.O_RDONLY))
os.write(file, b"u" * 1000)
"""
    found = {state["a"] for state in states(replayed(*recorded(tmp_path, code)))}
    assert all(content is not None and content.startswith(b"s" * 1000) for content in found)
    rests = {content[1000:] for content in found if content is not None}
    assert {b"", b"u" * 1000, bytes(1000)} <= rests  # lost, kept, only the length kept
    assert b"u" * 24 in rests  # torn at byte 1,024
    assert bytes(24) + b"u" * 512 in rests  # a later block without the first
    assert b"u" * 536 in rests  # torn at byte 1,536
    assert not any(b"u" * 100 in r and len(r) not in (24, 536, 1000) for r in rests)


@needs_a_compiler
def test_a_name_is_sure_only_after_its_folder_is_synced(tmp_path):
    code = """
for name in ("sure", "new"):
    file = os.open(name, os.O_WRONLY | os.O_CREAT)
    os.write(file, name.encode())
    os.fsync(file)
    if name == "sure":
        os.fsync(os.open(".", os.O_RDONLY))
os.rename("sure", "renamed")
"""
    found = [frozenset(state) for state in states(replayed(*recorded(tmp_path, code)))]
    # In the order of the folder: first the new name, then the renaming, which happens at once.
    assert set(found) == {
        frozenset({"sure"}),
        frozenset({"sure", "new"}),
        frozenset({"renamed", "new"}),
    }


@needs_a_compiler
def test_a_rename_before_the_content_is_synced_may_leave_an_empty_file(tmp_path):
    code = """
open("new", "w").write("content")
os.rename("new", "name")
"""
    found = [state for state in states(replayed(*recorded(tmp_path, code))) if "name" in state]
    assert {state["name"] for state in found} >= {b"", b"content"}


FIRST_ACT = """
from pathlib import Path
from storage.tables import settings
from storage.engine.database import Database
db = Database.open(Path("folder/workspace"))
settings.put(db, "kept", 1)
os._exit(0)
"""


@needs_a_compiler
def test_a_new_workspace_is_there_after_a_power_cut(tmp_path):
    """Its own name, too, and that of the folder made for it."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{FIRST_ACT}"
    disk = replayed(*recorded(tmp_path, code))
    for state in states(disk, 50):
        journal = state.get("folder/workspace/journal.jsonl")
        assert journal is not None
        assert b'"key":"kept"' in journal


def test_without_a_compiler_the_command_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="install cc, gcc or clang"):
        recording.build(tmp_path)


# -- a workspace -----------------------------------------------------------------------------


@pytest.fixture
def all_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A restore cut after the old files were moved and before a new one has its name."""
    workspace = tmp_path / "workspace"
    with Database.open(workspace) as db:
        settings.put(db, "kept", 1)
        backup(db, tmp_path / "copy")
    move = replacing.move

    def move_old(source: Path, target: Path) -> None:
        if source.name.endswith(".new"):
            raise Killed(source)
        move(source, target)

    monkeypatch.setattr(replacing, "move", move_old)
    with pytest.raises(Killed):
        restore(tmp_path / "copy", workspace)
    monkeypatch.undo()
    names = {path.name for path in workspace.iterdir()}
    assert names - {LOCK} == {"backups", replacing.MARKER, f"{DATABASE}.new", f"{JOURNAL}.new"}
    return workspace


def test_a_restore_cut_between_its_renames_is_finished(all_moved):
    found = examine(all_moved, Ledger(), 0)
    assert found["recovered"] == ["restore finished"]
    assert not faults(found, NAMED)
    with Database.open(all_moved) as db:
        assert settings.get(db, "kept") == 1


def test_a_workspace_that_no_message_opens_is_a_fault(all_moved):
    (all_moved / f"{JOURNAL}.new").unlink()
    shutil.rmtree(all_moved / "backups")
    found = examine(all_moved, Ledger(), 0)
    assert faults(found, NAMED) == {"unopened": 1}
    assert "is gone" in found["why"]


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_five_power_cuts_lose_nothing():
    command = [sys.executable, "-m", "benchmarks", "powercuts", "--points", "25", "--acts", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 25 |" in done.stdout


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_missing_fsyncs_are_found(tmp_path):
    """The same with the fsyncs taken out of the log: a check that cannot fail would pass."""
    cuts = Cuts(tmp_path, acts=10, seed=1, points=12)
    cuts.records = [change for change in cuts.records if change.op != recording.SYNC]
    cuts.points = [len(cuts.records) - 1] * 12
    cuts.run(give_up=float("inf"))
    assert sum(faults(found, FAULTS).get("lost", 0) for found in cuts.found) > 0
