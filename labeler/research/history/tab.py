"""The "History" tab: iterations, the family tree of models, lineage of each."""

from __future__ import annotations

import gradio as gr

from labeler.html import components
from labeler.research.charts import CHARTS_JS
from labeler.research.history import view as history_view
from labeler.research.panel import Panel, Updates, html_slot, render
from labeler.research.policies import view as policies_view
from storage import lineage, worker_files
from storage.engine.database import Database
from storage.errors import NotFound
from storage.tables import iterations, models, policy_judgments, runs


class HistoryTab:
    """Components and handlers of the tab; make it inside the tab's context."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.table = html_slot(elem_id="iterations")
        self.charts = html_slot(js_on_load=CHARTS_JS)
        self.rulings = html_slot(elem_id="rulings")
        html_slot(
            value=render(
                components.heading("Models", "under the model whose weights each started from")
            )
        )
        self.tree = html_slot(elem_id="tree")
        html_slot(
            value=render(
                components.heading("Lineage", "from a model back to the votes that shaped it")
            )
        )
        self.model = gr.Dropdown(
            [], label="Model", show_label=False, container=False, elem_id="lineage-model"
        )
        self.lineage = html_slot(elem_id="lineage")
        self.model.input(
            self._lineage,
            inputs=self.model,
            outputs=self.lineage,
            show_progress="hidden",
            api_visibility="private",
        )

    def panel(self) -> Panel:
        return Panel(
            refresh=self.refresh,
            inputs=[self.model],
            outputs=[self.table, self.charts, self.rulings, self.tree, self.model, self.lineage],
        )

    def refresh(self, model: str | None) -> Updates:
        """All iterations and models; the lineage of `model`, or of the newest policy."""
        listed = iterations.listing(self._db)
        versions = models.listing(self._db)
        labels = worker_files.labels_by_arm(self._db)
        by_id = {m.id: m for m in versions}
        listed_runs = runs.listing(self._db)
        worked = {
            run.id: seconds
            for run in listed_runs
            if run.stage in history_view.TRAINING
            and (seconds := runs.worked(self._db, run)) is not None
        }
        ours = [m for m in reversed(versions) if m.role != "external"]
        newest = next((m.id for m in ours if m.role == "policy"), ours[0].id if ours else None)
        chosen = model if model in by_id else newest
        tree = components.Markup('<div class="ks-card">{}</div>').format(
            history_view.tree(versions)
        )
        return {
            self.table: render(history_view.table(listed, labels, by_id, listed_runs, worked)),
            self.charts: render(history_view.charts(listed, listed_runs)),
            self.rulings: render(policies_view.rulings(policy_judgments.overrides(self._db))),
            self.tree: render(tree),
            self.model: gr.Dropdown(
                choices=[(f"{m.name} ({m.role})", m.id) for m in ours], value=chosen
            ),
            self.lineage: self._lineage(chosen),
        }

    def _lineage(self, model: str | None) -> str:
        if model is None:
            return render(components.empty("No models yet", "The SFT reference comes first."))
        try:
            return render(components.preformatted(lineage.render(lineage.lineage(self._db, model))))
        except NotFound as error:
            return render(components.note("warn", "Its lineage is not known.", str(error)))
