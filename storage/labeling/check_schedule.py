"""When an annotator gets a pair that measures them.  Pure functions.

An annotator's pairs are divided into blocks, each with one check at a random place, so everybody
gets the same share and nobody can foresee a check: the place depends on the workspace's secret key.
Pairs are counted without the checks.
"""

from __future__ import annotations

from storage.records import CheckKind
from storage.tables.people.pseudonyms import keyed
from storage.tables.settings import CheckPlan

FIRST_PAIRS = 40
"""An annotator's first pairs, which contain at least `CheckPlan.gold_first` gold pairs."""


def due(plan: CheckPlan, kind: CheckKind, key: bytes, annotator: str, pairs: int) -> int:
    """How many checks of this kind belong to the annotator's first `pairs` other pairs."""

    def places(name: str, *, start: int, block: float) -> int:
        """The places up to `pairs`: one in each block, the first of which begins at `start`."""
        if pairs <= start:
            return 0
        whole = int((pairs - start) // block)
        within = int(keyed(key, f"place {name} {annotator} {whole}"), 16) / 2**64
        return whole + (start + (whole + within) * block < pairs)

    if kind == "reask":
        share = plan.reask_share
        return places("reask", start=plan.reask_after, block=1 / share) if share else 0
    if not plan.gold_share:
        return 0
    if plan.gold_first <= FIRST_PAIRS * plan.gold_share:
        return places("gold", start=0, block=1 / plan.gold_share)
    first = places("first gold", start=0, block=FIRST_PAIRS / plan.gold_first)
    later = places("gold", start=FIRST_PAIRS, block=1 / plan.gold_share)
    return min(first, plan.gold_first) + later
