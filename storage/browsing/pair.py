"""A pair with everything about it: texts, judgments, flags, and what reward models predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from storage.browsing.predicted import predicted
from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import adjudication, flag_answers
from storage.labeling.adjudication import GivenRuling
from storage.labeling.flag_answers import ListedFlag
from storage.records import AnnotatorKind, Arm, Mark, Message, Outcome, PromptRole, as_messages

_PAIR = """
    SELECT c.id AS comparison, c.prompt, p.messages::VARCHAR AS messages, p.role,
           coalesce(p.category, '') AS category, c.iteration, c.arm, f.text AS first,
           s.text AS second, c.created_at,
           CASE WHEN fm.role = 'external' THEN fm.name ELSE f.policy END AS first_model,
           CASE WHEN sm.role = 'external' THEN sm.name ELSE s.policy END AS second_model
    FROM comparisons AS c
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    LEFT JOIN models AS fm ON fm.id = f.policy
    LEFT JOIN models AS sm ON sm.id = s.policy
    WHERE c.id = $comparison
"""
_JUDGMENTS = """
    SELECT j.id, a.name AS annotator, a.kind AS annotator_kind, j.outcome, j.strength,
           j.criteria::VARCHAR AS criteria, j.reasons::VARCHAR AS reasons,
           j.safety::VARCHAR AS safety, j.marks::VARCHAR AS marks, coalesce(j.comment, '') AS comment,
           coalesce(j.edit, '') AS edit, j.milliseconds, j.guidelines, j.created_at,
           x.excluded IS TRUE AS excluded, coalesce(x.reason, '') AS exclusion_reason,
           w.name AS excluded_by,
           (SELECT list(m.id ORDER BY m.id) FROM snapshot_judgments AS n
            JOIN models AS m ON m.snapshot = n.snapshot AND m.role = 'reward'
            WHERE n.judgment = j.id) AS learned_by,
           (SELECT list(DISTINCT p.id ORDER BY p.id) FROM snapshot_judgments AS n
            JOIN models AS r ON r.snapshot = n.snapshot
            JOIN models AS p ON p.role = 'policy' AND (p.id = r.id OR p.reward_model = r.id)
            WHERE n.judgment = j.id) AS shaped
    FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    LEFT JOIN exclusions AS x ON x.judgment = j.id
    LEFT JOIN annotators AS w ON w.id = x.researcher
    WHERE j.comparison = $comparison
      AND j.id NOT IN (SELECT replaces FROM judgments
                       WHERE replaces IS NOT NULL AND comparison = $comparison)
      AND j.id NOT IN (SELECT replaces FROM withdrawals)
    ORDER BY j.seq
"""
_PREDICTED = "WITH {predicted} FROM predicted WHERE comparison = $comparison"
_NAMED = """
    SELECT comparison FROM judgments WHERE id = $id
    UNION ALL SELECT id FROM comparisons WHERE id = $id
"""


@dataclass(frozen=True, kw_only=True)
class GivenJudgment:
    """A current judgment with everything that its annotator gave.

    `criteria` has first, second or tie; `reasons`, `safety` and `marks` are by first and second.
    `learned_by` are the reward models that were trained on a snapshot with the judgment.
    """

    id: str
    annotator: str
    """The name."""
    annotator_kind: AnnotatorKind
    outcome: Outcome
    strength: int | None
    criteria: Mapping[str, str]
    reasons: Mapping[str, Sequence[str]]
    safety: Mapping[str, str]
    marks: Mapping[str, Sequence[Mark]]
    comment: str
    edit: str
    milliseconds: int | None
    guidelines: str | None
    created_at: datetime
    excluded: bool
    exclusion_reason: str
    excluded_by: str | None
    """The researcher's name; None for the command line."""
    learned_by: Sequence[str]
    shaped: Sequence[str]
    """Policies that these reward models rewarded, or that learned from the snapshot themselves (DPO)."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A reward model's stored prediction; `expected` is the chance of `first`, 0 to 1."""

    reward_model: str
    expected: float


@dataclass(frozen=True, kw_only=True)
class PairInFull:
    """A pair in the stored order, which is not that of any screen."""

    comparison: str
    prompt: str
    """The id."""
    messages: tuple[Message, ...]
    role: PromptRole
    category: str
    iteration: int
    arm: Arm
    first: str
    second: str
    first_model: str
    second_model: str
    created_at: datetime
    judgments: Sequence[GivenJudgment]
    flags: Sequence[ListedFlag]
    rulings: Sequence[GivenRuling]
    """Of adjudicators, the newest first."""
    predicted: Predicted | None


def pair_in_full(db: Database, comparison: str) -> PairInFull:
    """The pair with this id, or NotFound."""
    with db.snapshot():
        rows = db.read(_PAIR, comparison=comparison)
        if not rows:
            raise NotFound(f"there is no comparison {comparison!r}")
        judged = db.read(_JUDGMENTS, comparison=comparison)
        expected = db.read(_PREDICTED.format(predicted=predicted(db)), comparison=comparison)
        flags = flag_answers.flags(db, all=True, comparison=comparison)
        ruled = adjudication.rulings(db, comparison)
    messages = as_messages(json.loads(rows[0].pop("messages")))
    return PairInFull(
        **rows[0],
        messages=messages,
        judgments=[_given(row) for row in judged],
        flags=flags,
        rulings=ruled,
        predicted=next(
            (Predicted(reward_model=e["reward_model"], expected=e["expected"]) for e in expected),
            None,
        ),
    )


def pair_of(db: Database, id: str) -> str:
    """The id of the pair that a judgment is about; a pair's own id stays.  NotFound for another."""
    rows = db.read(_NAMED, id=id)
    if not rows:
        raise NotFound(f"there is no judgment and no pair {id!r}")
    return rows[0]["comparison"]


def _given(row: dict[str, Any]) -> GivenJudgment:
    # A rebuild writes a JSON null for a line of the journal from before the column.
    values = {
        name: json.loads(row[name] or "{}") or {}
        for name in ("criteria", "reasons", "safety", "marks")
    }
    values["marks"] = {
        side: [Mark(**mark) for mark in given] for side, given in values["marks"].items()
    }
    return GivenJudgment(
        **{**row, **values, "learned_by": row["learned_by"] or [], "shaped": row["shaped"] or []}
    )
