"""A stage in several processes: the worker is the first and starts the others.

They are in the worker's process group and hold its lock, so that a request to stop reaches all of
them and the run lasts until the last one ends.  `torchrun` would give each process its own session,
which the request would not reach.  Only the first process reports and writes files.

The processes of a PPO stage share every step, by torch.distributed.  Those of a reward stage train
different networks and exchange them when they are done (`pipeline.runs.peers`).

With `worker.nodes`, Slurm or `pipeline.worker.ray_nodes` starts a worker on each node.  The first one
writes its address in the run directory; the others wait for it, and each starts the processes of its
own node.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.config.policy import ENGINE_METHODS
from pipeline.runs import peers
from pipeline.runs.rundir import Job, read_json, write_atomically

Connect = Callable[[], AbstractContextManager[None]]
"""Connects the processes of a stage for as long as its context lasts."""

_RANK = "KITESTRING_PEER"
NODE = "KITESTRING_NODE"
"""Environment variable with the number, the count and the address of a node of a Ray cluster."""
_PIPE = "pipe:"
"""The start of a rendezvous that is a file descriptor."""
_GRACE = 30.0
"""Seconds that the other processes have to end."""
MEETING = "rendezvous.json"
"""The file in the run directory with the address of the first node's worker."""
_WAIT = 300.0
"""Seconds that the other nodes wait for it."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One of the machines of a stage; numbers count from 0."""

    number: int = 0
    count: int = 1
    address: str = field(default_factory=socket.gethostname)
    """Where the other nodes reach it."""


def this_node() -> Node:
    """The node of this worker in a job of Ray or in the step of a Slurm job; the only one otherwise."""
    if given := os.environ.get(NODE):
        number, count, address = given.split()
        # Not the host name: that of a Kubernetes pod does not resolve in others.
        return Node(number=int(number), count=int(count), address=address)
    count = int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
    return Node(number=int(os.environ["SLURM_NODEID"]), count=count) if count > 1 else Node()


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of a stage; `rendezvous` is the URL at which they find each other."""

    rank: int
    size: int
    here: int
    """Processes on its node, whose ranks are adjacent."""
    rendezvous: str


def this_rank() -> Rank | None:
    """The rank of this process; None if it is the worker itself."""
    given = os.environ.get(_RANK)
    if given is None:
        return None
    rank, size, here, rendezvous = given.split(" ", 3)
    return Rank(rank=int(rank), size=int(size), here=int(here), rendezvous=rendezvous)


@contextmanager
def launch_ranks(
    job: Job, run: Path, *, locks: Sequence[int] = (), node: Node | None = None
) -> Iterator[Connect]:
    """Start the other `worker.processes` of a stage on this node; end them on exit.

    They import the stage while this process does; calling the result then connects them all.  PPO
    and other methods of its engine have several processes, and reward stages on a CPU.

    Connecting raises ValueError if there are fewer GPUs.  RuntimeError if another process stops.
    """
    size, node = job.config.worker.processes, node or Node()
    if job.stage == "reward" and size > 1 and _on_cpu(job):
        with _launch_peers(job, run, locks, size=size // node.count) as connect:
            yield connect
        return
    if job.kind not in ENGINE_METHODS or size == 1:
        yield nullcontext
        return
    here = size // node.count
    with TemporaryDirectory() as folder:
        url = f"file://{folder}/meeting" if node.count == 1 else _meeting(run, job, node)
        first, *others = [
            Rank(rank=rank, size=size, here=here, rendezvous=url)
            for rank in range(node.number * here, (node.number + 1) * here)
        ]
        processes = [_start(run, other, locks) for other in others]
        try:
            yield lambda: connected(first, job)
        except RuntimeError as error:
            if not _connection_lost(error):
                raise
            failed_rank = _failed_process(processes)
            if failed_rank is None and node.count == 1:
                raise
            who = "a process on another node"
            if failed_rank is not None:
                who = f"process {first.rank + failed_rank} of {size}"
            raise RuntimeError(f"{who} stopped; see the log") from error
        finally:
            _end(processes, at_once=sys.exc_info()[0] is not None)


def _on_cpu(job: Job) -> bool:
    from pipeline.models.devices import pick_device  # noqa: PLC0415 (see `connected`)

    return pick_device(job.config.worker.device).type == "cpu"


@contextmanager
def _launch_peers(job: Job, run: Path, locks: Sequence[int], *, size: int) -> Iterator[Connect]:
    """Start the other processes of a reward stage; end them on exit."""
    processes, connections = [], []
    try:
        for number in range(1, size):
            ours, theirs = Pipe()
            rank = Rank(rank=number, size=size, here=size, rendezvous=f"{_PIPE}{theirs.fileno()}")
            processes.append(_start(run, rank, [*locks, theirs.fileno()]))
            theirs.close()  # so that the end of the process closes the connection
            connections.append(ours)
        yield lambda: _among_peers(peers.Peers(size=size, connections=tuple(connections)), job)
    finally:
        _end(processes, at_once=sys.exc_info()[0] is not None)


def joined(own: Rank, job: Job) -> AbstractContextManager[None]:
    """Connect a further process of a stage with the others."""
    if not own.rendezvous.startswith(_PIPE):
        return connected(own, job)
    first = Connection(int(own.rendezvous.removeprefix(_PIPE)))
    return _among_peers(peers.Peers(rank=own.rank, size=own.size, connections=(first,)), job)


def _among_peers(processes: peers.Peers, job: Job) -> AbstractContextManager[None]:
    """A reward stage's context, in which these are the current processes."""
    _divide_threads(job, processes.size)
    return peers.joined(processes)


