"""Adjudication: rulings on pairs on which annotators disagree, given without sight of the votes.

A pair waits if people's current judgments of it differ and nobody has ruled on it, or if a
researcher has sent it since the last ruling.  Adjudicators see the texts, on sides that are random
for each of them; not the models, and not the votes before their ruling is stored.  Agreement, win
rates, the gate and the reward model use the judgments, never the rulings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.lookup import Reader
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound
from storage.labeling.judgments import check_id
from storage.records import (
    Adjudication,
    AdjudicationRequest,
    Annotator,
    AnnotatorRole,
    Message,
    Outcome,
    ScreenOutcome,
    as_messages,
    new_id,
)
from storage.sides import canonical_outcome, screen_outcome, shown_swapped
from storage.tables.people import annotators

ADJUDICATORS: tuple[AnnotatorRole, ...] = ("adjudicator", "researcher")
"""The roles that may rule."""
LISTED = 50
"""Pairs or rulings that are listed."""

_WAITING = """
    WITH disputed AS (
        SELECT comparison FROM current_judgments
        WHERE annotator NOT IN (SELECT id FROM annotators WHERE kind = 'model')
        GROUP BY comparison HAVING min(outcome) <> max(outcome)),
    sent AS (
        SELECT comparison, max(created_at) AS at FROM adjudication_requests GROUP BY comparison),
    waiting AS (
        SELECT c.id, s.at AS sent, c.iteration, c.position FROM comparisons AS c
        LEFT JOIN disputed AS d ON d.comparison = c.id
        LEFT JOIN sent AS s ON s.comparison = c.id
        LEFT JOIN rulings AS r ON r.comparison = c.id
        WHERE ((d.comparison IS NOT NULL AND r.comparison IS NULL)
               OR s.at > coalesce(r.created_at, '-infinity'::TIMESTAMPTZ))
          AND c.id NOT IN (SELECT comparison FROM open_flags)
          AND c.id NOT IN (SELECT comparison FROM judgments WHERE annotator = $adjudicator))
"""
# Those that were sent come first; the others in the random order of the queue.
_PAIRS = f"""
    {_WAITING}
    SELECT w.id AS comparison, w.sent, p.messages::VARCHAR AS messages, f.text AS first,
           s.text AS second
    FROM waiting AS w
    JOIN comparisons AS c ON c.id = w.id
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE $comparison IS NULL OR w.id = $comparison
    ORDER BY w.sent NULLS LAST, w.iteration DESC, w.position, w.id LIMIT $n
"""
_COUNT = f"{_WAITING} SELECT count(*) AS n FROM waiting"
_STORED = "SELECT * FROM adjudications WHERE id = $id"
_KNOWN = "SELECT 1 FROM comparisons WHERE id = $id"
_CHECK = "SELECT kind FROM checks WHERE comparison = $id"
_RULINGS = """
    SELECT r.id, r.comparison, r.outcome, r.reason, r.created_at, a.name AS adjudicator,
           left(json_extract_string(p.messages, '$[#-1].content'), 200) AS prompt
    FROM adjudications AS r
    JOIN comparisons AS c ON c.id = r.comparison
    JOIN prompts AS p ON p.id = c.prompt
    LEFT JOIN annotators AS a ON a.id = r.adjudicator
    WHERE $comparison IS NULL OR r.comparison = $comparison
    ORDER BY r.created_at DESC, r.id LIMIT $n
"""
_VOTES = """
    SELECT j.comparison, a.name AS annotator, j.outcome FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    WHERE j.comparison IN (SELECT unnest($ids)) ORDER BY j.seq
"""


@dataclass(frozen=True, kw_only=True)
class WaitingPair:
    """A pair as its adjudicator sees it: `a` is on the left."""

    comparison: str
    messages: tuple[Message, ...]
    a: str
    b: str
    sent: bool
    """Whether a researcher sent it."""


@dataclass(frozen=True, kw_only=True)
class Vote:
    """An annotator's current judgment of a pair, in the stored order."""

    annotator: str
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class GivenRuling:
    """A stored ruling with the votes on the pair; `adjudicator` is a name, None for the command
    line."""

    id: str
    comparison: str
    adjudicator: str | None
    outcome: Outcome
    reason: str
    prompt: str
    created_at: datetime
    votes: Sequence[Vote]


def may_adjudicate(person: Annotator) -> bool:
    """Whether this account may rule."""
    return person.role in ADJUDICATORS and not person.disabled


def waiting(db: Database, adjudicator: str = "", *, limit: int = LISTED) -> list[WaitingPair]:
    """The pairs that wait for this adjudicator ("": the operator), those that were sent first.

    Pairs that they judged themselves wait for somebody else.
    """
    rows = db.read(_PAIRS, adjudicator=adjudicator, comparison=None, n=limit)
    return [_pair(row, adjudicator) for row in rows]


