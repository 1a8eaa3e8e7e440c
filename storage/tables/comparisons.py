"""Comparisons: pairs of completions to judge."""

from __future__ import annotations

from collections.abc import Sequence

from storage.engine import lookup
from storage.engine.database import Database
from storage.engine.transaction import Transaction
from storage.records import Comparison

_ANSWERED = """
    SELECT c.id, c.prompt FROM completions AS c JOIN prompts AS p ON p.id = c.prompt
    WHERE c.id IN (SELECT unnest($ids))
"""


def add(db: Database, comparisons: Sequence[Comparison]) -> int:
    """Store comparisons; returns the number of new ones.  Stored ones keep their position.

    Raises ValueError if a completion is not stored or responds to another prompt.
    """

    def operation(tx: Transaction) -> int:
        stored = tx.rows(_ANSWERED, ids=[name for c in comparisons for name in (c.first, c.second)])
        prompt_of = {row["id"]: row["prompt"] for row in stored}
        for comparison in comparisons:
            for name in (comparison.first, comparison.second):
                if prompt_of.get(name) != comparison.prompt:
                    raise ValueError(
                        f"comparison {comparison.id!r}: {name!r} is not a stored completion of "
                        f"the prompt {comparison.prompt!r}"
                    )
        return tx.store(*comparisons)

    return db.write(operation)


def get(db: Database, comparison: str) -> Comparison:
    """The comparison with this id, or NotFound."""
    return lookup.by_key(db, Comparison, comparison)
