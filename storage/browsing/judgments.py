"""The list of judgments with facets: which judgments match, and how many have each value.

Checks are not listed.  Excluded judgments are, with a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from storage.browsing.predicted import predicted
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import Arm, Outcome

PAGE = 30
"""Judgments per page."""
MAX_PAGE = 500
SNIPPET = 200
"""Characters of a prompt in the list."""
MAX_TEXT = 200
"""Characters of a searched text."""

_VALUES = ("annotator", "arm", "outcome", "category", "iteration")
_MARKS = ("disagreement", "surprise", "flagged", "commented", "excluded")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which judgments to list; None does not filter.

    `annotator` is an id, `text` a part of the prompt, a response or the comment, in any case.  The
    marks are true or false: `disagreement` (two people preferred different outcomes for the pair),
    `surprise` (the stored prediction of a reward model prefers the other response), `flagged` (the
    pair has an open flag), `commented` and `excluded`.
    """

    annotator: str | None = None
    arm: Arm | None = None
    outcome: Outcome | None = None
    category: str | None = None
    iteration: int | None = None
    text: str = ""
    disagreement: bool | None = None
    surprise: bool | None = None
    flagged: bool | None = None
    commented: bool | None = None
    excluded: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A judgment in the list; `prompt` is the beginning of the last message."""

    id: str
    comparison: str
    annotator: str
    """The id."""
    annotator_name: str
    outcome: Outcome
    strength: int | None
    arm: Arm
    iteration: int
    category: str
    prompt: str
    comment: str
    created_at: datetime
    disagreement: bool
    surprise: bool
    flagged: bool
    commented: bool
    excluded: bool
    expected: float | None
    """Chance of `first` by a reward model, 0 to 1; None without a prediction."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value of a facet and the number of judgments that have it and match the other filters."""

    value: str
    label: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One page of the matching judgments, the newest first; `total` counts all pages.

    `facets` has the values of annotator, arm, outcome, category and iteration, the most frequent
    first; and for each mark the number of judgments that have it.  `after` is the last id if there
    is another page.
    """

    rows: Sequence[Row]
    total: int
    after: str | None
    facets: Mapping[str, Sequence[Value]]
    marks: Mapping[str, int]


# Disagreement is about the answers that figures use: neither excluded ones nor those of models.
_BASE = """
    {predicted},
    {hits}
    apart AS MATERIALIZED (SELECT judgment FROM exclusions WHERE excluded),
    standing AS MATERIALIZED (
        SELECT j.id, j.seq, j.comparison, j.annotator, j.outcome, coalesce(j.comment, '') AS comment,
               j.id IN (FROM apart) AS excluded
        FROM standing_judgments AS j ANTI JOIN checks AS k ON k.comparison = j.comparison),
    disputed AS MATERIALIZED (
        SELECT comparison FROM standing
        WHERE NOT excluded AND annotator NOT IN (SELECT id FROM annotators WHERE kind = 'model')
        GROUP BY comparison HAVING min(outcome) <> max(outcome)),
    base AS MATERIALIZED (
        SELECT j.id, j.seq, j.annotator, c.arm, j.outcome, coalesce(p.category, '') AS category,
               c.iteration::VARCHAR AS iteration, j.excluded, j.comment <> '' AS commented,
               j.comparison IN (FROM disputed) AS disagreement,
               j.comparison IN (SELECT comparison FROM open_flags) AS flagged,
               coalesce(CASE j.outcome WHEN 'first' THEN e.expected < 0.5
                                       WHEN 'second' THEN e.expected > 0.5 END, false) AS surprise
        FROM standing AS j
        JOIN comparisons AS c ON c.id = j.comparison
        JOIN prompts AS p ON p.id = c.prompt
        LEFT JOIN predicted AS e ON e.comparison = j.comparison
        {found})
"""
_HITS = """
    asked AS MATERIALIZED (
        SELECT id FROM prompts
        WHERE contains(lower(array_to_string(json_extract_string(messages, '$[*].content'), chr(10))),
                       $text)),
    said AS MATERIALIZED (SELECT id FROM completions WHERE contains(lower(text), $text)),
"""
_FOUND = """
    WHERE c.prompt IN (FROM asked) OR c.first IN (FROM said) OR c.second IN (FROM said)
       OR contains(lower(j.comment), $text)
"""
# `marks` has a bit for each mark, in their order.
_PAGE = """
    SELECT 'page' AS facet, id AS value, seq AS count, {bits} AS marks FROM (
        SELECT * FROM base WHERE {all}
          AND ($before IS NULL OR seq < (SELECT seq FROM judgments WHERE id = $before))
        ORDER BY seq DESC LIMIT $n)
