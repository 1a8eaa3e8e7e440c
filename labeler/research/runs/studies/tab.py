"""The section "Studies": sweeps and comparisons are started, watched and read here (studies.js)."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Script, Tab, Updates

_HERE = Path(__file__).parent
_SCRIPT = Script(
    "studies",
    (_HERE / "studies.js").read_text(encoding="utf-8"),
    (_HERE / "studies.css").read_text(encoding="utf-8"),
)


class StudiesTab(Tab):
    """Its script asks ``/research/api/studies``; Gradio updates nothing."""

    script = _SCRIPT

    def __init__(self) -> None:
        _SCRIPT.slot()

    def refresh(self) -> Updates:
        return {}
