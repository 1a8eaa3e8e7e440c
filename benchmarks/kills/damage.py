"""Damages one file of a closed workspace: torn, zeroed or flipped bytes."""

from __future__ import annotations

import os
import random
from pathlib import Path

from storage.engine.workspace import DATABASE, JOURNAL, WAL

_PAGE = 4096
_TAIL = 2000  # bytes that contain the last groups of a journal or a log


def damage(workspace: Path, coin: random.Random) -> str:
    """Tear, zero or flip bytes in one file, mostly near its end; returns a description."""
    present = [n for n in (JOURNAL, WAL, DATABASE) if _size(workspace / n) > 0]
    name = coin.choice(present)
    path, size = workspace / name, _size(workspace / name)
    how = coin.choice(("torn", "zeroed", "flipped"))
    near_the_end = name != DATABASE and coin.random() < 0.7
    where = coin.randrange(max(0, size - _TAIL) if near_the_end else 0, size)
    with path.open("r+b") as file:
        if how == "torn":
            file.truncate(where)
        elif how == "zeroed":  # as a file system leaves a page that was not written
            begin = where - where % _PAGE
            file.seek(begin)
            file.write(b"\0" * (min(begin + _PAGE, size) - begin))
        else:
            file.seek(where)
            byte = file.read(1)[0]
            file.seek(where)
            file.write(bytes([byte ^ 1 << coin.randrange(8)]))
        file.flush()
        os.fsync(file.fileno())
    return f"{name} {how} at byte {where} of {size}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
