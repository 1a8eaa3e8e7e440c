"""Repeats stages of a workspace, for studies.

The database does not change, so a study can run while the server runs.  Each run is a worker with
its own run directory; an interrupted study can be continued.
"""

from __future__ import annotations

import fcntl
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.sections import Config
from pipeline.runs import process
from pipeline.runs.rundir import Job, RunDirectory
from storage.records import now

Progress = Callable[[str], None]
_PAUSE = 0.5
"""Seconds between two looks at a worker."""


def newest_run(workspace: Path, stage: str, *, iteration: int | None = None) -> RunDirectory | None:
    """The newest run of a stage that has its inputs, or None."""
    # The newest first: pages ask every few seconds, and reading a job takes longer than its date.
    files = sorted(
        workspace.glob("runs/*/job.json"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for directory in (RunDirectory(path.parent) for path in files):
        if _is_of(directory.job(), stage, iteration) and any(directory.inputs.iterdir()):
            return directory
    return None


def newest_ppo_run(workspace: Path) -> RunDirectory:
    """The newest run of the policy stage; ValueError if there is none."""
    found = newest_run(workspace, "policy")
    if found is None:
        raise ValueError(
            f"{workspace} has no PPO run to repeat; train once (`launch.py iterate`) first"
        )
    return found


def chosen_settings(source: RunDirectory, overrides: Mapping[str, Any]) -> Config:
    """The settings of a repetition; ValueError for settings that select models or the seed."""
    had = source.job().config
    config = had.override(overrides)
    before, after = values(had), values(config)
    if after["seed"] != before["seed"]:
        raise ValueError(
            "seed cannot differ from the repeated run's; --set ppo.seed=… changes the seed of PPO"
        )
    for name in ("ppo.start_from", "shaping.extra_reward_models"):
        if after[name] != before[name]:
            raise ValueError(
                f"{name} selects the models of a run, and this command repeats the newest PPO run "
                f"with its models; train once with --set {name} (`launch.py iterate`) first"
            )
    return config


def sweep_settings(
    source: RunDirectory, kl_weights: Sequence[float], overrides: Mapping[str, str]
) -> list[Config]:
    """The settings of each run of a sweep over β; ValueError if one of them is not valid."""
    config = chosen_settings(source, {"optimize.method": "ppo"} | dict(overrides))
    return [config.override({"ppo.kl_weight": kl_weight}) for kl_weight in kl_weights]


def compare_settings(source: RunDirectory, snapshots: int, overrides: Mapping[str, str]) -> Config:
    """The settings of the runs of a comparison of methods; ValueError if they are not valid."""
    return chosen_settings(source, {"optimize.snapshots": snapshots} | dict(overrides))


def folder_of(place: Path, name: str) -> Path:
    """The study's folder `name` in `place`; ValueError unless the name is a plain folder name."""
    if not re.fullmatch(r"\w[\w .=+-]{0,99}", name):
        raise ValueError(
            f"--name {name!r} must be a plain folder name: letters, digits and -_.=+ (100 at most, "
            "a letter or digit first)"
        )
    return place / name


@contextmanager
def exclusive(folder: Path, *, option: str = "--name") -> Iterator[None]:
    """Create and lock a study's folder; RuntimeError if another command has locked it."""
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
    """On Ctrl-C, say that the command can continue."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("stopped; run the same command to continue\n")
        raise


def run_to_end(
    path: Path,
    job: Job,
    *,
    fill: Callable[[Path], Any],
    progress: Progress,
    apart: bool = False,
) -> RunDirectory:
    """Run a job in the run directory `path`, unless it is done; `fill(inputs)` writes its inputs.

    The job continues from its checkpoint, if any, and stops with this process.  A worker that is
    `apart` has its own session and outlives this process if that is killed; the next call waits for
    it.  Raises ValueError if the directory belongs to other models or settings (`worker.*` may
    differ), RuntimeError if the job fails.
    """
    path.mkdir(parents=True, exist_ok=True)
    directory = RunDirectory(path)
    if apart:
        _wait_for(directory, progress)
    # If an earlier command was killed, its worker may still run.
    with directory.hold_lock() as lock:
        if prepared(directory, job, fill=fill):
            _follow(directory, lock.fileno(), progress, apart=apart)
        else:
            progress("done before")
    return directory


def prepared(directory: RunDirectory, job: Job, *, fill: Callable[[Path], Any]) -> bool:
    """Prepare a locked directory for a worker; False if the job is done.

    Raises ValueError as `run_to_end` does.
    """
    path = directory.path
    known = directory.job() if (path / "job.json").exists() else None
    given = (
        job if known is None or known.repeats else replace(job, repeats=None)
    )  # of older versions
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
    """``key: stored → given`` for all differences but `worker.*`, which may change."""
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
    # After a restore, other models may have the same names; the run identifies them.
    models = {f"the {key} model": path for key, path in job.models.items()}
    return values(job.config) | models | {"the run that is repeated": job.repeats}


def copy_inputs(source: RunDirectory, *names: str) -> Callable[[Path], None]:
    """A `fill` that copies these files of another run's inputs; all files if none is named."""

    def fill(inputs: Path) -> None:
        for path in [source.inputs / name for name in names] or source.inputs.iterdir():
            shutil.copy(path, inputs)

    return fill


def _is_of(job: Job, stage: str, iteration: int | None) -> bool:
    return job.stage == stage and iteration in (None, job.iteration)


def _follow(directory: RunDirectory, lock: int, progress: Progress, *, apart: bool) -> None:
    """Run the worker, which inherits the lock, until it ends; RuntimeError if it fails."""
    worker = (
        process.spawn(directory, lock) if apart else process.start(directory, lock, outlives=False)
    )
    shown = ""
    try:
        while worker.poll() is None:
            time.sleep(_PAUSE)
            if (message := _last_progress(directory)) != shown:
                shown = message
                progress(shown)
    finally:
        if worker.poll() is None:
            progress("stopping; finished work is kept")
            if apart:
                process.cancel(directory, now())
                while worker.poll() is None:
                    process.kill_if_late(directory, now())
                    time.sleep(_PAUSE)
            else:
                worker.terminate()
                worker.wait()
    if directory.result() is None:
        why = directory.failure(worker.returncode)
        raise RuntimeError(f"{directory.path.name} failed: {why}")


def _wait_for(directory: RunDirectory, progress: Progress) -> None:
    """Wait for a worker whose process was killed; if this process is stopped, so is the worker."""
    shown = ""
    try:
        while directory.is_running():
            if (message := _last_progress(directory)) != shown:
                shown = message
                progress(shown)
            time.sleep(_PAUSE)
    finally:
        if directory.is_running():
            process.cancel(directory, now())
            while directory.is_running():
                process.kill_if_late(directory, now())
                time.sleep(_PAUSE)


def _last_progress(directory: RunDirectory) -> str:
    events = directory.progress_events(directory.job().attempt)
    return events[-1]["message"] if events else ""


def nats(option: str, value: float) -> float:
    """A KL in nats; ValueError unless it is finite and positive."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{option} {value:g} must be a number of nats above 0")
    return value
