"""The "History" tab: iterations, the tree of models, and the lineage of each model."""

from __future__ import annotations

import gradio as gr

from labeler.html import components
from labeler.html.components import render
from labeler.research.charts import CHARTS_JS
from labeler.research.history import view as history_view
from labeler.research.policies import view as policies_view
from labeler.research.tab import Tab, Updates, heading_slot, html_slot, on
from storage import lineage, worker_files
from storage.engine.database import Database
from storage.errors import NotFound
from storage.tables import iterations, models, policy_judgments, runs


class HistoryTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self.table = html_slot(elem_id="iterations")
        self.charts = html_slot(js_on_load=CHARTS_JS)
        self.rulings = html_slot(elem_id="rulings")
        heading_slot("Models", "each model is below its parent")
        self.tree = html_slot(elem_id="tree")
        heading_slot("Lineage", "from a model back to the judgments that trained it")
        self.model = gr.Dropdown(
            [], label="Model", show_label=False, container=False, elem_id="lineage-model"
        )
        self.lineage = html_slot(elem_id="lineage")
        self.inputs = [self.model]
        self.outputs = [
            self.table, self.charts, self.rulings, self.tree, self.model, self.lineage,
        ]  # fmt: skip
        on(self.model.input, self._lineage, self.inputs, [self.lineage], access="viewer")

    def refresh(self, model: str | None) -> Updates:
        """All iterations and models; the lineage of `model`, or of the newest policy."""
        listed = iterations.listing(self._db)
        versions = models.listing(self._db)
        by_id = {m.id: m for m in versions}
        listed_runs = runs.listing(self._db)
        seconds = {
            run.id: worked
            for run in listed_runs
            if run.stage in history_view.TRAINING
            and (worked := runs.working_seconds(self._db, run)) is not None
        }
        ours = [m for m in reversed(versions) if m.role != "external"]
        newest = next((m.id for m in ours if m.role == "policy"), ours[0].id if ours else None)
        chosen = model if model in by_id else newest
        labels = worker_files.labels_by_arm(self._db)
        return {
            self.table: render(history_view.table(listed, labels, by_id, listed_runs, seconds)),
            self.charts: render(history_view.charts(listed, listed_runs)),
            self.rulings: render(policies_view.rulings(policy_judgments.overrides(self._db))),
            self.tree: render(components.card(history_view.tree(versions))),
            self.model: gr.Dropdown(
                choices=[(f"{m.name} ({m.role})", m.id) for m in ours], value=chosen
            ),
            self.lineage: self._lineage(chosen),
        }

    def _lineage(self, model: str | None) -> str:
        if model is None:
            return render(components.empty("No models yet", "The first one is the SFT reference."))
        try:
            return render(components.preformatted(lineage.render(lineage.lineage(self._db, model))))
        except NotFound as error:
            return render(components.note("warn", "The lineage is unknown.", str(error)))
