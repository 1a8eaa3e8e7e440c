"""A worker of a cluster without a shared file system: ``python -m pipeline.worker.staged URL JOB [FOLDER]``.

It fetches the files of an attempt from the store into a temporary folder (in FOLDER, where it also keeps
models for later stages), runs the worker there as a process of its own, and sends back what that writes:
every two seconds its heartbeat, events and log, and each checkpoint; at the end all files, and last of
all the outcome.
`pipeline/runs/staging/layout.py` lists the names in the store.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType
from typing import Any, TypeVar

import psutil

from pipeline.runs.cancellation import WAS_CANCELLED, WAS_TERMINATED
from pipeline.runs.rundir import RunDirectory, read_json, write_atomically
from pipeline.runs.staging.layout import (
    EVERY,
    LAST_WORDS,
    PARTS,
    amount,
    folder,
    require_inside,
)
from pipeline.runs.staging.model_cache import ModelCache
from pipeline.runs.staging.outbox import Outbox
from pipeline.runs.staging.store import Damaged, Missing, Store, Stored, StoreError

FAILED = 1
PATIENCE = 3600.0
"""Seconds that a store may be away, at the start and at the end."""

Answer = TypeVar("Answer")
Start = Callable[[RunDirectory, int], "subprocess.Popen[bytes]"]


class Unsent(StoreError):
    """The store was away for too long at the end."""


def main(arguments: Sequence[str] | None = None, *, start: Start | None = None) -> int:
    """Run one attempt; return the exit status of the process.  `start` starts the worker."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) not in (2, 3):
        sys.stderr.write("usage: python -m pipeline.worker.staged URL JOB [FOLDER]\n")
        return 2
    url, job, *at = arguments
    try:
        root = Path(at[0]) if at else None
        with _scratch(root) as scratch:
            models = ModelCache(root)
            return Node(Store(url), job, scratch, start or start_worker, models).run()
    except (StoreError, OSError, ValueError) as error:
        sys.stderr.write(f"{LAST_WORDS}{socket.gethostname()}: {error}\n")
        return FAILED


def start_worker(directory: RunDirectory, attempt: int) -> subprocess.Popen[bytes]:
    """Start the worker of a run directory as a job of a cluster."""
    with directory.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.worker", str(directory.path), str(attempt)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
        )


