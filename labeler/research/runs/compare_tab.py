"""The "Compare" section: all runs in a table, and the curves of those chosen. ``compare.js`` fills it
from the routes of `routes.py`."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Script, Tab, Updates

_SCRIPT = Script("compare", (Path(__file__).parent / "compare.js").read_text(encoding="utf-8"))


class CompareTab(Tab):
    script = _SCRIPT

    def __init__(self) -> None:
        _SCRIPT.slot()

    def refresh(self) -> Updates:
        """Nothing: the script reads the runs itself."""
        return {}
