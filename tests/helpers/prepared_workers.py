"""Workers forked from a process that has the stages imported: they start at once.

Importing torch and the stages takes seconds per worker.  Otherwise a forked worker is the real one:
its own process, session, environment, log and lock.  tests/pipeline/runs/test_process.py has the
tests of `pipeline.runs.process.start` itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, cast

from pipeline.runs.rundir import LOCK_FD, RunDirectory

ROOT = Path(__file__).resolve().parents[2]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "pipeline.worker.worker",
        "pipeline.worker.staged",
        *(
            f"pipeline.stages.{stage}"
            for stage in ("sft", "sample", "reward", "policy", "evaluate")
        ),
        "tests.helpers.frozen",
    ]
)


class Forked:
    """The part of `subprocess.Popen` that the product uses, for a forked worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.pid: int = worker.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._worker.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._worker.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("pipeline.worker", timeout or 0)
        return code

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    directory: RunDirectory,
    lock: int | None = None,
    *,
    outlives: bool = True,
    attempt: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """As `pipeline.runs.process.start`; without a lock the worker takes it itself.

    With an attempt, it is the job of a cluster, which adds to the environment.
    """
    inherited = None if lock is None else DupFd(lock)
    is_ready, ready = _CONTEXT.Pipe(duplex=False)
    worker = _CONTEXT.Process(
        target=_work,
        args=(directory.path, inherited, dict(os.environ) | dict(environment or {}), ready),
        kwargs={"outlives": outlives, "attempt": attempt},
        daemon=True,  # a test run does not wait for a worker that a test left behind
    )
    worker.start()
    ready.close()
    is_ready.recv()  # it has its own session, so a signal to its group reaches it
    is_ready.close()
    return cast("subprocess.Popen[bytes]", Forked(worker))


def start_staged(
    arguments: Sequence[str], printed: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """As `python -m pipeline.worker.staged ARGUMENTS`, which prints to the file `printed`."""
    is_ready, ready = _CONTEXT.Pipe(duplex=False)
    node = _CONTEXT.Process(
        target=_stage,
        args=(list(arguments), printed, dict(os.environ) | dict(environment), ready),
        daemon=True,
    )
    node.start()
    ready.close()
    is_ready.recv()
    is_ready.close()
    return cast("subprocess.Popen[bytes]", Forked(node))


def _stage(
    arguments: list[str], printed: Path, environment: dict[str, str], ready: Connection
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    output = os.open(printed, os.O_APPEND | os.O_WRONLY | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1) for stream in (1, 2))
    worker = _Waiting()
    ready.send(True)
    ready.close()
    from pipeline.worker import staged  # noqa: PLC0415

    staged.EVERY = float(environment.get("EVERY", staged.EVERY))
    sys.exit(staged.main(arguments, start=worker.begin))


class _Waiting:
    """A worker, forked before this process has threads, that waits to be told its run directory."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write)
            told = os.read(read, 4096).decode()
            os._exit(self._work(*told.split("\n")) if told else 0)
        os.close(read)
        self._status: int | None = None

    @staticmethod
    def _work(path: str, attempt: str) -> int:
        from pipeline.worker.worker import main  # noqa: PLC0415

        return main([path, attempt])

    def begin(self, directory: RunDirectory, attempt: int) -> Any:
        os.write(self._write, f"{directory.path}\n{attempt}".encode())
        return self

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("pipeline.worker", timeout)
            else:
                time.sleep(0.02)
        return self._status

    def send_signal(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _work(
    path: Path,
    lock: Any,
    environment: dict[str, str],
    ready: Connection,
    *,
    outlives: bool,
    attempt: str | None,
) -> None:
    if outlives:
        os.setsid()
    this: Any = multiprocessing.current_process()
    this._config["daemon"] = False  # else it may have no children
    os.environ.clear()
    os.environ.update(environment)
    if lock is not None:
        os.environ[LOCK_FD] = str(lock.detach())
    os.chdir(ROOT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(RunDirectory(path).log, os.O_APPEND | os.O_WRONLY | os.O_CREAT, 0o644)
    for stream, file in enumerate((nothing, log, log)):
        os.dup2(file, stream)
    ready.send(True)
    ready.close()
    from pipeline.worker.worker import main  # noqa: PLC0415

    sys.exit(main([str(path), *([attempt] if attempt else [])]))
