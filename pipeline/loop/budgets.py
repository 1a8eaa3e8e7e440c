"""The label budget of the newest iteration, read from the workspace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from pipeline.config.sections import Config
from pipeline.loop.label_budget import Holds, in_words, needed
from pipeline.promotion.gate import standing
from pipeline.reward.report.forecast import expected_gain
from pipeline.reward.report.report import RewardReports
from storage import worker_files
from storage.engine.database import Database
from storage.labeling.open_labels import open_labels
from storage.records import Iteration
from storage.reports import ExpectedGain, LabelBudget
from storage.tables import iterations, models, policy_judgments
from storage.tables.runs import runs

FRESH = 5.0
"""Seconds after which a budget is read again even if nothing was stored: a learning curve is a file."""
SHARE = 20
"""A budget that is slow to read is kept for this many times the time that it took …"""
SLOW = 0.25
"""… if that was more than so many seconds, as with very many judgments."""


class Budgets:
    """Reads budgets, and keeps the last one: the page and the loop ask every second or two.

    `holds` says why training cannot start, and why it does not start by itself, as sentences.
    """

    def __init__(
        self,
        db: Database,
        reports: RewardReports,
        holds: Callable[[Iteration, Config], Holds],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db, self._reports, self._holds, self._clock = db, reports, holds, clock
        self._lock = threading.Lock()
        self._known: tuple[object, int, float, float, LabelBudget, Holds] | None = None

    def get(self, current: Iteration | None, config: Config) -> LabelBudget:
        """The budget of `current`, the newest iteration."""
        # A new reward run changes what a kept budget says.
        trained = runs.newest(self._db, current.number, "reward") if current else None
        asked = (current, config, trained and trained.id)
        with self._lock:
            if self._known is not None:
                known, committed, until, slow, budget, holds = self._known
                moment = self._clock()
                if known == asked and self._db.committed == committed and moment < until:
                    return budget
                # A label may end what prevents training.
                if known == asked and current and moment < slow and not holds.training:
                    labels = worker_files.labels_in(self._db, current)  # as the page counts them
                    return in_words(replace(budget, labels=labels), config.labeling, holds)
            committed, start = self._db.committed, self._clock()
            budget, holds = self._read(current, config)
            took = self._clock() - start
            slow = start + (SHARE * took if took > SLOW else 0.0)
            self._known = (asked, committed, start + FRESH, slow, budget, holds)
            return budget

    def _read(self, current: Iteration | None, config: Config) -> tuple[LabelBudget, Holds]:
        if current is None:
            return in_words(LabelBudget(), config.labeling), Holds()
        found = LabelBudget(
            iteration=current.number,
            phase=current.phase,
            labels=worker_files.labels_in(self._db, current),
            wanted=current.labels_wanted,
        )
        if current.phase != "labeling":
            return in_words(found, config.labeling), Holds()
        found = self._with_gate(found, current, config.labeling.autopilot_wait)
        found = replace(found, gain=self._gain(found.left, config))
        holds = self._holds(current, config)
        return in_words(found, config.labeling, holds), holds

    def _with_gate(self, found: LabelBudget, current: Iteration, wait: int) -> LabelBudget:
        policy, reference = iterations.candidate(self._db, current), models.newest(self._db, "sft")
        if policy is None or reference is None or policy == reference.id:
            return replace(found, offered=open_labels(self._db, current.number).labels)
        pair = (policy, reference.id)
        evidence = policy_judgments.evidence(self._db, between=pair)
        rows = evidence.judged
        offered = open_labels(
            self._db, current.number, compared=pair, judged={row.prompt for row in rows}
        )
        return needed(
            replace(found, offered=offered.labels),
            standing(evidence, policy),
            rows=rows,
            prompts=offered.prompts,
            wait=wait,
        )

    def _gain(self, left: int, config: Config) -> ExpectedGain | None:
        """What the newest learning curve expects of the labels that are left."""
        curve = self._reports.newest_curve()
        trend = curve.forecast.trend if curve and curve.forecast else None
        if curve is None or trend is None or not curve.points:
            return None
        used = worker_files.judgment_counts_by_kind(self._db, config.reward.learn_from)["used"]
        measured = round(curve.points[-1].labels)
        return expected_gain(trend, measured=measured, now=sum(used.values()), more=left)
