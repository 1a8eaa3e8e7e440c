"""How far annotators agree: percent agreement, Krippendorff's alpha, Cohen's kappa, from SQL.

An item is two responses to a prompt, in whatever order they were compared (storage/engine/items.py); a
rating is the current judgment of one annotator.  For percent agreement, kappa and the nominal
alpha the outcomes first, second, tie and both_bad are four categories, none nearer to another.
For the ordinal alpha they are levels, second < tie < first, and both_bad counts as tie: it prefers
neither.

SQL reduces a million judgments to a few rows: how often each pattern of ratings occurs.  What
follows from the patterns, and the intervals, are storage/analysis/patterns.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from storage.analysis import patterns
from storage.engine.database import Database
from storage.engine.items import PEOPLE, shared_ratings
from storage.records import LEARNED_FROM

# `patterns` with annotators is the table everything comes from; it is small where few people
# judge much, and never longer than the shared items.
#
# `cells` are the confusion matrices of all pairs of annotators.
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


class Kappa(NamedTuple):
    """Cohen's kappa of two annotators on the items they share, with its 95% interval.

    None where both only ever used one and the same category.
    """

    one: str
    other: str
    kappa: float | None
    items: int
    interval: list[float] | None = None


def agreement(db: Database, iteration: int | None = None) -> dict[str, Any]:
    """Agreement on all current judgments, or on those of one iteration; JSON-able.

    Of people (or simulated ones): a model that judges is only in ``kappas``.

    * ``items``: pairs of responses that two or more people judged (the rest say nothing);
    * ``percent``: the share of pairs of judgments that agree, 0 to 1, None without items;
    * ``alpha``: Krippendorff's, nominal; None when no two categories were ever used;
    * ``alpha_ordinal``: the same for second < tie < first, with both_bad as tie;
    * ``…_interval``: [low, high] of each of the three, 95% of bootstrap samples of the items
      (`patterns.intervals` says when it is None);
    * ``kappas``: Cohen's for each pair of annotators with an item in common, in alphabetical
      order: ``annotators``, two names, ``kappa``, its ``interval`` and the number of ``items``.
    """
    found = agreement_by_id(db, iteration)
    names = {row["id"]: row["name"] for row in db.read("SELECT id, name FROM annotators")}
    kappas = [
        {
            "annotators": sorted((names[k.one], names[k.other])),
            "kappa": k.kappa,
            "interval": k.interval,
            "items": k.items,
        }
        for k in found["kappas"]
    ]
    return found | {"kappas": sorted(kappas, key=lambda each: each["annotators"])}


def agreement_by_id(db: Database, iteration: int | None = None) -> dict[str, Any]:
    """The same with ``kappas`` as a list of `Kappa`, by annotators' ids."""
    shared = shared_ratings(of_iteration=iteration is not None)
    of = {} if iteration is None else {"iteration": iteration}
    row = db.read(f"WITH {PEOPLE}, {shared}, {_AGREEMENT}", kinds=list(LEARNED_FROM), **of)[0]
    table = _table(row["patterns"])
    counts, items = table[:, :4], table[:, 4]
    found: dict[str, Any] = {"items": int(items.sum())}
    spread = patterns.intervals(counts, items)
    for name, value in patterns.agreement(counts, items).items():
        found[name] = value
        found[f"{name}_interval"] = spread[name]
    return found | {"kappas": _kappas(_table(row["cells"]), row["people"])}


def _table(rows: list[list[int]] | None) -> patterns.Counts:
    return np.array(rows or np.empty((0, 5)), dtype=np.int64)


def _kappas(cells: patterns.Counts, people: list[str]) -> list[Kappa]:
    """Kappa of each pair of annotators that `cells` (one, other, x, y, n) has."""
    pairs, row = np.unique(cells[:, :2], axis=0, return_inverse=True)
    confusions = np.zeros((len(pairs), 4, 4), dtype=np.int64)
    confusions[row.ravel(), cells[:, 2], cells[:, 3]] = cells[:, 4]
    values, spread = patterns.kappas(confusions)
    return [
        Kappa(people[one], people[other], value, int(confusion.sum()), interval)
        for (one, other), confusion, value, interval in zip(
            pairs, confusions, values, spread, strict=True
        )
    ]
