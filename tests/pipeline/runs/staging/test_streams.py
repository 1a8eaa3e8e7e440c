"""A file that grows reaches the other side, whatever fails in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.runs.rundir import Report, RunDirectory
from pipeline.runs.staging import streams
from pipeline.runs.staging.store import Store, StoreError
from pipeline.runs.staging.streams import Receiver, Sender, write_at


class Failing(Store):
    """A store that can be away."""

    away = False

    def write(self, name: str, *rest: Any) -> None:
        if self.away:
            raise StoreError("it is away")
        super().write(name, *rest)


def receiver(store: Store, file: Path) -> Receiver:
    return Receiver(store, "runs/a/streams/1", lambda start, data: write_at(file, start, data))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.just("cut"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["send", "receive", "restart", "away", "back"]), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_both_files_are_equal_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    here = tmp_path_factory.mktemp("streams")
    store, ours, theirs = Failing(f"memory://{uuid4().hex}"), here / "ours", here / "theirs"
    ours.write_bytes(b"from the first attempt\n")
    theirs.write_bytes(ours.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_PART", 16)
        sender = Sender(store, "runs/a", "streams/1", ours, sent=ours.stat().st_size)
        reader, written = receiver(store, theirs), 0
        for step, size in [*steps, ("back", 0), ("send", 0), ("receive", 0)]:
            if step == "append":
                # Content never repeats, as that of events, which have times.
                written += 1
                with ours.open("ab") as file:
                    file.write((f"{written:04d}" * 10)[:size].encode())
            elif step == "cut":
                with ours.open("r+b") as file:
                    file.truncate(min(size, ours.stat().st_size))
                send(sender)  # the worker reports the events after it at the earliest a step later
            elif step == "send":
                send(sender)
            elif step == "receive":
                reader.receive(sender.position()["part"])
            elif step == "restart":  # of the studio, which reads all parts again
                reader = receiver(store, theirs)
            else:
                store.away = step == "away"
    assert theirs.read_bytes() == ours.read_bytes()


def send(sender: Sender) -> None:
    try:
        sender.send()
    except StoreError:
        assert sender


def test_a_resumed_worker_that_removes_and_adds_events_between_two_looks(tmp_path: Path) -> None:
    store, theirs = Store(f"file://{tmp_path}/store"), tmp_path / "theirs" / "events.jsonl"
    directory = RunDirectory(tmp_path / "node")
    with Report(directory) as report:
        for step in range(1, 8):
            report.metrics(step, {"loss": step})
    theirs.parent.mkdir()
    theirs.write_bytes(directory.events.read_bytes())
    size = directory.events.stat().st_size
    sender = Sender(store, "runs/a", "streams/1", directory.events, sent=size)
    with Report(directory, attempt=2) as report:
        report.rewind(3)
        for step in range(4, 20):  # the file is longer than it was
            report.metrics(step, {"loss": -step})
    sender.send()
    receiver(store, theirs).receive(sender.position()["part"])
    seen = [json.loads(line) for line in theirs.read_text().splitlines()]
    assert [each["seq"] for each in seen] == list(range(1, 20))
    assert [each["attempt"] for each in seen] == [1] * 3 + [2] * 16


def test_only_the_last_part_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PART", 10)
    store, log = Store(f"file://{tmp_path}/store"), tmp_path / "log.txt"
    sender = Sender(store, "runs/a", "streams/1", log)
    log.write_bytes(b"0123456789abc")
    sender.send()
    first = tmp_path / "store" / "runs" / "a" / "streams" / "1" / "000001"
    first.write_bytes(b"not written again")
    log.write_bytes(b"0123456789abcdef")
    sender.send()
    assert first.read_bytes() == b"not written again"
    assert store.read("runs/a/streams/1/000002") == ({"start": 10}, b"abcdef")
