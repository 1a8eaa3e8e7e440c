"""The section "Publish": a model to the Hugging Face hub (publish.js)."""

from __future__ import annotations

from pathlib import Path

from labeler.html.components import render
from labeler.research.interrupted import Started
from labeler.research.tab import Tab, Updates, heading_slot, html_slot
from storage.engine.database import Database

_HERE = Path(__file__).parent


class PublishTab(Tab):
    """Its script asks ``/research/api/pushes``; Gradio only says which push a restart interrupted."""

    def __init__(self, db: Database) -> None:
        self._started = Started(db.workspace, "push")
        heading_slot("Push to the Hub", "a trained model, with its card")
        self.interrupted = html_slot(elem_id="push-interrupted")
        html_slot(
            value=(_HERE / "publish.html").read_text(encoding="utf-8"),
            css_template=(_HERE / "publish.css").read_text(encoding="utf-8"),
            js_on_load=(_HERE / "publish.js").read_text(encoding="utf-8"),
            elem_id="publish",
        )
        self.outputs = [self.interrupted]

    def refresh(self) -> Updates:
        return {self.interrupted: render(self._started.note())}
