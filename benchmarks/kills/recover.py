"""Opens a workspace after a kill, following the advice of the error messages."""

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
"""A phrase of the message, and the action.  `restore` is not among them: it is not lossless."""


class Unopened(RuntimeError):
    """A workspace that the documented procedures do not open."""


def recover(workspace: Path) -> list[str]:
    """Open and verify the workspace in a process until both succeed; returns the actions taken."""
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
    """The error message of a process that opens the workspace; "" if there is none."""
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
    """The lossless action that the message names first; else the database is rebuilt."""
    named = {said.find(phrase): way for phrase, way in _WAYS.items() if phrase in said}
    return named[min(named)] if named else "rebuilt"
