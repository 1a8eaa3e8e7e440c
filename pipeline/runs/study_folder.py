"""A study's folder: what the study does, which process runs it, and what came of it.

::

    WORKSPACE/sweeps/NAME/, compare/NAME/ or retrain/NAME/
        study.json              what the study does (`Spec`)
        lock                    locked by the process that runs the study, as long as it lives
        pid, cancel, error.json, result.json, log.txt    as in a run directory
        sweep.json, sweep.svg   the report; or compare.json and .svg, retrain.json and .svg
        kl_weight=0.05          a run directory for each value of a sweep
        ppo/train, ppo/measure  run directories for each method of a comparison
        retrained, control-1    run directories for each reward model that is trained again
        inputs/                 what such a study needs of the database (`FACTS`, `EVIDENCE`, `ORIGINAL`)

A command runs a study in its own process, the studio in a child process (`pipeline.studies`).  Both
write the same files, so the studio follows both (`pipeline.loop.studies`).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.runs import process
from pipeline.runs.cancellation import WAS_CANCELLED
from pipeline.runs.repeat import (
    compare_settings,
    folder_of,
    newest_ppo_run,
    newest_run,
    sweep_settings,
)
from pipeline.runs.rundir import LOCK_FD, RunDirectory, write_atomically
from storage.records import STUDY_FOLDERS, StudyKind, now

METHODS = ("sft", "best_of_n", "ppo", "grpo", "reinforce++", "dpo", "rloo")
"""The methods that a comparison knows."""
TRAINED = ("ppo", "grpo", "reinforce++", "dpo", "rloo")
"""Those that train a policy."""
MAX_BETA = 1e6
"""Far above any useful value, and far below the values at which a loss overflows."""
_TITLES = {
    "sft": "SFT", "best_of_n": "best-of-N", "ppo": "PPO", "grpo": "GRPO", "reinforce++": "REINFORCE++",
    "dpo": "DPO", "rloo": "RLOO",
}  # fmt: skip
RETRAINED = "retrained"
"""The label of the reward model that is trained without the judgments that a study leaves out."""
MAX_CONTROLS = 20
"""Reward models that a study trains without random judgments."""
FACTS, EVIDENCE, ORIGINAL = "facts.parquet", "evidence.json", "original.json"
"""Inputs of a study that trains a reward model again: its judgments, and which of them are left out; the
gate's evidence; and the path of the original reward model."""
EVALUATIONS = "evaluations.parquet"
"""An input of such a study and of its workers: a response of a policy and one of the SFT reference to
each prompt of the policy's evaluation (`storage.retraining`)."""
_VALUES = ("kl_weight", "methods", "controls")
_JUDGED_BY = ("kl_budget", "kl", "gold")
"""Values of a plan by which results are compared; they change no run."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a study does: the record `storage.records.Study` has the same fields.

    The plan of a sweep has `kl_weight`, the values of β, and `kl_budget`, nats.  That of a comparison
    has `methods`, `kl`, nats, `snapshots` and `gold`, a function as module:function or None.  That of
    a reward model that is trained again has the `model`, the number of `controls`, and the rule that
    keeps judgments (`without`, `only`, `guidelines`, `before`).  `evaluation` is the run whose
    held-out prompts a comparison uses.
    """

    kind: StudyKind
    name: str
    plan: Mapping[str, Any]
    settings: Mapping[str, str] = field(default_factory=dict)
    repeats: str
    iteration: int
    evaluation: str | None = None
    created_by: str = ""
    created_at: str = ""
    started_at: str = ""

    def differs(self, other: Spec, *, values: bool = True) -> list[str]:
        """What makes `other` another study, as ``snapshots: 5 → 2``; without `values`, it may have
        other values of β, other methods or another number of controls."""
        one, two = self._identity(), other._identity()
        if not values:
            one, two = ({k: v for k, v in each.items() if k not in _VALUES} for each in (one, two))
        return [
            f"{key}: {one.get(key)} → {two.get(key)}"
            for key in {**one, **two}
            if one.get(key) != two.get(key)
        ]

    def _identity(self) -> dict[str, Any]:
        plan = {key: value for key, value in self.plan.items() if key not in _JUDGED_BY}
        settings = {
            key: _number(text)
            for key, text in self.settings.items()
            if not key.startswith("worker.")
        }
        return plan | settings | {"the run that is repeated": self.repeats}


