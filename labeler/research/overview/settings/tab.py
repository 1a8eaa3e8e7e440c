"""The "Settings" section: every setting of the workspace. ``settings.js`` fills it from the routes of
``labeler/research/overview/routes.py``."""

from __future__ import annotations

from pathlib import Path

from labeler.research.tab import Tab, Updates, html_slot

SETTINGS_JS = (Path(__file__).parent / "settings.js").read_text(encoding="utf-8")


class SettingsTab(Tab):
    def __init__(self) -> None:
        html_slot(value="<div></div>", elem_id="settings", js_on_load=SETTINGS_JS)

    def refresh(self) -> Updates:
        """Nothing: the script reads the settings itself."""
        return {}
