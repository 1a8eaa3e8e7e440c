"""Runs programs under the recorder, and reads its log."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_HEAD = struct.Struct("=IIIIQq")
OPEN, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR, LINK, MAPPED = range(1, 10)


@dataclass(frozen=True, slots=True)
class Record:
    """One change to a file, as `recorder.c` writes it; paths are absolute, "" without one."""

    op: int
    inode: int
    number: int
    path: str
    other: str
    data: bytes


def compiler() -> str | None:
    """The C compiler of this machine, or None."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compile the recorder into `folder`; RuntimeError if there is no compiler."""
    found = compiler()
    if found is None:
        raise RuntimeError("the recorder is a C library: install cc, gcc or clang")
    library = folder / "recorder.so"
    flags = ["-O1", "-shared", "-fPIC", "-D_FORTIFY_SOURCE=0", "-U_FORTIFY_SOURCE"]
    command = [found, *flags, "-o", library, HERE / "recorder.c", "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=120)
    return library


def run(command: Sequence[str | Path], *, library: Path, root: Path, log: Path) -> int:
    """Run a program and append its changes under `root` to `log`; returns its exit status."""
    recorded = {"LD_PRELOAD": str(library), "RECORD_ROOT": str(root), "RECORD_LOG": str(log)}
    return subprocess.run(command, env=os.environ | recorded, timeout=900).returncode


def read(log: Path) -> Iterator[Record]:
    """The records of a log, in order."""
    with log.open("rb") as file:
        while head := file.read(_HEAD.size):
            op, path, other, data, inode, number = _HEAD.unpack(head)
            names = [os.fsdecode(file.read(length)) for length in (path, other)]
            yield Record(op, inode, number, names[0], names[1], file.read(data))