def _number(text: str) -> float | str:
    """1e-3 and 0.001 are the same value."""
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class Part:
    """A value of a sweep, a method or a reward model: its folder's name, its title, and its run
    directories in order."""

    label: str
    title: str
    method: str
    directories: tuple[RunDirectory, ...]


class StudyFolder(RunDirectory):
    """Paths and state of one study."""

    def __init__(self, workspace: Path, kind: StudyKind, name: str) -> None:
        super().__init__(folder_of(workspace / STUDY_FOLDERS[kind], name))
        self.kind: StudyKind = kind
        self.name = name

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.name}"

    def spec(self) -> Spec | None:
        """What the study does; None in a folder of an earlier version."""
        with suppress(FileNotFoundError):
            data = json.loads((self.path / "study.json").read_text())
            known = {each.name for each in fields(Spec)}
            return Spec(**{key: value for key, value in data.items() if key in known})
        return None

    def write_spec(self, spec: Spec) -> None:
        write_atomically(self.path / "study.json", json.dumps(asdict(spec), indent=1))

    def parts(self, spec: Spec) -> list[Part]:
        """The runs of the study, in the order in which they are made."""
        if spec.kind == "sweep":
            labels = {f"kl_weight={kl:g}": f"β = {kl:g}" for kl in spec.plan["kl_weight"]}
            return [
                Part(label, title, "PPO", (RunDirectory(self.path / label),))
                for label, title in labels.items()
            ]
        if spec.kind == "retrain":
            labels = {RETRAINED: "retrained"} | {
                f"control-{n}": f"control {n}" for n in range(1, spec.plan["controls"] + 1)
            }
            return [
                Part(label, title, "reward model", (RunDirectory(self.path / label),))
                for label, title in labels.items()
            ]
        return [
            Part(
                method,
                _TITLES[method],
                _TITLES[method],
                tuple(
                    RunDirectory(self.path / method / step)
                    for step in (("train", "measure") if method in TRAINED else ("measure",))
                ),
            )
            for method in dict.fromkeys(["sft", *spec.plan["methods"]])
        ]

    def is_active(self) -> bool:
        """Whether the study runs, or a worker that its killed process left behind."""
        return self.is_running() or any(each.is_running() for each in self._workers())

    def _workers(self) -> list[RunDirectory]:
        pattern = "*/*/lock" if self.kind == "compare" else "*/lock"
        return [RunDirectory(path.parent) for path in self.path.glob(pattern)]

    def stop(self, when: datetime) -> None:
        """Ask the process of the study, or the worker that it left behind, to stop."""
        self.request_cancel(when)
        if self.is_running():
            # The process holds the lock, so the recorded id is its own.
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(int((self.path / "pid").read_text()), signal.SIGTERM)
            return
        for worker in self._workers():
            if worker.is_running():
                process.cancel(worker, when)


def all_folders(workspace: Path) -> list[StudyFolder]:
    """The folders of all studies that say what they do."""
    return [
        StudyFolder(workspace, kind, path.parent.name)
        for kind, folder in STUDY_FOLDERS.items()
        for path in sorted(workspace.glob(f"{folder}/*/study.json"))
    ]


