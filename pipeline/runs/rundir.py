"""A run directory: the contract between the web process and a worker.

::

    RUN_DIR/job.json         written once, before the worker starts
            inputs/*.parquet what the stage reads
            lock             locked (flock) by the worker as long as it lives
            pid              the worker's process group, for signals to all of its processes
            handle.json      the job of a worker on a cluster (worker.launcher)
            heartbeat.json   rewritten by such a worker every few seconds
            transfer.json    rewritten as its files arrive (worker.staging); staged.json: what has arrived
            events.jsonl     progress, metrics and notes; one line each, numbered by `seq`
            resources.jsonl  CPU, memory and GPUs that the worker used, every ten seconds
            log.txt          standard output and error of the worker
            trackers/        files of TensorBoard, trackio and wandb (worker.report_to)
            checkpoint/      what a resume starts from; of PPO: checkpoint/checkpoints/step-000042/state.pt
            snapshots/       policies kept during training (optimize.snapshots)
            outputs/*.parquet, model/
            cancel           time at which the researcher asked the stage to stop
            error.json       why the stage failed or was cancelled, in one sentence
            result.json      written last, by rename: the stage succeeded

Without `result.json` and without a lock the stage has failed, or was cancelled if `cancel` exists.
The lock alone says whether the worker lives: the kernel releases it when its holder ends, and a
process id may belong to another process by then.  `pid` is read only while the lock is held, to
signal the worker (`pipeline.runs.process`).  A worker on a cluster holds no lock, because locks of
shared file systems outlive a lost node: `pipeline.runs.launchers.remote` says whether it lives.

job.json names the workspace and the installation as `$WORKSPACE` and `$KITESTRING`, so that a node
may see both elsewhere.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, Self

from pipeline.config.sections import Config
from storage.records import Stage

Study = Literal["measure", "curve", "retrain"]
"""Stages of studies, which are not part of the loop."""

LOCK_FD = "KITESTRING_LOCK_FD"
_OUTCOME = (
    "cancel", "error.json", "result.json", "pid", "handle.json", "heartbeat.json",
    "rendezvous.json", "transfer.json",
)  # fmt: skip
_TAIL = 4096


@dataclass(frozen=True, kw_only=True)
class Job:
    """The task of a worker.
    `models` maps policy, reference, previous and reward to absolute paths or hub ids, and reward_2,
    reward_3, … if several reward models score.  `names` maps the same keys to model ids for
    lineage.  `notes` are warnings to report at the start, by name.  `repeats` is the run that a
    study repeats.
    """

    run: str
    stage: Stage | Study
    iteration: int
    config: Config
    attempt: int = 1
    seed: int = 0
    resume: bool = False
    models: Mapping[str, str | None] = field(default_factory=dict)
    names: Mapping[str, str | None] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    repeats: str | None = None

    @property
    def kind(self) -> str:
        """The stage, or for the policy stage its method: ppo, dpo, rloo or best-of-n."""
        return self.config.optimize.method if self.stage == "policy" else self.stage

    def model(self, key: str) -> str:
        """The path of a model; ValueError if the job has none."""
        path = self.models.get(key)
        if not path:
            raise ValueError(f"the {self.stage} stage of {self.run} was given no {key} model")
        return path

    def reward_models(self) -> list[str]:
        """Paths of all reward models, the iteration's own first."""
        own = self.model("reward")
        return [own, *(self.model(key) for key in self.models if key.startswith("reward_"))]


@dataclass(frozen=True, kw_only=True)
class Note:
    """A note of a run, to report later; the fields are the arguments of `Report.note`."""

    kind: Literal["flag", "warning", "info", "sample"]
    name: str
    message: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EventPosition:
    """How far events.jsonl was read: the byte after the last line, and the bytes before it."""

    end: int
    tail: bytes