def _divide_threads(job: Job, size: int) -> None:
    """Divide the cores among `size` processes if `worker.threads` does not say how many each uses."""
    import torch  # noqa: PLC0415 (see `connected`)

    if not job.config.worker.threads:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))


def _meeting(run: Path, job: Job, node: Node) -> str:
    """The URL of the first node, which it writes for this attempt and others wait for."""
    path = run / MEETING
    if node.number == 0:
        with socket.create_server(("", 0)) as free:
            url = f"tcp://{node.address}:{free.getsockname()[1]}"
        write_atomically(path, json.dumps({"attempt": job.attempt, "url": url}))
        return url
    deadline = time.monotonic() + _WAIT
    while time.monotonic() < deadline:
        found = read_json(path)
        if found is not None and found["attempt"] == job.attempt:
            return found["url"]
        time.sleep(0.2)
    raise ValueError(
        f"node {node.number + 1} of {node.count} saw no {MEETING} of the first node in "
        f"{_WAIT:.0f} s; the nodes must share the workspace's file system"
    )


@contextmanager
def connected(own: Rank, job: Job) -> Iterator[None]:
    """Connect the processes with torch.distributed; disconnect them on exit."""
    # Imported here: the worker sets threads and environment before torch is loaded.
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from pipeline.models.devices import pick_device  # noqa: PLC0415

    os.environ["LOCAL_RANK"] = str(own.rank % own.here)
    device = pick_device(job.config.worker.device)
    if device.type == "cuda":
        if own.here > torch.cuda.device_count():
            raise ValueError(
                f"worker.processes={own.size} needs {own.here} GPUs per node, and "
                f"{socket.gethostname()} has {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(device)
    else:
        _divide_threads(job, own.here)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=own.rendezvous,
        rank=own.rank,
        world_size=own.size,
    )
    try:
        yield
    finally:
        if dist.is_initialized():  # vLLM disconnects them when its engine is freed
            dist.destroy_process_group()
        os.environ.pop(
            "LOCAL_RANK", None
        )  # accelerate would take a later training for one of several


def _start(run: Path, rank: Rank, locks: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.worker", str(run)],
        stdin=subprocess.DEVNULL,
        pass_fds=locks,
        cwd=Path(__file__).parents[2],
        env=os.environ | {_RANK: f"{rank.rank} {rank.size} {rank.here} {rank.rendezvous}"},
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
