"""Studies and their runs, which are apart from the loop's runs (`storage.tables.runs.runs`)."""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine import lookup
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import NotFound
from storage.records import Metric, RunNote, Study, StudyRun
from storage.tables.runs import runs

_LISTING = "SELECT * FROM studies ORDER BY created_at DESC, id"
_RUNS = """
    SELECT * FROM study_runs WHERE $study IS NULL OR study = $study ORDER BY created_at, id
"""
_PROGRESS = "UPDATE studies SET progress = $progress, message = $message WHERE id = $id"
_RUN_PROGRESS = """
    UPDATE study_runs SET progress = $progress, message = $message, ingested_seq = $seq
    WHERE id = $id
"""


def listing(db: Database) -> list[Study]:
    """All studies, the newest first."""
    return lookup.select(db, Study, _LISTING)


def get(db: Database, study: str) -> Study:
    """The study with this id, or NotFound, which names the ids of studies that are called so."""
    ids = [each.id for each in listing(db) if each.name == study != each.id]
    if ids and find(db, study) is None:
        raise NotFound(f"there is no study {study!r}; its id is {' or '.join(ids)}")
    return lookup.by_key(db, Study, study)


def find(db: Database, study: str) -> Study | None:
    """The study with this id, or None."""
    return lookup.by_keys(db, Study, [study]).get(study)


def running(db: Database) -> Study | None:
    """The study that runs now; there is one at most."""
    return next((study for study in listing(db) if study.status == "running"), None)


def runs_of(db: Database, study: str | None = None) -> list[StudyRun]:
    """The runs of a study, or of all studies, oldest first."""
    return lookup.select(db, StudyRun, _RUNS, study=study)


def run(db: Database, id: str) -> StudyRun:
    """The run of a study with this id, or NotFound."""
    return lookup.by_key(db, StudyRun, id)


def save(db: Database, *records: Study | StudyRun) -> None:
    """Store studies and runs, which replace those with the same ids."""
    db.write(lambda tx: tx.store(*records))


def set_progress(db: Database, study: Study) -> None:
    """Store the progress and message of a study; not journaled."""
    values = {"id": study.id, "progress": study.progress, "message": study.message}
    db.write(lambda tx: tx.execute(_PROGRESS, **values))


def ingest(
    db: Database,
    run: StudyRun,
    metrics: Sequence[Metric],
    notes: Sequence[RunNote],
    *,
    replace_from: int | None = None,
) -> None:
    """Store events as `runs.ingest` does, but without alarms: nobody waits for a study's red flags."""

    def operation(tx: Transaction) -> None:
        runs.replace_events(tx, run.id, metrics, notes, replace_from=replace_from)
        tx.execute(
            _RUN_PROGRESS,
            id=run.id,
            progress=run.progress,
            message=run.message,
            seq=run.ingested_seq,
        )

    db.write(operation)