class RunDirectory:
    """Paths and state of one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.inputs = self.path / "inputs"
        self.outputs = self.path / "outputs"
        self.checkpoint = self.path / "checkpoint"
        self.model = self.path / "model"
        self.snapshots = self.path / "snapshots"
        self.events = self.path / "events.jsonl"
        self.log = self.path / "log.txt"
        self.resources = self.path / "resources.jsonl"
        self.handle = self.path / "handle.json"
        self.heartbeat = self.path / "heartbeat.json"
        self.transfer = self.path / "transfer.json"

    @classmethod
    def create(cls, path: Path, job: Job) -> RunDirectory:
        """Create the directory and its job.json; the caller fills `inputs/`."""
        directory = cls(path)
        for folder in (directory.inputs, directory.outputs):
            folder.mkdir(parents=True, exist_ok=True)
        directory.write_job(job)
        return directory

    def write_job(self, job: Job) -> None:
        data = asdict(job) | {"config": job.config.to_dict()}
        for name, place in self._places().items():
            data = _with_prefix(data, f"{place}/", f"{name}/")
        write_atomically(self.path / "job.json", json.dumps(data, indent=2))

    def job(self) -> Job:
        data = json.loads((self.path / "job.json").read_text())
        for name, place in self._places().items():
            data = _with_prefix(data, f"{name}/", f"{place}/")
        if data.get("stage") == "ppo":  # its name in older workspaces
            data["stage"] = "policy"
        return Job(**(data | {"config": Config.from_dict(data["config"])}))

    def _places(self) -> dict[str, Path]:
        """What job.json calls folders that a node may see elsewhere; the workspace may be in the other."""
        own = self.path.resolve()
        workspace = own.parents[min(1, len(own.parents) - 1)]
        return {"$WORKSPACE": workspace, "$KITESTRING": Path(__file__).parents[2]}

    def is_running(self) -> bool:
        """Whether a worker holds the lock."""
        try:
            with (self.path / "lock").open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def hold_lock(self) -> io.IOBase:
        """Take the lock, held while the returned handle is open; RuntimeError if it is taken.

        The starter takes it and passes it on (`LOCK_FD`), so that a healthy worker always holds it.
        """
        inherited = os.environ.pop(LOCK_FD, None)
        if inherited is not None:
            return os.fdopen(int(inherited), "ab")
        handle = (self.path / "lock").open("ab")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            raise RuntimeError(f"another worker is already running in {self.path}") from None
        return handle

    def result(self) -> dict[str, Any] | None:
        """The summary of a stage that succeeded, or None."""
        return read_json(self.path / "result.json")

    def write_result(self, summary: Mapping[str, Any]) -> None:
        """Store the summary; a successful worker does this last."""
        write_atomically(self.path / "result.json", json.dumps(summary, indent=2, default=str))

    def write_error(self, reason: str, traceback: str = "") -> None:
        text = json.dumps({"reason": reason, "traceback": traceback}, indent=2)
        write_atomically(self.path / "error.json", text)

    def failure(self, exit_status: int | None = None) -> str:
        """The reason why a run with neither a lock nor a result ended.

        `exit_status` is the worker's `Popen.returncode`; None if another process started it.
        """
        if not self.path.exists():
            return "its run directory is missing: the run was active when the backup was made"
        if error := self.error():
            return error
        if exit_status == -signal.SIGKILL:
            return (
                "the worker was killed (SIGKILL); if nobody did it, memory ran out: lower the stage's "
                "batch (ppo.micro_batch_tokens, ppo.rollout_batch, sampling.batch) or max_new_tokens, "
                "or use a smaller model"
            )
        return "the worker was killed or crashed; its log may say more"

    def error(self) -> str | None:
        """The reason that the worker stored, if any."""
        found = read_json(self.path / "error.json")
        return str(found["reason"]) if found else None

    def has_outcome(self) -> bool:
        """Whether the newest attempt has succeeded, or its error is stored."""
        return self.result() is not None or self.error() is not None

    def request_cancel(self, when: datetime) -> bool:
        """Record a request to stop; False if there was one, which counts."""
        if self.cancel_requested_at() is not None:
            return False
        write_atomically(self.path / "cancel", when.isoformat())
        return True

    def cancel_requested_at(self) -> datetime | None:
        """When the stage was asked to stop, or None."""
        with suppress(FileNotFoundError):
            return datetime.fromisoformat((self.path / "cancel").read_text())
        return None

    def clear_outcome(self) -> None:
        """Remove the outcome of an earlier attempt."""
        for name in _OUTCOME:
            (self.path / name).unlink(missing_ok=True)

    def has_checkpoint(self) -> bool:
        return self.checkpoint.is_dir() and any(self.checkpoint.iterdir())

    def log_tail(self, lines: int = 200) -> str:
        """The end of log.txt (at most the last 256 KiB are read)."""
        with suppress(FileNotFoundError), self.log.open("rb") as handle:
            handle.seek(max(0, self.log.stat().st_size - 262_144))
            return "\n".join(handle.read().decode("utf-8", "replace").splitlines()[-lines:])
        return ""

    def append_log(self, text: str) -> None:
        """Append a line with the time in UTC to log.txt."""
        stamp = datetime.now(UTC).strftime("%H:%M:%S")
        with self.log.open("a", encoding="utf-8") as handle:
            handle.write(f"{stamp} {text}\n")

    def events_after(self, attempt: int, seq: int) -> Iterator[dict[str, Any]]:
        """Events after (attempt, seq), without an incomplete last line."""
        with suppress(FileNotFoundError), self.events.open("rb") as handle:
            for _, event in _complete(handle):
                if (event["attempt"], event["seq"]) > (attempt, seq):
                    yield event

    def follow_events(
        self, attempt: int, seq: int, place: EventPosition | None
    ) -> tuple[list[dict[str, Any]], EventPosition | None]:
        """`events_after`, read from `place`, and the position where reading ended.

        The file of a long run has megabytes.  If a resumed worker removed lines, the file is read
        from the beginning.
        """
        with suppress(FileNotFoundError), self.events.open("rb") as handle:
            start = place.end if place and _tail(handle, place.end) == place.tail else 0
            handle.seek(start)
            read = list(_complete(handle, *((attempt, seq) if start else (1, 0))))
            end = start + (read[-1][0] if read else 0)
            found = [
                event for _, event in read if (event["attempt"], event["seq"]) > (attempt, seq)
            ]
            return found, EventPosition(end, _tail(handle, end))
        return [], None

    def progress_events(self, attempt: int = 1) -> list[dict[str, Any]]:
        """The progress events of `attempt` and later ones, oldest first."""
        return [event for event in self.events_after(attempt, 0) if event["kind"] == "progress"]


class Report:
    """Writes the events of a stage; each call is one line.

    Events have an `attempt` and a number `seq`.  After a resume, `rewind(seq)` truncates the file to
    the checkpoint, so that no step is reported twice.
    """

    def __init__(self, directory: RunDirectory, *, attempt: int = 1) -> None:
        self._directory = directory
        self._attempt = attempt
        directory.path.mkdir(parents=True, exist_ok=True)
        self.listeners: list[Callable[[Mapping[str, float], int], None]] = []
        """Called with the values and step of every `metrics` event."""
        self.seq = self._drop_torn_line()
        self._handle = directory.events.open("ab", buffering=0)

    def progress(self, done: float, total: float, message: str = "") -> None:
        self._emit(kind="progress", done=done, total=total, message=message)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._emit(kind="metrics", step=step, values=dict(values))
        for listener in self.listeners:
            listener(values, step)

    def note(self, kind: str, name: str, message: str, *, step: int = 0, **payload: Any) -> None:
        """`kind` is flag (a red flag), warning, info or sample."""
        self._emit(kind="note", note=kind, name=name, message=message, step=step, payload=payload)

    def add(self, note: Note, *, step: int = 0) -> None:
        """Report a note that was made earlier."""
        self.note(note.kind, note.name, note.message, step=step, **note.payload)

    def log(self, text: str) -> None:
        """Add a line to log.txt, where the worker's standard output goes too."""
        self._directory.append_log(text)

    def rewind(self, seq: int) -> None:
        """Remove all events after `seq`."""
        with self._directory.events.open("rb+") as handle:
            kept = [end for end, event in _complete(handle) if event["seq"] <= seq]
            handle.truncate(kept[-1] if kept else 0)
        self.seq = seq

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _emit(self, **event: Any) -> None:
        self.seq += 1
        line = {"seq": self.seq, "attempt": self._attempt, "time": time.time()} | event
        rest = (json.dumps(line, default=_python_number) + "\n").encode()
        start = self._handle.seek(0, os.SEEK_END)
        try:
            while rest:  # if the disk is almost full, only a part is written
                rest = rest[self._handle.write(rest) :]
        except OSError:
            self._handle.truncate(start)
            raise

    def _drop_torn_line(self) -> int:
        """Remove an incomplete last line; return the last sequence number."""
        seq = kept = 0
        with suppress(FileNotFoundError), self._directory.events.open("rb+") as handle:
            for kept, event in _complete(handle):  # noqa: B007 (both are used after the loop)
                seq = event["seq"]
            handle.truncate(kept)
        return seq