class Node:
    """One attempt on this node."""

    def __init__(
        self, store: Store, job: str, scratch: Path, start: Start, models: ModelCache
    ) -> None:
        self._store, self._job, self._folder = store, job, folder(job)
        self._scratch, self._start, self._models = scratch, start, models
        self._worker: subprocess.Popen[bytes] | None = None
        self._terminated = False
        self._doing = "downloads its files"
        self._moved = 0
        self._own_beat: dict[str, Any] = {
            "node": socket.gethostname(), "pid": os.getpid(), "started": time.time(),
        }  # fmt: skip
        self._ended = threading.Event()
        self._reporting, self._logging = threading.Lock(), threading.Lock()
        self._silent = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._terminate)
        given = self._patiently(lambda: self._read("in.json"))
        if given is None or self._patiently(lambda: self._read("over")) is not None:
            sys.stderr.write(f"{LAST_WORDS}{self._job} has ended already\n")
            return FAILED
        self._make_directory(given)
        self._models.make_room()
        with self._watched():
            try:
                self._download(given["files"])
                self._outbox.open_streams()
            except (StoreError, OSError, ValueError) as error:
                self._directory.write_error(f"{socket.gethostname()}: {error}")
                status = FAILED
            else:
                status = self._work()
            self._doing = "uploads its files"
            try:
                worked = self._worker is not None
                self._patiently(lambda: self._outbox.send_all(worked=worked))
            except StoreError as error:
                raise Unsent(f"{error}; the results are in {self._scratch}") from error
        return status

    def _make_directory(self, given: Mapping[str, Any]) -> None:
        self._workspace = self._scratch / require_inside(given["workspace"])
        self._directory = RunDirectory(self._workspace / "runs" / require_inside(given["run"]))
        for made in (self._directory.inputs, self._directory.outputs):
            made.mkdir(parents=True)
        write_atomically(self._directory.path / "job.json", given["job"])
        self._attempt = self._directory.job().attempt
        self._outbox = Outbox(
            self._store,
            self._folder,
            self._directory,
            report=self._report,
            counted=self._count,
            models=self._models,
        )

    # What the worker needs

    def _download(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        total = sum(each["size"] for each in files.values())
        for name, each in files.items():
            if self._stops():
                return
            self._doing = f"downloads its files ({amount(self._moved, total)})"
            self._download_file(self._workspace / require_inside(name), Stored(**each))
        self._moved = 0

    def _download_file(self, to: Path, stored: Stored) -> None:
        if stored.is_model and self._models.link(stored, to):
            self._count(stored.size)
            return

        def fetch() -> None:
            self._moved = before
            self._store.fetch(stored, to, self._count)

        before = self._moved
        try:
            self._patiently(fetch)
        except Damaged as error:
            self._store.remove(stored.name)
            raise Damaged(f"{error}; it was removed, and a retry sends it again") from error
        if stored.is_model:
            self._models.keep(stored, to)
        if to.is_relative_to(self._directory.path):
            self._outbox.received(to, stored)

    def _work(self) -> int:
        """Run the worker to its end; return its exit status."""
        if not self._stops():
            self._own_beat["time"] = time.time()
            self._doing = ""
            self._worker = self._start(self._directory, self._attempt)
            if self._terminated:
                self._worker.terminate()
            while (status := self._status()) is None:
                self._try_to(lambda: self._outbox.send_checkpoint(self._scratch))
            if not self._directory.has_outcome():
                killed = self._directory.failure(status)
                self._directory.write_error(WAS_TERMINATED if self._terminated else killed)
            return status
        asked = self._directory.cancel_requested_at() is not None
        self._directory.write_error(WAS_CANCELLED if asked else WAS_TERMINATED)
        return FAILED

    def _status(self) -> int | None:
        """The exit status of the worker, or None when some time has passed."""
        assert self._worker is not None
        with suppress(subprocess.TimeoutExpired):
            return self._worker.wait(EVERY)
        return None

    def _stops(self) -> bool:
        return self._terminated or self._directory.cancel_requested_at() is not None

    # What the studio sees

    @contextmanager
    def _watched(self) -> Iterator[None]:
        watch = threading.Thread(target=self._watch, name="staging", daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._ended.set()
            watch.join()

    def _watch(self) -> None:
        """Report and look for requests, every two seconds."""
        while not self._ended.is_set():
            self._try_to(self._exchange)
            self._ended.wait(EVERY)

    def _exchange(self) -> None:
        if self._read("over") is not None:
            self._die()
        if self._directory.cancel_requested_at() is None and (cancel := self._read("cancel")):
            write_atomically(self._directory.path / "cancel", cancel["when"])
            # One that is still importing sees the file later.
            if self._worker is not None and self._directory.heartbeat.exists():
                self._worker.terminate()
        self._report()

    def _report(self) -> None:
        """Send what the growing files got, and then how far they are."""
        with self._reporting:
            streams = self._outbox.send_streams()
            self._store.write(
                f"{self._folder}/beat.json",
                {
                    "heartbeat": self._heartbeat(),
                    "streams": streams,
                    "moved": self._moved,
                    "doing": self._doing,
                },
            )

    def _heartbeat(self) -> dict[str, Any]:
        """The worker's own heartbeat while it works, so that one that hangs is noticed."""
        if not self._doing:
            return read_json(self._directory.heartbeat) or self._own_beat
        return self._own_beat | {"attempt": self._attempt, "time": time.time()}

    def _read(self, name: str) -> dict[str, Any] | None:
        found = self._store.read(f"{self._folder}/{name}")
        return found[0] if found else None

    # When something fails

    def _try_to(self, call: Callable[[], None]) -> None:
        """Call it; what fails is tried again later."""
        try:
            call()
        except Exception as error:  # whatever it is, the heartbeats must go on
            with self._logging:
                if not self._silent:
                    self._directory.append_log(f"{error}; it is tried again")
                self._silent = True
        else:
            self._silent = False

    def _patiently(self, call: Callable[[], Answer]) -> Answer:
        """The answer of a store that may be away for some time."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except (Missing, Damaged):
                raise
            except StoreError as error:
                if time.monotonic() > deadline:
                    raise
                sys.stderr.write(f"{error}; it is tried again\n")
            time.sleep(EVERY)

    def _terminate(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Pass the signal on: the worker saves a checkpoint, which is then sent."""
        self._terminated = True
        if self._worker is not None:
            self._worker.send_signal(signum)

    def _die(self) -> None:
        """End this process and the worker: the studio gave this attempt up."""
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)
        with suppress(StoreError):  # what it has written since the studio removed them
            for name in PARTS:
                self._store.remove(f"{self._folder}/{name}")
        os._exit(FAILED)

    def _count(self, size: int) -> None:
        self._moved += size


@contextmanager
def _scratch(within: Path | None) -> Iterator[Path]:
    """A temporary folder, which stays if it has results that could not be sent."""
    if within is not None:
        within.mkdir(parents=True, exist_ok=True)
    made, kept = Path(mkdtemp(prefix="kitestring-", dir=within)), False
    try:
        yield made
    except Unsent:
        kept = True
        raise
    finally:
        if not kept:
            shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
