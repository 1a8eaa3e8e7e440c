"""Judgments by models (RLAIF): which comparisons a judge has not seen, and storing what it says.

They are stored under an annotator of kind "model".  They use up none of the judgments that are
wanted from people, and nothing learns from them unless ``reward.learn_from`` names the kind.
"""

from __future__ import annotations

from typing import Any

from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.labeling.queue_cache import SERVED, QueueCache
from storage.records import (
    Annotator,
    Judgment,
    digest,
    shown_swapped,
)
from storage.tables import annotators
from storage.tables.pseudonyms import key_of, keyed

_OPEN = f"""
    SELECT c.id, p.messages::VARCHAR AS messages, f.text AS first, s.text AS second
    FROM comparisons AS c
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE ((c.iteration = ({SERVED}) AND c.arm <> 'imported') OR c.arm = 'written')
      AND c.id NOT IN (SELECT comparison FROM open_flags)
      AND c.id NOT IN (SELECT comparison FROM judgments WHERE annotator = $annotator)
    ORDER BY c.position, c.id
    LIMIT $limit
"""


def judge_named(db: Database, name: str) -> Annotator:
    """The judge's account, stored with its first judgment; ValueError when the name is another's.

    The id of one that is not stored yet follows from the name and the workspace's key: sides follow
    from it, and would tell the name to whoever tries names out.
    """
    known = annotators.by_name(db, name)
    if known is None:
        annotators.require_name(name)
        return Annotator(id=f"a-{keyed(key_of(db), f'judge {name}')}", name=name, kind="model")
    if known.kind != "model":
        raise ValueError(
            f"{name!r} is a {known.kind}, and a judge's answers must not be mixed with theirs; "
            "give the judge another --name"
        )
    if known.disabled:
        raise ValueError(f"the judge {name!r} is disabled; give another --name")
    return known


def open_pairs(db: Database, *, annotator: str, limit: int) -> list[dict[str, Any]]:
    """Comparisons in the queue that this judge has not judged, in its order.

    Rows have id, messages (JSON), first, second, and `swapped`: whether a coin that follows from
    judge and comparison puts `second` on the left.  Flagged ones are left out; those that people
    have judged are not, so that judge and people can be compared.
    """
    found = db.read(_OPEN, annotator=annotator, limit=limit)
    return [row | {"swapped": shown_swapped(annotator, row["id"])} for row in found]


def save(
    db: Database,
    *,
    name: str,
    comparison: str,
    outcome: str,
    comment: str = "",
    milliseconds: int | None = None,
) -> bool:
    """Store the verdict (first, second or tie) of the judge of that name; False for a second one.

    The id follows from judge and comparison, so that sending it again stores nothing.
    """
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
