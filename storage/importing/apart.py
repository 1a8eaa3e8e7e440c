"""An import in a process of its own, so that its Python code does not slow down a server.

The process reads the file, plans and encodes; this one, which has the database open, answers its
calls on a `Target` over a pipe::

    own process:  call name, arguments ─▶  this process
                  ◀─ value or exception

The last call is "done" with the report, or "failed" with an exception.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from storage.control import CANCEL_SECONDS, Control
from storage.engine.database import Database
from storage.importing.sheet import ImportInterrupted
from storage.importing.target import Batch, Stored, target_of

T = TypeVar("T")

_NICENESS = 10
"""Annotators come first."""


def import_apart(
    importer: Callable[..., T],
    db: Database,
    file: Path,
    *,
    control: Control | None = None,
    **options: Any,
) -> T:
    """Call a function that takes a `Target` and a file in a process of its own, such as those of
    `storage.importing.imports`.

    Raises what the function raises, `ImportInterrupted` if the process ends without a report, and
    `ImportCancelled`.
    """
    here, there = Pipe()
    with here:
        with there:
            process = subprocess.Popen(
                [sys.executable, "-m", "storage.importing.apart", str(there.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # Ctrl+C stops the server, which then ends this process
            )
        try:
            here.send((importer, Path(file).absolute(), options))
            return _answer_calls(here, db, control or Control())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise ImportInterrupted(
                f"the process that imported {file.name} ended with exit code {process.wait()} "
                "(-9: it ran out of memory, or was killed). Import the file again; what is stored "
                "is not stored twice"
            ) from None
        finally:
            process.kill()
            process.wait()


def _answer_calls(pipe: Connection, db: Database, control: Control) -> Any:
    """Answer the calls of the process until it has a report."""
    with target_of(db, control) as target:
        while True:
            while not pipe.poll(CANCEL_SECONDS):
                control.require_wanted()
            name, arguments, options = pipe.recv()
            if name == "done":
                return arguments
            if name == "failed":
                raise arguments
            try:
                answer = getattr(target, name)(*arguments, **options), None
            except Exception as error:
                answer = None, error
            pipe.send(answer)


class _RemoteTarget:
    """The `Target` of the own process: each call is answered by the process with the database."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def start_reading(self) -> None:
        self._call("start_reading")

    def stop_reading(self) -> None:
        self._call("stop_reading")

    def rows(self, sql: str, /, **parameters: Any) -> list[dict[str, Any]]:
        return self._call("rows", sql, **parameters)

    def storing(self, total: int) -> None:
        self._call("storing", total)

    def store(self, batch: Batch, people: Collection[str]) -> Stored:
        return self._call("store", batch, people)

    def pseudonym_key(self) -> bytes:
        return self._call("pseudonym_key")

    def _call(self, name: str, /, *arguments: Any, **options: Any) -> Any:
        self._pipe.send((name, arguments, options))
        value, error = self._pipe.recv()
        if error is not None:
            raise error
        return value


def _main(pipe: Connection) -> None:
    os.nice(_NICENESS)
    importer, file, options = pipe.recv()
    try:
        last = "done", importer(_RemoteTarget(pipe), file, **options), {}
    except Exception as error:
        if not isinstance(error, ValueError):
            traceback.print_exc()  # the server raises the error without the calls that led to it
        last = "failed", error, {}
    pipe.send(last)


if __name__ == "__main__":
    _main(Connection(int(sys.argv[1])))
