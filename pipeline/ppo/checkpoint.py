"""Checkpoints: what they hold, how they are written, and which run may resume from them.

A checkpoint is whole or absent; the newest two are kept; every random state is inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch

from pipeline.ppo.config import PPOConfig
from pipeline.ppo.distributed import load_states, optimizer_state, trained_state
from pipeline.ppo.model import shapes_hash
from pipeline.ppo.rewards import Baseline, Rewarder

_KEPT = 2
_FILE = "state.pt"


class DamagedCheckpoint(ValueError):
    """A checkpoint's file is not what was written: `path`, its `step` and the `reason`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the checkpoint {path} is damaged ({reason})")
        self.path, self.reason = path, reason

    @property
    def step(self) -> int:
        return _step(self.path)


class NoReadableCheckpoint(ValueError):
    """None of a run's checkpoints is what was written."""


def writable(directory: Path) -> Path:
    """The folder of checkpoints to be; ValueError, before any work, where none can be made.

    It is made with the first checkpoint: an empty one would look like something to resume.
    """
    parent = directory.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        denied = None if os.access(parent, os.W_OK) else "Permission denied"
    except OSError as error:
        denied = error.strerror
    if denied:
        raise ValueError(
            f"no checkpoints can be written to {directory} ({denied}); choose another directory"
        )
    return directory


