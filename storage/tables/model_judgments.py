"""Judgments between any two models, imported ones included, for the leaderboard."""

from __future__ import annotations

from storage.engine.database import Database
from storage.gate_records import ModelJudgment
from storage.records import LEARNED_FROM, WRITTEN, Arm
from storage.tables.policy_judgments import EVALUATION_ARMS

BOARD_ARMS: tuple[Arm, ...] = (*EVALUATION_ARMS, "imported", WRITTEN)
"""Arms that compare models: without pairs that a reward model or an annotator chose, and without
pairs that measure annotators."""

_JUDGED = """
    SELECT f.policy AS first, s.policy AS second, c.prompt, p.category,
           CASE j.outcome WHEN 'first' THEN 1.0 WHEN 'second' THEN 0.0 ELSE 0.5 END::DOUBLE AS outcome
    FROM current_judgments AS j
    JOIN annotators AS a ON a.id = j.annotator
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS f ON f.id = c.first
    JOIN completions AS s ON s.id = c.second
    WHERE list_contains($arms, c.arm) AND list_contains($kinds, a.kind) AND f.policy <> s.policy
    ORDER BY j.comparison, j.annotator
"""
_NAMES = "SELECT id, role, name FROM models WHERE role IN ('external', 'sft', 'policy')"


def judged(db: Database) -> list[ModelJudgment]:
    """Current judgments by people between two models, under the models' names.

    Trained models have their ids as names.  A model of another origin with such a name gets
    " (imported)" behind it.
    """
    rows = db.read(_NAMES)
    trained = {row["id"] for row in rows if row["role"] != "external"}
    names = {id: id for id in trained}
    for row in rows:
        if row["role"] == "external":
            names[row["id"]] = (
                f"{row['name']} (imported)" if row["name"] in trained else row["name"]
            )
    found = db.read(_JUDGED, arms=list(BOARD_ARMS), kinds=list(LEARNED_FROM))
    return [
        ModelJudgment(
            **row | {side: names.get(row[side], row[side]) for side in ("first", "second")}
        )
        for row in found
    ]
