"""The "Marked passages" section: what annotators marked, and why."""

from __future__ import annotations

from labeler.html import components
from labeler.html.components import render
from labeler.research import reading
from labeler.research.data.marks.view import marked_passages
from labeler.research.tab import Tab, Updates, html_slot
from storage.engine.database import Database

NO_MARKS = components.empty(
    "No marked passages yet",
    "If the judgment form has marked passages, annotators can mark a part of a response.",
)


class MarksTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self.marked = html_slot(elem_id="marked-passages")
        self.outputs = [self.marked]

    def refresh(self) -> Updates:
        reasons, judged = reading.mark_reasons(self._db), reading.marked_judgments(self._db)
        return {self.marked: render(marked_passages(reasons, judged) or NO_MARKS)}
