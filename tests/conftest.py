"""Fixtures that several files share; a file with other needs has its own of the same name."""

from __future__ import annotations

import gc
import os
import shutil
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
from tests.helpers import prepared_workers
from tests.helpers.import_files import write_rows
from tests.helpers.policy_world import add_iteration, add_models, compare

LONGEST = (
    "pipeline/stages/test_architectures.py",
    "benchmarks/test_benchmarks.py",
    "storage/engine/test_journal_model.py",
    "labeler/annotate/test_browser_axe.py",
    "labeler/research/test_browser_console.py",
    "labeler/research/test_browser_axe.py",
    "labeler/annotate/test_browser_offline.py",
    "labeler/annotate/test_browser_tabs.py",
    "pipeline/serving/test_client.py",
    "pipeline/loop/test_loop.py",
    "pipeline/reward/test_curve.py",
    "storage/engine/test_restore.py",
    "pipeline/ppo/network/test_parallel.py",
    "pipeline/ppo/test_shard_files.py",
    "pipeline/ppo/test_proof.py",
    "pipeline/studies/test_sweep.py",
    "pipeline/studies/test_compare.py",
    "test_old_workspaces.py",
    "labeler/research/test_browser.py",
    "labeler/annotate/test_browser_label.py",
    "labeler/annotate/test_browser_slips.py",
    "labeler/annotate/test_browser_end.py",
    "pipeline/worker/test_peers.py",
    "benchmarks/test_kills.py",
)
"""Test files that start first, so that no process works alone at the end."""

# A shell script's `make test &` ignores Ctrl-C, and so would every server that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    gc.disable()  # as launch.py: importing makes a million objects and no garbage


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later collection of garbage.

    The trainers of transformers collect it before each training, which takes half a second.
    """
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # at the end the interpreter frees everything, and duckdb reports what stays


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half again as many processes as cores: a third of the time tests wait for a server or a page."""
    return max(2, round(1.5 * (os.cpu_count() or 1)))


@pytest.fixture(scope="session")
def empty_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed workspace without records: a copy opens in half the time that a new one takes."""
    workspace = tmp_path_factory.mktemp("empty") / "workspace"
    Database.open(workspace).close()
    return workspace


@pytest.fixture
def db(empty_workspace: Path, tmp_path: Path) -> Iterator[Database]:
    with Database.open(shutil.copytree(empty_workspace, tmp_path / "workspace")) as db:
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


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that a test starts in its own process need not import torch again."""
    monkeypatch.setattr(process, "start", prepared_workers.start)


@pytest.fixture
def dying_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that end at once and write nothing."""
    monkeypatch.setattr(process, "spawn", lambda *_: subprocess.Popen(["true"]))
