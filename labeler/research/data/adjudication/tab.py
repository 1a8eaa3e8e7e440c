"""The "Adjudication" section: blind rulings on pairs on which annotators disagree."""

from __future__ import annotations

from typing import Any, cast

import gradio as gr

from labeler.html.components import Markup, render
from labeler.research.data.adjudication import view
from labeler.research.data.pair_view import BROWSE_JS, TYPESET, pressed
from labeler.research.tab import Tab, Updates, attempt, caller, heading_slot, html_slot, on
from storage.engine.database import Database
from storage.labeling import adjudication
from storage.records import Annotator, ScreenOutcome, new_id


class AdjudicationTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        heading_slot(
            "Rule on disagreements",
            "sides are random; models and votes are hidden until the ruling is stored",
        )
        self.answer = html_slot(elem_id="ruling-given")
        self.pair = html_slot(elem_id="waiting-pair", js_on_load=BROWSE_JS + TYPESET)
        heading_slot("Rulings", "statistics and training stay on the votes")
        self.rulings = html_slot(elem_id="rulings")
        self.outputs = [self.pair, self.rulings]
        on(self.pair.act, self._act, outputs=[self.answer, *self.outputs], access="adjudicator")

    def refresh(self) -> Updates:
        return {self.rulings: render(view.rulings(adjudication.rulings(self._db)))}

    def refresh_for(self, person: Annotator, *args: Any) -> Updates:  # noqa: ARG002
        """The next pair for this person; a viewer gets none."""
        if not adjudication.may_adjudicate(person):
            return {self.pair: render(view.waiting(None, 0))} | self.refresh()
        found = adjudication.waiting(self._db, person.id, limit=1)
        count = adjudication.count_waiting(self._db, person.id)
        shown = view.waiting(found[0] if found else None, count)
        return {self.pair: render(shown)} | self.refresh()

    def _act(self, event: gr.EventData, request: gr.Request) -> Updates:
        outcome, target, reason = pressed(event)

        def rule() -> Markup:
            given = adjudication.rule(
                self._db, id=new_id("r"), comparison=target, outcome=cast("ScreenOutcome", outcome),
                reason=reason, adjudicator=caller(request).id,
            )  # fmt: skip
            return view.ruled(given)

        answer = attempt(rule, "No ruling was stored.")
        if answer.refusal:  # the pair stays, with the reason that was typed
            return {self.answer: answer.html}
        return {self.answer: answer.html} | self.refresh_for(caller(request))
