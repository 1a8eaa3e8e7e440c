"""Queries of the researcher's pages, as typed snapshots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from storage.engine.database import Database
from storage.labeling import queue
from storage.records import Annotator, Iteration, Mark, ModelVersion, Outcome, Run, now
from storage.tables import iterations, models, prompts, settings, snapshots
from storage.tables.people import annotators
from storage.tables.runs import runs

PACE_WINDOW = timedelta(hours=1)
"""The time over which `State.recent_labels` are counted."""

_LABELS = """
    SELECT count(*) FILTER (c.arm NOT IN ('live', 'probe')) AS labels, max(j.created_at) AS latest,
           count(*) FILTER (j.created_at >= $midnight) AS today,
           count(*) FILTER (c.arm NOT IN ('live', 'probe') AND j.created_at >= $since) AS recent,
           min(j.created_at) FILTER (c.arm NOT IN ('live', 'probe')) AS first
    FROM current_judgments AS j
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN annotators AS a ON a.id = j.annotator
    WHERE c.iteration = $iteration AND list_contains($kinds, a.kind)
"""

_WORK = """
    WITH judged AS (
        SELECT annotator, count(*) AS judged,
               count(*) FILTER (created_at >= $midnight) AS today,
               max(created_at) AS latest
        FROM current_judgments GROUP BY annotator
    ), skipped AS (
        SELECT annotator, count(*) AS skips FROM open_skips GROUP BY annotator
    )
    SELECT a.id, coalesce(j.judged, 0) AS judged, coalesce(j.today, 0) AS today, j.latest,
           coalesce(s.skips, 0) AS skips
    FROM annotators AS a
    LEFT JOIN judged AS j ON j.annotator = a.id
    LEFT JOIN skipped AS s ON s.annotator = a.id
    ORDER BY a.disabled, judged DESC, a.name
"""

_FLAGS = """
    SELECT f.id, f.comment, f.created_at, a.name AS annotator, p.messages::VARCHAR AS messages,
           x.text AS first, y.text AS second,
           (SELECT list(g.text ORDER BY g.created_at, g.id) FROM flag_answers AS g
            WHERE g.flag = f.id) AS answers
    FROM open_flags AS f
    JOIN comparisons AS c ON c.id = f.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN completions AS x ON x.id = c.first
    JOIN completions AS y ON y.id = c.second
    LEFT JOIN annotators AS a ON a.id = f.annotator
    ORDER BY f.created_at DESC LIMIT $limit
"""

# The filter comes first, because few judgments have marks.
_MARKED = """
    WITH marked AS (
        FROM current_judgments WHERE marks IS NOT NULL AND marks::VARCHAR NOT IN ('{}', 'null'))
"""
_MARK_REASONS = f"""
    {_MARKED}
    SELECT reason, count(*) AS marks, count(DISTINCT id) AS judgments
    FROM (SELECT id, unnest(json_extract_string(marks, '$.*[*].reason')) AS reason FROM marked)
    GROUP BY reason ORDER BY marks DESC, reason
"""
_MARKED_JUDGMENTS = f"""
    {_MARKED}
    SELECT j.marks::VARCHAR AS marks, j.outcome, j.created_at, a.name AS annotator,
           json_extract_string(p.messages, '$[#-1].content') AS prompt
    FROM marked AS j
    JOIN comparisons AS c ON c.id = j.comparison
    JOIN prompts AS p ON p.id = c.prompt
    JOIN annotators AS a ON a.id = j.annotator
    ORDER BY j.seq DESC LIMIT $limit
"""
_JUDGMENTS = "SELECT count(*) AS n FROM current_judgments"
_RULINGS = "SELECT count(*) AS n FROM gate_overrides"
_VERSION = """
    SELECT (SELECT count(*) FROM judgments) + (SELECT count(*) FROM withdrawals)
        + (SELECT coalesce(max(epoch_us(created_at)), 0) FROM exclusions) AS n
"""
_OCCASION = """
    SELECT (SELECT count(*) FROM models) AS models,
           (SELECT count(*) FROM gate_overrides) AS rulings
"""


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of the loop."""

    iteration: Iteration | None
    labels: int
    labels_today: int
    latest_label: datetime | None
    judgments: int
    rulings: int
    prompts: Mapping[str, int]
    policy: ModelVersion | None
    reward_model: ModelVersion | None
    run: Run | None
    """The running run of the current iteration, otherwise its last run."""
    evaluated: Iteration | None
    """The iteration that produced and evaluated `policy`; None for SFT or before the evaluation."""
    judge: ModelVersion | None = None
    """The reward model of that evaluation."""
    new_labels: int | None = None
    """Judgments that the current iteration is the first to train on; None if unknown."""
    waiting: int = 0
    """Judgments that no training has used yet."""
    open_pairs: int = 0
    """Pairs that still need a judgment."""
    cancelling: bool = False
    """Whether `run` is being cancelled."""
    method: str = ""
    """What trains or trained the iteration's policy, such as DPO; empty before that stage."""
    recent_labels: int = 0
    """Labels of the current iteration in the last `PACE_WINDOW`."""
    first_label: datetime | None = None
    """When the oldest label of the current iteration was given."""

    @property
    def turn(self) -> tuple[int, str, int] | None:
        """Changes whenever the loop advances or a researcher rules on a policy."""
        return (
            (self.iteration.number, self.iteration.phase, self.rulings) if self.iteration else None
        )

    @property
    def wanted(self) -> int:
        return self.iteration.labels_wanted if self.iteration else 0


