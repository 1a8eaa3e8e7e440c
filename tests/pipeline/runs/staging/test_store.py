"""What a store promises, with a folder and with fsspec's object store in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.runs.staging.layout import RETURNED, require_inside
from pipeline.runs.staging.store import Damaged, Missing, Store, Stored, StoreError


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    url = f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid4().hex}"
    return Store(url)


def test_what_was_written_is_read(store: Store) -> None:
    assert store.read("runs/a/beat.json") is None
    store.write("runs/a/beat.json", {"n": 1}, b"1\n\x00")
    store.write("runs/a/beat.json", {"n": 2}, b"2\n\x00")
    assert store.read("runs/a/beat.json") == ({"n": 2}, b"2\n\x00")
    store.remove("runs/a")
    store.remove("runs/a")  # already gone
    assert store.read("runs/a/beat.json") is None
    store.check()


def test_a_small_file_that_is_still_being_written_is_none_yet(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}")
    store.write("out.json", {"files": {"model/a": 1}}, b"data")
    file = tmp_path / "out.json"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        assert store.read("out.json") is None
    file.write_bytes(whole)
    assert store.read("out.json") == ({"files": {"model/a": 1}}, b"data")


def test_a_large_file_appears_when_it_is_whole(store: Store, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "to" / "target"
    source.write_bytes(b"weights" * 1000)
    counted: list[int] = []
    stored = store.put(source, "runs/a/files/000001", counted.append)
    assert sum(counted) == stored.size == 7000
    store.fetch(stored, target, counted.append)
    assert target.read_bytes() == source.read_bytes()
    assert sum(counted) == 14000
    other = Stored(name=stored.name, size=stored.size, sha256="0" * 64)
    with pytest.raises(Damaged, match=r"000001 is not the file that was uploaded$"):
        store.fetch(other, tmp_path / "to" / "other")
    with pytest.raises(Missing, match=r"/none does not exist$"):
        store.fetch(Stored(name="none", size=1, sha256=""), tmp_path / "to" / "other")
    assert [each.name for each in (tmp_path / "to").iterdir()] == ["target"]


def test_a_model_is_sent_once_and_again_if_it_was_cut(tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"weights" * 1000)
    stored = store.put_model(model)
    sent = tmp_path / "store" / stored.name
    sent.write_bytes(b"WEIGHTS" * 1000)  # would be replaced if it was sent again
    assert store.put_model(model) == stored
    assert sent.read_bytes() == b"WEIGHTS" * 1000
    sent.write_bytes(b"wei")
    assert store.put_model(model) == stored
    assert sent.read_bytes() == model.read_bytes()


def test_a_store_without_its_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StoreError) as refused:
        Store("s3://bucket/kitestring")
    assert str(refused.value) == (
        f"s3://bucket/kitestring needs a driver that {sys.executable} does not have: Install s3fs to "
        "access S3"
    )


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(f"file://{tmp_path}/file")
    with pytest.raises(StoreError) as refused:
        store.check()
    sentence = str(refused.value)
    assert sentence.startswith(f"file://{tmp_path}/file cannot be used (")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "name", ["../job.json", "/etc/passwd", "model/../../x", "", "job.json", "inputs/x", "model"]
)
def test_a_store_cannot_name_a_file_outside_what_a_node_returns(name: str) -> None:
    with pytest.raises(ValueError, match="which a run does not have"):
        require_inside(name, RETURNED)
    assert require_inside("model/a/b.json", RETURNED) == "model/a/b.json"
