"""Fixtures that several files share; a file with other needs has its own of the same name."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import detached
from storage.database import Database
from tests.import_files import write_rows

# A shell script's `make test &` ignores Ctrl-C, and so would every server that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "workspace") as db:
        yield db


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """A function that writes rows to a file of the given name."""
    return lambda rows, name="rows.jsonl": write_rows(tmp_path / name, rows)


@pytest.fixture
def dying_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that end at once, without a word."""
    monkeypatch.setattr(detached, "spawn", lambda *_: subprocess.Popen(["true"]))
