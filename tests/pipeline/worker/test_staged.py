"""A node with a worker that is a small script: what it writes reaches the studio, in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.sections import Config
from pipeline.runs.cancellation import WAS_TERMINATED
from pipeline.runs.rundir import Job, RunDirectory
from pipeline.runs.staging import attempt, model_cache
from pipeline.runs.staging.attempt import StagedAttempt
from pipeline.runs.staging.layout import folder
from pipeline.runs.staging.model_cache import ModelCache
from pipeline.runs.staging.store import Store, Stored, StoreError
from pipeline.worker import staged
from pipeline.worker.staged import Node
from tests.helpers.worker_runs import until

JOB = "run-1-attempt-1"

BEGINNING = """
import json, os, signal, sys, time
from pathlib import Path
def write(name, text):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name + ".tmp").write_text(text)
    Path(name + ".tmp").rename(name)
def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.02)
def stop(*_):
    asked = Path("cancel").read_text() if Path("cancel").exists() else "nobody asked"
    write("error.json", json.dumps({"reason": asked}))
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
event = {"seq": 2, "attempt": 1, "kind": "progress", "done": 1, "total": 2, "message": "half"}
with open("events.jsonl", "a") as events:
    events.write(json.dumps(event) + "\\n")
print("a line of the log", flush=True)
write("heartbeat.json", json.dumps({"node": "that node", "started": 1.0, "pid": 7}))
write("resources.jsonl", '{"cpu": 1}\\n')
write("checkpoint/step-1/state.pt", "the state")
write("checkpoint/.step-2.tmp/state.pt", "a draft")
"""
ENDING = """
write("model/weights", "trained")
write("outputs/samples.parquet", "samples")
write("snapshots/step-1/weights", "half trained")
write("trackers/iteration-1/events.out.tfevents.1", "figures")
write("trackers/wandb/run.json", "{}")
write("result.json", '{"seconds": 1.5}')
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (attempt, staged):
        monkeypatch.setattr(module, "EVERY", 0.05)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    job = Job(run="run-1", stage="policy", iteration=1, config=Config())
    made = RunDirectory.create(tmp_path / "workspace" / "runs" / "run-1", job)
    (made.inputs / "prompts.parquet").write_text("prompts")
    made.events.write_text('{"seq": 1, "attempt": 1, "kind": "metrics"}\n')
    made.append_log("said by the studio")
    return made


@pytest.fixture
def studio(directory: RunDirectory, tmp_path: Path) -> Iterator[StagedAttempt]:
    made = StagedAttempt(f"file://{tmp_path}/store", directory, JOB, uploads=True)
    until(lambda: not made.uploading)
    yield made
    made.close("studio ends")


def begun(script: str, during: Callable[[RunDirectory], None] | None) -> Any:
    """What starts the script as the worker, and `during` in a thread beside it."""

    def start(there: RunDirectory, _: int) -> subprocess.Popen[bytes]:
        with there.log.open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-c", BEGINNING + script], cwd=there.path, stdout=log, stderr=log
            )
        if during is not None:
            threading.Thread(target=during, args=(there,)).start()
        return worker

    return start


def worked(store: Store, script: str, during: Callable[[RunDirectory], None] | None = None) -> int:
    """Run a node whose worker is the script."""
    scratch = Path(store.url.removeprefix("file://")).parent / "scratch"
    scratch.mkdir()
    return Node(store, JOB, scratch, begun(script, during), ModelCache(None)).run()


def texts(directory: RunDirectory, *names: str) -> dict[str, str]:
    return {name: (directory.path / name).read_text() for name in names}


