"""Answers of researchers to flags, and which of them the annotators have read.

A flag may have several answers, before and after it is cleared.  Only the annotator who flagged the
pair sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound
from storage.labeling.judgments import check_id, clear_in
from storage.labeling.own_judgments import SNIPPET
from storage.records import FlagAnswer, new_id

LISTED = 100
"""Answers that an annotator sees, the newest."""

_STORED = "SELECT * FROM flag_answers WHERE id = $id"
_FLAGGED = "SELECT 1 FROM flags WHERE id = $id"
_OWN = "FROM flag_answers AS a JOIN flags AS f ON f.id = a.flag WHERE f.annotator = $annotator"
_UNREAD = f"SELECT count(*) AS n {_OWN} AND a.read_at IS NULL"
_TO_READ = f"SELECT a.* {_OWN} AND a.read_at IS NULL AND list_contains($ids, a.id)"
_LIST = """
    SELECT a.id, a.text, a.created_at, a.read_at IS NOT NULL AS read, f.comment,
           left(json_extract_string(p.messages, '$[#-1].content'), $snippet) AS prompt
    FROM flag_answers AS a
    JOIN flags AS f ON f.id = a.flag
    JOIN comparisons AS c ON c.id = f.comparison
    JOIN prompts AS p ON p.id = c.prompt
    WHERE f.annotator = $annotator ORDER BY a.created_at DESC, a.id LIMIT $n
"""
_FLAGS = """
    SELECT f.id, f.comparison, f.annotator AS annotator_id, n.name AS annotator, f.comment, f.created_at,
           w.created_at AS closed_at, w.annotator IS NOT DISTINCT FROM f.annotator AS undone,
           json_extract_string(p.messages, '$[#-1].content') AS prompt
    FROM flags AS f
    JOIN comparisons AS c ON c.id = f.comparison
    JOIN prompts AS p ON p.id = c.prompt
    LEFT JOIN annotators AS n ON n.id = f.annotator
    LEFT JOIN withdrawals AS w ON w.replaces = f.id
    WHERE ($all OR w.id IS NULL) AND ($comparison IS NULL OR f.comparison = $comparison)
    ORDER BY f.created_at, f.id
"""
_UNJUDGED = """
    SELECT DISTINCT f.comparison FROM open_flags AS f
    ANTI JOIN current_judgments AS j ON j.comparison = f.comparison
"""
_ANSWERS = """
    SELECT a.flag, a.id, a.text, a.created_at, a.read_at, n.name AS researcher
    FROM flag_answers AS a LEFT JOIN annotators AS n ON n.id = a.researcher
    ORDER BY a.created_at, a.id
"""


@dataclass(frozen=True, kw_only=True)
class OwnAnswer:
    """An answer as the annotator sees it, with the comment of their flag and the beginning of the
    last message of the prompt."""

    id: str
    text: str
    created_at: datetime
    read: bool
    comment: str
    prompt: str


@dataclass(frozen=True, kw_only=True)
class GivenAnswer:
    """An answer as researchers see it; `researcher` is a name, None for the command line."""

    id: str
    text: str
    researcher: str | None
    created_at: datetime
    read_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ListedFlag:
    """A flag with its answers; `state` is open, cleared, or undone by the annotator."""

    id: str
    comparison: str
    annotator_id: str
    annotator: str | None
    """The name; None if the account is unknown."""
    comment: str
    prompt: str
    created_at: datetime
    state: str
    closed_at: datetime | None
    answers: list[GivenAnswer]


def answer_flag(
    db: Database, *, id: str, flag: str, researcher: str, text: str, clear: bool = False
) -> FlagAnswer:
    """Store an answer to a flag and, with `clear`, clear the flag, both or neither.

    The same answer under the same `id` is stored once.  Raises ValueError for a text that is blank
    or too long, NotFound for an unknown flag, and Conflict if `id` belongs to another answer.
    """
    check_id(id)

    def operation(tx: Transaction) -> FlagAnswer:
        answer = FlagAnswer(
            id=id, flag=flag, researcher=researcher, text=text.strip(), created_at=tx.now()
        )
        if not tx.rows(_FLAGGED, id=flag):
            raise NotFound(f"there is no flag {flag!r}")
        stored = [from_row(FlagAnswer, row) for row in tx.rows(_STORED, id=id)]
        if stored and (stored[0].flag, stored[0].text) != (flag, answer.text):
            raise Conflict(f"the id {id!r} is already used for another answer; use a new one")
        if not stored:
            tx.store(answer)
        if clear:
            clear_in(tx, id=new_id(), flag=flag, researcher=researcher)
        return stored[0] if stored else answer

    return db.write(operation)


def own_answers(db: Database, annotator: str) -> list[OwnAnswer]:
    """The newest `LISTED` answers to this annotator's flags, the newest first."""
    rows = db.read(_LIST, annotator=annotator, snippet=SNIPPET, n=LISTED)
    return [OwnAnswer(**row) for row in rows]


def unread(db: Database, annotator: str) -> int:
    """How many answers the annotator has not read."""
    return db.read(_UNREAD, annotator=annotator)[0]["n"]


def mark_read(db: Database, annotator: str, ids: Sequence[str]) -> int:
    """Note that the annotator has read these answers; returns how many were unread.

    Ids of other people's answers, and unknown ids, change nothing.
    """

    def operation(tx: Transaction) -> int:
        rows = tx.rows(_TO_READ, annotator=annotator, ids=list(ids)) if ids else []
        tx.store(*(replace(from_row(FlagAnswer, row), read_at=tx.now()) for row in rows))
        return len(rows)

    return db.write(operation)


def flags(db: Database, *, all: bool = False, comparison: str | None = None) -> list[ListedFlag]:
    """Open flags, or all of them, with their answers, the oldest first; those of one `comparison`
    if it is given."""
    answers: dict[str, list[GivenAnswer]] = {}
    for row in db.read(_ANSWERS):
        answers.setdefault(row.pop("flag"), []).append(GivenAnswer(**row))
    found = []
    for row in db.read(_FLAGS, all=all, comparison=comparison):
        undone = row.pop("undone")
        closed = "undone" if undone else "cleared"
        state = "open" if row["closed_at"] is None else closed
        row["comment"], row["prompt"] = row["comment"] or "", row["prompt"] or ""
        found.append(ListedFlag(**row, state=state, answers=answers.get(row["id"], [])))
    return found


def unjudged(db: Database) -> list[ListedFlag]:
    """Open flags of pairs that nobody has judged, the newest first: no list of judgments has them."""
    found = flags(db)
    pairs = {row["comparison"] for row in db.read(_UNJUDGED)} if found else set()
    return [each for each in reversed(found) if each.comparison in pairs]
