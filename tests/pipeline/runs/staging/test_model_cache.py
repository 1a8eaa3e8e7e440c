"""Models on a node: kept as links, used again only if they are whole, removed when the disk is full."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.runs.staging import model_cache
from pipeline.runs.staging.model_cache import ModelCache
from pipeline.runs.staging.store import Stored

DAY = 86_400


class Disk(NamedTuple):
    """What `shutil.disk_usage` says."""

    total: int
    free: int


def model(text: str) -> Stored:
    checksum = sha256(text.encode()).hexdigest()
    return Stored(name=f"models/{checksum}", size=len(text), sha256=checksum)


def received(node: Path, text: str) -> Path:
    """A model's file in the temporary folder of a job."""
    file = node / f"job of {text}"
    file.write_text(text)
    return file


def kept(node: Path) -> set[str]:
    return {file.read_text() for file in (node / "kitestring-models").iterdir()}


def test_a_kept_model_takes_no_room_and_outlives_its_job(tmp_path: Path) -> None:
    cache, file, to = (
        ModelCache(tmp_path),
        received(tmp_path, "policy"),
        tmp_path / "next" / "model",
    )
    cache.keep(model("policy"), file)
    cache.keep(model("policy"), file)  # it is there already
    assert file.stat().st_nlink == 2
    file.unlink()
    assert ModelCache(tmp_path).link(model("policy"), to)
    assert (to.read_text(), to.stat().st_nlink) == ("policy", 2)
    assert not cache.link(model("another"), tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_damaged_model_is_removed(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    cache.keep(model("policy"), received(tmp_path, "policy"))
    (tmp_path / "kitestring-models" / model("policy").sha256).write_text("pol1cy")
    assert not cache.link(model("policy"), tmp_path / "model")
    assert kept(tmp_path) == set()


@pytest.mark.parametrize(
    ("free", "stays"),
    [
        # Each file that goes frees 10 of 100; 10 are to stay free.
        (10, {"new", "used", "middle"}),
        (5, {"new", "used"}),
        (-10, {"new"}),
        (-40, set()),
    ],
)
def test_the_least_recently_used_go_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, stays: set[str]
) -> None:
    """One that was not used for eight days goes in any case, and makes room first."""
    cache, now = ModelCache(tmp_path), time.time()
    for days, text in enumerate(("new", "middle", "used", "week")):
        file = received(tmp_path, text)
        cache.keep(model(text), file)
        when = now - (8 if text == "week" else days) * DAY
        os.utime(file, (when, when))
    assert cache.link(model("used"), tmp_path / "job")  # its last use is now
    when = now - DAY / 2
    os.utime(tmp_path / "job", (when, when))

    def usage(folder: Path) -> Disk:
        gone = 4 - len(list(folder.iterdir()))
        return Disk(total=100, free=free - 10 + 10 * gone)

    monkeypatch.setattr(model_cache.shutil, "disk_usage", usage)
    cache.make_room()
    assert kept(tmp_path) == stays


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    cache = ModelCache(None)
    cache.keep(model("policy"), received(tmp_path, "policy"))
    cache.make_room()
    assert not cache.link(model("policy"), tmp_path / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["job of policy"]
