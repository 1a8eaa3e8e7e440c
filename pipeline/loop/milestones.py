"""Events that follow from many records: enough labels, changed verdicts, over-optimization.

Other events are recorded with the record that causes them (storage/tables/runs/events.py).  These are
computed from the stored records, so a crash can delay them, but not lose or double them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.promotion import gate
from storage import worker_files
from storage.engine.database import Database
from storage.gate_records import Evidence
from storage.notification_records import Event
from storage.records import Iteration
from storage.tables import policy_judgments
from storage.tables.runs import events

PAUSE = 10.0
"""Seconds between two looks at the evidence, or `SHARE` times what the last look took."""
LABELS_PAUSE = 1.0
SHARE = 20


class _Paced:
    """Runs a function at most every `pause` seconds, and only after something was stored."""

    def __init__(self, db: Database, pause: float, clock: Callable[[], float]) -> None:
        self._db, self._pause, self._clock = db, pause, clock
        self._seen, self._due = -1, 0.0

    def run(self, function: Callable[[], None]) -> None:
        start = self._clock()
        if self._db.committed == self._seen or start < self._due:
            return
        seen = self._db.committed
        function()
        took = self._clock() - start
        self._seen, self._due = seen, start + max(self._pause, SHARE * took)


class Milestones:
    """Records the events of one workspace."""

    def __init__(self, db: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._labels = _Paced(db, LABELS_PAUSE, clock)
        self._evidence = _Paced(db, PAUSE, clock)

    def look(self, current: Iteration) -> None:
        """Record what has happened since the last look; does nothing most of the time."""
        if current.phase == "labeling":
            self._labels.run(lambda: self.labels(current))
        self._evidence.run(lambda: self.verdicts(policy_judgments.evidence(self._db)))

    def labels(self, current: Iteration) -> None:
        """Record that an iteration has the labels that it wants, if it has."""
        if current.labels_wanted <= 0:
            return
        labels = worker_files.labels_in(self._db, current)
        if labels >= current.labels_wanted:
            self._record(events.labels_reached(current, labels))

    def verdicts(self, evidence: Evidence, *, policy: str | None = None) -> None:
        """Record a changed verdict on a policy, by default the candidate, and its alarm."""
        judged = policy or (evidence.iteration.policy if evidence.iteration else None)
        if judged is None or judged == evidence.reference or judged not in evidence.policies:
            return
        standing = gate.standing(evidence, judged)
        ruled = standing.verdict != standing.by_evidence
        reason = standing.words[-1] if ruled else " ".join(standing.words[:2])
        if standing.canary and standing.canary.holds and not ruled:
            lost = next(each for each in standing.words if each.startswith(gate.CANARY))
            reason = f"{reason} {lost}"
        events.record_verdict(self._db, judged, standing.verdict, reason=reason)
        if standing.alarm is not None and standing.alarm.alarm:
            raised = next(each for each in standing.words if each.startswith(gate.ALARM))
            self._record(events.overoptimization(judged, message=raised))

    def _record(self, event: Event) -> None:
        self._db.write(lambda tx: events.record(tx, event))
