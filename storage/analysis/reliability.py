"""What can be said of each annotator from the judgments alone, in SQL.

Nobody is dropped here and nobody is judged: a figure without data is None.  What a fitted model
makes of the same judgments is in the summary of the reward model (`Fitted`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.analysis.intervals import cluster_variance, clustered, wilson
from storage.engine.database import Database
from storage.engine.items import PEOPLE, shared_ratings
from storage.records import Annotator, AnnotatorKind
from storage.tables import annotators, models, settings

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One annotator's current judgments; intervals are 95%.

    `left_rate` is the share of the `decided` ones (not tie, not both bad) that went to the
    response on the left of the screen; sides are tossed fairly, so about one half is expected.
    `quick_seconds` is the 10% quantile of the time from seeing a pair to answering it.
    `agreement` is the share of others' ratings that say the same as theirs, averaged over the
    `shared_items` that others rated too, each item alike; its interval is clustered by prompt.
    """

    annotator: Annotator
    judgments: int = 0
    decided: int = 0
    left_rate: float | None = None
    left_interval: Interval | None = None
    tie_rate: float | None = None
    both_bad_rate: float | None = None
    median_seconds: float | None = None
    quick_seconds: float | None = None
    shared_items: int = 0
    agreement: float | None = None
    agreement_interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What the newest reward model has learned of an annotator; see docs/reward.md.

    `slope` 1 follows the rewards as the average does, 0 not at all, below 0 against them.
    `side_bias` is in units of reward, above 0 for the left.  `…_sd` are standard errors, `weight`
    what a judgment of theirs weighs in the fit, where the model says.  `with_model` is the share of their
    `decided` judgments, of those the model did not learn from, that prefer the response with the
    higher reward; `with_model_expected` what slope and side bias let one expect.
    """

    slope: float
    slope_sd: float | None = None
    side_bias: float | None = None
    side_bias_sd: float | None = None
    weight: float | None = None
    judgments: int | None = None
    decided: int = 0
    with_model: float | None = None
    with_model_expected: float | None = None


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """The reward model it comes from, and what it expects of everybody.

    `expected_agreement` is how often two would say the same of the `overlapping_items` that it did
    not learn from and several judged, `observed_agreement` how often they did; `…_alpha` is
    Krippendorff's, nominal, of the same.  Both bad is a tie.
    """

    model: str
    annotators: Mapping[str, Fitted]
    expected_agreement: float | None = None
    observed_agreement: float | None = None
    expected_alpha: float | None = None
    observed_alpha: float | None = None
    overlapping_items: int = 0


_WORK = """
    SELECT annotator, count(*) AS judgments,
           count(*) FILTER (outcome IN ('first', 'second')) AS decided,
           count(*) FILTER ((outcome = 'first') <> shown_swapped
                            AND outcome IN ('first', 'second')) AS went_left,
           count(*) FILTER (outcome = 'tie') AS ties,
           count(*) FILTER (outcome = 'both_bad') AS both_bad,
           quantile_cont(milliseconds, [0.1, 0.5]) AS milliseconds
    FROM current_judgments
    WHERE $annotator IS NULL OR annotator = $annotator
    GROUP BY annotator
"""

# x is the share of the others' ratings of an item that equal theirs.  Sums by prompt make the
# variance: squares = Σ (s − x̄·n)² = Σ s² − 2 x̄ Σ s·n + x̄² Σ n², over prompts.
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
) -> dict[str, Figures]:
    """Everybody's figures by annotator id, also of those who have judged nothing.

    The others whom somebody agrees with are those of `kinds`; None: whoever is learned from.
    """
    known = {person.id: person for person in annotators.listing(db)}
    work = {row["annotator"]: row for row in db.read(_WORK, annotator=None)}
    chosen = list(kinds or settings.learn_from(db))
    agreed = {row["annotator"]: row for row in db.read(_AGREEMENT, kinds=chosen)}
    return {
        id: Figures(annotator=person, **_work(work.get(id)), **_agreement(agreed.get(id)))
        for id, person in known.items()
    }


def work_of(db: Database, annotator: str) -> dict[str, Any]:
    """One annotator's figures that rest on nobody else's judgments, named as in `Figures`."""
    found = db.read(_WORK, annotator=annotator)
    return _work(found[0] if found else None)


def _work(row: Mapping[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {}
    judgments, decided = row["judgments"], row["decided"]
    left = row["went_left"] / decided if decided else None
    quick, median = row["milliseconds"] or (None, None)
    return {
        "judgments": judgments,
        "decided": decided,
        "left_rate": left,
        "left_interval": None if left is None else wilson(left, decided),
        "tie_rate": row["ties"] / judgments,
        "both_bad_rate": row["both_bad"] / judgments,
        "median_seconds": None if median is None else median / 1000,
        "quick_seconds": None if quick is None else quick / 1000,
    }


def _agreement(row: Mapping[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {}
    items, prompts = row["items"], row["prompts"]
    share = row["total"] / items
    squares = row["ss"] - 2 * share * row["sn"] + share**2 * row["nn"]
    variance = cluster_variance(squares, n=items, clusters=prompts)
    return {
        "shared_items": items,
        "agreement": share,
        # The others' answers are all the evidence there is on this share.
        "agreement_interval": clustered(share, variance, clusters=prompts, most=row["answers"]),
    }


def fitted(db: Database) -> FittedModel | None:
    """What the newest reward model says of annotators; None where it says nothing."""
    newest = models.newest(db, "reward")
    rows = newest.summary.get("annotators") if newest else None
    if newest is None or not rows:
        return None
    names = Fitted.__dataclass_fields__
    return FittedModel(
        model=newest.id,
        annotators={
            row["annotator"]: Fitted(**{k: v for k, v in row.items() if k in names}) for row in rows
        },
        expected_agreement=newest.summary.get("expected_agreement"),
        observed_agreement=newest.summary.get("observed_agreement"),
        expected_alpha=newest.summary.get("expected_alpha"),
        observed_alpha=newest.summary.get("observed_alpha"),
        overlapping_items=newest.summary.get("overlapping_items") or 0,
    )
