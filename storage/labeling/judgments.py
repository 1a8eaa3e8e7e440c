"""The acts of annotators: judge, skip, flag, undo.  Stored records never change.

The client creates the id of an act.  Sending the same act again returns the same answer and stores
nothing; different content with the same id is a Conflict.

Revising appends a judgment that replaces the current one.  Undoing appends a withdrawal: the act no
longer counts, and its comparison is leased to the annotator again, with the same sides.  Undoing a
revision does not restore the revised judgment: the annotator judges the pair again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import Conflict, NotFound
from storage.labeling import queue
from storage.labeling.queue_cache import Act, QueueCache, QueueItem, grant
from storage.records import Flag, Judgment, Mark, ScreenOutcome, Skip, Withdrawal, check_choice
from storage.sides import canonical_outcome, canonical_sides, shown_swapped
from storage.tables import audit
from storage.tables.runs import events

ActT = TypeVar("ActT", Judgment, Skip, Flag)

MAX_FLAGS = 20
"""Limit of uncleared flags per annotator: each removes a pair from the queue, and an iteration may
have only a hundred pairs."""

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
_TEXTS = """
    SELECT f.text AS first, s.text AS second FROM comparisons AS c
    JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second
    WHERE c.id = $id
"""
_FLAG = "SELECT * FROM flags WHERE id = $id"
_FLAGS_OF = "SELECT count(*) AS flags FROM open_flags WHERE annotator = $annotator"


def judge(db: Database, **fields: Any) -> Judgment:
    """Store a judgment and wait for it; the fields and errors are those of `judgment_operation`."""
    return db.write(judgment_operation(**fields))


_NOT_CURRENT = (
    "your judgment {id!r} of this comparison is not the current one: it was revised or undone, "
    "perhaps in another tab; reload the page"
)


def judgment_operation(
    *,
    id: str,
    comparison: str,
    annotator: str,
    outcome: ScreenOutcome,
    strength: int | None = None,
    criteria: Mapping[str, str] | None = None,
    reasons: Mapping[str, Sequence[str]] | None = None,
    safety: Mapping[str, str] | None = None,
    marks: Mapping[str, Sequence[Mark]] | None = None,
    comment: str = "",
    edit: str = "",
    milliseconds: int | None = None,
    guidelines: str | None = None,
    replaces: str | None = None,
) -> Callable[[Transaction], Judgment]:
    """The operation that stores a judgment with the sides of the screen, for `Database.submit`.

    `outcome`, `criteria` and the keys of `reasons`, `safety` and `marks` are a or b.  A second judgment of the
    same comparison revises the annotator's current one; if `replaces` names another judgment, it is
    a Conflict.  An annotator who has ever had a lease may judge, however late.

    Raises ValueError for an invalid judgment; the write raises NotFound, NotLeased or Conflict.
    """
    check_id(id)
    swapped = shown_swapped(annotator, comparison)
    canonical = canonical_outcome(outcome, shown_swapped=swapped)
    by_criterion = _canonical_criteria(criteria or {}, swapped=swapped)
    tags = canonical_sides(reasons or {}, shown_swapped=swapped)
    labels = canonical_sides(safety or {}, shown_swapped=swapped)
    passages = canonical_sides(marks or {}, shown_swapped=swapped)

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
            criteria=by_criterion,
            reasons=tags,
            safety=labels,
            marks=passages,
            comment=comment,
            edit=edit,
            milliseconds=milliseconds,
            guidelines=guidelines,
            replaces=current,
            created_at=tx.now(),
        )
        if replaces is not None and replaces != current and id not in item.acts:
            raise Conflict(_NOT_CURRENT.format(id=replaces))
        if edit:
            _require_changed(tx, judgment)
        return _store_once(tx, item, judgment)

    return operation


def _require_changed(tx: Transaction, judgment: Judgment) -> None:
    texts = tx.rows(_TEXTS, id=judgment.comparison)[0]
    if judgment.edit.strip() == texts[judgment.outcome].strip():
        raise ValueError("the edit is the response itself: send the judgment without it")


def skip(db: Database, *, id: str, comparison: str, annotator: str) -> Skip:
    """Skip a comparison, which this annotator does not get again.

    Errors as for `judgment_operation`.
    """
    check_id(id)

    def operation(tx: Transaction) -> Skip:
        item = tx.observer(QueueCache).item(tx, comparison)
        act = Skip(id=id, comparison=comparison, annotator=annotator, created_at=tx.now())
        return _store_once(tx, item, act)

    return db.write(operation)


def flag(db: Database, *, id: str, comparison: str, annotator: str, comment: str = "") -> Flag:
    """Report a problem: the pair leaves the queue until a researcher clears the flag.

    Errors as for `judgment_operation`, and Conflict for an annotator with `MAX_FLAGS` uncleared
    flags.
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
        if stored is act:  # end the lease, so that others can get the cleared pair
            events.record(tx, events.flag_opened(act))
            grant(tx, comparison, annotator, item.leases[annotator].granted, moment)
        return stored

    return db.write(operation)


