"""The judgments as columns of numbers in memory, so that filters and counts need no query.

The list of judgments counts the values of every filter for each answer: on 100,000 judgments,
a tenth of a second in SQL and a few milliseconds here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from storage.engine.database import Database
from storage.records import Arm, Outcome

VALUES = ("annotator", "arm", "outcome", "category", "iteration")
MARKS = ("disagreement", "surprise", "flagged", "commented", "excluded")

# Disagreement is about the answers that figures use: neither excluded ones nor those of models.
_COLUMNS = """
    WITH {predicted},
    people AS (SELECT id, row_number() OVER (ORDER BY id) - 1 AS code FROM annotators),
    asked AS (
        SELECT id, dense_rank() OVER (ORDER BY coalesce(category, '')) - 1 AS code FROM prompts),
    apart AS (SELECT judgment FROM exclusions WHERE excluded),
    standing AS MATERIALIZED (
        SELECT j.id, j.seq, j.comparison, j.annotator, j.outcome,
               coalesce(j.comment, '') <> '' AS commented, j.id IN (FROM apart) AS excluded
        FROM standing_judgments AS j ANTI JOIN checks AS k ON k.comparison = j.comparison),
    disputed AS (
        SELECT comparison FROM standing
        WHERE NOT excluded AND annotator NOT IN (SELECT id FROM annotators WHERE kind = 'model')
        GROUP BY comparison HAVING min(outcome) <> max(outcome))
    SELECT j.seq, a.code::INTEGER AS annotator, list_position($arms, c.arm)::INTEGER - 1 AS arm,
           list_position($outcomes, j.outcome)::INTEGER - 1 AS outcome, p.code::INTEGER AS category,
           c.iteration::INTEGER AS iteration, j.excluded, j.commented,
           j.comparison IN (FROM disputed) AS disagreement,
           j.comparison IN (SELECT comparison FROM open_flags) AS flagged,
           coalesce(CASE j.outcome WHEN 'first' THEN e.expected < 0.5
                                   WHEN 'second' THEN e.expected > 0.5 END, false) AS surprise
    FROM standing AS j
    JOIN people AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN asked AS p ON p.id = c.prompt
    LEFT JOIN predicted AS e ON e.comparison = j.comparison
    ORDER BY j.seq DESC
"""
_PEOPLE = "SELECT id FROM annotators ORDER BY id"
_CATEGORIES = "SELECT DISTINCT coalesce(category, '') AS category FROM prompts ORDER BY category"
_VERSION = "SELECT value FROM meta WHERE key = 'journal_bytes'"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All judgments that are listed, the newest first; every array has an entry for each.

    `codes` has the index into `values`, by the name of the facet.
    """

    seq: NDArray[np.int64]
    codes: Mapping[str, NDArray[np.int64]]
    values: Mapping[str, Sequence[str]]
    marks: Mapping[str, NDArray[np.bool_]]

    def have(self, name: str, value: str | bool) -> NDArray[np.bool_]:
        """Which judgments have the value of a facet, or a mark or not."""
        if name in self.marks:
            return self.marks[name] == value
        values = self.values[name]
        code = values.index(value) if value in values else -1
        return self.codes[name] == code

    def counts(self, name: str, among: NDArray[np.bool_]) -> dict[str, int]:
        """The number of judgments with each value of a facet; values without any are left out."""
        found = np.bincount(self.codes[name][among], minlength=len(self.values[name]))
        counted = zip(self.values[name], found.tolist(), strict=True)
        return {value: count for value, count in counted if count}


class ColumnsCache:
    """The columns of the newest state that was read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[tuple[str, str], Columns] | None = None

    def columns(self, db: Database, predicted: str) -> Columns:
        """The columns in this thread's snapshot; `predicted` is the SQL of `predicted`.

        They are read again after any record was committed.
        """
        key = (db.read(_VERSION)[0]["value"], predicted)
        with self._lock:
            if self._known is None or self._known[0] != key:
                self._known = (key, _read(db, predicted))
            return self._known[1]


def _read(db: Database, predicted: str) -> Columns:
    arms, outcomes = list(get_args(Arm)), list(get_args(Outcome))
    sql = _COLUMNS.format(predicted=predicted)
    rows = db.cursor().execute(sql, {"arms": arms, "outcomes": outcomes}).fetchnumpy()
    found = {name: np.asarray(column) for name, column in rows.items()}
    numbers, of_iteration = np.unique(found["iteration"], return_inverse=True)
    return Columns(
        seq=found["seq"],
        codes={name: found[name] for name in VALUES} | {"iteration": of_iteration},
        values={
            "annotator": [row["id"] for row in db.read(_PEOPLE)],
            "arm": arms,
            "outcome": outcomes,
            "category": [row["category"] for row in db.read(_CATEGORIES)],
            "iteration": [str(number) for number in numbers],
        },
        marks={name: found[name] for name in MARKS},
    )
