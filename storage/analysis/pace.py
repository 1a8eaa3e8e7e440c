"""How many judgments each annotator makes in an hour of work."""

from __future__ import annotations

from storage.engine.database import Database

PAUSE = 300.0
"""Seconds between two judgments that count as a pause, not as work."""
LEAST = 5
"""Gaps without a pause below which no pace is given."""

_PACE = """
    WITH gaps AS (
        SELECT annotator, epoch(created_at) - lag(epoch(created_at)) OVER (
            PARTITION BY annotator ORDER BY created_at, id) AS gap
        FROM current_judgments)
    SELECT annotator, 3600 * count(*) / sum(gap) AS per_hour
    FROM gaps WHERE gap > 0 AND gap <= $pause
    GROUP BY annotator HAVING count(*) >= $least
"""


def pace(db: Database) -> dict[str, float]:
    """Judgments per hour by annotator: 3600 over the mean gap in seconds between an annotator's
    current judgments, without pauses.  Judgments with equal times, such as imported ones, and
    annotators with fewer than `LEAST` gaps are left out."""
    return {row["annotator"]: row["per_hour"] for row in db.read(_PACE, pause=PAUSE, least=LEAST)}
