"""What a worker on a cluster does beside its work: show that it lives, and look for `cancel`.

The web process cannot see the lock of a worker on another machine, nor send it a signal.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import psutil

from pipeline.runs.rundir import RunDirectory, read_json

EVERY = 2.0
"""Seconds between two heartbeats."""


@contextmanager
def kept(directory: RunDirectory, attempt: int) -> Iterator[None]:
    """Rewrite heartbeat.json until the block ends; pass on a request to stop as a SIGTERM."""
    beat = {
        "attempt": attempt, "node": socket.gethostname(), "pid": os.getpid(), "started": time.time(),
    }  # fmt: skip
    asked = False

    def watch() -> None:
        nonlocal asked
        with suppress(OSError):  # a full disk, or a file server that is away
            if is_over(directory, attempt):
                _die(directory, f"attempt {attempt} was given up by the studio and ends")
            _write(directory, beat | {"time": time.time()})
            if not asked and directory.cancel_requested_at() is not None:
                asked = True
                os.kill(os.getpid(), signal.SIGTERM)

    with _repeated(watch, name="heartbeat"):
        yield


@contextmanager
def tied_to_parent(directory: RunDirectory) -> Iterator[None]:
    """Until the block ends, end at once if the process that started this one ends.

    If Ray loses a job, it kills its own processes and not those that they have started.
    """
    parent = os.getppid()

    def watch() -> None:
        if os.getppid() != parent:
            _die(directory, "a worker lost the cluster's process that started it, and ends")

    with _repeated(watch, name="parent"):
        yield


@contextmanager
def _repeated(watch: Callable[[], None], *, name: str) -> Iterator[None]:
    """Call `watch` now and every few seconds, in a thread, until the block ends."""
    ended = threading.Event()

    def repeat() -> None:
        watch()
        while not ended.wait(EVERY):
            watch()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(directory: RunDirectory, beat: Mapping[str, object]) -> None:
    draft = directory.heartbeat.with_suffix(".tmp")
    draft.write_text(json.dumps(beat))
    draft.replace(directory.heartbeat)


def is_over(directory: RunDirectory, attempt: int) -> bool:
    """Whether the studio has given up this attempt, as after a lost connection, or begun another."""
    job = read_json(directory.path / "job.json")
    return directory.error() is not None or job is None or job["attempt"] != attempt


def _die(directory: RunDirectory, why: str) -> None:
    """End this process and its children at once: another worker may be writing the same files."""
    with suppress(OSError):
        directory.append_log(why)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os._exit(1)
