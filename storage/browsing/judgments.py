"""The list of judgments with facets: which judgments match, and how many have each value.

Checks are not listed.  Excluded judgments are, with a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.browsing.columns import MARKS, VALUES, Columns, ColumnsCache
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


# The numbers of the judgments with a text.
_HITS = """
    WITH asked AS MATERIALIZED (
        SELECT id FROM prompts
        WHERE contains(lower(array_to_string(json_extract_string(messages, '$[*].content'), chr(10))),
                       $text)),
    said AS MATERIALIZED (SELECT id FROM completions WHERE contains(lower(text), $text))
    SELECT j.seq FROM judgments AS j JOIN comparisons AS c ON c.id = j.comparison
    WHERE c.prompt IN (FROM asked) OR c.first IN (FROM said) OR c.second IN (FROM said)
       OR contains(lower(j.comment), $text)
"""
_ROWS = """
    WITH {predicted}
    SELECT j.id, j.seq, j.comparison, j.annotator, a.name AS annotator_name, j.outcome, j.strength, c.arm,
           c.iteration, coalesce(p.category, '') AS category, coalesce(j.comment, '') AS comment,
           left(json_extract_string(p.messages, '$[#-1].content'), $snippet) AS prompt,
           j.created_at, e.expected
    FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    LEFT JOIN predicted AS e ON e.comparison = j.comparison
    WHERE j.seq IN (SELECT unnest($seqs)) ORDER BY j.seq DESC
"""
_PLACE = "SELECT seq FROM judgments WHERE id = $id"


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
    with db.snapshot():
        known = predicted(db)
        columns = db.cache(ColumnsCache).columns(db, known)
        each = {name: columns.have(name, value) for name, value in _given(wanted).items()}
        if text:
            hits = db.cursor().execute(_HITS, {"text": text}).fetchnumpy()["seq"]
            each["text"] = np.isin(columns.seq, np.asarray(hits))
        matching = _all(columns, each)
        page = np.flatnonzero(matching & _older(db, columns, before))[: limit + 1]
        seqs = columns.seq[page[:limit]].tolist()
        names = {row["id"]: row["name"] for row in db.read("SELECT id, name FROM annotators")}
        rows = db.read(_ROWS.format(predicted=known), seqs=seqs, snippet=SNIPPET) if seqs else []
    places = dict(zip(seqs, page.tolist(), strict=False))
    return Listing(
        rows=[_row(row, columns, places) for row in rows],
        total=int(matching.sum()),
        after=rows[-1]["id"] if len(page) > limit else None,
        facets={
            name: _values(name, columns.counts(name, _all(columns, each, name)), names)
            for name in VALUES
        },
        marks={
            name: int((columns.marks[name] & _all(columns, each, name)).sum()) for name in MARKS
        },
    )


def _given(wanted: Filter) -> dict[str, str | bool]:
    """The filters that are set, without the text."""
    given = {
        field.name: value
        for field in fields(wanted)
        if field.name != "text" and (value := getattr(wanted, field.name)) is not None
    }
    return {name: str(value) if name == "iteration" else value for name, value in given.items()}


def _all(
    columns: Columns, each: Mapping[str, NDArray[np.bool_]], without: str = ""
) -> NDArray[np.bool_]:
    """Which judgments match every filter, or every one but that of a facet or mark."""
    found = np.ones(len(columns.seq), dtype=bool)
    for name, matching in each.items():
        if name != without:
            found &= matching
    return found


def _older(db: Database, columns: Columns, before: str | None) -> NDArray[np.bool_] | bool:
    """Which judgments come after `before` in the list; NotFound if there is none with this id."""
    if before is None:
        return True
    place = db.read(_PLACE, id=before)
    if not place:
        raise NotFound(f"there is no judgment {before!r}; list from the beginning")
    return columns.seq < place[0]["seq"]


def _row(row: Mapping[str, Any], columns: Columns, places: Mapping[int, int]) -> Row:
    values: dict[str, Any] = {**row, "prompt": row["prompt"] or ""}
    place = places[values.pop("seq")]
    values |= {name: bool(columns.marks[name][place]) for name in MARKS}
    return Row(**values)


def _values(facet: str, counts: Mapping[str, int], names: Mapping[str, str]) -> list[Value]:
    values = [
        Value(
            value=value,
            label=names.get(value, value) if facet == "annotator" else value,
            count=count,
        )
        for value, count in counts.items()
    ]
    if facet == "iteration":
        return sorted(values, key=lambda each: -int(each.value))
    return sorted(values, key=lambda each: (-each.count, each.label))
