"""The section "Playground": one prompt to several policies, side by side (playground.js)."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Tab, Updates, html_slot

_HERE = Path(__file__).parent


class PlaygroundTab(Tab):
    """Its script asks ``/research/api/playground``; Gradio updates nothing."""

    def __init__(self) -> None:
        html_slot(
            value=(_HERE / "playground.html").read_text(encoding="utf-8"),
            css_template=(_HERE / "playground.css").read_text(encoding="utf-8"),
            js_on_load=(_HERE / "playground.js").read_text(encoding="utf-8"),
            elem_id="playground",
        )

    def refresh(self) -> Updates:
        return {}
