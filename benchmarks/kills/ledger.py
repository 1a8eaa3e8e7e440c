"""A ledger of sent and acknowledged acts, and its comparison with a workspace."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from storage.engine.backup import rebuild
from storage.engine.database import Database
from storage.engine.journal import read_lines
from storage.engine.workspace import BACKUPS, JOURNAL
from storage.records import ScreenOutcome
from storage.sides import canonical_outcome, shown_swapped

NOT_JOURNALED = ("leases", "metrics", "run_notes", "meta", "migrations")
ACTS = ("judgment", "skip", "flag", "withdrawal")
FAULTS = ("lost", "altered", "doubled", "judged_twice", "never_sent", "rebuild_differs")
"""Counts that must be zero after every kill."""

_ROWS = {
    "judgment": "SELECT id, comparison, annotator, outcome, comment FROM judgments",
    "skip": "SELECT id, comparison, annotator FROM skips",
    "flag": "SELECT id, comparison, annotator, comment FROM flags",
    "withdrawal": "SELECT id, replaces, annotator FROM withdrawals",
}
_TABLES = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' ORDER BY table_name"
_TWICE = "SELECT 1 FROM current_judgments GROUP BY comparison, annotator HAVING count(*) > 1"


@dataclass(frozen=True)
class Act:
    """One act of an annotator; `target` is a comparison, or the withdrawn act of a withdrawal."""

    id: str
    kind: str
    annotator: str
    target: str
    outcome: ScreenOutcome | None = None
    comment: str = ""

    def row(self) -> tuple[str, ...]:
        """The expected values of the columns in `_ROWS`."""
        if self.kind == "judgment":
            assert self.outcome is not None
            swapped = shown_swapped(self.annotator, self.target)
            outcome = canonical_outcome(self.outcome, shown_swapped=swapped)
            return (self.id, self.target, self.annotator, outcome, self.comment)
        told = (self.comment,) if self.kind == "flag" else ()
        return (self.id, self.target, self.annotator, *told)


@dataclass
class Ledger:
    """Every act that was sent, by id, and the ids that were acknowledged.

    Clients in threads may write to it while it is compared: both only grow.
    """

    sent: dict[str, Act] = field(default_factory=dict)
    acknowledged: dict[str, None] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def pending(self) -> list[Act]:
        """Acts without an answer, which clients send again with the same id."""
        answered = self.acknowledged.keys() | self.refused
        return [act for id, act in list(self.sent.items()) if id not in answered]

    def faults(self, db: Database) -> dict[str, int]:
        """How many acts the open workspace has lost, altered, duplicated or invented."""
        rows = {kind: db.read(sql) for kind, sql in _ROWS.items()}
        found = {
            (kind, row["id"]): tuple(row.values()) for kind, some in rows.items() for row in some
        }
        stored = Counter((kind, row["id"]) for kind, some in rows.items() for row in some)
        journaled = Counter(
            (line.kind, line.entry["id"])
            for line in read_lines(db.workspace / JOURNAL, stop=db.journal.size)
            if line.kind in ACTS
        )
        acknowledged = [self.sent[id] for id in list(self.acknowledged)]
        sent = {(act.kind, act.id): act for act in list(self.sent.values())}
        return {
            "lost": sum(
                (act.kind, act.id) not in found or (act.kind, act.id) not in journaled
                for act in acknowledged
            ),
            # Includes acts without an answer: they may be stored or not, but not altered.
            "altered": sum(key in sent and row != sent[key].row() for key, row in found.items()),
            "doubled": sum(n > 1 for n in [*stored.values(), *journaled.values()]),
            "judged_twice": len(db.read(_TWICE)),
            "never_sent": sum(key not in sent or key[1] in self.refused for key in found),
        }


def check(workspace: Path, ledger: Ledger, scratch: Path) -> dict[str, int]:
    """Compare a copy of a closed workspace with the ledger and with a database rebuilt from it.

    Opening the copy reconciles it.  The workspace itself stays as the kill left it, for the next
    process to open.
    """
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(workspace, copy, ignore=shutil.ignore_patterns(BACKUPS, "ballast", "*.log"))
    with Database.open(copy, create=False) as db:
        faults = ledger.faults(db)
        before = tables(db)
    rebuild(copy)
    with Database.open(copy, create=False) as db:
        after = tables(db)
    faults["rebuild_differs"] = sum(before[name] != after.get(name) for name in before)
    return faults


def tables(db: Database) -> dict[str, list[str]]:
    """Every row of every table that the journal must restore, sorted."""
    # Names come from the catalog, not from user input.
    return {
        name: sorted(json.dumps(row, default=str) for row in db.read(f'SELECT * FROM "{name}"'))
        for name in (row["table_name"] for row in db.read(_TABLES))
        if name not in NOT_JOURNALED
    }
