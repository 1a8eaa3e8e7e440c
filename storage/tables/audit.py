"""The audit log: notes of actions that store no record, queries, and files."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.audit_records import AuditEntry, actor, short
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.records import new_id

OPERATOR = "operator"
"""The name of who uses the command line."""
STUDIO = "studio"
"""The name of the studio itself."""
COLUMNS = ("time", "actor", "via", "action", "subject", "details")

_LISTING = """
    SELECT e.*, coalesce(a.name, '') AS actor_name, coalesce(s.name, '') AS subject_name
    FROM audit_log AS e
    LEFT JOIN annotators AS a ON a.id = e.actor
    LEFT JOIN annotators AS s ON s.id = e.subject
    WHERE ($actor IS NULL OR a.name = $actor
           OR (e.actor = '' AND $actor = if(e.via = 'studio', 'studio', 'operator')))
      AND ($action IS NULL OR e.action = $action OR starts_with(e.action, $action || '.'))
      AND ($since IS NULL OR e.created_at >= $since)
      AND ($until IS NULL OR e.created_at < $until)
      AND ($search IS NULL OR contains(
        lower(concat_ws(' ', e.action, e.subject, a.name, s.name, e.details::VARCHAR)), $search))
    ORDER BY e.created_at DESC, e.id LIMIT coalesce($limit, 9223372036854775807)
"""
_KNOWN = """
    SELECT DISTINCT e.action,
           coalesce(a.name, if(e.via = 'studio', 'studio', 'operator')) AS actor
    FROM audit_log AS e LEFT JOIN annotators AS a ON a.id = e.actor ORDER BY ALL
"""


@dataclass(frozen=True, kw_only=True)
class ListedEntry:
    """An entry with the names of the accounts; `subject` is a name if it is an account."""

    entry: AuditEntry
    actor: str
    subject: str

    def row(self) -> dict[str, Any]:
        """The entry as JSON values, with `COLUMNS` as keys."""
        return {
            "time": self.entry.created_at.isoformat(timespec="seconds"),
            "actor": self.actor,
            "via": self.entry.via,
            "action": self.entry.action,
            "subject": self.subject,
            "details": dict(self.entry.details),
        }


@dataclass(frozen=True, kw_only=True)
class KnownValues:
    """The actions and actors in the log, to choose from."""

    actions: tuple[str, ...]
    actors: tuple[str, ...]


def note(db: Database, action: str, subject: str = "", **details: Any) -> None:
    """Note an action that stores no record; does nothing if the studio itself acts."""
    if actor() is not None:
        db.write(lambda tx: note_in(tx, action, subject, **details))


def note_of_studio(db: Database, action: str, subject: str, **details: Any) -> None:
    """Note what the studio did by itself."""
    entry = AuditEntry(id=new_id(), action=action, subject=subject, via="studio", details=details)
    db.write(lambda tx: tx.store(entry))


def note_in(tx: Transaction, action: str, subject: str = "", **details: Any) -> None:
    """The same, in a transaction: the note is stored only with it."""
    shown = {k: short(v) if isinstance(v, str) else v for k, v in details.items()}
    tx.note(action, subject, {k: v for k, v in shown.items() if v not in (None, "", {})})


def refused_sign_in(db: Database, account: str, *, address: str, attempts: int) -> None:
    """Note refused sign-ins with an account's name, or with unknown names (`account` is "")."""
    entry = AuditEntry(
        id=new_id(),
        action="sign-in.refused",
        subject=account,
        via="browser",
        details={"address": address, "attempts": attempts},
    )
    # Without waiting: the time of the answer must not reveal whether the account exists.
    db.submit(lambda tx: tx.store(entry))


MAX_LISTED = 1_000_000


def listing(
    db: Database,
    *,
    actor: str | None = None,
    action: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    search: str | None = None,
    limit: int | None = 50,
) -> list[ListedEntry]:
    """The newest entries first; `limit` None returns all.

    `actor` is a name, or `OPERATOR`.  `action` is an action, or the part before its dot.  `search`
    is a text in any part, in any case.
    """
    if limit is not None and not 1 <= limit <= MAX_LISTED:
        raise ValueError(
            f"limit={limit} must be from 1 to {MAX_LISTED}; leave it out for the newest"
        )
    rows = db.read(
        _LISTING,
        actor=actor or None,
        action=action or None,
        since=since,
        until=until,
        search=search.strip().lower() if search and search.strip() else None,
        limit=limit,
    )
    return [
        ListedEntry(
            entry=from_row(AuditEntry, row),
            actor=row["actor_name"] or row["actor"] or _nobody(row),
            subject=row["subject_name"] or row["subject"],
        )
        for row in rows
    ]


def _nobody(row: dict[str, Any]) -> str:
    return {"command line": OPERATOR, "studio": STUDIO}.get(row["via"], "unknown")


def known_values(db: Database) -> KnownValues:
    """The actions and actors in the log."""
    rows = db.read(_KNOWN)
    return KnownValues(
        actions=tuple(dict.fromkeys(row["action"] for row in rows)),
        actors=tuple(sorted({row["actor"] for row in rows})),
    )


def moment(text: str | None) -> datetime | None:
    """A date or time in ISO 8601, in UTC unless it has an offset; ValueError for anything else."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a date or time; write it as 2026-11-25 or 2026-11-25T14:30"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def write_file(rows: Sequence[Mapping[str, Any]], path: Path) -> int:
    """Write the rows of entries to FILE.jsonl or FILE.csv; returns their number.

    Cells of a CSV file that a spreadsheet would run as formulas begin with an apostrophe.
    ValueError for another suffix.
    """
    if path.suffix == ".jsonl":
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_text("".join(lines), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([_cell(row[name]) for name in COLUMNS] for row in rows)
    else:
        raise ValueError(f"{path.name} must end in .jsonl or .csv")
    return len(rows)


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
