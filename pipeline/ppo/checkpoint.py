"""Checkpoints: whole or absent, the newest two kept, every random state inside."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

_KEPT = 2
_FILE = "state.pt"


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
        torch.save(state, file)
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


def _hide(checkpoint: Path) -> None:
    """Take a checkpoint out of sight in one step; emptying a folder takes several."""
    checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.old"))


def _remove_leftovers(directory: Path) -> None:
    """Remove what is being thrown away, and what a killed process was writing or throwing away."""
    for hidden in directory.glob(".step-*"):
        shutil.rmtree(hidden)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it can run code."""
    return torch.load(path / _FILE, map_location="cpu", weights_only=True)


def checkpoint_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}"


def list_checkpoints(directory: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = directory.glob("step-*") if directory.is_dir() else ()
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


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
