"""The journal's lines, and what is done about a damaged one."""

from __future__ import annotations

import dataclasses
import json
import stat
import zlib
from pathlib import Path

import pytest

from storage.engine.backup import rebuild
from storage.engine.codec import KINDS
from storage.engine.database import Database
from storage.engine.journal import Journal, decode, encode
from storage.errors import StorageDamaged
from storage.tables import settings


def written(tmp_path: Path, count: int = 4) -> Path:
    """A closed workspace whose journal has one line for each setting n0, n1, …"""
    with Database.open(tmp_path) as db:
        for n in range(count):
            settings.put(db, f"n{n}", n)
    return tmp_path / "journal.jsonl"


def values(workspace: Path) -> dict[str, int]:
    with Database.open(workspace) as db:
        rows = db.read("SELECT key, value FROM settings ORDER BY key")
    return {row["key"]: json.loads(row["value"]) for row in rows}


def test_a_line_is_json_with_a_checksum_of_the_bytes_before_it():
    line = encode("setting", {"key": "é", "value": [1]})
    body = '{"record":"setting","key":"é","value":[1]'.encode()
    assert line == body + b',"crc":"%08x"}\n' % zlib.crc32(body)
    assert json.loads(line)["key"] == "é"
    assert decode(line[:-1]) == ("setting", {"key": "é", "value": [1]})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"a":1', "no record"),
        ('{"record":[1]', "no record"),
        ('{"record":"setting","value":' + "[" * 50_000 + "]" * 50_000, "no record"),
        ('{"record":"song"', "newer Kitestring"),
        ('{"record":"setting"', "setting has no key"),
        ('{"record":"prompt","id":[1]', "prompt has no id"),
    ],
    ids=lambda text: text[:24],
)
def test_a_line_whose_checksum_holds_and_that_says_nothing_is_damaged(body, says):
    """Only somebody who makes a backup for others writes one."""
    line = b'%s,"crc":"%08x"}' % (body.encode(), zlib.crc32(body.encode()))
    with pytest.raises(ValueError, match=says):
        decode(line)


def test_no_record_has_a_field_that_a_line_uses_itself():
    for kind in KINDS.values():
        assert not {"record", "crc"} & {f.name for f in dataclasses.fields(kind.record)}


def test_the_journal_is_for_its_owner_only(tmp_path):
    assert stat.S_IMODE(written(tmp_path).stat().st_mode) == 0o600


def test_one_line_for_each_record_in_the_order_stored(tmp_path):
    keys = [line.entry["key"] for line in Journal(written(tmp_path)).lines()]
    assert keys == ["n0", "n1", "n2", "n3"]


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_last_line_is_dropped_and_kept_beside(tmp_path, cut):
    path = written(tmp_path)
    raw = path.read_bytes()
    torn = raw[raw.rindex(b"\n", 0, -1) + 1 : -cut]
    path.write_bytes(raw[:-cut])
    journal = Journal(path)
    assert journal.torn_bytes == len(torn)
    assert [line.entry["key"] for line in journal.lines()] == ["n0", "n1", "n2"]
    assert path.with_suffix(".torn").read_bytes() == torn + b"\n"
    assert path.read_bytes() == raw[: raw.rindex(b"\n", 0, -1) + 1]


def test_a_last_line_that_lost_its_content_in_a_power_cut_is_torn_too(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 200 + b"\n")
    assert Journal(path).size == len(whole)


def test_a_line_torn_before_its_commit_is_forgotten_and_one_after_it_comes_back(tmp_path):
    """Tearing what the database has committed loses nothing: the database writes it again."""
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    assert values(tmp_path) == {"n0": 0, "n1": 1, "n2": 2, "n3": 3}
    assert [line.entry["key"] for line in Journal(path).lines()] == ["n0", "n1", "n2", "n3"]


def flip(path: Path, marker: bytes) -> None:
    """Flip one bit of the byte after `marker`."""
    raw = bytearray(path.read_bytes())
    raw[raw.index(marker) + len(marker)] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("marker", [b'"key":"n', b'"value":', b'"crc"', b'{"record"'])
def test_a_flipped_bit_in_the_middle_is_named_and_never_skipped(tmp_path, marker):
    """JSON may still parse after the flip (n1 becomes n0): the checksum tells."""
    path = written(tmp_path)
    raw = path.read_bytes()
    second = raw.index(b"\n") + 1
    flip_at = raw.index(marker, second) + len(marker)
    path.write_bytes(raw[:flip_at] + bytes([raw[flip_at] ^ 1]) + raw[flip_at + 1 :])
    before = (tmp_path / "workspace.duckdb").read_bytes()
    with pytest.raises(StorageDamaged, match=r"damaged at line 2: .*checksum"):
        rebuild(tmp_path)
    assert (tmp_path / "workspace.duckdb").read_bytes() == before
    assert not list(tmp_path.glob("*.new*"))


def test_a_damaged_middle_stops_a_start_that_needs_the_journal(tmp_path):
    path = written(tmp_path)
    flip(path, b'"key":"n')
    (tmp_path / "workspace.duckdb").unlink()
    with pytest.raises(StorageDamaged, match="damaged at line 1"):
        Database.open(tmp_path)


def test_a_line_that_is_there_twice_is_one_record(tmp_path):
    """As when taking it back failed on a full disk and the same label was sent again."""
    line = encode("skip", {"id": "s", "comparison": "c", "annotator": "a", "created_at": None})
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + line + line)
    with Database.open(tmp_path) as db:
        assert db.read("SELECT id FROM skips") == [{"id": "s"}]
    with path.open("ab") as file:
        file.write(line)
    with Database.open(tmp_path) as db:
        assert db.read("SELECT id FROM skips") == [{"id": "s"}]
    assert rebuild(tmp_path).records["skip"] == 1


def test_an_entry_of_a_newer_version_is_refused_not_dropped(tmp_path):
    path = written(tmp_path)
    body = b'{"record":"hologram","id":"h"'
    with path.open("ab") as file:
        file.write(body + b',"crc":"%08x"}\n' % zlib.crc32(body))
    with pytest.raises(StorageDamaged, match=r"line 5.*hologram.*newer"):
        rebuild(tmp_path)


def test_a_failed_append_leaves_the_file_as_long_as_before(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append([encode("setting", {"key": "a", "value": 1})])
    size = journal.path.stat().st_size

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "sync", fail)
        with pytest.raises(OSError, match="space"):
            journal.append([encode("setting", {"key": "b", "value": 2})])
    journal.append([encode("setting", {"key": "c", "value": 3})])
    assert [line.entry["key"] for line in journal.lines()] == ["a", "c"]
    assert journal.path.stat().st_size == journal.size == 2 * size
