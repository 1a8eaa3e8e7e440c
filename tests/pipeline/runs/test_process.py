"""Starting a worker as the studio does: a new interpreter that inherits the lock of its run."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.runs import process
from pipeline.runs.rundir import RunDirectory
from tests.helpers.stage_inputs import make_job

START = process.start  # other tests fork their workers


def test_a_worker_holds_its_lock_and_writes_its_own_log(tmp_path: Path) -> None:
    models = {"policy": str(tmp_path / "missing")}
    directory = RunDirectory.create(tmp_path / "run", make_job("sampling", models))
    with directory.hold_lock() as lock:
        worker = START(directory, lock.fileno(), outlives=True)
    try:
        assert directory.is_running()  # by the lock alone, which this process has let go
        assert os.getsid(worker.pid) == worker.pid
        assert worker.wait(120) == 1
    finally:
        worker.kill()
    assert not directory.is_running()
    assert str(tmp_path / "missing") in directory.failure()
    assert "sampling of iteration" in directory.log.read_text()
