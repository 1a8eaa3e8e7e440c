"""The section "Studies": sweeps and comparisons are started, watched and read here (studies.js)."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Tab, Updates, html_slot

_HERE = Path(__file__).parent


class StudiesTab(Tab):
    """Its script asks ``/research/api/studies``; Gradio updates nothing."""

    def __init__(self) -> None:
        html_slot(
            value='<div class="st-studies"></div>',
            css_template=(_HERE / "studies.css").read_text(encoding="utf-8"),
            js_on_load=(_HERE / "studies.js").read_text(encoding="utf-8"),
            elem_id="studies",
        )

    def refresh(self) -> Updates:
        return {}
