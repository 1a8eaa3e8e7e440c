"""Workers run by tests: in this process or their own, watched, stopped and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.runs.rundir import Job, RunDirectory
from pipeline.worker import worker
from tests.helpers.stage_inputs import give, make_prompts, rows_of


def work(directory: RunDirectory) -> int:
    """`worker.main` in this process, with what it changes put back."""
    with _restored():
        return worker.main([str(directory.path)])


@contextmanager
def _restored() -> Iterator[None]:
    handler, out, err = signal.getsignal(signal.SIGTERM), os.dup(1), os.dup(2)
    environment = dict(os.environ)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        os.environ.clear()
        os.environ.update(environment)
        # The worker hides it from PEFT; a later test may need it.
        if "bitsandbytes" in sys.modules and sys.modules["bitsandbytes"] is None:
            del sys.modules["bitsandbytes"]


def wait_for(condition: Callable[[], bool], worker: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 250
    while not condition():
        assert worker.poll() is None, "the worker ended before the test could stop it"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def until(condition: Callable[[], Any], *, seconds: float = 240, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


def events(directory: RunDirectory) -> list[dict[str, Any]]:
    """The complete lines: a worker that still runs may be in the middle of its last one."""
    complete, _, _ = directory.events.read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


def steps_reported(directory: RunDirectory) -> list[int]:
    return [event["step"] for event in events(directory) if event["kind"] == "metrics"]


def updated(directory: RunDirectory, times: int) -> bool:
    """Whether a policy run has reported so many updates."""
    return directory.events.exists() and len(steps_reported(directory)) >= times


def fill(inputs: Path) -> None:
    """Give the inputs of a policy run its prompts."""
    give(RunDirectory(inputs.parent), "prompts.parquet", make_prompts(6))


def events_metric(directory: RunDirectory, name: str) -> list[float]:
    return [e["values"][name] for e in events(directory) if e["kind"] == "metrics"]


def run_ppo(path: Path, job: Job) -> RunDirectory:
    directory = RunDirectory.create(path, job)
    give(directory, "prompts.parquet", make_prompts(6))
    return directory


def resume(directory: RunDirectory, job: Job, *, attempt: int) -> None:
    directory.clear_outcome()
    directory.write_job(replace(job, attempt=attempt, resume=True))


def numbered(directory: RunDirectory) -> bool:
    """Whether the events are one stream: each number once, in order."""
    told = events(directory)
    return [event["seq"] for event in told] == list(range(1, len(told) + 1))


def assert_equal_runs(alone: RunDirectory, shared: RunDirectory) -> None:
    """The same events, samples and weights, but for rounding and times."""
    one, two = events(alone), events(shared)
    assert [event["kind"] for event in two] == [event["kind"] for event in one]
    for own, theirs in zip(one, two, strict=True):
        if own["kind"] != "metrics":
            continue
        figures = {
            name: value
            for name, value in own["values"].items()
            if not name.startswith(("speed/", "memory/"))
        }
        for name, value in figures.items():
            assert theirs["values"][name] == pytest.approx(value, rel=1e-4, abs=1e-4), name
    columns = ("step", "prompt", "text", "length", "finish_reason")
    samples = [
        [[row[name] for name in columns] for row in rows_of(d.outputs / "samples.parquet")]
        for d in (alone, shared)
    ]
    assert samples[0] == samples[1]
    weights = [load_file(d.model / "model.safetensors") for d in (alone, shared)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=1e-4, rtol=0)