def save_checkpoint(directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `directory/step-000042/state.pt`, then remove all but the newest two.

    The checkpoint is written and synced under another name and renamed, and renamed again
    before it is removed, so one that can be seen is complete at every moment.
    """
    final = checkpoint_path(directory, step)
    draft = directory / f".{final.name}.tmp"
    _remove_leftovers(directory)
    draft.mkdir(parents=True)
    with (draft / _FILE).open("wb") as file:
        _write(state, file)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(draft)
    if final.exists():  # The caller has written this update's already.
        _hide(final)
    draft.rename(final)
    _sync_directory(directory)
    for old in list_checkpoints(directory)[:-_KEPT]:
        _hide(old)
    _remove_leftovers(directory)
    return final


def _write(state: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # torch's zip writer replaces the disk's error with one of its own.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _hide(checkpoint: Path) -> None:
    """Take a checkpoint out of sight in one step; emptying a folder takes several."""
    checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.old"))


def _remove_leftovers(directory: Path) -> None:
    """Remove what is being thrown away, and what a killed process was writing or throwing away."""
    for hidden in directory.glob(".step-*"):
        shutil.rmtree(hidden)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it can run code.

    Raises DamagedCheckpoint for a file that is cut off, changed or missing.
    """
    try:
        with zipfile.ZipFile(path / _FILE) as parts:
            # torch reads a record without looking at the checksum it stored.
            damaged = parts.testzip()
        if damaged is None:
            return torch.load(path / _FILE, map_location="cpu", weights_only=True)
        reason = f"{damaged} is not what was written"
    except FileNotFoundError:
        reason = f"{_FILE} is missing"
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    raise DamagedCheckpoint(path, reason)


def load_newest(found: Sequence[Path]) -> tuple[Path, dict[str, Any], list[DamagedCheckpoint]]:
    """The newest of these checkpoints that can be read, its state, and the damaged newer ones.

    `found` runs from old to new.  Raises NoReadableCheckpoint when all are damaged.
    """
    damaged: list[DamagedCheckpoint] = []
    for path in reversed(found):
        try:
            return path, load_checkpoint(path), damaged
        except DamagedCheckpoint as error:
            damaged.append(error)
    each = "; ".join(f"{error.path.name}: {error.reason}" for error in damaged)
    raise NoReadableCheckpoint(
        f"no checkpoint can be read in {found[-1].parent} ({each}); start the run again from the "
        "beginning, in an empty directory"
    )


def set_aside(damaged: Sequence[DamagedCheckpoint]) -> None:
    """Rename damaged checkpoints to ``damaged-…``, so that they are not counted among the kept."""
    for error in damaged:
        aside = error.path.with_name(f"damaged-{error.path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        error.path.rename(aside)


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}"


def list_checkpoints(directory: Path | None) -> list[Path]:
    """Complete checkpoints, oldest first; anything else that lies beside them is left alone."""
    found = directory.iterdir() if directory is not None and directory.is_dir() else ()
    ours = [path for path in found if re.fullmatch(r"step-\d{6,}", path.name) and path.is_dir()]
    return sorted(ours, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def random_states(generators: dict[str, torch.Generator]) -> dict[str, Any]:
    """Every random state: the engine's generators and, for the reward's sake, the global ones."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the legacy global is what callers use
    return {
        "generators": {name: g.get_state() for name, g in generators.items()},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": json.dumps(random.getstate()),
        "numpy": json.dumps([kind, np.asarray(keys).tolist(), *rest]),
    }


def restore_random_states(states: dict[str, Any], generators: dict[str, torch.Generator]) -> None:
    """Put back what `random_states` read."""
    for name, generator in generators.items():
        generator.set_state(states["generators"][name])
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    version, internal, gauss = json.loads(states["python"])
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = json.loads(states["numpy"])
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_FORMAT = 2
"""What a checkpoint holds and how: 1, which had no number, held frozen weights too."""


class Resumable(Protocol):
    """The parts of a `PPOTrainer` that are saved, and those that identify its run."""

    config: PPOConfig
    model: Any
    learner: Any
    rewarder: Rewarder
    baseline: Baseline
    sampler: Any
    generators: dict[str, torch.Generator]
    prompts: list[list[int]]
    eos_token_ids: list[int]
    frozen_hash: str
    reference_hash: str
    step: int
    history: list[dict[str, float]]
    stopped: str | None
    extra: dict[str, Any]


def state_of(trainer: Resumable) -> dict[str, Any]:
    """Everything a bit-for-bit resume needs, the caller's `extra` included."""
    return {
        "format": _FORMAT,
        "step": trainer.step,
        "model": trained_state(trainer.model),
        "optimizer": optimizer_state(trainer.model, trainer.learner.optimizer),
        "rewarder": trainer.rewarder.state_dict(),
        "category_means": trainer.baseline.category_means.sums,
        "sampler": trainer.sampler.state_dict(),
        "random": random_states(trainer.generators),
        "history": trainer.history,
        "stopped": trainer.stopped,
        "extra": json.dumps(trainer.extra),
        "run": fingerprint(trainer),
    }


def restore(trainer: Resumable, state: dict[str, Any]) -> None:
    """Put the trainer back to where `state_of` was asked; ValueError where that was another run."""
    _check_same_run(trainer, state)
    load_states(trainer.model, trainer.learner.optimizer, state)
    trainer.rewarder.load_state_dict(state["rewarder"])
    means = {name: list(found) for name, found in state["category_means"].items()}
    trainer.baseline.category_means.sums = means
    trainer.sampler.load_state_dict(state["sampler"])
    restore_random_states(state["random"], trainer.generators)
    trainer.step, trainer.stopped = state["step"], state["stopped"]
    trainer.history = [dict(metrics) for metrics in state["history"]]
    trainer.extra = json.loads(state["extra"])


def _check_same_run(trainer: Resumable, state: dict[str, Any]) -> None:
    """ValueError unless the state is of this run, or of one that this one makes longer."""
    written = state.get("format", 1)
    if written != _FORMAT:
        raise ValueError(
            f"the checkpoint was written by another version of the engine (format {written}, this "
            f"version reads {_FORMAT}); finish the run with that version, or start again from scratch "
            "in an empty directory"
        )
    ours, theirs = fingerprint(trainer), dict(state["run"])
    planned, before = ours.pop("ppo.updates"), theirs.pop("ppo.updates")
    names = sorted(ours.keys() | theirs.keys())
    differing = [name for name in names if ours.get(name) != theirs.get(name)]
    if differing:
        raise ValueError(
            f"the checkpoint belongs to another run: {', '.join(differing)} differ; "
            "resume with the same settings or start in an empty directory"
        )
    if planned < before:
        raise ValueError(
            f"the checkpoint belongs to a run of {before} updates; on a resume ppo.updates="
            f"{planned} may be raised above that, not lowered"
        )


def fingerprint(trainer: Resumable) -> dict[str, Any]:
    """What must be the same for a resume to mean anything."""
    settings = asdict(replace(trainer.config, checkpoint_every=0))
    prompts = hashlib.sha256(json.dumps(trainer.prompts).encode()).hexdigest()
    return {f"ppo.{name}": value for name, value in settings.items()} | {
        "model": shapes_hash(trainer.model),
        "frozen weights": trainer.frozen_hash,
        "prompts": prompts,
        "reference": trainer.reference_hash,
        "reward_weights": trainer.rewarder.weights,
        "eos_token_ids": trainer.eos_token_ids,
    }
