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
from torch import nn

from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.shard_files import damage, read_shards, write_shards

_KEPT = 2
_FILE = "state.pt"
_SHARDS = "shards"


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
    _new_draft(directory, step)
    return _publish(directory, step, state)


def save_sharded_checkpoint(
    directory: Path,
    step: int,
    state: dict[str, Any],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    processes: Processes,
) -> None:
    """`save_checkpoint` with a file of weights and optimizer states per process; a collective call.

    The first process writes `state.pt` and renames the draft when all others have written theirs.
    """
    draft = processes.first(lambda: _new_draft(directory, step))
    shards = write_shards(draft, model, optimizer, processes)
    processes.first(lambda: _publish(directory, step, state | {_SHARDS: shards}))


def _draft_path(directory: Path, step: int) -> Path:
    return directory / f".{checkpoint_path(directory, step).name}.tmp"


def _new_draft(directory: Path, step: int) -> Path:
    _remove_leftovers(directory)
    draft = _draft_path(directory, step)
    draft.mkdir(parents=True)
    return draft


def _publish(directory: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state to the draft, and rename the draft."""
    draft, final = _draft_path(directory, step), checkpoint_path(directory, step)
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


def load_checkpoint(path: Path, processes: Processes | None = None) -> dict[str, Any]:
    """Read a checkpoint's state onto the CPU; it cannot run code.

    The files of a sharded run are verified, by all `processes` together, but not read.  Raises
    DamagedCheckpoint for a file that is truncated, changed or missing.
    """
    state = _load_state(path)
    if _SHARDS in state:
        reason = damage(path, state[_SHARDS]["checksums"], processes or Processes())
        if reason is not None:
            raise DamagedCheckpoint(path, reason)
    return state


def _load_state(path: Path) -> dict[str, Any]:
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


def restore_shards(
    checkpoint: Path, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Read this process's weights and optimizer states; a collective call."""
    read_shards(checkpoint, state[_SHARDS]["index"], model, optimizer)


def load_newest(
    found: Sequence[Path], processes: Processes | None = None
) -> tuple[Path, dict[str, Any], list[DamagedCheckpoint]]:
    """The newest readable checkpoint, its state, and the damaged newer ones.

    `found` is ordered from old to new.  Raises NoReadableCheckpoint when all are damaged.
    """
    damaged: list[DamagedCheckpoint] = []
    for path in reversed(found):
        try:
            return path, load_checkpoint(path, processes), damaged
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
