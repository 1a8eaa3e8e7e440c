"""What annotators say: judge, skip, flag, and take it back.  Nothing stored is ever changed.

Every act carries an id its client made.  Sending one again is answered like the first time and
stores nothing; sending other content under a used id is a Conflict.

Revising appends a judgment that replaces the current one.  Undoing appends a withdrawal: the
act no longer counts, and its comparison comes back to the annotator on the same sides.  Undoing
a revision does not bring back what it revised: that stays replaced, and they are asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from storage.engine import lookup
from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound, NotLeased
from storage.labeling import queue
from storage.labeling.queue_cache import Act, QueueCache, QueueItem, grant
from storage.records import (
    Flag,
    Judgment,
    ScreenOutcome,
    Skip,
    Withdrawal,
    canonical_outcome,
    check_choice,
    shown_swapped,
)

ActT = TypeVar("ActT", Judgment, Skip, Flag)

MOST_FLAGS = 20
"""Flags of one annotator that nobody has cleared.  Each takes a pair out of everybody's queue, an
iteration may have no more than a hundred, and so much that is broken is news for the researcher."""

_COUNT = """
    SELECT count(*) AS judgments
    FROM current_judgments AS j JOIN comparisons AS c ON c.id = j.comparison
    WHERE $iteration IS NULL OR c.iteration = $iteration
"""
_ACTS = """
    SELECT 'judgment' AS kind, id, comparison, annotator, seq FROM judgments
    UNION ALL SELECT 'skip', id, comparison, annotator, seq FROM skips
    UNION ALL SELECT 'flag', id, comparison, annotator, seq FROM flags
"""
_LATEST = f"""
    SELECT a.id FROM ({_ACTS}) AS a
    WHERE a.annotator = $annotator
      AND a.id NOT IN (SELECT replaces FROM withdrawals)
      AND a.id NOT IN (SELECT replaces FROM judgments
                       WHERE replaces IS NOT NULL AND annotator = $annotator)
    ORDER BY a.seq DESC LIMIT 1
