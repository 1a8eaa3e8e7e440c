"""Names and notes that researchers give to runs."""

from __future__ import annotations

from dataclasses import replace

from storage.engine import lookup
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.records import Run, RunLabel
from storage.tables.runs import runs

_OF = "SELECT * FROM run_labels WHERE run = $run"
_ALL = "SELECT * FROM run_labels ORDER BY run"


def of(db: Database, run: str) -> RunLabel:
    """The name and note of a run; both are "" until somebody gives one."""
    found = lookup.select(db, RunLabel, _OF, run=run)
    return found[0] if found else RunLabel(run=run)


def by_run(db: Database) -> dict[str, RunLabel]:
    """The names and notes that were given, by run."""
    return {each.run: each for each in lookup.select(db, RunLabel, _ALL)}


def describe(
    db: Database,
    run: str,
    *,
    name: str | None = None,
    note: str | None = None,
    researcher: str = "",
) -> RunLabel:
    """Give a run a name and a note; None changes nothing, "" removes it.

    Raises NotFound for an unknown run, ValueError for a name or note that is too long.
    """
    runs.get(db, run)

    def operation(tx: Transaction) -> RunLabel:
        rows = tx.rows(_OF, run=run)
        known = from_row(RunLabel, rows[0]) if rows else RunLabel(run=run)
        made = replace(
            known,
            name=known.name if name is None else name.strip(),
            note=known.note if note is None else note.strip(),
            researcher=researcher,
            created_at=tx.now(),
        )
        if (made.name, made.note) == (known.name, known.note):
            return known
        tx.store(made)
        return made

    return db.write(operation)


def matches(run: Run, label: RunLabel, text: str, *, changed: str = "") -> bool:
    """Whether each word of `text` is in the run's id, name, note, method, status or `changed`."""
    described = (
        f"{run.id} {label.name} {label.note} {run.stage} {runs.name(run)} {run.status} {changed}"
    )
    return all(word in described.lower() for word in text.lower().split())
