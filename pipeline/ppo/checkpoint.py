"""Checkpoint files: written atomically, verified on load; the newest two are kept."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

_KEPT = 2
_FILE = "state.pt"


class DamagedCheckpoint(ValueError):
    """The file of the checkpoint at `path` is damaged or missing, for `reason`."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the checkpoint {path} is damaged ({reason})")
        self.path, self.reason = path, reason


class NoReadableCheckpoint(ValueError):
    """All checkpoints of a run are damaged."""


def writable(directory: Path) -> Path:
    """`directory`; ValueError where no checkpoints can be written to it.

    Only its parent is created: an empty folder would look like a run to resume.
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

    `state` is `PPOTrainer.state_dict`: weights that training changes, optimizer, β, moments, prompt
    order, random states, history, and the fingerprint of the run.  A checkpoint is renamed after it
    is written and before it is removed, so a visible one is always complete.
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
    if final.exists():  # the caller has already written this update's checkpoint
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
        # torch's zip writer hides the disk's error behind its own.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _hide(checkpoint: Path) -> None:
    """Rename a checkpoint in one step; removing its files takes several."""
    checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.old"))


def _remove_leftovers(directory: Path) -> None:
    """Remove hidden checkpoints and the drafts of killed processes."""
    for hidden in directory.glob(".step-*"):
        shutil.rmtree(hidden)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; it cannot run code.

    Raises DamagedCheckpoint for a file that is truncated, changed or missing.
    """
    try:
        with zipfile.ZipFile(path / _FILE) as parts:
            # torch does not verify the checksums that it stores.
            damaged = parts.testzip()
        if damaged is None:
            return torch.load(path / _FILE, map_location="cpu", weights_only=True)
        reason = f"{damaged} does not match its checksum"
    except FileNotFoundError:
        reason = f"{_FILE} is missing"
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    raise DamagedCheckpoint(path, reason)


def load_newest(found: Sequence[Path]) -> tuple[Path, dict[str, Any], list[DamagedCheckpoint]]:
    """The newest readable checkpoint, its state, and the damaged newer ones.

    `found` is ordered from old to new.  Raises NoReadableCheckpoint when all are damaged.
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
    """Rename damaged checkpoints to ``damaged-…``, so that they do not count among the kept."""
    for error in damaged:
        aside = error.path.with_name(f"damaged-{error.path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        error.path.rename(aside)


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}"


def list_checkpoints(directory: Path | None) -> list[Path]:
    """Complete checkpoints, oldest first; other files in the directory are ignored."""
    found = directory.iterdir() if directory is not None and directory.is_dir() else ()
    ours = [path for path in found if re.fullmatch(r"step-\d{6,}", path.name) and path.is_dir()]
    return sorted(ours, key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def random_states(generators: dict[str, torch.Generator]) -> dict[str, Any]:
    """The states of the engine's generators and of the global ones, which a reward may use."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - rewards use the legacy global state
    return {
        "generators": {name: g.get_state() for name, g in generators.items()},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": json.dumps(random.getstate()),
        "numpy": json.dumps([kind, np.asarray(keys).tolist(), *rest]),
    }


def restore_random_states(states: dict[str, Any], generators: dict[str, torch.Generator]) -> None:
    """Restore the result of `random_states`."""
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
    """Fsync a directory, so that a rename in it survives a power failure."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
