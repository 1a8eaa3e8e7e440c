"""The Ray job of a run: submitted once, found again after a restart, followed and cancelled."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from pipeline.policy_methods.openrlhf.exchange import Exchange
from pipeline.policy_methods.openrlhf.metrics import KL, REWARD, ScalarReader, translated
from pipeline.runs.cancellation import Cancelled, cancel_requested
from pipeline.runs.launchers.launcher import LaunchError
from pipeline.runs.launchers.remote import Cluster, JobState, job_name
from pipeline.runs.rundir import Job, Report, RunDirectory, read_json, write_atomically

POLL = 1.0
"""Seconds between two looks at a request to stop."""
ASK_EVERY = 5.0
"""Seconds between two questions to the cluster, and two looks at metrics."""
LOG_EVERY = 30.0
"""Seconds between two copies of the job's output, which Ray sends whole."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_SENDER = re.compile(r"^\([^()]* pid=\d+[^()]*\)\s*")
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Died)\w*: .")
_REWARD_FAILED = "Failed to fetch reward from remote RM: "


class TrainingFailed(RuntimeError):
    """OpenRLHF's job ended without a policy; the message is one sentence."""


class TrainingJob:
    """A job of OpenRLHF on a Ray cluster."""

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        report: Report,
        directory: RunDirectory,
        exchange: Exchange,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._report = report
        self._directory = directory
        self._exchange = exchange
        self._seen = 0
        self._rewound = False
        self._said = ""
        self.name = f"openrlhf-{job_name(directory, job.attempt)}"
        # In the folder of checkpoints: a run whose worker was killed can then be resumed, which finds
        # the job, although OpenRLHF has written no checkpoint yet.
        self._record = exchange.checkpoint / "ray_job.json"
        self.metrics: dict[str, float] = {}
        self.step = 0

    def start(self, command: Callable[[str], list[str]]) -> None:
        """Follow the job of an earlier attempt if it runs or has succeeded; else submit one.

        Like `follow`, it must be called in `deferred`: a job that is being submitted would be lost.
        """
        earlier = (read_json(self._record) or {}).get("id")
        if earlier and self._is_of_use(earlier):
            self.name = earlier
            self._report.log(f"follows the job {earlier} of an earlier attempt")
            return
        self._record.parent.mkdir(parents=True, exist_ok=True)
        asked = command(self.name)
        if cancel_requested():
            raise Cancelled
        # Before the job exists: one that nobody knows of could not be found again.
        write_atomically(self._record, json.dumps({"id": self.name}))
        self._report.log(shlex.join(asked))
        self._cluster.submit(self.name, asked, log=self._directory.log, nodes=1)

    def follow(self) -> None:
        """Report the job until it succeeds; TrainingFailed if it does not, Cancelled on request."""
        total = self._job.config.ppo.updates
        scalars = ScalarReader(self._exchange.tensorboard / self.name)
        for state in self._states():
            for step, values in scalars.complete(ended=state.phase in ("succeeded", "failed")):
                self._report_step(step, values, total)
            if state.phase == "failed":
                raise TrainingFailed(self._reason(state))
            self._say_what_it_does(state, total)
        if self.step == 0:
            raise TrainingFailed(
                "OpenRLHF ended without metrics of an update; its nodes must see the workspace under "
                f"the path of the stage, {self._directory.path.resolve()}"
            )

    def _is_of_use(self, name: str) -> bool:
        if self._cluster.find(name) is None:
            return False
        phase = self._cluster.look(name).phase
        if phase == "succeeded":
            return self._exchange.policy.is_dir()
        return phase in ("waiting", "running")

    def _states(self) -> Iterator[JobState]:
        """What the cluster says, every few seconds, up to the job's end."""
        asked = copied = answered = -1e9
        while True:
            if cancel_requested():
                with suppress(LaunchError):
                    self._cluster.stop(self.name)
                raise Cancelled
            now = monotonic()
            if now - asked >= ASK_EVERY:
                asked, state = now, self._look()
                answered = now if state.phase != "silent" or answered < 0 else answered
                if now - answered > self._job.config.worker.lost_after:
                    raise TrainingFailed(f"{state.detail} The job may still run; resume finds it.")
                over = state.phase in ("succeeded", "failed")
                if over or now - copied >= LOG_EVERY:
                    copied = now
                    self._copy_log()
                yield state
                if over:
                    return
            sleep(POLL)

    def _look(self) -> JobState:
        try:
            return self._cluster.look(self.name)
        except LaunchError as error:
            return JobState("silent", str(error))

    def _report_step(self, step: int, values: dict[str, Any], total: int) -> None:
        if not self._rewound:
            self._rewound = True
            self._report.rewind(_seq_before(self._directory, step))
        self.step = step
        self.metrics = translated(values, kl_weight=self._job.config.ppo.kl_weight)
        self._report.metrics(step, self.metrics)
        figures = [
            f"{label} {self.metrics[name]:z.2f}"
            for label, name in (("reward", REWARD), ("KL per token", KL))
            if name in self.metrics
        ]
        about = f"update {step} of {total}: {', '.join(figures)}" if figures else f"update {step}"
        self._report.progress(step, total, about)

    def _say_what_it_does(self, state: JobState, total: int) -> None:
        """Report what the job does before its first update, each state once."""
        waits = f"waits for {self._cluster.name}: {state.detail}"
        about = waits if state.phase == "waiting" else "OpenRLHF runs; no update is done yet"
        if self.step == 0 and state.phase != "silent" and about != self._said:
            self._said = about
            self._report.progress(0, total, about)

    def _output(self) -> str:
        try:
            return self._cluster.output(self.name)
        except LaunchError:
            return ""

    def _copy_log(self) -> None:
        text = self._output()
        if text[self._seen :].strip():
            self._report.log(text[self._seen :].rstrip("\n"))
        self._seen = max(self._seen, len(text))

    def _reason(self, state: JobState) -> str:
        return f"OpenRLHF failed: {error_line(self._output()) or state.detail}"


def error_line(output: str) -> str:
    """The line that says why a job failed: the reward function's error, or the last error, or line."""
    lines = [_SENDER.sub("", _COLOR.sub("", line).strip()) for line in output.splitlines()]
    lines = [line.strip() for line in lines if line.strip()]
    for line in reversed(lines):
        if _REWARD_FAILED in line:
            return f"the reward function: {line.partition(_REWARD_FAILED)[2]}"
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or [""])[-1]


def _seq_before(directory: RunDirectory, step: int) -> int:
    """The event before the metrics of `step`; a job that resumes repeats those after its checkpoint."""
    last = 0
    for event in directory.events_after(1, 0):
        if event["kind"] == "metrics" and event["step"] >= step:
            break
        last = event["seq"]
    return last
