"""The "Settings" section: every setting of the workspace. ``settings.js`` fills it from the routes of
``labeler/research/overview/routes.py``."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Script, Tab, Updates

_SCRIPT = Script("settings", (Path(__file__).parent / "settings.js").read_text(encoding="utf-8"))


class SettingsTab(Tab):
    script = _SCRIPT

    def __init__(self) -> None:
        _SCRIPT.slot()

    def refresh(self) -> Updates:
        """Nothing: the script reads the settings itself."""
        return {}
