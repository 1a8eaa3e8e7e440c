"""The section "Studies": sweeps, comparisons and retrained reward models are started, watched and read
here (studies.js, retrained.js)."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Script, Tab, Updates

_HERE = Path(__file__).parent
_SCRIPT = Script(
    "studies",
    "".join((_HERE / name).read_text(encoding="utf-8") for name in ("retrained.js", "studies.js")),
    (_HERE / "studies.css").read_text(encoding="utf-8"),
)


class StudiesTab(Tab):
    """Its script asks ``/research/api/studies``; Gradio updates nothing."""

    script = _SCRIPT

    def __init__(self) -> None:
        _SCRIPT.slot()

    def refresh(self) -> Updates:
        return {}
