"""Gold and practice pairs: pairs with a known answer, which measure annotators.

They are made from pairs whose judgments agree (`make`) or imported (storage/importing/planning/gold_pairs.py).
A gold pair has a comparison of its own with the same two responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import NotFound
from storage.records import Check, Comparison, now
from storage.tables.people.pseudonyms import SECRET, keyed, written_id
from storage.tables.settings import learn_from, secret_in

KnownKind = Literal["gold", "practice"]

MIN_JUDGMENTS = 2
"""Annotators who must agree on a pair before it can become a gold pair."""

# Items on which all annotators prefer the same response, with the item's first comparison.  Outcomes
# are reversed for flipped twins (storage/engine/items.py).  A pair whose prediction contradicts the
# annotators is left out; those with the most judgments and the greatest strengths come first.
_UNANIMOUS = """
    WITH judged AS (
        SELECT i.item, j.comparison, j.annotator, j.strength, p.first AS predicted,
               (j.outcome = 'first') <> (i.twin AND i.flipped) AS prefers_first,
               j.outcome IN ('first', 'second') AS decided, i.twin AND i.flipped AS turned
        FROM current_judgments AS j
        JOIN annotators AS a ON a.id = j.annotator
        JOIN items AS i ON i.comparison = j.comparison
        LEFT JOIN predictions AS p ON p.comparison = j.comparison
        WHERE list_contains($kinds, a.kind)
          AND j.comparison NOT IN (SELECT id FROM comparisons WHERE arm = 'probe')),
    agreed AS (
        SELECT item, min(comparison) AS comparison, arg_min(turned, comparison) AS turned,
               bool_and(prefers_first) AS first, count(DISTINCT annotator) AS judgments,
               avg(strength) AS strength,
               coalesce(min(CASE WHEN prefers_first <> turned THEN predicted
                                 ELSE 1 - predicted END), 0.5) AS predicted
        FROM judged GROUP BY item
        HAVING count(DISTINCT annotator) >= $least AND bool_and(decided)
           AND (bool_and(prefers_first) OR NOT bool_or(prefers_first)))
    SELECT c.*, (a.first <> a.turned) AS wins, a.judgments
    FROM agreed AS a JOIN comparisons AS c ON c.id = a.comparison
    WHERE a.predicted >= 0.5
      AND a.item NOT IN (SELECT item FROM items SEMI JOIN checks AS k
                         ON k.comparison = items.comparison AND k.kind = 'gold')
      AND c.id NOT IN (SELECT comparison FROM open_flags)
    ORDER BY a.judgments DESC, a.strength DESC NULLS LAST, a.predicted DESC, c.id
"""
_KNOWN = "SELECT * FROM checks WHERE comparison = $id AND kind <> 'reask'"
_LISTED = """
    SELECT k.comparison AS id, k.answer, k.source, k.active, k.created_at,
           k.explanation, p.messages::VARCHAR AS messages, f.text AS first, s.text AS second,
           count(j.id) AS answered, count(j.id) FILTER (j.outcome = k.answer) AS matched
    FROM checks AS k
    JOIN comparisons AS c ON c.id = k.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    LEFT JOIN standing_judgments AS j ON j.comparison = k.comparison
    WHERE k.kind = $kind
    GROUP BY ALL ORDER BY k.active DESC, matched / greatest(answered, 1), k.created_at, k.comparison
"""


@dataclass(frozen=True, kw_only=True)
class GoldPair:
    """A gold pair, with how many annotators answered it and how many of them as expected."""

    id: str
    answer: Literal["first", "second"]
    source: str | None
    """The judged comparison that it was made from, None for an imported pair."""
    active: bool
    explanation: str
    """Of a practice pair."""
    created_at: datetime
    messages: str
    """In the form of `messages_json`."""
    first: str
    second: str
    answered: int
    matched: int


def listing(db: Database, kind: KnownKind = "gold") -> list[GoldPair]:
    """All gold or practice pairs: active ones first, then those that fewest annotators answered as expected."""
    return [GoldPair(**row) for row in db.read(_LISTED, kind=kind)]


def candidates(db: Database) -> int:
    """How many pairs `make` could use."""
    sql = f"SELECT count(*) AS n FROM ({_UNANIMOUS})"
    return db.read(sql, kinds=list(learn_from(db)), least=MIN_JUDGMENTS)[0]["n"]


def make(db: Database, count: int) -> int:
    """Make up to `count` gold pairs from pairs whose judgments agree; returns how many.

    A pair needs the same preference by at least `MIN_JUDGMENTS` annotators of the kinds that reward
    models learn from.  ValueError if there is no such pair.
    """
    if count < 1:
        raise ValueError(f"count={count} must be at least 1")
    found = db.read(_UNANIMOUS, kinds=list(learn_from(db)), least=MIN_JUDGMENTS)[:count]
    if not found:
        raise ValueError(
            f"no pair can become a gold pair: it needs the same preference by {MIN_JUDGMENTS} "
            "annotators (labeling.overlap sets how many pairs two annotators judge); or import "
            "pairs with `launch.py import --gold FILE`"
        )

    def operation(tx: Transaction) -> int:
        key, when = secret_in(tx, SECRET), now()
        for row in found:
            source = from_row(Comparison, row)
            answer = "first" if row["wins"] else "second"
            tx.store(*gold_records(key, source, answer=answer, when=when, source=source.id))
        return len(found)

    return db.write(operation)


def gold_records(
    key: bytes,
    pair: Comparison,
    *,
    answer: Literal["first", "second"],
    when: datetime,
    source: str | None,
    kind: KnownKind = "gold",
    explanation: str = "",
) -> tuple[Comparison, Check]:
    """The records of a gold or practice pair with the responses of `pair`.

    Id and position follow from the workspace's key: nothing distinguishes them from other ones.
    """
    id = written_id(key, f"{kind} {pair.id}")
    made = Comparison(
        id=id,
        prompt=pair.prompt,
        first=pair.first,
        second=pair.second,
        iteration=0,
        arm=kind,
        position=int(keyed(key, f"position of {id}"), 16) >> 2,
        item=pair.item,
        created_at=when,
    )
    return made, Check(
        comparison=id,
        kind=kind,
        answer=answer,
        source=source,
        explanation=explanation,
        created_at=when,
    )


def set_active(db: Database, id: str, *, active: bool) -> Check:
    """Serve a gold or practice pair, or stop serving it; its judgments count only while it is
    active.

    NotFound if there is no such pair with this id.
    """

    def operation(tx: Transaction) -> Check:
        rows = tx.rows(_KNOWN, id=id)
        if not rows:
            raise NotFound(f"there is no gold or practice pair {id!r}")
        check = from_row(Check, rows[0] | {"active": active})
        tx.store(check)
        return check

    return db.write(operation)