def state(db: Database, *, midnight: datetime, moment: datetime | None = None) -> State:
    """The state of the loop at `moment` (now by default); `midnight` is the start of today."""
    listed = iterations.listing(db)
    current = max(listed, key=lambda i: i.number, default=None)
    versions = {m.id: m for m in models.listing(db)}
    policy = _policy(current, versions)
    evaluated = next(
        (i for i in listed if policy and i.policy_produced == policy.id and i.evaluation), None
    )
    labels = _labels(db, current, midnight, (moment or now()) - PACE_WINDOW)
    started = runs.listing(db, iteration=current.number) if current else []
    run = latest_run(started)
    return State(
        iteration=current,
        labels=labels.labels,
        labels_today=labels.today,
        latest_label=labels.latest,
        judgments=_count(db, _JUDGMENTS),
        rulings=_count(db, _RULINGS),
        prompts=prompts.counts(db),
        policy=policy,
        reward_model=_reward_model(current, versions),
        run=run,
        method=runs.methods_used(started).get(current.number, "") if current else "",
        new_labels=snapshots.new_in(db, current.number) if current else None,
        waiting=snapshots.waiting(db, settings.learn_from(db)),
        open_pairs=queue.unfinished(db),
        cancelling=run is not None and runs.cancelling(db, run),
        recent_labels=labels.recent,
        first_label=labels.first,
        evaluated=evaluated,
        judge=versions.get(evaluated.reward_model or "") if evaluated else None,
    )


def latest_run(listed: Sequence[Run]) -> Run | None:
    """The running run, otherwise the newest."""
    return max(listed, key=lambda r: (r.status == "running", r.created_at), default=None)


class _Labels(NamedTuple):
    """Labels of the current iteration."""

    labels: int
    latest: datetime | None
    today: int
    recent: int
    first: datetime | None


def _labels(
    db: Database, current: Iteration | None, midnight: datetime, since: datetime
) -> _Labels:
    number = current.number if current else -1
    kinds = list(settings.learn_from(db))
    found = db.read(_LABELS, iteration=number, midnight=midnight, since=since, kinds=kinds)
    return _Labels(**found[0])


def _count(db: Database, query: str) -> int:
    return db.read(query)[0]["n"]


def _policy(current: Iteration | None, versions: Mapping[str, ModelVersion]) -> ModelVersion | None:
    """The newest policy: the one produced, otherwise the one sampled, otherwise the reference."""
    if current:
        for name in (current.policy_produced, current.policy_sampled):
            if name and name in versions:
                return versions[name]
    references = [m for m in versions.values() if m.role == "sft"]
    return references[-1] if references else None


def _reward_model(
    current: Iteration | None, versions: Mapping[str, ModelVersion]
) -> ModelVersion | None:
    name = current.reward_model if current else None
    if name and name in versions:
        return versions[name]
    made = [m for m in versions.values() if m.role == "reward"]
    return max(made, key=lambda m: m.created_at, default=None)


def judging_version(db: Database) -> int:
    """A number that changes with every judgment, undo, cleared flag and exclusion."""
    return _count(db, _VERSION)


def gate_occasion(db: Database) -> tuple[int, int]:
    """Changes with every model and every ruling: the gate's report is then computed at once."""
    [row] = db.read(_OCCASION)
    return row["models"], row["rulings"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """One annotator's counts over all iterations."""

    annotator: Annotator
    judged: int = 0
    today: int = 0
    skips: int = 0
    latest: datetime | None = None


def work(db: Database, *, midnight: datetime) -> list[Work]:
    """The work of all annotators by number of judgments, disabled accounts last."""
    people = {person.id: person for person in annotators.listing(db)}
    rows = db.read(_WORK, midnight=midnight)
    return [Work(annotator=people[row.pop("id")], **row) for row in rows]


@dataclass(frozen=True, kw_only=True)
class OpenFlag:
    """A flag that no researcher has cleared, with its pair; None for an unknown annotator."""

    id: str
    comment: str
    created_at: datetime
    annotator: str | None
    messages: str
    """In the form of `messages_json`."""
    first: str
    second: str
    answers: Sequence[str] | None = None
    """Answers so far, the oldest first."""


def open_flags(db: Database) -> int:
    """The number of flags that no researcher has cleared."""
    return _count(db, "SELECT count(*) AS n FROM open_flags")


def flags(db: Database, *, limit: int = 100) -> list[OpenFlag]:
    """Open flags, newest first."""
    return [OpenFlag(**row) for row in db.read(_FLAGS, limit=limit)]


@dataclass(frozen=True, kw_only=True)
class MarkReason:
    """How often a reason was given to marked passages."""

    reason: str
    marks: int
    judgments: int


@dataclass(frozen=True, kw_only=True)
class MarkedJudgment:
    """The marks of a judgment in its first and second response."""

    marks: Mapping[str, Sequence[Mark]]
    outcome: Outcome
    created_at: datetime
    annotator: str
    prompt: str


def mark_reasons(db: Database) -> list[MarkReason]:
    """The reasons of marks in current judgments, the most frequent first."""
    return [MarkReason(**row) for row in db.read(_MARK_REASONS)]


def marked_judgments(db: Database, *, limit: int = 20) -> list[MarkedJudgment]:
    """Current judgments with marks, the newest first."""
    return [
        MarkedJudgment(**{**row, "marks": _marks(row["marks"])})
        for row in db.read(_MARKED_JUDGMENTS, limit=limit)
    ]


def _marks(column: str) -> dict[str, list[Mark]]:
    return {side: [Mark(**mark) for mark in given] for side, given in json.loads(column).items()}
