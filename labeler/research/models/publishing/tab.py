"""The section "Publish": a model to the Hugging Face hub (publish.js)."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Tab, Updates, heading_slot, html_slot

_HERE = Path(__file__).parent


class PublishTab(Tab):
    """Its script asks ``/research/api/pushes``; Gradio updates nothing."""

    def __init__(self) -> None:
        heading_slot("Push to the Hub", "a trained model, with its card")
        html_slot(
            value=(_HERE / "publish.html").read_text(encoding="utf-8"),
            css_template=(_HERE / "publish.css").read_text(encoding="utf-8"),
            js_on_load=(_HERE / "publish.js").read_text(encoding="utf-8"),
            elem_id="publish",
        )

    def refresh(self) -> Updates:
        return {}
