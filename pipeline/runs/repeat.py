"""Runs outside the loop, for studies that compare them: the workspace's own stages, repeated.

Nothing of the database changes, and a study runs beside a live server.  Each run is a worker of
its own in a run directory of its own; a study that was stopped goes on where it was.
"""

from __future__ import annotations

import fcntl
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.studio import Config
from pipeline.runs import process
from pipeline.runs.rundir import Job, RunDirectory

Progress = Callable[[str], None]


def newest_run(workspace: Path, stage: str, *, iteration: int | None = None) -> RunDirectory | None:
    """The newest run of a stage that was given its inputs; None where there is none."""
    found = [RunDirectory(path.parent) for path in workspace.glob("runs/*/job.json")]
    started = [d for d in found if _is_of(d.job(), stage, iteration) and any(d.inputs.iterdir())]
    return max(started, key=lambda d: (d.path / "job.json").stat().st_mtime, default=None)


def newest_ppo_run(workspace: Path) -> RunDirectory:
    """The run that improved the policy last; ValueError where there is none."""
    found = newest_run(workspace, "policy")
    if found is None:
        raise ValueError(
            f"{workspace} has no PPO run to repeat; train once (`launch.py iterate`) first"
        )
    return found


def chosen_settings(source: RunDirectory, overrides: Mapping[str, Any]) -> Config:
    """The settings with which a run is repeated.

    ValueError for those that chose its models and its seed: a repetition has the same ones.
    """
    had = source.job().config
    config = had.override(overrides)
    before, after = values(had), values(config)
    if after["seed"] != before["seed"]:
        raise ValueError(
            "seed is that of the run that is repeated; --set ppo.seed gives PPO another course"
        )
    for name in ("ppo.start_from", "shaping.extra_reward_models"):
        if after[name] != before[name]:
            raise ValueError(
                f"{name} chooses the models of a run, and this repeats the newest PPO run with the "
                f"models that it had; train once with --set {name} (`launch.py iterate`) first"
            )
    return config


def folder_of(place: Path, name: str) -> Path:
    """The study's folder under `place`; ValueError unless the name is that of a plain folder."""
    if not re.fullmatch(r"\w[\w .=+-]{0,99}", name):
        raise ValueError(
            f"--name {name!r} must be a plain folder name: letters, digits and -_.=+ (100 at most, "
            "a letter or digit first)"
        )
    return place / name


@contextmanager
def exclusive(folder: Path, *, option: str = "--name") -> Iterator[None]:
    """Have a study's folder, made here, to ourselves; RuntimeError where another command has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another command is running in {folder}; wait until it ends, stop it, or give this "
                f"one another {option}"
            ) from None
        yield


@contextmanager
def stoppable() -> Iterator[None]:
    """For commands that go on where they were: Ctrl-C says so."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command to go on\n")
        raise


def run_to_end(
    path: Path, job: Job, *, fill: Callable[[Path], Any], progress: Progress
) -> RunDirectory:
    """Do a job in the run directory `path`, unless it is done; `fill(inputs)` writes its inputs.

    It starts from its checkpoint where there is one, and stops with us.  Raises ValueError where
    the directory belongs to other settings (the machine's may change) or models, RuntimeError
    where the job fails.
    """
    path.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(path)
    # Where we were killed, our worker may live on.
    with directory.hold_lock() as lock:
        if prepared(directory, job, fill=fill):
            _follow(directory, lock.fileno(), progress)
        else:
            progress("done before")
    return directory


def prepared(directory: RunDirectory, job: Job, *, fill: Callable[[Path], Any]) -> bool:
    """Whether there is anything to do; if so, the directory, whose lock we hold, is ready for a worker.

    Raises ValueError as `run_to_end` does.
    """
    path = directory.path
    known = directory.job() if (path / "job.json").exists() else None
    given = job if known is None or known.repeats else replace(job, repeats=None)  # older ones
    if known and (found := differences(_identity(known), _identity(given))):
        raise ValueError(
            f"{path} belongs to a study with other settings or models ({'; '.join(found)}); give "
            "this one another --name"
        )
    if directory.result() is not None:
        return False
    attempt = known.attempt + 1 if known else 1
    resume = directory.has_checkpoint()
    RunDirectory.create(path, replace(job, attempt=attempt, resume=resume))
    directory.clear_outcome()
    fill(directory.inputs)
    return True


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """``key: stored → given`` for what makes another study of it.

    The machine's settings (`worker.*`) do not: a study may go on with more threads.
    """
    keys = [key for key in {**stored, **given} if not key.startswith("worker.")]
    return [
        f"{key}: {stored.get(key)} → {given.get(key)}"
        for key in keys
        if stored.get(key) != given.get(key)
    ]


def values(config: Config) -> dict[str, Any]:
    """Every setting by its name."""
    return {setting.name: setting.value for setting in config.settings()}


def _identity(job: Job) -> dict[str, Any]:
    # After a restore, models of the same names may be others; the run that was given them is not.
    models = {f"the {key} model": path for key, path in job.models.items()}
    return values(job.config) | models | {"the run that is repeated": job.repeats}


def copy_inputs(source: RunDirectory, *names: str) -> Callable[[Path], None]:
    """A `fill` that copies these files of another run's inputs; all of them when none is named."""

    def fill(inputs: Path) -> None:
        for path in [source.inputs / name for name in names] or source.inputs.iterdir():
            shutil.copy(path, inputs)

    return fill


def _is_of(job: Job, stage: str, iteration: int | None) -> bool:
    return job.stage == stage and iteration in (None, job.iteration)


def _follow(directory: RunDirectory, lock: int, progress: Progress) -> None:
    """Run the worker, which inherits the lock, to its end; it stops with us.

    RuntimeError says why it failed.
    """
    worker = process.start(directory, lock, outlives=False)
    said = ""
    try:
        while worker.poll() is None:
            time.sleep(0.5)
            if (message := _last_progress(directory)) != said:
                said = message
                progress(said)
    finally:
        if worker.poll() is None:
            progress("stopping; what is finished stays")
            worker.terminate()
            worker.wait()
    if directory.result() is None:
        raise RuntimeError(f"{directory.path.name} failed: {directory.failure()}")


def _last_progress(directory: RunDirectory) -> str:
    events = directory.progress_events(directory.job().attempt)
    return events[-1]["message"] if events else ""


def nats(option: str, value: float) -> float:
    """A divergence to compare at; ValueError unless it is a finite positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{option} {value:g} must be a number of nats above 0")
    return value
