"""Exclusions: judgments that a researcher takes out of training, figures and exports, and restores.

The view `current_judgments` leaves them out, so everything that reads it does.  Snapshots that are
frozen already stay as they are.  An excluded judgment is still its annotator's answer: they see it
in their list, and the pair does not return to the queue.  If they revise it, the revision is another
judgment, and counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine.codec import from_row
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.errors import NotFound
from storage.records import Exclusion

_STANDING = """
    SELECT k.kind AS check, s.id IS NOT NULL AS standing
    FROM judgments AS j
    LEFT JOIN standing_judgments AS s ON s.id = j.id
    LEFT JOIN checks AS k ON k.comparison = j.comparison
    WHERE j.id = $id
"""
_STORED = "SELECT * FROM exclusions WHERE judgment = $id"
# Which of these judgments can be excluded, and which are excluded.
_MANY = """
    SELECT s.id, coalesce(e.excluded, false) AS excluded
    FROM standing_judgments AS s
    LEFT JOIN checks AS k ON k.comparison = s.comparison
    LEFT JOIN exclusions AS e ON e.judgment = s.id
    WHERE k.kind IS NULL AND s.id IN (SELECT unnest($ids))
    ORDER BY s.id
"""
_BATCH = 500
"""Judgments that are excluded in one transaction, so that labels wait only for a short time."""


def exclude(db: Database, judgment: str, *, reason: str, researcher: str = "") -> Exclusion:
    """Exclude a judgment; a repeated exclusion replaces the reason.

    NotFound for an unknown judgment; ValueError without a reason, and for a judgment that was
    revised or undone, or that answers a check.
    """

    def operation(tx: Transaction) -> Exclusion:
        found = tx.rows(_STANDING, id=judgment)
        if not found:
            raise NotFound(f"there is no judgment {judgment!r}")
        if not found[0]["standing"]:
            raise ValueError(
                f"the judgment {judgment!r} was revised or undone, so it counts nowhere; exclude the "
                "current one"
            )
        if found[0]["check"]:
            raise ValueError(
                f"the judgment {judgment!r} answers a {found[0]['check']} pair, from which nothing "
                "learns; retire the pair instead"
            )
        made = Exclusion(
            judgment=judgment, excluded=True, reason=reason.strip(), researcher=researcher,
            created_at=tx.now(),
        )  # fmt: skip
        tx.store(made)
        return made

    return db.write(operation)


def restore(db: Database, judgment: str, *, reason: str = "", researcher: str = "") -> Exclusion:
    """Let an excluded judgment count again; ValueError if it is not excluded."""

    def operation(tx: Transaction) -> Exclusion:
        stored = [from_row(Exclusion, row) for row in tx.rows(_STORED, id=judgment)]
        if not stored or not stored[0].excluded:
            raise ValueError(f"the judgment {judgment!r} is not excluded")
        made = Exclusion(
            judgment=judgment, excluded=False, reason=reason.strip(), researcher=researcher,
            created_at=tx.now(),
        )  # fmt: skip
        tx.store(made)
        return made

    return db.write(operation)


def exclude_each(db: Database, chosen: Sequence[str], *, reason: str, researcher: str = "") -> int:
    """Exclude these judgments, and return how many were not excluded before.

    Judgments that were revised or undone, and those of checks, are skipped.  ValueError without a
    reason.
    """
    return _set_each(db, chosen, excluded=True, reason=reason, researcher=researcher)


def restore_each(
    db: Database, chosen: Sequence[str], *, reason: str = "", researcher: str = ""
) -> int:
    """Let the excluded ones among these judgments count again, and return how many that were."""
    return _set_each(db, chosen, excluded=False, reason=reason, researcher=researcher)


def _set_each(
    db: Database, chosen: Sequence[str], *, excluded: bool, reason: str, researcher: str
) -> int:
    def operation(tx: Transaction, ids: Sequence[str]) -> int:
        made = [
            Exclusion(
                judgment=row["id"], excluded=excluded, reason=reason.strip(), researcher=researcher,
                created_at=tx.now(),
            )
            for row in tx.rows(_MANY, ids=ids)
            if row["excluded"] != excluded
        ]  # fmt: skip
        tx.store(*made)
        return len(made)

    if excluded:
        Exclusion(judgment="", excluded=True, reason=reason)  # refuses an empty reason
    parts = (list(chosen[start : start + _BATCH]) for start in range(0, len(chosen), _BATCH))
    return sum(db.write(lambda tx, ids=ids: operation(tx, ids)) for ids in parts)