def waiting_pair(db: Database, comparison: str, adjudicator: str = "") -> WaitingPair:
    """One of them; NotFound if the pair does not wait for this adjudicator."""
    rows = db.read(_PAIRS, adjudicator=adjudicator, comparison=comparison, n=1)
    if not rows:
        raise NotFound(_NOT_WAITING.format(comparison))
    return _pair(rows[0], adjudicator)


def count_waiting(db: Database, adjudicator: str = "") -> int:
    """How many pairs wait for this adjudicator."""
    return db.read(_COUNT, adjudicator=adjudicator)[0]["n"]


_NOT_WAITING = (
    "the pair {!r} does not wait for your ruling: the annotators agree, somebody has ruled, the pair "
    "has an open flag, or you judged it yourself"
)


def send(db: Database, comparison: str, *, researcher: str = "") -> AdjudicationRequest:
    """Send a pair to adjudication, also one on which annotators agree or somebody has ruled.

    NotFound for an unknown pair; ValueError for a check.
    """

    def operation(tx: Transaction) -> AdjudicationRequest:
        if not tx.rows(_KNOWN, id=comparison):
            raise NotFound(f"there is no comparison {comparison!r}")
        if check := tx.rows(_CHECK, id=comparison):
            raise ValueError(f"{comparison!r} is a {check[0]['kind']} pair, which has its answer")
        made = AdjudicationRequest(
            id=new_id("ar"), comparison=comparison, researcher=researcher, created_at=tx.now()
        )
        tx.store(made)
        return made

    return db.write(operation)


def rule(
    db: Database,
    *,
    id: str,
    comparison: str,
    outcome: ScreenOutcome,
    reason: str,
    adjudicator: str = "",
) -> GivenRuling:
    """Store a ruling with the sides of the adjudicator's screen, and return it with the votes.

    The same ruling under the same `id` is stored once.  Raises ValueError for an invalid ruling or
    an account that may not rule, NotFound for a pair that does not wait for it, and Conflict if `id`
    belongs to another ruling.
    """
    check_id(id)
    if adjudicator and not may_adjudicate(annotators.get(db, adjudicator)):
        raise ValueError("this account may not rule on pairs; ask a researcher for the role")
    swapped = shown_swapped(adjudicator, comparison)
    ruling = canonical_outcome(outcome, shown_swapped=swapped)

    def operation(tx: Transaction) -> None:
        made = Adjudication(
            id=id, comparison=comparison, adjudicator=adjudicator, outcome=ruling,
            shown_swapped=swapped, reason=reason.strip(), created_at=tx.now(),
        )  # fmt: skip
        stored = [from_row(Adjudication, row) for row in tx.rows(_STORED, id=id)]
        if stored and _content(stored[0]) != _content(made):
            raise Conflict(f"the id {id!r} is already used for another ruling; use a new one")
        if stored:
            return
        _require_waiting(tx, comparison, adjudicator)
        tx.store(made)

    db.write(operation)
    return next(each for each in rulings(db, comparison) if each.id == id)


def _require_waiting(reader: Reader, comparison: str, adjudicator: str) -> None:
    if not reader.rows(_PAIRS, adjudicator=adjudicator, comparison=comparison, n=1):
        raise NotFound(_NOT_WAITING.format(comparison))


def _content(ruling: Adjudication) -> tuple[str, ...]:
    return ruling.comparison, ruling.adjudicator, ruling.outcome, ruling.reason


def rulings(
    db: Database, comparison: str | None = None, *, limit: int = LISTED
) -> list[GivenRuling]:
    """Rulings with the votes on their pairs, the newest first; those on one `comparison` if given."""
    rows = db.read(_RULINGS, comparison=comparison, n=limit)
    votes: dict[str, list[Vote]] = {}
    for row in db.read(_VOTES, ids=[row["comparison"] for row in rows]) if rows else ():
        votes.setdefault(row.pop("comparison"), []).append(Vote(**row))
    return [GivenRuling(**row, votes=votes.get(row["comparison"], [])) for row in rows]


def on_screen(outcome: Outcome, comparison: str, adjudicator: str) -> ScreenOutcome:
    """A stored outcome on the screen of this adjudicator."""
    return screen_outcome(outcome, shown_swapped=shown_swapped(adjudicator, comparison))


def _pair(row: dict[str, Any], adjudicator: str) -> WaitingPair:
    a, b = row["first"], row["second"]
    if shown_swapped(adjudicator, row["comparison"]):
        a, b = b, a
    return WaitingPair(
        comparison=row["comparison"],
        messages=as_messages(json.loads(row["messages"])),
        a=a,
        b=b,
        sent=row["sent"] is not None,
    )
