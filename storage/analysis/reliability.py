"""Figures on each annotator, from the judgments (in SQL) and from the newest reward model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.analysis.annotator_fit import AnnotatorFit, read_annotator_fit
from storage.analysis.intervals import cluster_variance, clustered, wilson
from storage.engine.database import Database
from storage.engine.items import PEOPLE, shared_ratings
from storage.records import Annotator, AnnotatorKind
from storage.tables import models, settings
from storage.tables.people import annotators

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class JudgingStatistics:
    """Statistics of one annotator's current judgments, independent of others; None without data.

    `left_rate` is the share of `decided` judgments (not tie, not both bad) for the response on the
    left, with its 95% interval; sides are random, so about one half is expected.  `quick_seconds`
    is the 10% quantile of the time from seeing a pair to answering.
    """

    judgments: int = 0
    decided: int = 0
    left_rate: float | None = None
    left_interval: Interval | None = None
    tie_rate: float | None = None
    both_bad_rate: float | None = None
    median_seconds: float | None = None
    quick_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class AgreementWithOthers:
    """One annotator's agreement with others.

    `agreement` is the share of others' ratings with the same outcome, averaged over the
    `shared_items` that others rated too.  Its 95% interval is clustered by prompt.
    """

    shared_items: int = 0
    agreement: float | None = None
    agreement_interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class AnnotatorFigures(JudgingStatistics, AgreementWithOthers):
    """All figures of one annotator."""

    annotator: Annotator


_JUDGING = """
    SELECT annotator, count(*) AS judgments,
           count(*) FILTER (outcome IN ('first', 'second')) AS decided,
           count(*) FILTER ((outcome = 'first') <> shown_swapped
                            AND outcome IN ('first', 'second')) / nullif(decided, 0) AS left_rate,
           avg((outcome = 'tie')::INTEGER) AS tie_rate,
           avg((outcome = 'both_bad')::INTEGER) AS both_bad_rate,
           quantile_cont(milliseconds, 0.5) / 1000 AS median_seconds,
           quantile_cont(milliseconds, 0.1) / 1000 AS quick_seconds
    FROM {judgments}
    WHERE $annotator IS NULL OR annotator = $annotator
    GROUP BY annotator
"""

# x is the share of the others' ratings of an item that equal the annotator's.  The variance follows
# from sums by prompt: squares = Σ (s − x̄·n)² = Σ s² − 2 x̄ Σ s·n + x̄² Σ n².
_AGREEMENT = f"""
    WITH {PEOPLE},
    {shared_ratings()},
    counted AS (
        SELECT comparison, codes, n AS counted_people,
               [len([c FOR c IN codes IF c % 4 = level AND c < 4 * n])
                FOR level IN [0, 1, 2, 3]] AS said
        FROM shared, of_kinds),
    ratings AS (
        SELECT comparison, unnest(codes) AS code, said, list_sum(said) AS everybody, counted_people
        FROM counted),
    compared AS (
        SELECT comparison, code // 4 AS number,
               everybody - (code < 4 * counted_people)::INTEGER AS with_whom,
               said[code % 4 + 1] - (code < 4 * counted_people)::INTEGER AS alike
        FROM ratings),
    by_prompt AS (
        SELECT number, prompt, count(*) AS n, sum(alike / with_whom) AS s, sum(with_whom) AS answers
        FROM compared JOIN comparisons AS c ON c.id = comparison
        WHERE with_whom > 0
        GROUP BY number, prompt)
    SELECT p.id AS annotator, sum(n)::BIGINT AS items, count(*) AS prompts, sum(s) AS total,
           sum(s * s) AS ss, sum(s * n)::DOUBLE AS sn, sum(n * n)::DOUBLE AS nn,
           sum(answers)::DOUBLE AS answers
    FROM by_prompt JOIN people AS p USING (number)
    GROUP BY p.id
"""


def annotator_figures(
    db: Database, *, kinds: Sequence[AnnotatorKind] | None = None
) -> dict[str, AnnotatorFigures]:
    """Figures of every annotator by id, including those without judgments.

    Agreement is with others of `kinds`, by default the kinds that reward models learn from.
    """
    work = _judging_by_annotator(db)
    chosen = list(kinds or settings.learn_from(db))
    agreed = {row["annotator"]: row for row in db.read(_AGREEMENT, kinds=chosen)}
    return {
        person.id: AnnotatorFigures(
            annotator=person,
            **vars(work.get(person.id, JudgingStatistics())),
            **vars(_agreement(agreed[person.id]) if person.id in agreed else AgreementWithOthers()),
        )
        for person in annotators.listing(db)
    }


def judging_statistics(db: Database, annotator: str) -> JudgingStatistics:
    """One annotator's figures that do not depend on others, over all their judgments: without the
    checks, an annotator could count them."""
    return _judging_by_annotator(db, annotator, judgments="standing_judgments").get(
        annotator, JudgingStatistics()
    )


def _judging_by_annotator(
    db: Database, annotator: str | None = None, *, judgments: str = "current_judgments"
) -> dict[str, JudgingStatistics]:
    found: dict[str, JudgingStatistics] = {}
    for row in db.read(_JUDGING.format(judgments=judgments), annotator=annotator):
        name, left = row.pop("annotator"), row["left_rate"]
        interval = None if left is None else wilson(left, row["decided"])
        found[name] = JudgingStatistics(**row, left_interval=interval)
    return found


def _agreement(row: Mapping[str, Any]) -> AgreementWithOthers:
    items, prompts = row["items"], row["prompts"]
    share = row["total"] / items
    squares = row["ss"] - 2 * share * row["sn"] + share**2 * row["nn"]
    variance = cluster_variance(squares, n=items, clusters=prompts)
    return AgreementWithOthers(
        shared_items=items,
        agreement=share,
        # The effective sample size cannot exceed the number of the others' answers.
        agreement_interval=clustered(share, variance, clusters=prompts, most=row["answers"]),
    )


def annotator_fit(db: Database) -> AnnotatorFit | None:
    """The newest reward model's estimates; None if it has none."""
    newest = models.newest(db, "reward")
    return read_annotator_fit(newest.summary) if newest else None
