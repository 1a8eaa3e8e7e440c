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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import psutil

from pipeline.runs.rundir import RunDirectory, read_json

EVERY = 2.0
"""Seconds between two heartbeats."""


@contextmanager
def kept(directory: RunDirectory, attempt: int) -> Iterator[None]:
    """Rewrite heartbeat.json until the block ends; pass on a request to stop as a SIGTERM."""
    ended = threading.Event()
    beat = {
        "attempt": attempt, "node": socket.gethostname(), "pid": os.getpid(), "started": time.time(),
    }  # fmt: skip

    def watch() -> None:
        asked = False
        while True:
            with suppress(OSError):  # a full disk, or a file server that is away
                if is_over(directory, attempt):
                    _die(directory, attempt)
                _write(directory, beat | {"time": time.time()})
                if not asked and directory.cancel_requested_at() is not None:
                    asked = True
                    os.kill(os.getpid(), signal.SIGTERM)
            if ended.wait(EVERY):
                return

    thread = threading.Thread(target=watch, name="heartbeat", daemon=True)
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


def _die(directory: RunDirectory, attempt: int) -> None:
    """End this process and its children at once: another worker may be writing the same files."""
    directory.append_log(f"attempt {attempt} was given up by the studio and ends")
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os._exit(1)
