"""The line above all tabs."""

from __future__ import annotations

from datetime import datetime

from labeler.research import loop_view, reading
from labeler.research.panel import shown
from storage.database import Database
from storage.records import now


def midnight(moment: datetime) -> datetime:
    """When today began, in UTC."""
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def headline(db: Database, state: reading.State | None = None) -> str:
    """Where the loop stands, in one line, and below it what is wrong with the workspace, if anything."""
    state = state or reading.state(db, midnight=midnight(now()))
    return shown(loop_view.top(state, db.workspace.name, trouble=db.health.trouble))
