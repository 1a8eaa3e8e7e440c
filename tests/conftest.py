"""Fixtures that several files share; a file with other needs has its own of the same name."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.runs import process
from storage.engine.database import Database
from tests.helpers.import_files import write_rows
from tests.helpers.policy_world import add_iteration, add_models, compare

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
def world(db: Database) -> Database:
    """Two trained policies; iteration 2 has labels enough to train on."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    add_iteration(db, 2, phase="labeling", policy_produced=None, reward_model=None)
    compare(db, "policy-1", "sft-1", ["first", "second"])
    return db


@pytest.fixture
def loop(world: Database) -> Iterator[Loop]:
    made = Loop(world, Config())
    yield made
    made.advance()
    made.shut_down()


@pytest.fixture
def dying_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that end at once, without a word."""
    monkeypatch.setattr(process, "spawn", lambda *_: subprocess.Popen(["true"]))