def _require_few_flags(tx: Transaction, annotator: str) -> None:
    if tx.rows(_FLAGS_OF, annotator=annotator)[0]["flags"] >= MAX_FLAGS:
        raise Conflict(
            f"{MAX_FLAGS} of your flags are not cleared yet: skip this pair, or ask a researcher "
            "to clear them and try again later"
        )


def undo(db: Database, *, id: str, annotator: str, replaces: str | None = None) -> Act:
    """Withdraw an act of this annotator, the latest if `replaces` is None, and return it.

    `id` is the id of the undo itself.  The comparison is leased to the annotator again.  Raises
    NotFound if there is nothing to undo, and Conflict if the act was already undone or revised (in
    a second tab) or `id` is already used.
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
            raise Conflict("this was already undone or revised, perhaps in another tab")
        moment = tx.now()
        tx.store(Withdrawal(id=id, replaces=target, annotator=annotator, created_at=moment))
        queue.lease_items(tx, [item], annotator, moment)
        return item.acts[target]

    return db.write(operation)


def _undone_before(
    tx: Transaction, row: Mapping[str, Any], *, annotator: str, replaces: str | None
) -> Act:
    """The answer to a repeated undo."""
    withdrawal = from_row(Withdrawal, row)
    if withdrawal.annotator != annotator or replaces not in (None, withdrawal.replaces):
        raise Conflict(f"the id {withdrawal.id!r} belongs to another undo; use a new one")
    comparison = tx.rows(_WHOSE, id=withdrawal.replaces)[0]["comparison"]
    return tx.observer(QueueCache).item(tx, comparison).acts[withdrawal.replaces]


def latest(db: Database, annotator: str) -> str | None:
    """The id of the act that an undo without an id would withdraw."""
    found = db.read(_LATEST, annotator=annotator)
    return found[0]["id"] if found else None


def _latest(tx: Transaction, annotator: str) -> str:
    found = tx.rows(_LATEST, annotator=annotator)
    if not found:
        raise NotFound("you have nothing to undo")
    return found[0]["id"]


def clear_flag(db: Database, *, id: str, flag: str, researcher: str) -> Flag:
    """Return a flagged comparison to the queue; `id` is the id of the clearing itself."""
    check_id(id)
    return db.write(lambda tx: clear_in(tx, id=id, flag=flag, researcher=researcher))


def clear_in(tx: Transaction, *, id: str, flag: str, researcher: str) -> Flag:
    """The same, inside a transaction.  A flag that is cleared or undone already stays as it is."""
    rows = tx.rows(_FLAG, id=flag)
    if not rows:
        raise NotFound(f"there is no flag {flag!r}")
    if not tx.rows(_WITHDRAWN, id=flag):
        # The cache must have the item before it can apply the withdrawal.
        tx.observer(QueueCache).item(tx, rows[0]["comparison"])
        tx.store(Withdrawal(id=id, replaces=flag, annotator=researcher, created_at=tx.now()))
        audit.note_in(tx, "flag.cleared", flag)
    return from_row(Flag, rows[0])


def check_id(id: str) -> None:
    """Raise ValueError for an id that a client must not use."""
    if not id.strip() or len(id) > 100:
        raise ValueError("an id must have 1 to 100 characters; use a UUID")


def _canonical_criteria(criteria: Mapping[str, str], *, swapped: bool) -> dict[str, str]:
    canonical: dict[str, str] = {}
    for name, side in criteria.items():
        check_choice(f"criterion {name}", side, ("a", "b", "tie"))
        canonical[name] = canonical_outcome(side, shown_swapped=swapped)  # type: ignore[arg-type]
    return canonical


def _store_once(tx: Transaction, item: QueueItem, act: ActT) -> ActT:
    """Store an act of an annotator with a lease, or return the same act if it is already stored."""
    if act.id in item.acts:
        return _same(item.acts[act.id], act)
    queue.require_lease(item, act.annotator)
    # The unique index covers only one kind of act, and a violation makes the whole group run again.
    if tx.observer(QueueCache).is_used(tx, act.id):
        raise Conflict(_USED.format(id=act.id))
    tx.store(act, fresh=True)
    return act


_USED = "the id {id!r} is already used for other content; use a new one"
# Fields that must be equal in a repeated act; times and `replaces` may differ.
_CONTENT = (
    *("comparison", "annotator", "outcome", "strength", "criteria", "reasons", "safety", "comment"),
    *("edit", "marks"),
)


def _same(earlier: Act, again: ActT) -> ActT:
    if isinstance(earlier, type(again)) and all(
        getattr(earlier, name, None) == getattr(again, name, None) for name in _CONTENT
    ):
        return earlier
    raise Conflict(_USED.format(id=again.id))