"""
_WHOSE = f"SELECT kind, comparison, annotator FROM ({_ACTS}) WHERE id = $id"
_WITHDRAWAL = "SELECT * FROM withdrawals WHERE id = $id"
_WITHDRAWN = "SELECT 1 FROM withdrawals WHERE replaces = $id"
_FLAG = "SELECT * FROM flags WHERE id = $id"
_OPEN_FLAGS = "SELECT * FROM open_flags ORDER BY created_at, id"
_FLAGS_OF = "SELECT count(*) AS flags FROM open_flags WHERE annotator = $annotator"


def judge(
    db: Database,
    *,
    id: str,
    comparison: str,
    annotator: str,
    outcome: ScreenOutcome,
    strength: int | None = None,
    criteria: Mapping[str, str] | None = None,
    comment: str = "",
    milliseconds: int | None = None,
    replaces: str | None = None,
) -> Judgment:
    """Store what was pressed on the screen; `outcome` and `criteria` say a and b.

    A second judgment of the same comparison revises the annotator's current one.  `replaces`
    names which one they mean to revise, and is a Conflict when that is no longer the current
    one.  Answers are taken from whoever ever held a lease, however late.

    Raises ValueError (not a valid judgment), NotFound, NotLeased or Conflict.
    """
    return db.write(
        judging(
            id=id,
            comparison=comparison,
            annotator=annotator,
            outcome=outcome,
            strength=strength,
            criteria=criteria,
            comment=comment,
            milliseconds=milliseconds,
            replaces=replaces,
        )
    )


def judging(
    *,
    id: str,
    comparison: str,
    annotator: str,
    outcome: ScreenOutcome,
    strength: int | None = None,
    criteria: Mapping[str, str] | None = None,
    comment: str = "",
    milliseconds: int | None = None,
    replaces: str | None = None,
) -> Callable[[Transaction], Judgment]:
    """What `judge` asks the writer to do, for `Database.submit`; raises ValueError at once."""
    check_id(id)
    swapped = shown_swapped(annotator, comparison)
    canonical = canonical_outcome(outcome, shown_swapped=swapped)
    sides = _canonical_criteria(criteria or {}, swapped=swapped)

    def operation(tx: Transaction) -> Judgment:
        item = tx.observer(QueueCache).item(tx, comparison)
        current = item.judged.get(annotator)
        judgment = Judgment(
            id=id,
            comparison=comparison,
            annotator=annotator,
            outcome=canonical,
            shown_swapped=swapped,
            strength=strength,
            criteria=sides,
            comment=comment,
            milliseconds=milliseconds,
            replaces=current,
            created_at=tx.now(),
        )
        if replaces is not None and replaces != current and id not in item.acts:
            raise Conflict(
                f"your judgment {replaces!r} of this comparison is not the current one: it was "
                "revised or undone, perhaps in another tab; reload the page"
            )
        return _store_once(tx, item, judgment)

    return operation


def skip(db: Database, *, id: str, comparison: str, annotator: str) -> Skip:
    """Pass on a comparison: this annotator is not asked again.  Errors as for `judge`."""
    check_id(id)

    def operation(tx: Transaction) -> Skip:
        item = tx.observer(QueueCache).item(tx, comparison)
        act = Skip(id=id, comparison=comparison, annotator=annotator, created_at=tx.now())
        return _store_once(tx, item, act)

    return db.write(operation)


def flag(db: Database, *, id: str, comparison: str, annotator: str, comment: str = "") -> Flag:
    """Report a problem: nobody is asked until it is cleared.

    Errors as for `judge`; Conflict too for whoever has `MOST_FLAGS` that wait to be cleared.
    """
    check_id(id)

    def operation(tx: Transaction) -> Flag:
        item = tx.observer(QueueCache).item(tx, comparison)
        if id not in item.acts:
            _require_few_flags(tx, annotator)
        moment = tx.now()
        act = Flag(
            id=id, comparison=comparison, annotator=annotator, comment=comment, created_at=moment
        )
        stored = _store_once(tx, item, act)
        if stored is act:  # once it is cleared it belongs to whoever comes first
            grant(tx, comparison, annotator, item.leases[annotator].granted, moment)
        return stored

    return db.write(operation)


def _require_few_flags(tx: Transaction, annotator: str) -> None:
    if tx.rows(_FLAGS_OF, annotator=annotator)[0]["flags"] >= MOST_FLAGS:
        raise Conflict(
            f"{MOST_FLAGS} flags of yours wait for a researcher: tell them, and skip this pair or "
            "try again when they have cleared some"
        )


def undo(db: Database, *, id: str, annotator: str, replaces: str | None = None) -> Act:
    """Take back an act of this annotator (their latest one when `replaces` is None); returns it.

    `id` is that of the undo itself.  The comparison is leased to them again.  Raises NotFound
    when there is nothing of theirs to undo, Conflict when it was undone or revised already (a
    second tab), or when `id` undid something else or was an act before.
    """
    check_id(id)

    def operation(tx: Transaction) -> Act:
        before = tx.rows(_WITHDRAWAL, id=id)
        if before:
            return _undone_before(tx, before[0], annotator=annotator, replaces=replaces)
        target = replaces or _latest(tx, annotator)
        if tx.rows(_WHOSE, id=id):
            raise Conflict(_USED.format(id=id))
        whose = tx.rows(_WHOSE, id=target)
        if not whose or {row["annotator"] for row in whose} != {annotator}:
            raise NotFound(f"you have stored nothing under the id {target!r}")
        item = tx.observer(QueueCache).item(tx, whose[0]["comparison"])
        if target in item.closed:
            raise Conflict("this was undone or revised already, perhaps in another tab")
        moment = tx.now()
        tx.store(Withdrawal(id=id, replaces=target, annotator=annotator, created_at=moment))
        queue.give(tx, [item], annotator, moment)
        return item.acts[target]

    return db.write(operation)


def _undone_before(
    tx: Transaction, row: Mapping[str, Any], *, annotator: str, replaces: str | None
) -> Act:
    """The answer to an undo that is sent again."""
    withdrawal = from_row(Withdrawal, row)
    if withdrawal.annotator != annotator or replaces not in (None, withdrawal.replaces):
        raise Conflict(f"the id {withdrawal.id!r} undid something else; make a new one")
    comparison = tx.rows(_WHOSE, id=withdrawal.replaces)[0]["comparison"]
    return tx.observer(QueueCache).item(tx, comparison).acts[withdrawal.replaces]


def latest(db: Database, annotator: str) -> str | None:
    """The id of what an undo that names nothing would take back."""
    found = db.read(_LATEST, annotator=annotator)
    return found[0]["id"] if found else None


def _latest(tx: Transaction, annotator: str) -> str:
    found = tx.rows(_LATEST, annotator=annotator)
    if not found:
        raise NotFound("there is nothing of yours to undo")
    return found[0]["id"]


def clear_flag(db: Database, *, id: str, flag: str, researcher: str) -> Flag:
    """Put a flagged comparison back into the queue; `id` is that of the clearing itself."""
    check_id(id)

    def operation(tx: Transaction) -> Flag:
        rows = tx.rows(_FLAG, id=flag)
        if not rows:
            raise NotFound(f"there is no flag {flag!r}")
        if not tx.rows(_WITHDRAWN, id=flag):
            found = from_row(Flag, rows[0])
            tx.observer(QueueCache).item(
                tx, found.comparison
            )  # so that the desk follows the withdrawal
            tx.store(Withdrawal(id=id, replaces=flag, annotator=researcher, created_at=tx.now()))
        return from_row(Flag, rows[0])

    return db.write(operation)


def open_flags(db: Database) -> list[Flag]:
    """Reports nobody has cleared, oldest first."""
    return lookup.select(db, Flag, _OPEN_FLAGS)


def get(db: Database, judgment: str) -> Judgment:
    """The judgment with this id (current or not), or NotFound."""
    return lookup.by_key(db, Judgment, judgment)


def current_count(db: Database, iteration: int | None = None) -> int:
    """How many judgments stand, in all or on one iteration's comparisons."""
    return db.read(_COUNT, iteration=iteration)[0]["judgments"]


