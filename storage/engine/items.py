"""Items, on which agreement is measured: the same two responses in either order are one item.

Several comparisons have equal texts if a policy repeats itself, or samples the same two responses
in the other order.  As different items, they would not count as judged by two people.  As one item
without reversal, agreement would count as disagreement.  An imported `item` keeps equal texts apart
(docs/data.md).

The table `items` depends on prompts, completions and comparisons alone, so it is not in the
journal.  Storing a comparison adds its item in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

# `flipped`: the text of `first` sorts after that of `second`.  `twin`: another comparison has the
# same item, which is rare.
TABLE = """
    CREATE TABLE items (
        comparison VARCHAR NOT NULL, item VARCHAR NOT NULL, flipped BOOLEAN NOT NULL,
        twin BOOLEAN NOT NULL)
"""

# Lengths make the hashed text unambiguous.  The id replaces the text of a completion that is not
# stored; storage.tables.comparisons refuses such a comparison.
_ADD = """
    INSERT INTO items BY NAME
    WITH texts AS (
        SELECT c.id, c.prompt, c.item, coalesce(f.text, c.first) AS x,
               coalesce(s.text, c.second) AS y
        FROM comparisons AS c
        LEFT JOIN completions AS f ON f.id = c.first
        LEFT JOIN completions AS s ON s.id = c.second
        WHERE ($ids IS NULL OR c.id IN (SELECT unnest($ids::VARCHAR[])))
          AND c.id NOT IN (SELECT comparison FROM items))
    SELECT id AS comparison,
           'i-' || left(md5(concat_ws(':', length(prompt), prompt, length(coalesce(item, '')),
                                      coalesce(item, ''), length(least(x, y)), least(x, y),
                                      greatest(x, y))), 20) AS item,
           x > y AS flipped, false AS twin
    FROM texts
"""
_MARK_TWINS = """
    UPDATE items SET twin = true
    WHERE NOT twin AND item IN (
        SELECT item FROM items
        WHERE item IN (SELECT item FROM items
                       WHERE $ids IS NULL OR comparison IN (SELECT unnest($ids::VARCHAR[])))
        GROUP BY item HAVING count(*) > 1)
"""


def add(connection: duckdb.DuckDBPyConnection, comparisons: Sequence[str] | None = None) -> None:
    """Add the missing items of these stored comparisons (None: all)."""
    ids = None if comparisons is None else list(comparisons)
    connection.execute(_ADD, {"ids": ids})
    connection.execute(_MARK_TWINS, {"ids": ids})


# Ratings of every item with two or more annotators, as parts of a WITH clause.  `people` numbers the
# annotators: those of $kinds first, `of_kinds.n` of them.  Each row of `shared` is an item: one of
# its comparisons, and the sorted codes of its ratings,
# 4 · number of the annotator + (0 second, 1 tie, 2 first, 3 both_bad).
#
# If an annotator judged an item in several comparisons, the latest judgment counts.  Sides are the
# stored ones; only twins are reversed, so that their texts are in one order.  Few comparisons are
# twins, so the others are grouped without a join.  Probes are no items: a researcher chose them.
PEOPLE = """
    people AS MATERIALIZED (
        SELECT id, kind, (row_number() OVER (ORDER BY NOT list_contains($kinds, kind), id) - 1
               )::INTEGER AS number
        FROM annotators),
    of_kinds AS (SELECT count(*) AS n FROM people WHERE list_contains($kinds, kind))
"""
_SHARED = """
    twins AS MATERIALIZED (SELECT comparison, item, flipped FROM items WHERE twin),
    judged AS MATERIALIZED (
        SELECT j.comparison, j.created_at, p.number,
               CASE j.outcome WHEN 'second' THEN 0 WHEN 'tie' THEN 1 WHEN 'first' THEN 2 ELSE 3 END
               AS level
        FROM current_judgments AS j JOIN people AS p ON p.id = j.annotator
        WHERE j.comparison NOT IN (SELECT id FROM comparisons WHERE arm = 'probe') {where}),
    turned AS (
        SELECT t.item, min(j.comparison) AS comparison, j.number,
               arg_max(CASE WHEN t.flipped AND j.level IN (0, 2) THEN 2 - j.level ELSE j.level END,
                       (j.created_at, j.level)) AS level
        FROM judged AS j JOIN twins AS t USING (comparison)
        GROUP BY t.item, j.number),
    shared AS MATERIALIZED (
        SELECT comparison, list_sort(list((4 * number + level)::INTEGER)) AS codes
        FROM judged ANTI JOIN twins USING (comparison)
        GROUP BY comparison HAVING count(*) >= 2
        UNION ALL
        SELECT min(comparison), list_sort(list((4 * number + level)::INTEGER))
        FROM turned GROUP BY item HAVING count(*) >= 2)
"""
_OF_ITERATION = "AND j.comparison IN (SELECT id FROM comparisons WHERE iteration = $iteration)"


def shared_ratings(*, of_iteration: bool = False) -> str:
    """The table `shared` for a WITH clause that has `people`, of one $iteration or of all."""
    return _SHARED.format(where=_OF_ITERATION if of_iteration else "")
