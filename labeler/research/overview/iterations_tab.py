"""The "Iterations" section: every iteration with its results, and researchers' rulings."""

from __future__ import annotations

from labeler.html.components import render
from labeler.ports import Loop
from labeler.research import reading
from labeler.research.charts import CHARTS_JS
from labeler.research.models.verdicts import view as verdicts_view
from labeler.research.overview import iterations_view
from labeler.research.tab import Cached, Tab, Updates, html_slot
from storage import worker_files
from storage.engine.database import Database
from storage.tables import iterations, models, policy_judgments
from storage.tables.runs import runs


class IterationsTab(Tab):
    def __init__(self, db: Database, loop: Loop) -> None:
        self._db = db
        self._gate = Cached(loop.gate, at_most_every=10)
        self.table = html_slot(elem_id="iterations")
        self.charts = html_slot(js_on_load=CHARTS_JS)
        self.rulings = html_slot(elem_id="rulings")
        self.outputs = [self.table, self.charts, self.rulings]

    def refresh(self) -> Updates:
        listed = iterations.listing(self._db)
        by_id = {m.id: m for m in models.listing(self._db)}
        listed_runs = runs.listing(self._db)
        seconds = {
            run.id: worked
            for run in listed_runs
            if run.stage in iterations_view.TRAINING
            and (worked := runs.working_seconds(self._db, run)) is not None
        }
        labels = worker_files.labels_by_arm(self._db)
        version = reading.judging_version(self._db)
        gate = self._gate.get(version, occasion=reading.gate_occasion(self._db))
        return {
            self.table: render(
                iterations_view.table(listed, labels, by_id, listed_runs, seconds, gate)
            ),
            self.charts: render(iterations_view.charts(listed, listed_runs, by_id, gate)),
            self.rulings: render(verdicts_view.rulings(policy_judgments.overrides(self._db))),
        }
