"""How much annotators agree: percent agreement, Krippendorff's alpha, Cohen's kappa.

An item is two responses to a prompt, in either order (storage/engine/items.py).  A rating is the
current judgment of one annotator.  For percent agreement, kappa and the nominal alpha, the outcomes
first, second, tie and both_bad are four unordered categories.  For the ordinal alpha they are the
levels second < tie < first, and both_bad counts as tie.

SQL reduces a million judgments to a few rows: how often each pattern of ratings occurs.
storage/analysis/agreement_statistics.py computes the figures and intervals from those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from storage.analysis import agreement_statistics
from storage.analysis.intervals import wilson
from storage.engine.database import Database
from storage.engine.items import PEOPLE, shared_ratings
from storage.records import LEARNED_FROM

# `patterns` counts how often each set of ratings occurs, with annotators; `cells` are the confusion
# matrices of all pairs of annotators.
_AGREEMENT = """
    patterns AS MATERIALIZED (
        SELECT codes, count(*) AS items FROM shared GROUP BY codes),
    by_people AS (
        SELECT [c FOR c IN codes IF c < 4 * n] AS codes, items FROM patterns, of_kinds),
    counts AS (
        SELECT len([c FOR c IN codes IF c % 4 = 0]) AS seconds,
               len([c FOR c IN codes IF c % 4 = 1]) AS ties,
               len([c FOR c IN codes IF c % 4 = 2]) AS firsts,
               len([c FOR c IN codes IF c % 4 = 3]) AS both_bad,
               sum(items) AS items
        FROM by_people WHERE len(codes) >= 2 GROUP BY ALL),

    ones AS (SELECT codes, items, unnest(codes) AS x FROM patterns),
    pairs AS (SELECT items, x, unnest(codes) AS y FROM ones),
    cells AS (
        SELECT x // 4 AS one, y // 4 AS other, x % 4 AS x, y % 4 AS y, sum(items)::BIGINT AS n
        FROM pairs WHERE x // 4 < y // 4 GROUP BY ALL)

    SELECT (SELECT list([seconds, ties, firsts, both_bad, items]
                        ORDER BY seconds, ties, firsts, both_bad) FROM counts) AS patterns,
           (SELECT list([one, other, x, y, n] ORDER BY one, other, x, y) FROM cells) AS cells,
           (SELECT list(id ORDER BY number) FROM people) AS people
"""


@dataclass(frozen=True, kw_only=True)
class Kappa:
    """Cohen's kappa of two annotators on the `items` that both judged, with its 95% interval.

    None if both always used the same category.
    """

    annotators: list[str]
    kappa: float | None
    interval: list[float] | None
    items: int


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of people (or simulated annotators) on `items` that at least two of them judged.

    `percent` is the share of pairs of judgments that agree, 0 to 1.  `alpha` is Krippendorff's
    nominal alpha, `alpha_ordinal` the ordinal one.  Each is None if undefined, and has an interval
    from bootstrap samples of the items (`agreement_statistics.intervals` says when it is None).  If
    all judgments agree, or none do, `percent_interval` is Wilson's.
    `kappas` has every pair of annotators (model judges included) with an item in common, in
    alphabetical order.
    """

    items: int
    percent: float | None = None
    percent_interval: list[float] | None = None
    alpha: float | None = None
    alpha_interval: list[float] | None = None
    alpha_ordinal: float | None = None
    alpha_ordinal_interval: list[float] | None = None
    kappas: Sequence[Kappa] = ()


def agreement(
    db: Database, iteration: int | None = None, *, names: Mapping[str, str] | None = None
) -> Agreement:
    """Agreement on all current judgments, or on those of one iteration.

    `names` maps annotators' ids to the names to show; by default, their stored names.
    """
    if names is None:
        names = {row["id"]: row["name"] for row in db.read("SELECT id, name FROM annotators")}
    shared = shared_ratings(of_iteration=iteration is not None)
    of = {} if iteration is None else {"iteration": iteration}
    row = db.read(f"WITH {PEOPLE}, {shared}, {_AGREEMENT}", kinds=list(LEARNED_FROM), **of)[0]
    table = _table(row["patterns"])
    counts, items = table[:, :4], table[:, 4]
    figures, spread = (
        agreement_statistics.agreement(counts, items),
        agreement_statistics.intervals(counts, items),
    )
    return Agreement(
        items=int(items.sum()),
        percent=figures["percent"],
        percent_interval=spread["percent"] or _if_all_agree(figures["percent"], int(items.sum())),
        alpha=figures["alpha"],
        alpha_interval=spread["alpha"],
        alpha_ordinal=figures["alpha_ordinal"],
        alpha_ordinal_interval=spread["alpha_ordinal"],
        kappas=_kappas(_table(row["cells"]), [names[id] for id in row["people"] or ()]),
    )


def _if_all_agree(percent: float | None, items: int) -> list[float] | None:
    """Wilson's interval, because bootstrap samples of items that all agree have no spread."""
    if percent not in (0.0, 1.0) or items < agreement_statistics.MIN_ITEMS:
        return None
    return list(wilson(percent, items))


def _table(rows: list[list[int]] | None) -> agreement_statistics.Counts:
    return np.array(rows or np.empty((0, 5)), dtype=np.int64)


def _kappas(cells: agreement_statistics.Counts, people: list[str]) -> list[Kappa]:
    """Kappa of each pair of annotators in `cells` (one, other, x, y, n)."""
    pairs, row = np.unique(cells[:, :2], axis=0, return_inverse=True)
    confusions = np.zeros((len(pairs), 4, 4), dtype=np.int64)
    confusions[row.ravel(), cells[:, 2], cells[:, 3]] = cells[:, 4]
    values, spread = agreement_statistics.kappas(confusions)
    found = [
        Kappa(
            annotators=sorted((people[one], people[other])),
            kappa=value,
            interval=interval,
            items=int(confusion.sum()),
        )
        for (one, other), confusion, value, interval in zip(
            pairs, confusions, values, spread, strict=True
        )
    ]
    return sorted(found, key=lambda each: each.annotators)
