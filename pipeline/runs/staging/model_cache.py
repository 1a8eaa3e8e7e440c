"""Models that a node keeps between stages, by their SHA-256, in `worker.root`.

A kept file is a hard link to the one that a stage reads, so it takes no more room, and it can be removed
while a stage reads it.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from pipeline.runs.staging.store import Stored, checked

_MOST_AGE = 7 * 86_400
"""Seconds since its last use after which a file is removed."""
_FREE = 0.1
"""Share of the disk that is to stay free; the files that were used last go last."""


class ModelCache:
    """The kept models in a folder of a node; without a folder, none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / "kitestring-models"
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def link(self, stored: Stored, to: Path) -> bool:
        """Make `to` the kept file; False if there is none, or only a damaged one, which is removed."""
        if self._folder is None:
            return False
        kept = self._folder / stored.sha256
        try:
            if checked(kept) != (stored.size, stored.sha256):
                kept.unlink()
                return False
            os.utime(kept)
            to.parent.mkdir(parents=True, exist_ok=True)
            os.link(kept, to)
        except OSError:  # not kept; removed by another job just now; or a disk without hard links
            return False
        return True

    def keep(self, stored: Stored, file: Path) -> None:
        """Keep a file that was received or sent; nothing on a disk without hard links."""
        if self._folder is not None:
            with suppress(OSError):
                os.link(file, self._folder / stored.sha256)

    def make_room(self) -> None:
        """Remove what was not used for a week, and the least recently used on a disk that is full."""
        if self._folder is None:
            return
        oldest_first = sorted(
            (used, file) for file in self._folder.iterdir() if (used := _used(file))
        )
        for used, file in oldest_first:
            disk = shutil.disk_usage(self._folder)
            if disk.free < _FREE * disk.total or used < time.time() - _MOST_AGE:
                file.unlink(missing_ok=True)


def _used(file: Path) -> float | None:
    """When a file was used last; None if another job has removed it."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime
    return None
