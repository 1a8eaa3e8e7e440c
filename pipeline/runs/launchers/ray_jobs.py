"""Ray's jobs, by the REST API that `ray.job_submission` uses: this process does not need Ray.

The name of a job is its submission id.  Ray refuses a second job with the same one.  A job of several
nodes runs `pipeline.worker.ray_nodes` on the head node, and this reads the lines that it prints.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from pipeline.config.sections import WorkerConfig
from pipeline.runs.launchers.launcher import LaunchError, NoAnswer
from pipeline.runs.launchers.remote import JobState

TOKEN = "RAY_AUTH_TOKEN"
"""Environment variable with the token of a cluster that asks for one."""
_NODES = "pipeline.worker.ray_nodes"
OUTPUT = "kitestring: "
"""How a line of `ray_nodes` for the studio begins; the last one counts."""
WAITING, STARTED = "waiting for resources", "runs on"
_TIMEOUT, _SUBMITTING = 10.0, 60.0
"""Seconds to wait for an answer; Ray takes longest for the first job after its start."""
_LATER = "try again later"
"""What Ray says while a node is still starting its agent."""
_PHASES = {"PENDING": "waiting", "RUNNING": "running", "SUCCEEDED": "succeeded"}


class RayCluster:
    """The cluster behind a Ray dashboard; `otherwise` says what a person can do without it."""

    name = "Ray"

    def __init__(
        self, config: WorkerConfig, *, otherwise: str = "set worker.launcher to local"
    ) -> None:
        self._config = config
        self._otherwise = otherwise
        token = os.environ.get(TOKEN)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def check(self) -> None:
        self._ask("GET", "/api/version")

    def find(self, name: str) -> str | None:
        return name if self._ask("GET", f"/api/jobs/{name}", missing=True) is not None else None

    def submit(self, name: str, command: Sequence[str], *, log: Path, nodes: int) -> str:  # noqa: ARG002
        cpus, gpus = self._config.cpus, self._config.gpus
        body: dict[str, Any] = {"submission_id": name}
        # A job that asks for nothing runs on the head node.
        if nodes == 1:
            body |= {"entrypoint_num_cpus": cpus, "entrypoint_num_gpus": gpus}
        else:
            each = [str(number) for number in (nodes, cpus, gpus)]
            command = [command[0], "-m", _NODES, *each, *command]
        self._ask("POST", "/api/jobs/", json=body | {"entrypoint": shlex.join(command)})
        return name

    def look(self, id: str) -> JobState:
        found = self._ask("GET", f"/api/jobs/{id}", missing=True)
        if found is None:
            return JobState("failed", "it no longer knows the job; its head node was restarted")
        phase: Any = _PHASES.get(found["status"], "failed")
        if found["error_type"] == "JOB_SUPERVISOR_ACTOR_DIED":
            return JobState("failed", "the job's node was lost; resume continues on another one")
        # Further lines are those of the job's log.
        detail = (found["message"] or found["status"]).partition("\n")[0]
        if _NODES in found["entrypoint"] and phase in ("running", "failed"):
            return self._of_several_nodes(id, JobState(phase, detail))
        return JobState(phase, detail)

    def _of_several_nodes(self, id: str, job: JobState) -> JobState:
        """The state of a job whose nodes are reserved after it has started."""
        lines = [each for each in self.output(id).splitlines() if each.startswith(OUTPUT)]
        told = lines[-1].removeprefix(OUTPUT) if lines else WAITING
        if job.phase == "running":
            return JobState("waiting", told) if told.startswith(WAITING) else job
        return job if told.startswith((WAITING, STARTED)) else JobState("failed", told)

    def stop(self, id: str) -> None:
        self._ask("POST", f"/api/jobs/{id}/stop", missing=True)

    def output(self, id: str) -> str:
        found = self._ask("GET", f"/api/jobs/{id}/logs", missing=True)
        return found["logs"] if found else ""

    def _ask(self, method: str, path: str, *, missing: bool = False, **request: Any) -> Any:
        """The answer; if `missing` is allowed, None for a job that does not exist."""
        try:
            reply = httpx.request(
                method,
                self._config.ray_address.rstrip("/") + path,
                headers=self._headers,
                timeout=_SUBMITTING if "json" in request else _TIMEOUT,
                **request,
            )
        except httpx.TransportError as error:
            raise NoAnswer(
                f"Ray does not answer at {self._config.ray_address} ({error}). Start it with `ray "
                f"start --head`, or {self._otherwise}."
            ) from None
        if missing and reply.status_code == httpx.codes.NOT_FOUND:
            return None
        if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise LaunchError(
                f"Ray at {self._config.ray_address} refuses the token. Start the studio with the "
                f"cluster's token in the environment variable {TOKEN}."
            )
        if reply.is_error:
            lines = reply.text.strip(" .\n").splitlines()
            sentence = f"Ray refuses the request: {lines[-1] if lines else reply.status_code}"
            raise (NoAnswer if _LATER in sentence else LaunchError)(sentence)
        return reply.json()