def test_what_a_worker_writes_reaches_the_studio(
    studio: StagedAttempt, directory: RunDirectory, tmp_path: Path
) -> None:
    seen: list[Mapping[str, Any]] = []

    def during(there: RunDirectory) -> None:
        assert (there.inputs / "prompts.parquet").read_text() == "prompts"
        until(lambda: "half" in directory.events.read_text())
        until(lambda: "a line of the log" in directory.log_tail())
        until(
            lambda: directory.heartbeat.exists() and "that node" in directory.heartbeat.read_text()
        )
        seen.append({"checkpoint": directory.has_checkpoint(), "result": directory.result()})
        (there.path / "go").touch()

    store = Store(f"file://{tmp_path}/store")
    assert worked(store, "wait_for('go')" + ENDING, during) == 0
    assert seen == [{"checkpoint": False, "result": None}]  # fetched when the worker has ended
    until(lambda: studio.finished and directory.result())
    assert directory.result() == {"seconds": 1.5}
    assert texts(
        directory, "model/weights", "outputs/samples.parquet", "snapshots/step-1/weights",
        "trackers/iteration-1/events.out.tfevents.1", "trackers/wandb/run.json", "resources.jsonl",
    ) == {
        "model/weights": "trained",
        "outputs/samples.parquet": "samples",
        "snapshots/step-1/weights": "half trained",
        "trackers/iteration-1/events.out.tfevents.1": "figures",
        "trackers/wandb/run.json": "{}",
        "resources.jsonl": '{"cpu": 1}\n',
    }  # fmt: skip
    assert [event["seq"] for event in directory.events_after(1, 0)] == [1, 2]
    first, last = directory.log_tail().splitlines()
    assert first.endswith("said by the studio")
    assert last == "a line of the log"
    studio.close("finished")
    until(lambda: not (tmp_path / "store" / folder(JOB)).exists())


def test_a_studio_that_is_restarted_appends_no_line_twice(
    studio: StagedAttempt, directory: RunDirectory, tmp_path: Path
) -> None:
    def during(there: RunDirectory) -> None:
        until(lambda: "a line of the log" in directory.log_tail())
        studio.close("studio ends")
        again = StagedAttempt(f"file://{tmp_path}/store", directory, JOB, uploads=False)
        (there.path / "go").touch()
        until(lambda: again.finished and directory.result())
        again.close("studio ends")

    store = Store(f"file://{tmp_path}/store")
    assert worked(store, "wait_for('go'); print('the last line')" + ENDING, during) == 0
    until(directory.result)
    lines = directory.log_tail().splitlines()
    assert lines[1:] == ["a line of the log", "the last line"]
    assert [event["seq"] for event in directory.events_after(1, 0)] == [1, 2]


class WithoutStreams(Store):
    """A store that takes no events."""

    away = True

    def write(self, name: str, *rest: Any) -> None:
        if self.away and "/streams/" in name:
            raise StoreError("no events today")
        super().write(name, *rest)


@pytest.mark.usefixtures("studio")
def test_a_checkpoint_is_named_after_the_events_before_it(tmp_path: Path) -> None:
    store = WithoutStreams(f"file://{tmp_path}/store")
    out: list[Any] = []

    def during(there: RunDirectory) -> None:
        until((there.checkpoint / "step-1" / "state.pt").exists)
        time.sleep(1)  # twenty looks
        out.append(store.read(f"{folder(JOB)}/out.json"))
        store.away = False
        until(lambda: store.read(f"{folder(JOB)}/out.json"))
        out.append(store.read(f"{folder(JOB)}/out.json"))
        (there.path / "go").touch()

    assert worked(store, "wait_for('go')" + ENDING, during) == 0
    assert out[0] is None
    assert [*out[1][0]["files"]] == ["checkpoint/step-1/state.pt"]  # not the draft


def test_a_worker_that_dies_leaves_its_checkpoint_and_a_reason(
    studio: StagedAttempt, directory: RunDirectory, tmp_path: Path
) -> None:
    (directory.checkpoint / "step-0").mkdir(parents=True)
    (directory.checkpoint / "step-0" / "state.pt").write_text("older, and deleted by the stage")
    store = Store(f"file://{tmp_path}/store")
    assert worked(store, "os.kill(os.getpid(), signal.SIGKILL)") == -signal.SIGKILL
    until(lambda: studio.finished and directory.error())
    assert (directory.error() or "").startswith("the worker was killed (SIGKILL); ")
    assert texts(directory, "checkpoint/step-1/state.pt") == {
        "checkpoint/step-1/state.pt": "the state"
    }
    assert [each.name for each in directory.checkpoint.iterdir()] == ["step-1"]