"""
_ROWS = """
    WITH {predicted}
    SELECT j.id, j.comparison, j.annotator, a.name AS annotator_name, j.outcome, j.strength, c.arm,
           c.iteration, coalesce(p.category, '') AS category, coalesce(j.comment, '') AS comment,
           left(json_extract_string(p.messages, '$[#-1].content'), $snippet) AS prompt,
           j.created_at, e.expected
    FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    LEFT JOIN predicted AS e ON e.comparison = j.comparison
    WHERE j.id IN (SELECT unnest($ids)) ORDER BY j.seq DESC
"""
_KNOWN = "SELECT 1 FROM judgments WHERE id = $id"


def browse(
    db: Database, filter: Filter | None = None, *, before: str | None = None, limit: int = PAGE
) -> Listing:
    """A page of the judgments that match; `before` is the last id of the page before.

    Raises NotFound for an unknown `before`, ValueError for a limit or a text that is too long.
    """
    wanted = filter or Filter()
    text = wanted.text.strip().lower()
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit={limit} must be from 1 to {MAX_PAGE}")
    if len(text) > MAX_TEXT:
        raise ValueError(f"search for a text of at most {MAX_TEXT} characters")
    if before is not None and not db.read(_KNOWN, id=before):
        raise NotFound(f"there is no judgment {before!r}; list from the beginning")
    with db.snapshot():
        known = predicted(db)
        conditions, parameters = _conditions(wanted)
        if text:
            parameters["text"] = text
        sql = _query(conditions, known, searched=bool(text))
        found = db.read(sql, before=before, n=limit + 1, **parameters)
        # The parts of a union come in any order.
        page = sorted(
            (row for row in found if row["facet"] == "page"), key=lambda row: -row["count"]
        )
        marks = {row["value"]: row["marks"] for row in page}
        ids = list(marks)[:limit]
        names = {row["id"]: row["name"] for row in db.read("SELECT id, name FROM annotators")}
        rows = db.read(_ROWS.format(predicted=known), ids=ids, snippet=SNIPPET) if ids else []
    return Listing(
        rows=[_row(row, marks[row["id"]]) for row in rows],
        total=next((row["count"] for row in found if row["facet"] == "total"), 0),
        after=ids[-1] if len(marks) > limit else None,
        facets={name: _values(found, name, names) for name in _VALUES},
        marks={name: _marked(found, name) for name in _MARKS},
    )


def _conditions(wanted: Filter) -> tuple[dict[str, str], dict[str, Any]]:
    """The SQL condition of each filter that is set, and the parameters."""
    given = {
        field.name: value
        for field in fields(wanted)
        if field.name != "text" and (value := getattr(wanted, field.name)) is not None
    }
    parameters = {
        name: str(value) if name == "iteration" else value for name, value in given.items()
    }
    return {name: f"{name} = ${name}" for name in given}, parameters


def _query(conditions: Mapping[str, str], known: str, *, searched: bool) -> str:
    """The page and all counts in one query, so that the judgments are read once."""

    def others(facet: str = "") -> str:
        return " AND ".join(sql for name, sql in conditions.items() if name != facet) or "true"

    base = _BASE.format(
        predicted=known, hits=_HITS if searched else "", found=_FOUND if searched else ""
    )
    bits = " + ".join(f"{name}::INTEGER * {2**i}" for i, name in enumerate(_MARKS))
    parts = [
        _PAGE.format(all=others(), bits=bits),
        f"SELECT 'total', '', count(*), 0 FROM base WHERE {others()}",
        *(
            f"SELECT '{name}', {name}, count(*), 0 FROM base WHERE {others(name)} GROUP BY {name}"
            for name in _VALUES
        ),
        *(
            f"SELECT '{name}', 'true', count(*), 0 FROM base WHERE {others(name)} AND {name}"
            for name in _MARKS
        ),
    ]
    return f"WITH {base} " + " UNION ALL ".join(f"({part})" for part in parts)


def _row(row: Mapping[str, Any], marks: int) -> Row:
    values: dict[str, Any] = {**row, "prompt": row["prompt"] or ""}
    values |= {name: bool(marks & 2**i) for i, name in enumerate(_MARKS)}
    return Row(**values)


def _values(
    found: Sequence[Mapping[str, Any]], facet: str, names: Mapping[str, str]
) -> list[Value]:
    values = [
        Value(
            value=row["value"],
            label=names.get(row["value"], row["value"]) if facet == "annotator" else row["value"],
            count=row["count"],
        )
        for row in found
        if row["facet"] == facet
    ]
    if facet == "iteration":
        return sorted(values, key=lambda each: -int(each.value))
    return sorted(values, key=lambda each: (-each.count, each.label))


def _marked(found: Sequence[Mapping[str, Any]], mark: str) -> int:
    return next((row["count"] for row in found if row["facet"] == mark), 0)
