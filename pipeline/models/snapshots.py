"""Snapshots of the policy during training, for reward-KL curves.  Does not import torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.runs.rundir import RunDirectory


class Snapshots:
    """Keeps `count` snapshots of a run of `total` steps, evenly spaced, without the last step."""

    def __init__(self, directory: RunDirectory, *, count: int, total: int) -> None:
        self._folder = directory.snapshots
        spread = (round(total * i / (count + 1)) for i in range(1, count + 1))
        self._due = {step for step in spread if 0 < step < total}

    def keep(self, step: int, save: Callable[[Path], Any], *, writes: bool = True) -> None:
        """Call `save(path)` if a snapshot is due at this step; the result is complete or absent.

        All of several processes must call this, since each may have a shard of the policy; one of
        them `writes`.
        """
        if step not in self._due:
            return
        final = self._folder / f"step-{step:06d}"
        draft = final.with_name(f".{final.name}.tmp")
        if writes:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        save(draft)
        if writes:
            # A resumed run reaches the same step again.
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)


def snapshots_of(directory: RunDirectory) -> list[tuple[int, Path]]:
    """(step, path) of the snapshots, in the order of training."""
    found = sorted(directory.snapshots.glob("step-*"))
    return [(int(path.name.removeprefix("step-")), path) for path in found]
