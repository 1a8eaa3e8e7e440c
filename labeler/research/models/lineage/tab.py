"""The "Lineage" section: the tree of models, and the judgments that trained each of them."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from labeler.html import components
from labeler.html.components import render
from labeler.research.models.lineage import view as lineage_view
from labeler.research.models.lineage.graph import draw
from labeler.research.tab import Tab, Updates, heading_slot, html_slot, on
from storage.engine.database import Database
from storage.errors import NotFound
from storage.lineage import tree
from storage.lineage.graph import lineage_graph
from storage.tables import models

_HERE = Path(__file__).parent


class LineageTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        heading_slot("Lineage", "from pairs and judgments to reward models and policies")
        self.graph = html_slot(
            elem_id="lineage-graph",
            css_template=(_HERE / "graph.css").read_text(encoding="utf-8"),
            js_on_load=(_HERE / "graph.js").read_text(encoding="utf-8"),
        )
        heading_slot("Models", "as a list; each model is below its parent")
        self.tree = html_slot(elem_id="tree")
        heading_slot("One model", "from a model back to the judgments that trained it")
        self.model = gr.Dropdown(
            [], label="Model", show_label=False, container=False, elem_id="lineage-model"
        )
        self.lineage = html_slot(elem_id="lineage")
        self.inputs = [self.model]
        self.outputs = [self.graph, self.tree, self.model, self.lineage]
        on(self.model.input, self._lineage, self.inputs, [self.lineage], access="viewer")

    def refresh(self, model: str | None) -> Updates:
        """All models; the lineage of `model`, or of the newest policy."""
        versions = models.listing(self._db)
        ours = [m for m in reversed(versions) if m.role != "external"]
        newest = next((m.id for m in ours if m.role == "policy"), ours[0].id if ours else None)
        chosen = model if model in {m.id for m in versions} else newest
        return {
            self.graph: render(draw(lineage_graph(self._db))),
            self.tree: render(components.card(lineage_view.tree(versions))),
            self.model: gr.Dropdown(
                choices=[(f"{m.name} ({m.role})", m.id) for m in ours], value=chosen
            ),
            self.lineage: self._lineage(chosen),
        }

    def _lineage(self, model: str | None) -> str:
        if model is None:
            return render(components.empty("No models yet", "The first one is the SFT reference."))
        try:
            return render(components.preformatted(tree.render(tree.lineage(self._db, model))))
        except NotFound as error:
            return render(components.note("warn", "The lineage is unknown.", str(error)))