def test_a_request_of_the_researcher_reaches_the_worker(
    studio: StagedAttempt, directory: RunDirectory, tmp_path: Path
) -> None:
    def during(there: RunDirectory) -> None:
        until(there.heartbeat.exists)
        directory.request_cancel(datetime(2026, 1, 1, tzinfo=UTC))

    assert worked(Store(f"file://{tmp_path}/store"), "time.sleep(60)", during) == 3
    until(lambda: studio.finished and directory.error())
    assert directory.error() == "2026-01-01T00:00:00+00:00"


def test_a_request_of_the_cluster_reaches_the_worker(
    studio: StagedAttempt, directory: RunDirectory, tmp_path: Path
) -> None:
    def during(there: RunDirectory) -> None:
        until(there.heartbeat.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    assert worked(Store(f"file://{tmp_path}/store"), "time.sleep(60)", during) == 3
    until(lambda: studio.finished and directory.error())
    assert directory.error() == "nobody asked"
    assert directory.has_checkpoint()


def test_a_node_that_is_stopped_before_its_worker_began_leaves_the_studios_checkpoints(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        (directory.checkpoint / f"step-{number}").mkdir(parents=True)
        (directory.checkpoint / f"step-{number}" / "state.pt").write_text("state")
    studio = StagedAttempt(f"file://{tmp_path}/store", directory, JOB, uploads=True)
    until(lambda: not studio.uploading)
    fetch = Store.fetch

    def stopped(self: Store, stored: Stored, to: Path, *rest: Any) -> None:
        fetch(self, stored, to, *rest)
        if to.parent.name == "step-1":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Store, "fetch", stopped)
    script = "raise AssertionError('it must not start')"
    assert worked(Store(f"file://{tmp_path}/store"), script) == staged.FAILED
    until(lambda: studio.finished and directory.error())
    studio.close("studio ends")
    assert directory.error() == WAS_TERMINATED
    assert {each.name for each in directory.checkpoint.iterdir()} == {"step-1", "step-2"}


def test_a_node_keeps_the_models_that_it_received_and_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second job finds both on the node: they are removed from the store."""
    monkeypatch.setattr(model_cache, "_FREE", 0)  # however full the disk of this machine is
    url, node = f"file://{tmp_path}/store", tmp_path / "node"
    policy = tmp_path / "workspace" / "models" / "policy"
    policy.mkdir(parents=True)
    (policy / "config").write_text("of policy 1")
    read_both = "print(Path('../../models/policy/config').read_text())" + ENDING
    for number, lost in ((1, []), (2, ["models"])):
        job = Job(
            run=f"run-{number}",
            stage="policy",
            iteration=number,
            config=Config(),
            models={"policy": str(policy)},
        )
        directory = RunDirectory.create(tmp_path / "workspace" / "runs" / job.run, job)
        studio = StagedAttempt(url, directory, job.run, uploads=True)
        until(lambda studio=studio: not studio.uploading)
        for name in lost:
            shutil.rmtree(tmp_path / "store" / name)
        assert staged.main([url, job.run, str(node)], start=begun(read_both, None)) == 0
        until(lambda studio=studio, made=directory: studio.finished and made.result())
        studio.close("finished")
        assert "of policy 1" in directory.log_tail()
        shutil.copy(directory.model / "weights", policy)
    names = {file.read_text() for file in (node / "kitestring-models").iterdir()}
    assert names == {"of policy 1", "trained"}
    assert [each.name for each in node.iterdir()] == ["kitestring-models"]


@pytest.mark.usefixtures("studio")
def test_results_that_cannot_be_sent_stay_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(staged, "PATIENCE", 0.3)
    store = tmp_path / "store"

    def during(there: RunDirectory) -> None:
        until(there.heartbeat.exists)
        store.rename(tmp_path / "away")
        store.touch()
        (there.path / "go").touch()

    start = begun("wait_for('go')" + ENDING, during)
    arguments = [f"file://{store}", JOB, str(tmp_path / "node")]
    assert staged.main(arguments, start=start) == staged.FAILED
    [kept] = {*(tmp_path / "node").iterdir()} - {tmp_path / "node" / "kitestring-models"}
    assert (kept / "workspace/runs/run-1/model/weights").read_text() == "trained"
    *before, last = capfd.readouterr().err.splitlines()
    assert last.startswith(f"kitestring: {os.uname().nodename}: file://{store} cannot be used (")
    assert last.endswith(f"; the results are in {kept}")
    assert before[-1].endswith("; it is tried again")
