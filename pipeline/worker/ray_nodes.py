"""A job on several nodes of a Ray cluster: ``python -m pipeline.worker.ray_nodes NODES CPUS GPUS COMMAND``.

It is the entrypoint of the job and does for Ray what `srun` does for Slurm: it reserves the nodes,
starts the command once on each, passes a request to stop on, ends all when one is lost, and ends with
the status of the first.  It runs on the head node, needs Ray's Python there, and does not need the
workspace: what the studio has to know is a line of its output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pipeline.runs.launchers.ray_jobs import OUTPUT, STARTED, WAITING
from pipeline.worker.distributed import NODE

_NOTICE = 120.0
"""Seconds that the other nodes have to end after the first one that ended."""
_START_TIMEOUT = "RAY_JOB_START_TIMEOUT_SECONDS"
"""Ray's own name for the time after which a job gives up waiting for resources."""


class Lost(RuntimeError):
    """The job cannot start or go on; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """So many nodes, each with so many CPUs and GPUs."""

    nodes: int
    cpus: int
    gpus: int

    def bundle(self) -> dict[str, int]:
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})

    def fitting(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """How many nodes of a cluster are large enough, free or not."""
        return sum(
            node["Alive"]
            and all(node["Resources"].get(k, 0) >= v for k, v in self.bundle().items())
            for node in nodes
        )

    def __str__(self) -> str:
        each = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in self.bundle().items()]
        return f"{self.nodes} nodes with {' and '.join(each)}"


class OnNode:
    """The command on one node: an actor of Ray, in which one thread waits and another one signals."""

    def __init__(self) -> None:
        self._started = threading.Event()

    def address(self) -> str:
        return import_module("ray").util.get_node_ip_address()

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """The exit status of the command, negative if a signal ended it."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=os.environ | environment, start_new_session=True
        )
        self._started.set()
        return self._process.wait()

    def signal(self, signum: int) -> None:
        self._started.wait()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signum)


class Workers:
    """The command on every node of a job, until all have ended."""

    def __init__(self, ray: Any, group: Any, request: Request) -> None:
        self._ray = ray
        kind = ray.remote(OnNode)
        strategy = import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        self._actors = [
            kind.options(
                num_cpus=request.cpus,
                num_gpus=request.gpus,
                max_concurrency=2,
                scheduling_strategy=strategy(group, placement_group_bundle_index=number),
            ).remote()
            for number in range(request.nodes)
        ]
        try:
            self.addresses = ray.get([actor.address.remote() for actor in self._actors])
        except ray.exceptions.RayError as error:
            raise Lost(f"a node was lost before its worker started: {_first_line(error)}") from None
        self._statuses: dict[int, int | None] = {}

    def run(self, command: Sequence[str], stop: threading.Event) -> int:
        """Run it on all nodes; the status of the first, or Lost."""
        count, asked, deadline = len(self._actors), False, float("inf")
        pending = {
            actor.run.remote(command, {NODE: f"{number} {count} {self.addresses[number]}"}): number
            for number, actor in enumerate(self._actors)
        }
        while pending:
            if stop.is_set() and not asked:
                asked = self._signal(signal.SIGTERM)
            for ref in self._ray.wait([*pending], timeout=0.5)[0]:
                self._note_end(pending.pop(ref), ref)
                deadline = min(deadline, time.monotonic() + _NOTICE)
            if time.monotonic() > deadline:
                ended = self._name(next(iter(self._statuses)))
                _say(f"{ended} ended, and the others did not within {_NOTICE:.0f} s; see the log")
                self._signal(signal.SIGKILL)
                deadline = float("inf")
        return self._outcome()

    def _outcome(self) -> int:
        first, lost = self._statuses[0], [n for n, s in self._statuses.items() if s is None]
        if lost and first != 0:
            raise Lost(f"{self._name(lost[0])} was lost; resume continues on other nodes")
        assert first is not None
        return first if first >= 0 else 128 - first  # as a shell says that a signal ended it

    def _note_end(self, number: int, ref: Any) -> None:
        try:
            status = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            status = None
            _print(f"{self._name(number)}: {_first_line(error)}")
        self._statuses[number] = status
        _print(f"{self._name(number)} ended with {status}")

    def _signal(self, signum: int) -> bool:
        for number, actor in enumerate(self._actors):
            if number not in self._statuses:
                actor.signal.remote(signum)
        return True

    def _name(self, number: int) -> str:
        return f"node {number + 1} of {len(self._actors)} ({self.addresses[number]})"


def main(arguments: Sequence[str]) -> int:
    """Run the job; the exit status is the first worker's."""
    nodes, cpus, gpus = map(int, arguments[:3])
    request, command = Request(nodes=nodes, cpus=cpus, gpus=gpus), arguments[3:]
    _say(f"{WAITING}: {request}")
    ray = import_module("ray")
    ray.init(logging_level="WARNING")
    stop = threading.Event()
    # After ray.init, which sets a handler of its own.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        group = _reserve(ray, request, stop)
        if group is None:
            return 128 + signal.SIGTERM
        workers = Workers(ray, group, request)
        _say(f"{STARTED} {', '.join(workers.addresses)}")
        return workers.run(command, stop)
    except Lost as error:
        _say(str(error))
        return 1


def _reserve(ray: Any, request: Request, stop: threading.Event) -> Any:
    """A placement group of one bundle per node; None if the job was stopped first.

    All nodes at once: two jobs that each held a part would wait for each other.
    """
    make = import_module("ray.util.placement_group").placement_group
    group = make([request.bundle()] * request.nodes, strategy="STRICT_SPREAD")
    seconds = float(os.environ.get(_START_TIMEOUT, "900"))
    deadline, said = time.monotonic() + seconds, ""
    while not group.wait(timeout_seconds=1):
        if stop.is_set():
            return None
        sentence = _shortage(request, request.fitting(ray.nodes()))
        if time.monotonic() > deadline:
            raise Lost(f"no resources in {seconds:.0f} s ({_START_TIMEOUT}): {sentence}")
        if sentence != said:
            _say(f"{WAITING}: {sentence}")
            said = sentence
    return group


def _shortage(request: Request, fitting: int) -> str:
    """What the job waits for; an autoscaler, or a person, may add the nodes that are missing."""
    if fitting < request.nodes:
        return f"{request} are needed, and the cluster has {fitting}; add nodes, or cancel and lower worker.nodes"
    return f"{request} are needed, and not all of the cluster's {fitting} are free"


def _say(sentence: str) -> None:
    _print(f"{OUTPUT}{sentence}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
