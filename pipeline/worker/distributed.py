"""A stage in several processes: the worker is the first and starts the others.

They are in the worker's process group and hold its lock with it, so that cancelling reaches all of
them, and the run is over when the last is gone.  (`torchrun` gives every process a session of its
own, which a request to the worker's group would miss.)  They share the work; only the first tells
and writes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.runs.rundir import Job

_PLACE = "KITESTRING_PEER"
_PATIENCE = 30.0
"""Seconds that the others get to end by themselves."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process among those of a stage; they meet at a file."""

    rank: int
    size: int
    meeting: str


def this_rank() -> Rank | None:
    """This process's place where the worker started it as a further one, else None."""
    given = os.environ.get(_PLACE)
    if given is None:
        return None
    rank, size, meeting = given.split(" ", 2)
    return Rank(rank=int(rank), size=int(size), meeting=meeting)


@contextmanager
def launch_ranks(job: Job, run: Path, *, lock: int) -> Iterator[None]:
    """Inside, the stage has as many processes as `worker.processes` says; PPO alone may.

    Raises ValueError for more than there are GPUs, and RuntimeError when another process stopped.
    """
    size = job.config.worker.processes
    if job.stage != "policy" or size == 1:
        yield
        return
    with TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        others = [_start(run, rank, size, meeting, lock) for rank in range(1, size)]
        try:
            with connected(Rank(rank=0, size=size, meeting=meeting), job):
                yield
        except RuntimeError as error:
            died = _broken_off(others) if _connection_lost(error) else None
            if died is None:
                raise
            raise RuntimeError(f"process {died} of {size} stopped; see the log") from error
        finally:
            _end(others, at_once=sys.exc_info()[0] is not None)


@contextmanager
def connected(place: Rank, job: Job) -> Iterator[None]:
    """Inside, torch.distributed joins this process with the others."""
    # Only now: the worker sets threads and environment before torch is loaded.
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from pipeline.models.devices import pick_device  # noqa: PLC0415

    os.environ["LOCAL_RANK"] = str(place.rank)
    device = pick_device(job.config.worker.device)
    if device.type == "cuda":
        if place.size > torch.cuda.device_count():
            raise ValueError(
                f"worker.processes={place.size} is more than the {torch.cuda.device_count()} GPUs here"
            )
        torch.cuda.set_device(device)
    elif not job.config.worker.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // place.size))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{place.meeting}",
        rank=place.rank,
        world_size=place.size,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def _start(run: Path, rank: int, size: int, meeting: str, lock: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.worker", str(run)],
        stdin=subprocess.DEVNULL,
        pass_fds=[lock],
        cwd=Path(__file__).parents[2],
        env=os.environ | {_PLACE: f"{rank} {size} {meeting}"},
    )


def _connection_lost(error: RuntimeError) -> bool:
    """Whether this is torch.distributed's way to say that another process is gone."""
    return any(name in str(error).lower() for name in ("gloo", "nccl"))


def _broken_off(others: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """The number, from 2, of a process that failed; it may take a moment to be gone."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for number, other in enumerate(others, 2):
            if other.poll():
                return number
        time.sleep(0.05)
    return None


def _end(others: Sequence[subprocess.Popen[bytes]], *, at_once: bool) -> None:
    """See the other processes off: they end by themselves unless the first stopped early."""
    for other in others:
        if at_once:
            other.terminate()
        try:
            other.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()
