"""An import in a process of its own gives the same workspace, the same reports and errors."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from storage.control import Control, ImportCancelled
from storage.engine.database import Database
from storage.importing.apart import import_apart
from storage.importing.files.long_rows import LengthCheck
from storage.importing.imports import BadFile, ImportInterrupted, import_judgments, import_pairs
from storage.importing.target import DatabaseTarget
from tests.helpers.import_files import ROW, everything, judgments
from tests.helpers.short_prompts import Slow

ROWS = [{**ROW, "prompt": f"Question {n}", "annotator": f"person {n % 3}"} for n in range(400)]


def imports_running() -> list[psutil.Process]:
    # `as_dict` gives None for a process that has ended, where `cmdline` raises.
    commands = [
        (child, child.as_dict(["cmdline"])["cmdline"]) for child in psutil.Process().children()
    ]
    return [child for child, command in commands if "storage.importing.apart" in (command or ())]


def starts_with_nine(messages: Any, _: Any) -> str | None:
    return "it is too long" if messages[0].content == "Question 9" else None


def test_the_same_records_and_report(db: Database, file: Any, tmp_path: Path) -> None:
    path = file(ROWS)
    length = LengthCheck(starts_with_nine, skip=True)
    report = import_apart(import_judgments, db, path, length=length)
    with Database.open(tmp_path / "here") as here:
        assert report == import_judgments(here, path, length=length)
        assert everything(db) == everything(here)
    assert (report.added["judgments"], report.skipped_in_all) == (399, 1)
    assert len(judgments(db)) == 399
    assert import_apart(import_judgments, db, path).known == 399


def test_a_bad_file_is_reported_with_its_rows(db: Database, file: Any) -> None:
    path = file([*ROWS[:3], {**ROW, "outcome": "c"}])
    with pytest.raises(BadFile) as refused:
        import_apart(import_judgments, db, path)
    assert [row.line for row in refused.value.rows] == [4]
    assert refused.value.summary == f"nothing was imported from {path.name}, which has 1 bad row"
    with pytest.raises(ValueError, match="more than 2 rows"):
        import_apart(import_pairs, db, path, max_rows=2)


def test_a_process_that_is_killed_is_reported_and_the_next_import_completes_it(
    db: Database, file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(ROWS)
    store = DatabaseTarget.store
    batches = 0

    def store_and_kill(self: DatabaseTarget, *arguments: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == 2:
            (child,) = imports_running()
            os.kill(child.pid, signal.SIGKILL)
        return store(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseTarget, "store", store_and_kill)
        with pytest.raises(ImportInterrupted, match=r"exit code -9 .*Import the file again"):
            import_apart(import_judgments, db, path)
    assert everything(db)["prompts"] > 0
    assert everything(db)["judgments"] == 0
    import_apart(import_judgments, db, path)
    assert len(judgments(db)) == 400
    assert imports_running() == []


def test_a_cancelled_import_ends_while_its_process_reads(db: Database, file: Any) -> None:
    control = Control()
    threading.Timer(2, control.cancel).start()
    before = time.monotonic()
    with pytest.raises(ImportCancelled):
        import_apart(import_judgments, db, file(ROWS), length=LengthCheck(Slow()), control=control)
    assert time.monotonic() - before < 30
    assert imports_running() == []
    assert judgments(db) == []
