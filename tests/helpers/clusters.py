"""Clusters for tests: processes of this machine, and a Ray cluster in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from pipeline.runs.launchers.launcher import LaunchError, NoAnswer
from pipeline.runs.launchers.remote import JobState
from pipeline.runs.rundir import RunDirectory
from tests.helpers import prepared_workers

ROOT = Path(__file__).resolve().parents[2]


class ProcessCluster:
    """A cluster whose jobs are processes: its workers are real, and it can fall silent."""

    name = "the cluster"

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.held: set[str] = set()
        """Names of jobs that wait for their turn."""
        self.stopped: list[str] = []
        self.silent = False
        self.refuses = ""
        self.commands: dict[str, list[str]] = {}
        self.printed = Path(os.devnull)
        """Where jobs print that exchange files by a store."""
        self.environment: dict[str, str] = {}
        """What they have in addition to the environment of the tests."""

    def check(self) -> None:
        self._answer()

    def find(self, name: str) -> str | None:
        self._answer()
        return name if name in self.jobs else None

    def submit(self, name: str, command: Sequence[str], *, log: Path, nodes: int) -> str:
        self._answer()
        if self.refuses:
            raise LaunchError(self.refuses)
        assert nodes == 1, "only Ray and Slurm have jobs of several nodes"
        assert name not in self.jobs, "a cluster does not start a job twice"
        self.commands[name] = [*command]
        self.jobs[name] = None if name in self.held else self._start(command, log)
        return name

    def _start(self, command: Sequence[str], log: Path) -> Any:
        _, _, module, *arguments = command
        if module == "pipeline.worker.staged":
            return prepared_workers.start_staged(arguments, self.printed, self.environment)
        path, attempt = arguments
        assert log == Path(path) / "log.txt"
        return prepared_workers.start(RunDirectory(Path(path)), attempt=attempt)

    def look(self, id: str) -> JobState:
        self._answer()
        worker = self.jobs[id]
        if id in self.stopped:
            return JobState("failed", "the job was stopped")
        if worker is None:
            return JobState("waiting", "no node is free")
        status = worker.poll()
        if status is None:
            return JobState("running")
        return JobState("failed", f"exit status {status}") if status else JobState("succeeded")

    def stop(self, id: str) -> None:
        self._answer()
        self.stopped.append(id)
        self.kill(id)

    def output(self, id: str) -> str:
        return self.printed.read_text() or f"what {id} printed"

    def kill(self, id: str) -> None:
        """Lose the node of a job."""
        if self.jobs[id] is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.jobs[id].pid, signal.SIGKILL)

    def _answer(self) -> None:
        if self.silent:
            raise NoAnswer("the cluster does not answer")


RAY = """
import json, shutil, sys, tempfile
import psutil
from ray.cluster_utils import Cluster
memory = 80 * 2**20
folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # jobs use the newest cluster of their folder
cluster = Cluster(
    initialize_head=True,
    head_node_args={
        "num_cpus": 0, "include_dashboard": True, "dashboard_host": "127.0.0.1",
        "dashboard_port": int(sys.argv[1]), "object_store_memory": memory, "temp_dir": folder,
    },
)
nodes = {}
for _ in range(int(sys.argv[2])):
    node = cluster.add_node(num_cpus=1, object_store_memory=memory, temp_dir=folder)
    nodes[node.node_id] = node
raylets = {id: node.all_processes["raylet"][0].process.pid for id, node in nodes.items()}
print(json.dumps({"address": cluster.webui_url, "nodes": raylets}), flush=True)
for line in sys.stdin:
    node = nodes[line.strip()]
    processes = [psutil.Process(each.process.pid) for all in node.all_processes.values() for each in all]
    for process in [child for each in processes for child in each.children(recursive=True)]:
        process.kill()
    cluster.remove_node(node, allow_graceful=False)
    print(json.dumps({}), flush=True)
cluster.shutdown()
shutil.rmtree(folder, ignore_errors=True)
"""


class RayNodes:
    """A Ray cluster with a head node, which has no CPUs, and nodes with one CPU each."""

    def __init__(self, port: int, *, nodes: int = 2) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", RAY, str(port), str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        told = self._read()
        self.address: str = f"http://{told['address']}"
        # Its first answer may take longer than the studio waits.
        httpx.get(f"{self.address}/api/jobs/", timeout=120).raise_for_status()
        self.nodes: dict[str, int] = told["nodes"]
        """By its id the process of the node that starts all others."""

    def node_of(self, process: psutil.Process) -> str:
        """The node that a process runs on."""
        above = {parent.pid for parent in process.parents()}
        (found,) = (id for id, raylet in self.nodes.items() if raylet in above)
        return found

    def kill(self, node: str) -> None:
        """End a node's processes, as a power cut would."""
        assert self._process.stdin is not None
        self._process.stdin.write(node + "\n")
        self._process.stdin.flush()
        self._read()

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the Ray cluster ended")
