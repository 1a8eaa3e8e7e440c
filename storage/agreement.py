"""How far annotators agree: percent agreement, Krippendorff's alpha, Cohen's kappa, in SQL.

An item is a comparison, a rating is the current judgment of one annotator, and the categories
are the canonical outcomes first, second, tie and both_bad (nominal: none is nearer to another).
"""

from __future__ import annotations

from typing import Any

from storage.database import Database

# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", nominal data, from the table
# of counts per item.  g / n weighs every rating alike, so an item judged by many weighs more.
_ALPHA = """
    WITH p AS (
        SELECT count(*) AS m,
               count(*) FILTER (j.outcome = 'first') AS a,
               count(*) FILTER (j.outcome = 'second') AS b,
               count(*) FILTER (j.outcome = 'tie') AS c,
               count(*) FILTER (j.outcome = 'both_bad') AS d
        FROM current_judgments AS j JOIN comparisons AS k ON k.id = j.comparison
        WHERE $iteration IS NULL OR k.iteration = $iteration
        GROUP BY j.comparison HAVING count(*) >= 2),
    s AS (
        SELECT count(*) AS items, sum(m)::DOUBLE AS n,
               sum((a*(a-1) + b*(b-1) + c*(c-1) + d*(d-1))::DOUBLE / (m-1)) AS g,
               sum(a)::DOUBLE AS na, sum(b)::DOUBLE AS nb, sum(c)::DOUBLE AS nc,
               sum(d)::DOUBLE AS nd
        FROM p),
    e AS (
        SELECT *, 1 - (na*(na-1) + nb*(nb-1) + nc*(nc-1) + nd*(nd-1)) / (n*(n-1)) AS expected
        FROM s)
    SELECT items, g / n AS percent,
           CASE WHEN expected > 0 THEN 1 - (1 - g / n) / expected END AS alpha
    FROM e
"""

# Cohen (1960): observed agreement against that of two annotators who keep their own habits.
_KAPPA = """
    WITH j AS (
        SELECT j.comparison, j.annotator, j.outcome
        FROM current_judgments AS j JOIN comparisons AS k ON k.id = j.comparison
        WHERE $iteration IS NULL OR k.iteration = $iteration),
    cells AS (
        SELECT l.annotator AS one, r.annotator AS other, l.outcome AS x, r.outcome AS y,
               count(*) AS n
        FROM j AS l JOIN j AS r ON l.comparison = r.comparison AND l.annotator < r.annotator
        GROUP BY ALL),
    totals AS (SELECT one, other, sum(n)::DOUBLE AS items FROM cells GROUP BY one, other),
    observed AS (SELECT one, other, sum(n) AS agreed FROM cells WHERE x = y GROUP BY one, other),
    habits AS (
        SELECT r.one, r.other, sum(r.n * c.n) AS chance
        FROM (SELECT one, other, x, sum(n) AS n FROM cells GROUP BY ALL) AS r
        JOIN (SELECT one, other, y, sum(n) AS n FROM cells GROUP BY ALL) AS c
          ON r.one = c.one AND r.other = c.other AND r.x = c.y
        GROUP BY r.one, r.other),
    shares AS (
        SELECT one, other, coalesce(agreed, 0) / items AS po,
               coalesce(chance, 0) / items / items AS pe
        FROM totals LEFT JOIN observed USING (one, other) LEFT JOIN habits USING (one, other))
    SELECT one, other, CASE WHEN pe < 1 THEN (po - pe) / (1 - pe) END AS kappa
    FROM shares ORDER BY one, other
"""


def agreement(db: Database, iteration: int | None = None) -> dict[str, Any]:
    """Agreement on all current judgments, or on those of one iteration; JSON-able.

    * ``items``: comparisons that two or more annotators judged (the rest say nothing);
    * ``percent``: the share of pairs of judgments that agree, 0 to 1, None without items;
    * ``alpha``: Krippendorff's, None when no two categories were ever used;
    * ``kappa``: Cohen's for each pair of annotators with an item in common, keyed "name|name" in
      alphabetical order; None where both only ever used one and the same category.
    """
    names = {row["id"]: row["name"] for row in db.read("SELECT id, name FROM annotators")}
    pairs = {
        "|".join(sorted((names[one], names[other]))): kappa
        for one, other, kappa in kappas(db, iteration)
    }
    return overall(db, iteration) | {"kappa": dict(sorted(pairs.items()))}


def overall(db: Database, iteration: int | None = None) -> dict[str, Any]:
    """``items``, ``percent`` and ``alpha`` of `agreement`."""
    return db.read(_ALPHA, iteration=iteration)[0]


def kappas(db: Database, iteration: int | None = None) -> list[tuple[str, str, float | None]]:
    """Cohen's kappa of each two annotators (by id) who judged a comparison in common."""
    rows = db.read(_KAPPA, iteration=iteration)
    return [(row["one"], row["other"], row["kappa"]) for row in rows]
