"""Opening a workspace after its stop, by the way that the error messages name where it is refused."""

from __future__ import annotations

from pathlib import Path

from benchmarks.kills import writer
from storage.engine.backup import finish_restore, rebuild
from storage.engine.workspace import JOURNAL

TIMEOUT = 120.0  # seconds for one process to open and verify a workspace
_TRIES = 3
_WAYS = {
    "move the journal": "journal moved aside",
    "launch.py rebuild": "rebuilt",
    "--finish": "restore finished",
}
"""What a message says, and what is done then.  `restore` is named too, but it is not lossless."""


class Unopened(RuntimeError):
    """A workspace that the documented ways do not open."""


def recover(workspace: Path) -> list[str]:
    """Have a process open and verify the workspace until both succeed; returns what it took."""
    took: list[str] = []
    while said := _look(workspace):
        if len(took) == _TRIES:
            raise Unopened(f"still refused after {took}: {said}")
        way = _advised(said)
        took.append(way)
        if way == "rebuilt":
            rebuild(workspace)
        elif way == "restore finished":
            finish_restore(workspace)
        else:
            (workspace / JOURNAL).rename(workspace / f"{JOURNAL}.damaged-{len(took)}")
    return took


def _look(workspace: Path) -> str:
    """What is wrong with the workspace, in the words of the process that tried; "" for nothing."""
    process, connection = writer.start(workspace, seed=0, again=[], load=False)
    said = "the process died"
    try:
        while connection.poll(TIMEOUT):
            kind, *what = connection.recv()
            if kind == "verified":
                said = " ".join(what[0])
            elif kind == "failed":
                said = ": ".join(what)
    except EOFError:
        pass
    process.join(10)
    process.kill()
    return said


def _advised(said: str) -> str:
    """The lossless way that is named first; where none is, the database is made again."""
    named = {said.find(phrase): way for phrase, way in _WAYS.items() if phrase in said}
    return named[min(named)] if named else "rebuilt"
