"""How far annotators agree: percent agreement, Krippendorff's alpha, Cohen's kappa, in SQL.

An item is a comparison, a rating is the current judgment of one annotator, and the categories
are the canonical outcomes first, second, tie and both_bad (nominal: none is nearer to another).
"""

from __future__ import annotations

from typing import Any

from storage.database import Database

# Most comparisons are judged once and say nothing: they go before anything is counted.
# `iteration = NULL` finds no comparison, so without an iteration that subquery costs nothing.
#
# alpha: Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", nominal data, from
# counts per item.  g / n weighs every rating alike, so an item judged by many weighs more.
# kappa: Cohen (1960), observed agreement (po) against that of two annotators who keep their own
# habits (pe); `cells` are the confusion matrices of all pairs of annotators.
_AGREEMENT = """
    WITH shared AS MATERIALIZED (
        SELECT comparison, annotator, outcome FROM current_judgments
        WHERE $iteration IS NULL
           OR comparison IN (SELECT id FROM comparisons WHERE iteration = $iteration)
        QUALIFY count(*) OVER (PARTITION BY comparison) >= 2),

    counts AS (
        SELECT count(*) AS m,
               count(*) FILTER (outcome = 'first') AS a,
               count(*) FILTER (outcome = 'second') AS b,
               count(*) FILTER (outcome = 'tie') AS c,
               count(*) FILTER (outcome = 'both_bad') AS d
        FROM shared GROUP BY comparison),
    sums AS (
        SELECT count(*) AS items, sum(m)::DOUBLE AS n,
               sum((a*(a-1) + b*(b-1) + c*(c-1) + d*(d-1))::DOUBLE / (m-1)) AS g,
               sum(a)::DOUBLE AS na, sum(b)::DOUBLE AS nb, sum(c)::DOUBLE AS nc,
               sum(d)::DOUBLE AS nd
        FROM counts),
    expected AS (
        SELECT *, 1 - (na*(na-1) + nb*(nb-1) + nc*(nc-1) + nd*(nd-1)) / (n*(n-1)) AS disagreement
        FROM sums),

    cells AS MATERIALIZED (
        SELECT l.annotator AS one, r.annotator AS other, l.outcome AS x, r.outcome AS y,
               count(*) AS n
        FROM shared AS l
        JOIN shared AS r ON l.comparison = r.comparison AND l.annotator < r.annotator
        GROUP BY ALL),
    totals AS (
        SELECT one, other, sum(n)::DOUBLE AS items,
               coalesce(sum(n) FILTER (x = y), 0) AS agreed
        FROM cells GROUP BY one, other),
    habits AS (
        SELECT r.one, r.other, sum(r.n * c.n) AS chance
        FROM (SELECT one, other, x, sum(n) AS n FROM cells GROUP BY ALL) AS r
        JOIN (SELECT one, other, y, sum(n) AS n FROM cells GROUP BY ALL) AS c
          ON r.one = c.one AND r.other = c.other AND r.x = c.y
        GROUP BY r.one, r.other),
    shares AS (
        SELECT one, other, agreed / items AS po, coalesce(chance, 0) / items / items AS pe
        FROM totals LEFT JOIN habits USING (one, other)),
    kappas AS (
        SELECT one, other, CASE WHEN pe < 1 THEN (po - pe) / (1 - pe) END AS kappa FROM shares)

    SELECT items, g / n AS percent,
           CASE WHEN disagreement > 0 THEN 1 - (1 - g / n) / disagreement END AS alpha,
           (SELECT list((one, other, kappa) ORDER BY one, other) FROM kappas) AS kappas
    FROM expected
"""


def agreement(db: Database, iteration: int | None = None) -> dict[str, Any]:
    """Agreement on all current judgments, or on those of one iteration; JSON-able.

    * ``items``: comparisons that two or more annotators judged (the rest say nothing);
    * ``percent``: the share of pairs of judgments that agree, 0 to 1, None without items;
    * ``alpha``: Krippendorff's, None when no two categories were ever used;
    * ``kappa``: Cohen's for each pair of annotators with an item in common, keyed "name|name" in
      alphabetical order; None where both only ever used one and the same category.
    """
    found = agreement_by_id(db, iteration)
    names = {row["id"]: row["name"] for row in db.read("SELECT id, name FROM annotators")}
    kappas = {
        "|".join(sorted((names[one], names[other]))): kappa
        for one, other, kappa in found.pop("kappas")
    }
    return found | {"kappa": dict(sorted(kappas.items()))}


def agreement_by_id(db: Database, iteration: int | None = None) -> dict[str, Any]:
    """The same with ``kappas``, a list of (annotator id, annotator id, kappa), for ``kappa``."""
    found = db.read(_AGREEMENT, iteration=iteration)[0]
    return found | {"kappas": [tuple(each) for each in found["kappas"] or ()]}
