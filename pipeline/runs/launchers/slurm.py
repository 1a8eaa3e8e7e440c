"""Slurm's batch jobs, by its own commands: the studio runs where `sbatch` does.

The name of a job is its run and attempt.  Jobs are found by it for some minutes after they ended
(Slurm's MinJobAge).
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.sections import WorkerConfig
from pipeline.runs.launchers.launcher import LaunchError, NoAnswer
from pipeline.runs.launchers.remote import JobState

_TIMEOUT = 30.0
_WARNING = 300
"""Seconds before the time limit at which the worker is asked to stop, to save a checkpoint."""
_NOTICE = 120
"""Seconds that the other workers of a job have to end after the first one that ended."""
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "RESIZING", "SUSPENDED")
_RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED")


class SlurmCluster:
    """The cluster that the commands of this machine belong to."""

    name = "Slurm"

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config

    def check(self) -> None:
        self._run(["sinfo", "--noheader"])

    def find(self, name: str) -> str | None:
        jobs = self._run(["squeue", "--states=all", "--noheader", "--format=%i", f"--name={name}"])
        return jobs.split()[0] if jobs.split() else None

    def submit(self, name: str, command: Sequence[str], *, log: Path, nodes: int) -> str:
        # exec: the shell must not stand between a signal and the worker.
        script = f"#!/bin/sh\nexec {shlex.join([*self._srun(nodes), *command])}\n"
        return self._run(self._sbatch(name, log, nodes), script).strip().partition(";")[0]

    def _srun(self, nodes: int) -> list[str]:
        """Starts the worker on each of several nodes."""
        if nodes == 1:
            return []
        return [
            "srun",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            # Not at once: the first node notices it and writes why.
            "--kill-on-bad-exit=0",
            f"--wait={_NOTICE}",
            # Neither is taken over from sbatch.
            f"--cpus-per-task={self._config.cpus}",
            "--export=ALL",
        ]

    def _sbatch(self, name: str, log: Path, nodes: int) -> list[str]:
        config = self._config
        options = {
            "--partition": config.slurm_partition,
            "--account": config.slurm_account,
            "--time": config.slurm_minutes,
            "--gpus-per-node": config.gpus,
        }
        return [
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={config.cpus}",
            f"--output={log}",
            "--open-mode=append",
            "--no-requeue",  # Slurm would start the attempt again; people resume runs
            "--export=NONE",  # a node's own environment: the studio's has its keys
            f"--signal=B:TERM@{_WARNING}",
            *(f"{option}={value}" for option, value in options.items() if value),
            *config.slurm_options,
        ]

    def look(self, id: str) -> JobState:
        command = ["squeue", "--states=all", "--noheader", "--format=%T|%r", f"--jobs={id}"]
        try:
            found = self._run(command).strip()
        except LaunchError as error:
            if "Invalid job id" not in str(error):
                raise
            found = ""
        if not found:
            return JobState("failed", "it no longer knows the job")
        state, _, reason = found.partition("|")
        if state in _WAITING:
            return JobState("waiting", f"the job is {state.lower()} ({reason})")
        if state in _RUNNING:
            return JobState("running")
        if state == "COMPLETED":
            return JobState("succeeded")
        return JobState("failed", f"the job ended with {state}{_hint(state)}")

    def stop(self, id: str) -> None:
        self._run(["scancel", id])

    def output(self, id: str) -> str:  # noqa: ARG002
        return ""  # it is in the log of the run already

    def _run(self, command: Sequence[str], script: str | None = None) -> str:
        try:
            done = subprocess.run(
                command, input=script, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except FileNotFoundError:
            raise LaunchError(
                f"Slurm's command {command[0]} is not on this machine. Run the studio on a login "
                "node, or set worker.launcher to local."
            ) from None
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"Slurm does not answer: {command[0]} took {_TIMEOUT:.0f} s") from None
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise LaunchError(f"Slurm's {command[0]} failed: {lines[-1]}")


def _hint(state: str) -> str:
    return {
        "TIMEOUT": ": raise worker.slurm_minutes and resume",
        "OUT_OF_MEMORY": ": ask for more with worker.slurm_options, such as --mem=64G",
        "NODE_FAIL": ": its node was lost; resume continues on another one",
        "PREEMPTED": ": another job took its node; resume continues",
    }.get(state, "")