def planned(
    workspace: Path,
    kind: StudyKind,
    name: str,
    plan: Mapping[str, Any],
    settings: Mapping[str, str],
    *,
    created_by: str = "",
) -> Spec:
    """A sweep or a comparison, which repeats the newest PPO run.

    ValueError if there is none, or no evaluation that a comparison needs, or if a setting is not
    valid.
    """
    source, evaluation = newest_ppo_run(workspace), newest_run(workspace, "evaluate")
    if kind == "compare" and evaluation is None:
        raise ValueError(
            f"{workspace} has no evaluation, so no held-out prompts to compare on; finish an "
            "iteration (`launch.py iterate`) first"
        )
    if kind == "sweep":
        sweep_settings(source, plan["kl_weight"], settings)
    else:
        compare_settings(source, plan["snapshots"], settings)
    return Spec(
        kind=kind,
        name=name,
        plan=plan,
        settings=settings,
        repeats=source.path.name,
        iteration=source.job().iteration,
        evaluation=evaluation.path.name if evaluation and kind == "compare" else None,
        created_by=created_by,
        created_at=now().isoformat(),
    )


@contextmanager
def starting(workspace: Path) -> Iterator[None]:
    """Held by whoever looks for something that trains and then starts a stage or a study.

    Otherwise a command and the studio could both find the machine free and both start.
    """
    with (workspace / "starting.lock").open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def active_study(workspace: Path) -> StudyFolder | None:
    """The study that runs now."""
    return next((each for each in all_folders(workspace) if each.is_active()), None)


def busy(workspace: Path) -> str | None:
    """Why no study can start: a stage, a learning curve or another study runs.  None if it can."""
    if (study := active_study(workspace)) is not None:
        return f"the study {study.name} is running; wait until it ends, or cancel it"
    for folder, what in (("runs", "a stage"), ("reward_curves", "a learning curve")):
        for lock in workspace.glob(f"{folder}/*/lock"):
            if RunDirectory(lock.parent).is_running():
                return f"{what} is running ({lock.parent.name}); start the study when it has ended"
    return None


@contextmanager
def conducting(workspace: Path, spec: Spec) -> Iterator[StudyFolder]:
    """Run the block as the process of a study: locked, and with its outcome in the folder.

    Raises ValueError if something else trains, RuntimeError if another process runs the study.
    """
    folder = StudyFolder(workspace, spec.kind, spec.name)
    if LOCK_FD in os.environ:  # the studio has looked, and holds the lock for this process
        lock = folder.hold_lock()
    else:
        with starting(workspace):
            lock = claim(workspace, folder, spec)
    with lock:
        write_atomically(folder.path / "pid", str(os.getpid()))
        try:
            with _leaving_with_the_terminal():
                yield folder
        except (KeyboardInterrupt, SystemExit):
            folder.request_cancel(now())
            folder.write_error(WAS_CANCELLED)
            raise
        except Exception as error:
            folder.write_error(str(error) or type(error).__name__)
            raise
        folder.write_result({})


@contextmanager
def _leaving_with_the_terminal() -> Iterator[None]:
    """Stop the study when its terminal is closed, as Ctrl-C does: its worker has its own session."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def claim(workspace: Path, folder: StudyFolder, spec: Spec) -> Any:
    """Lock the folder and write what the study does; call it in `starting`."""
    if folder.is_running():
        raise RuntimeError(
            f"another command is running in {folder.path}; wait until it ends, stop it, or give this "
            "one another --name"
        )
    left_behind = not folder.is_running() and folder.is_active()
    if not left_behind and (reason := busy(workspace)):
        raise ValueError(reason)
    require_same(folder, spec)
    known = folder.spec()
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = folder.hold_lock()
    folder.clear_outcome()
    first = known or spec
    folder.write_spec(
        replace(
            spec,
            created_at=first.created_at,
            created_by=first.created_by,
            started_at=now().isoformat(),
        )
    )
    return lock


def require_same(folder: StudyFolder, spec: Spec) -> None:
    """ValueError if the folder belongs to another study; its values may differ."""
    known = folder.spec()
    if known and (found := known.differs(spec, values=False)):
        raise ValueError(
            f"{folder.path} belongs to a study with other settings or models ({'; '.join(found)}); "
            "give this one another --name"
        )
