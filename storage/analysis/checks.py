"""What the checks say about each annotator: gold and practice pairs answered as expected, and re-asks
answered alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from storage.analysis.intervals import wilson
from storage.engine.database import Database

# A gold pair that is not active was retired because its answer is doubtful.  A re-ask counts with
# the judgment that it repeats, even if that one was revised later, but not if it was withdrawn: the
# annotator said that it was a slip.
_RESULTS = """
    SELECT j.annotator, k.kind, count(*) AS answered,
           count(*) FILTER (j.outcome = coalesce(k.answer, before.outcome)) AS matched
    FROM standing_judgments AS j
    JOIN checks AS k ON k.comparison = j.comparison
    LEFT JOIN judgments AS before ON before.id = k.judgment
    LEFT JOIN withdrawals AS w ON w.replaces = k.judgment
    WHERE k.kind <> 'practice' AND k.active AND w.id IS NULL AND (k.kind <> 'reask' OR before.id IS NOT NULL)
    GROUP BY j.annotator, k.kind
"""
# The first answer counts, even if it was undone: afterwards the annotator knew the expected one.
_PRACTICE = """
    WITH firsts AS (
        SELECT j.annotator, j.comparison, arg_min(j.outcome, j.seq) AS outcome
        FROM judgments AS j JOIN checks AS k ON k.comparison = j.comparison
        WHERE k.kind = 'practice' AND k.active GROUP BY ALL)
    SELECT f.annotator, 'practice' AS kind, count(*) AS answered,
           count(*) FILTER (f.outcome = k.answer) AS matched
    FROM firsts AS f JOIN checks AS k ON k.comparison = f.comparison GROUP BY f.annotator
"""
ONE_SIDED = 1.6448536269514722
"""The 95% point of the normal distribution."""
_ACTIVE = "SELECT count(*) AS n FROM checks WHERE kind = $kind AND active"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Checks of one kind: `answered`, and `matched` as expected or as before."""

    answered: int = 0
    matched: int = 0

    @property
    def share(self) -> float | None:
        return self.matched / self.answered if self.answered else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95% interval of the share."""
        return wilson(self.matched / self.answered, self.answered) if self.answered else None

    @property
    def lower_bound(self) -> float:
        """The lower bound of the share with 95% confidence, by Wilson; 0 without answers."""
        return (
            wilson(self.matched / self.answered, self.answered, ONE_SIDED)[0]
            if self.answered
            else 0
        )

    def __add__(self, other: CheckResult) -> CheckResult:
        return CheckResult(
            answered=self.answered + other.answered, matched=self.matched + other.matched
        )


@dataclass(frozen=True, kw_only=True)
class AnnotatorChecks:
    """The checks of one annotator, or of all together."""

    gold: CheckResult = CheckResult()
    reask: CheckResult = CheckResult()
    """Self-consistency: a second judgment of the same pair with swapped sides is the same."""
    practice: CheckResult = CheckResult()
    """First answers to practice pairs."""


def check_results(db: Database) -> Mapping[str, AnnotatorChecks]:
    """The results of every annotator who has answered a check."""
    found: dict[str, dict[str, CheckResult]] = {}
    for row in db.read(_RESULTS) + db.read(_PRACTICE):
        result = CheckResult(answered=row["answered"], matched=row["matched"])
        found.setdefault(row["annotator"], {})[row["kind"]] = result
    return {annotator: AnnotatorChecks(**results) for annotator, results in found.items()}


def in_all(results: Mapping[str, AnnotatorChecks]) -> AnnotatorChecks:
    """The results of all annotators together."""
    return AnnotatorChecks(
        gold=sum((each.gold for each in results.values()), CheckResult()),
        reask=sum((each.reask for each in results.values()), CheckResult()),
        practice=sum((each.practice for each in results.values()), CheckResult()),
    )


def active(db: Database, kind: Literal["gold", "practice"]) -> int:
    """How many gold or practice pairs annotators can get."""
    return db.read(_ACTIVE, kind=kind)[0]["n"]


PracticeState = Literal["not started", "in progress", "passed", "below the mark"]


def practice_state(found: CheckResult, *, pairs: int, mark: float) -> PracticeState:
    """The state of an annotator's practice of `pairs` pairs; the pass mark is `mark`."""
    if not found.answered:
        return "not started"
    if found.answered < pairs:
        return "in progress"
    return "passed" if found.lower_bound > mark else "below the mark"
