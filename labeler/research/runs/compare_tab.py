"""The "Compare" section: all runs in a table, and the curves of those chosen. ``compare.js`` fills it
from the routes of `routes.py`."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Tab, Updates, html_slot

COMPARE_JS = (Path(__file__).parent / "compare.js").read_text(encoding="utf-8")


class CompareTab(Tab):
    def __init__(self) -> None:
        html_slot(value="<div></div>", elem_id="compare", js_on_load=COMPARE_JS)

    def refresh(self) -> Updates:
        """Nothing: the script reads the runs itself."""
        return {}