def _tail(handle: IO[bytes], end: int) -> bytes:
    """The last bytes before `end`, which identify the line that ends there."""
    handle.seek(max(0, end - _TAIL))
    return handle.read(min(end, _TAIL))


def _complete(
    handle: IO[bytes], attempt: int = 1, seq: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events from the file's position on, each with the number of bytes up to its end.

    An incomplete last line is left out.  `attempt` and `seq` are those of the previous event.  A
    line that cannot be read, as after a crash of the machine, becomes a warning.
    """
    end = 0
    for line in handle:
        if not line.endswith(b"\n"):
            return
        end += len(line)
        try:
            event = json.loads(line)
            seq, attempt = event["seq"], event["attempt"]
        except (ValueError, KeyError, TypeError):
            seq += 1
            message = "a line of events.jsonl cannot be read; its event is missing"
            event = {
                "seq": seq, "attempt": attempt, "kind": "note", "note": "warning",
                "name": "events", "message": message, "step": 0, "payload": {},
            }  # fmt: skip
        yield end, event


def _python_number(value: Any) -> Any:
    """numpy and torch scalars as Python numbers."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be stored in an event")


def _with_prefix(value: Any, old: str, new: str) -> Any:
    """A copy in which each text that starts with `old` starts with `new` instead."""
    if isinstance(value, dict):
        return {key: _with_prefix(each, old, new) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_prefix(each, old, new) for each in value]
    if isinstance(value, str) and value.startswith(old):
        return new + value[len(old) :]
    return value


def read_text(path: Path) -> str | None:
    """What a file contains; None if there is none."""
    with suppress(FileNotFoundError):
        return path.read_text()
    return None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is none."""
    text = read_text(path)
    return None if text is None else json.loads(text)


def write_atomically(path: Path, text: str) -> None:
    """Write a sibling, fsync it, rename: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