def check_id(id: str) -> None:
    """Raise ValueError unless a client's id can be one."""
    if not id.strip() or len(id) > 100:
        raise ValueError("an id must have 1 to 100 characters; use a UUID")


def _canonical_criteria(criteria: Mapping[str, str], *, swapped: bool) -> dict[str, str]:
    canonical: dict[str, str] = {}
    for name, side in criteria.items():
        check_choice(f"criterion {name}", side, ("a", "b", "tie"))
        canonical[name] = "tie" if side == "tie" else _first_or_second(side, swapped=swapped)
    return canonical


def _first_or_second(side: str, *, swapped: bool) -> str:
    return "first" if (side == "a") != swapped else "second"


def _store_once(tx: Transaction, item: QueueItem, act: ActT) -> ActT:
    """Store an act of somebody who was given the comparison, or find it stored already."""
    if act.id in item.acts:
        return _same(item.acts[act.id], act)
    if act.annotator not in item.leases:
        raise NotLeased(
            f"the comparison {item.comparison.id!r} was never given to you; ask for the next one"
        )
    # The unique index knows acts of one kind alone, and makes the whole group run again.
    if tx.observer(QueueCache).is_used(tx, act.id):
        raise Conflict(_USED.format(id=act.id))
    tx.store(act, fresh=True)
    return act


_USED = "the id {id!r} already stands for something else; make a new one"
# What a repeated act must agree on; times and what it replaced are facts of the first one.
_CONTENT = ("comparison", "annotator", "outcome", "strength", "criteria", "comment")


def _same(earlier: Act, again: ActT) -> ActT:
    if isinstance(earlier, type(again)) and all(
        getattr(earlier, name, None) == getattr(again, name, None) for name in _CONTENT
    ):
        return earlier
    raise Conflict(_USED.format(id=again.id))
