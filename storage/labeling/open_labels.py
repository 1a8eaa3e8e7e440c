"""What the queue still offers of an iteration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from storage.engine.database import Database
from storage.labeling.queue import UNFINISHED
from storage.labeling.queue_cache import IN_EVERY_PHASE
from storage.tables.policy_judgments import EVALUATION_ARMS

_OPEN = f"""
    WITH {UNFINISHED},
    offered AS (
        SELECT c.prompt, u.missing,
               list_contains($arms, c.arm) AND c.prompt NOT IN (SELECT unnest($judged))
                   AND ((f.policy = $first AND s.policy = $second)
                        OR (f.policy = $second AND s.policy = $first)) AS compares
        FROM unfinished AS u
        JOIN comparisons AS c ON c.id = u.id
        JOIN completions AS f ON f.id = c.first
        JOIN completions AS s ON s.id = c.second
        WHERE c.iteration = $iteration AND NOT {IN_EVERY_PHASE}
    )
    SELECT coalesce(sum(missing), 0)::BIGINT AS labels,
           count(DISTINCT prompt) FILTER (compares) AS prompts
    FROM offered
"""


@dataclass(frozen=True, kw_only=True)
class OpenLabels:
    """`labels` judgments are wanted of the pairs in the queue; `prompts` of them would be the first
    that compare two policies on a prompt."""

    labels: int
    prompts: int


def open_labels(
    db: Database,
    iteration: int,
    *,
    compared: tuple[str, str] | None = None,
    judged: Collection[str] = (),
) -> OpenLabels:
    """The open labels of an iteration, and the prompts on which the two policies `compared` have no
    judgment yet; `judged` are the prompts on which they have one.

    Skipped pairs count, because another annotator may judge them; flagged pairs do not.
    """
    first, second = compared or (None, None)
    [row] = db.read(
        _OPEN,
        iteration=iteration,
        first=first,
        second=second,
        arms=list(EVALUATION_ARMS),
        judged=sorted(judged),
    )
    return OpenLabels(**row)
