"""The files between the web process and a worker."""

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.sections import Config
from pipeline.runs.rundir import EventPosition, Job, Report, RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    job = Job(run="run-1", stage="policy", iteration=2, config=Config(), models={"policy": "/m"})
    return RunDirectory.create(tmp_path / "run-1", job)


def test_a_job_reads_back_as_written(directory: RunDirectory) -> None:
    job = directory.job()
    assert job.config == Config()
    assert (job.stage, job.iteration, job.model("policy")) == ("policy", 2, "/m")
    with pytest.raises(ValueError, match="was given no reward model"):
        job.model("reward")


def test_events_are_numbered_and_read_from_where_one_left_off(directory: RunDirectory) -> None:
    with Report(directory) as report:
        report.progress(1, 4, "sampling")
        report.metrics(1, {"reward/mean": 0.5})
        report.note("flag", "kl_high", "KL is 12", step=1, kl=12.0)
    events = list(directory.events_after(1, 0))
    assert [e["seq"] for e in events] == [1, 2, 3]
    assert events[1]["values"] == {"reward/mean": 0.5}
    assert events[2]["payload"] == {"kl": 12.0}
    assert [e["seq"] for e in directory.events_after(1, 2)] == [3]


def test_a_torn_last_line_waits_and_is_dropped_by_the_next_worker(directory: RunDirectory) -> None:
    with Report(directory) as report:
        report.progress(1, 2)
    with directory.events.open("ab") as handle:
        handle.write(b'{"seq": 2, "attempt": 1, "ki')
    assert [e["seq"] for e in directory.events_after(1, 0)] == [1]
    with Report(directory, attempt=2) as again:
        again.progress(2, 2)
    assert [(e["attempt"], e["seq"]) for e in directory.events_after(0, 0)] == [(1, 1), (2, 2)]


class AlmostFull(io.FileIO):
    """A file that takes ten bytes a write, and after `room` bytes no more."""

    room = 10**6

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = super().write(data[: min(10, self.room)])
        self.room -= taken
        return taken


def test_an_event_is_written_whole_or_not_at_all(directory: RunDirectory) -> None:
    with Report(directory) as report:
        report._handle.close()
        report._handle = full = AlmostFull(directory.events, "ab")
        report.progress(1, 4)
        full.room = 30  # less than a line
        with pytest.raises(OSError, match="No space left"):
            report.progress(2, 4)
        full.room = 10**6
        report.progress(3, 4)
    assert [e["done"] for e in directory.events_after(1, 0)] == [1, 3]


def test_a_line_that_cannot_be_read_is_a_warning_and_costs_no_other(
    directory: RunDirectory,
) -> None:
    with Report(directory) as report:
        for step in (1, 2, 3):
            report.metrics(step, {"kl": 0.1})
    first, _, third = directory.events.read_bytes().splitlines(keepends=True)
    for damaged in (b'{"seq": 2, "at{"seq": 3}\n', b"\0" * 9 + b"\n", b"7\n", b"\xff\n"):
        directory.events.write_bytes(first + damaged + third)
        found = list(directory.events_after(1, 0))
        assert [(e["seq"], e["kind"]) for e in found] == [
            (1, "metrics"),
            (2, "note"),
            (3, "metrics"),
        ]
        assert "its event is missing" in found[1]["message"]
        with Report(directory) as report:
            assert report.seq == 3
            report.rewind(2)
            report.metrics(3, {"kl": 0.2})
        assert [e["seq"] for e in directory.events_after(1, 1)] == [2, 3]


def test_rewind_forgets_what_came_after_the_checkpoint(directory: RunDirectory) -> None:
    with Report(directory) as report:
        for step in range(5):
            report.metrics(step, {"x": step})
    with Report(directory, attempt=2) as again:
        again.rewind(3)
        again.metrics(3, {"x": 30})
    lines = [json.loads(line) for line in directory.events.read_text().splitlines()]
    assert [(e["attempt"], e["seq"], e["values"]["x"]) for e in lines] == [
        (1, 1, 0),
        (1, 2, 1),
        (1, 3, 2),
        (2, 4, 30),
    ]
    # A reader that had followed the first attempt to its end sees only the new line.
    assert [e["seq"] for e in directory.events_after(2, 0)] == [4]


def test_running_is_told_by_the_lock_and_ends_with_its_holder(directory: RunDirectory) -> None:
    assert not directory.is_running()
    code = (
        "import sys; from pathlib import Path; from pipeline.runs.rundir import RunDirectory;"
        "handle = RunDirectory(Path(sys.argv[1])).hold_lock(); print('held', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert directory.is_running()
        with pytest.raises(RuntimeError, match="another worker is already running"):
            directory.hold_lock()
        holder.kill()
    assert not directory.is_running()


def test_why_a_run_failed(directory: RunDirectory) -> None:
    killed = "the worker was killed or crashed; its log may say more"
    assert directory.failure() == directory.failure(1) == killed
    assert "memory ran out" in directory.failure(-9)
    directory.write_error("the tokenizer has no end-of-text token")
    assert directory.failure(-9) == "the tokenizer has no end-of-text token"
    directory.clear_outcome()
    assert directory.failure() == killed


def test_a_result_appears_whole(directory: RunDirectory) -> None:
    assert directory.result() is None
    directory.write_result({"accuracy": 0.75})
    assert directory.result() == {"accuracy": 0.75}
    assert not list(directory.path.glob("*.tmp"))


def test_following_events_reads_what_is_new_and_notices_what_was_taken_back(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    assert directory.follow_events(1, 0, None) == ([], None)
    with Report(directory) as report:
        for step in range(1, 4):
            report.metrics(step, {"x": step})
        found, place = directory.follow_events(1, 0, None)
        assert [event["seq"] for event in found] == [1, 2, 3]
        assert directory.follow_events(1, 3, place) == ([], place)
        report.metrics(4, {"x": 4})
        # What stands before the place is not read again: it could be anything of that length.
        whole = directory.events.read_bytes()
        assert place is not None
        directory.events.write_bytes(b"x" * 10 + whole[10:])
        broken = EventPosition(place.end, directory.events.read_bytes()[: place.end][-4096:])
        assert [event["step"] for event in directory.follow_events(1, 3, broken)[0]] == [4]
        directory.events.write_bytes(whole)
    # Resumed from the first event, and grown beyond the place since.
    with Report(directory, attempt=2) as report:
        report.rewind(1)
        for step in range(2, 9):
            report.metrics(step, {"x": -step})
    found, place = directory.follow_events(2, 0, place)
    assert [(event["seq"], event["step"]) for event in found] == [(n, n) for n in range(2, 9)]
    with directory.events.open("ab") as handle:
        handle.write(b'{"torn')
    assert directory.follow_events(2, 8, place) == ([], place)
    with directory.events.open("ab") as handle:
        handle.write(b"\n")
    ((warning,), _) = directory.follow_events(2, 8, place)
    assert (warning["seq"], warning["attempt"], warning["kind"]) == (9, 2, "note")
