"""What a snapshot of judgments contains, in numbers.

A snapshot never changes, so each is counted once in a process: with many judgments, the counting is
what makes a lineage slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from storage.engine.database import Database

_LISTED = "SELECT hash, iteration, judgments FROM snapshots ORDER BY iteration, hash"
_ANNOTATORS = """
    SELECT m.snapshot, count(DISTINCT j.annotator) AS annotators
    FROM snapshot_judgments AS m JOIN judgments AS j ON j.id = m.judgment
    WHERE list_contains($hashes, m.snapshot) GROUP BY m.snapshot
"""
_ITERATIONS = """
    SELECT m.snapshot, c.iteration, count(*) AS judgments
    FROM snapshot_judgments AS m
    JOIN judgments AS j ON j.id = m.judgment
    JOIN comparisons AS c ON c.id = j.comparison
    WHERE list_contains($hashes, m.snapshot) GROUP BY ALL ORDER BY c.iteration
"""
# A judgment between two policies counts for both.
_POLICIES = """
    WITH shown AS (
        SELECT DISTINCT each.comparison, k.policy
        FROM (SELECT id AS comparison, unnest([first, second]) AS completion
              FROM comparisons) AS each
        JOIN completions AS k ON k.id = each.completion)
    SELECT m.snapshot, s.policy, count(*) AS judgments
    FROM snapshot_judgments AS m
    JOIN judgments AS j ON j.id = m.judgment
    JOIN shown AS s ON s.comparison = j.comparison
    WHERE list_contains($hashes, m.snapshot)
    GROUP BY m.snapshot, s.policy ORDER BY judgments DESC, s.policy
"""
_SHARED = """
    SELECT count(*) AS judgments FROM snapshot_judgments AS a
    JOIN snapshot_judgments AS b ON b.judgment = a.judgment AND b.snapshot = $later
    WHERE a.snapshot = $earlier
"""


@dataclass(frozen=True, kw_only=True)
class SnapshotContents:
    """A snapshot of `judgments` by so many `annotators`."""

    hash: str
    iteration: int | None
    judgments: int
    annotators: int
    by_iteration: Mapping[int, int]
    """Judgments by the iteration of their pair, in its order; 0 is for imported pairs."""
    by_policy: Mapping[str, int]
    """Judgments by the policy whose response they are about, the most first."""


@dataclass
class _Counted:
    contents: dict[str, SnapshotContents] = field(default_factory=dict)
    shared: dict[tuple[str, str], int] = field(default_factory=dict)


_counted: WeakKeyDictionary[Database, _Counted] = WeakKeyDictionary()


def contents(db: Database) -> list[SnapshotContents]:
    """All snapshots in order of iterations."""
    known = _counted.setdefault(db, _Counted()).contents
    listed = db.read(_LISTED)
    missing = [row for row in listed if row["hash"] not in known]
    if missing:
        known.update(_count(db, missing))
    return [known[row["hash"]] for row in listed]


def shared(db: Database, earlier: str, later: str) -> int:
    """The number of judgments that two snapshots have in common."""
    known = _counted.setdefault(db, _Counted()).shared
    if (earlier, later) not in known:
        [row] = db.read(_SHARED, earlier=earlier, later=later)
        known[earlier, later] = row["judgments"]
    return known[earlier, later]


def _count(db: Database, listed: list[dict[str, Any]]) -> dict[str, SnapshotContents]:
    hashes = [row["hash"] for row in listed]
    annotators = {row["snapshot"]: row["annotators"] for row in db.read(_ANNOTATORS, hashes=hashes)}
    iterations: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for row in db.read(_ITERATIONS, hashes=hashes):
        iterations[row["snapshot"]][row["iteration"]] = row["judgments"]
    policies: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for row in db.read(_POLICIES, hashes=hashes):
        policies[row["snapshot"]][row["policy"]] = row["judgments"]
    return {
        hash: SnapshotContents(
            **row,
            annotators=annotators.get(hash, 0),
            by_iteration=iterations[hash],
            by_policy=policies[hash],
        )
        for row in listed
        for hash in [row["hash"]]
    }
