"""The list of an annotator's own judgments: current ones, with the sides of their screen.

A judgment of somebody else is NotFound, in the same words as an unknown one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import LIVE, Mark, ScreenOutcome
from storage.sides import screen_outcome, screen_sides, shown_swapped

PAGE = 30
"""Judgments per request."""
SNIPPET = 200
"""Characters of a prompt in the list."""

# A judgment is revised by the same annotator, so the others' need not be read.
_CURRENT = """
    WITH mine AS (FROM judgments WHERE annotator = $annotator),
    current AS (
        FROM mine
        ANTI JOIN mine AS later ON later.replaces = mine.id
        ANTI JOIN withdrawals AS w ON w.replaces = mine.id)
"""
_LIST = """
    {current}, page AS (
        SELECT j.* FROM current AS j {found}
        WHERE ($before IS NULL OR j.seq < (SELECT seq FROM mine WHERE id = $before))
        ORDER BY j.seq DESC LIMIT $n)
    SELECT page.*, c.arm, left(json_extract_string(p.messages, '$[#-1].content'), $snippet) AS prompt
    FROM page
    JOIN comparisons AS c ON c.id = page.comparison
    JOIN prompts AS p ON p.id = c.prompt
    ORDER BY page.seq DESC
"""
# All turns of the conversation, and both responses.
_FOUND = """
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
        AND contains(
            lower(concat_ws(chr(10), f.text, s.text,
                array_to_string(json_extract_string(p.messages, '$[*].content'), chr(10)))),
            lower($search))
"""
_ONE = f"{_CURRENT} FROM current WHERE id = $id"
_GIVEN = "FROM judgments WHERE id = $id AND annotator = $annotator"
_OWN = "SELECT 1 FROM judgments WHERE id = $id AND annotator = $annotator"
_UNKNOWN = "you have no current judgment {id!r}: it may have been revised or undone, perhaps in another tab"


@dataclass(frozen=True, kw_only=True)
class ListedJudgment:
    """A row of the list; `prompt` is the beginning of the last message, `edited` whether the preferred
    response was edited, and `live` whether the pair is a turn of a live conversation."""

    id: str
    outcome: ScreenOutcome
    strength: int | None
    edited: bool
    live: bool
    created_at: datetime
    prompt: str


@dataclass(frozen=True, kw_only=True)
class OwnJudgment:
    """A judgment as its annotator gave it; `criteria` has a, b or tie; `reasons`, `safety` and `marks`
    are by a and b; `guidelines` is a version."""

    id: str
    comparison: str
    outcome: ScreenOutcome
    strength: int | None
    criteria: dict[str, ScreenOutcome]
    reasons: dict[str, list[str]]
    safety: dict[str, str]
    marks: dict[str, list[Mark]]
    comment: str
    edit: str
    milliseconds: int | None
    guidelines: str | None
    created_at: datetime


def own_judgments(
    db: Database, annotator: str, *, search: str = "", before: str | None = None
) -> tuple[list[ListedJudgment], bool]:
    """Up to `PAGE` judgments, the newest first, and whether there are more.

    `search` is a text in the prompt or a response, in any case.  `before` is the last id of the
    page before; NotFound if it is not the annotator's.
    """
    if before is not None and not db.read(_OWN, id=before, annotator=annotator):
        raise NotFound(_UNKNOWN.format(id=before))
    wanted = {"search": search} if search else {}
    sql = _LIST.format(current=_CURRENT, found=_FOUND if search else "")
    rows = db.read(sql, annotator=annotator, before=before, n=PAGE + 1, snippet=SNIPPET, **wanted)
    return [_listed(row, annotator) for row in rows[:PAGE]], len(rows) > PAGE


def own_judgment(db: Database, annotator: str, id: str) -> OwnJudgment:
    """One current judgment of the annotator, or NotFound."""
    rows: Sequence[Mapping[str, Any]] = db.read(_ONE, annotator=annotator, id=id)
    if not rows:
        raise NotFound(_UNKNOWN.format(id=id))
    return _own(rows[0], annotator)


def given_judgment(db: Database, annotator: str, id: str) -> OwnJudgment:
    """A judgment that the annotator gave, even if it was undone or revised."""
    return _own(db.read(_GIVEN, annotator=annotator, id=id)[0], annotator)


def _own(row: Mapping[str, Any], annotator: str) -> OwnJudgment:
    swapped = shown_swapped(annotator, row["comparison"])
    criteria = json.loads(row["criteria"] or "{}")
    return OwnJudgment(
        id=row["id"],
        comparison=row["comparison"],
        outcome=screen_outcome(row["outcome"], shown_swapped=swapped),
        strength=row["strength"],
        criteria={
            name: screen_outcome(side, shown_swapped=swapped) for name, side in criteria.items()
        },
        reasons=_by_side(row["reasons"], swapped),
        safety=_by_side(row["safety"], swapped),
        marks={
            side: [Mark(**mark) for mark in marks]
            for side, marks in _by_side(row["marks"], swapped).items()
        },
        comment=row["comment"] or "",
        edit=row["edit"] or "",
        milliseconds=row["milliseconds"],
        guidelines=row["guidelines"],
        created_at=row["created_at"],
    )


def _by_side(column: str | None, swapped: bool) -> dict[str, Any]:
    # A rebuild writes a JSON null for a line of the journal from before the column.
    return screen_sides(json.loads(column or "{}") or {}, shown_swapped=swapped)


def _listed(row: Mapping[str, Any], annotator: str) -> ListedJudgment:
    swapped = shown_swapped(annotator, row["comparison"])
    return ListedJudgment(
        id=row["id"],
        outcome=screen_outcome(row["outcome"], shown_swapped=swapped),
        strength=row["strength"],
        edited=bool(row["edit"]),
        live=row["arm"] == LIVE,
        created_at=row["created_at"],
        prompt=row["prompt"] or "",
    )
