"""A stage in several processes: the worker is the first and starts the others.

They are in the worker's process group and hold its lock, so that a request to stop reaches all of
them and the run lasts until the last one ends.  `torchrun` would give each process its own session,
which the request would not reach.  Only the first process reports and writes files.
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

_RANK = "KITESTRING_PEER"
_GRACE = 30.0
"""Seconds that the other processes have to end."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of a stage; `rendezvous` is the file through which they find each other."""

    rank: int
    size: int
    rendezvous: str


def this_rank() -> Rank | None:
    """The rank of this process; None if it is the worker itself."""
    given = os.environ.get(_RANK)
    if given is None:
        return None
    rank, size, rendezvous = given.split(" ", 2)
    return Rank(rank=int(rank), size=int(size), rendezvous=rendezvous)


@contextmanager
def launch_ranks(job: Job, run: Path, *, locks: Sequence[int]) -> Iterator[None]:
    """Start the other `worker.processes` of a PPO stage; end them on exit.

    Raises ValueError if there are fewer GPUs, RuntimeError if another process stops.
    """
    size = job.config.worker.processes
    if job.stage != "policy" or size == 1:
        yield
        return
    with TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "meeting")
        others = [_start(run, rank, size, rendezvous, locks) for rank in range(1, size)]
        try:
            with connected(Rank(rank=0, size=size, rendezvous=rendezvous), job):
                yield
        except RuntimeError as error:
            failed_rank = _failed_process(others) if _connection_lost(error) else None
            if failed_rank is None:
                raise
            raise RuntimeError(f"process {failed_rank} of {size} stopped; see the log") from error
        finally:
            _end(others, at_once=sys.exc_info()[0] is not None)


@contextmanager
def connected(own: Rank, job: Job) -> Iterator[None]:
    """Connect the processes with torch.distributed; disconnect them on exit."""
    # Imported here: the worker sets threads and environment before torch is loaded.
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from pipeline.models.devices import pick_device  # noqa: PLC0415

    os.environ["LOCAL_RANK"] = str(own.rank)
    device = pick_device(job.config.worker.device)
    if device.type == "cuda":
        if own.size > torch.cuda.device_count():
            raise ValueError(
                f"worker.processes={own.size} is more than the {torch.cuda.device_count()} GPUs here"
            )
        torch.cuda.set_device(device)
    elif not job.config.worker.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // own.size))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{own.rendezvous}",
        rank=own.rank,
        world_size=own.size,
    )
    try:
        yield
    finally:
        if dist.is_initialized():  # vLLM disconnects them when its engine is freed
            dist.destroy_process_group()


def _start(
    run: Path, rank: int, size: int, rendezvous: str, locks: Sequence[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.worker", str(run)],
        stdin=subprocess.DEVNULL,
        pass_fds=locks,
        cwd=Path(__file__).parents[2],
        env=os.environ | {_RANK: f"{rank} {size} {rendezvous}"},
    )


def _connection_lost(error: RuntimeError) -> bool:
    """Whether torch.distributed reports that another process ended."""
    return any(name in str(error).lower() for name in ("gloo", "nccl"))


def _failed_process(others: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """The number, from 2, of a process that failed; waits up to 5 s for it to end."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for number, other in enumerate(others, 2):
            if other.poll():
                return number
        time.sleep(0.05)
    return None


def _end(others: Sequence[subprocess.Popen[bytes]], *, at_once: bool) -> None:
    """Wait for the other processes; terminate them if the first one failed."""
    for other in others:
        if at_once:
            other.terminate()
        try:
            other.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()
