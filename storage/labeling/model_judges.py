"""Judgments by models (RLAIF): the comparisons that a judge has not judged, and its judgments.

They belong to an annotator of kind "model".  They do not count towards the judgments wanted from
people, and no model learns from them unless ``reward.learn_from`` names the kind.
"""

from __future__ import annotations

from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.labeling.queue_cache import IN_USE, QueueCache
from storage.records import Annotator, Judgment, OpenPair, digest
from storage.sides import shown_swapped
from storage.tables.people import annotators
from storage.tables.people.pseudonyms import key_of, keyed

_OPEN = f"""
    SELECT c.id, p.messages::VARCHAR AS messages, f.text AS first, s.text AS second
    FROM comparisons AS c
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE {IN_USE}
      AND c.id NOT IN (SELECT comparison FROM open_flags)
      AND c.id NOT IN (SELECT comparison FROM judgments WHERE annotator = $annotator)
    ORDER BY c.position, c.id
    LIMIT $limit
"""


def judge_named(db: Database, name: str) -> Annotator:
    """The judge's account, which its first judgment stores; ValueError if the name is taken.

    A new id is a keyed digest of the name: sides depend on the id, and must not reveal the name.
    """
    known = annotators.by_name(db, name)
    if known is None:
        annotators.require_name(name)
        return Annotator(id=f"a-{keyed(key_of(db), f'judge {name}')}", name=name, kind="model")
    if known.kind != "model":
        raise ValueError(
            f"{name!r} is a {known.kind}; a judge needs its own account, so choose another --name"
        )
    if known.disabled:
        raise ValueError(f"the judge {name!r} is disabled; choose another --name")
    return known


def open_pairs(db: Database, *, annotator: str, limit: int) -> list[OpenPair]:
    """Comparisons in the queue that this judge has not judged, in the order of the queue.

    Flagged pairs are excluded; pairs that people have judged are included, so that the judge can be
    compared with people.
    """
    found = db.read(_OPEN, annotator=annotator, limit=limit)
    return [OpenPair(**row, swapped=shown_swapped(annotator, row["id"])) for row in found]


def save(
    db: Database,
    *,
    name: str,
    comparison: str,
    outcome: str,
    comment: str = "",
    milliseconds: int | None = None,
) -> bool:
    """Store the judge's outcome (first, second or tie); False if it has already judged the pair."""
    judge = judge_named(db, name)

    def operation(tx: Transaction) -> bool:
        if judge.id in tx.observer(QueueCache).item(tx, comparison).judged:
            return False
        annotators.ensure(tx, judge)
        judgment = Judgment(
            id=f"j-{digest('judge', judge.id, comparison)}",
            comparison=comparison,
            annotator=judge.id,
            outcome=outcome,  # type: ignore[arg-type]
            shown_swapped=shown_swapped(judge.id, comparison),
            comment=comment,
            milliseconds=milliseconds,
            created_at=tx.now(),
        )
        tx.store(judgment)
        return True

    return db.write(operation)
