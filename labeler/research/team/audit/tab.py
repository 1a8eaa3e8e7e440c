"""The "Audit log" section: who did what on the research side."""

from __future__ import annotations

from datetime import timedelta

import gradio as gr

from labeler.html.components import render
from labeler.research.tab import Tab, Updates, heading_slot, html_slot, on
from labeler.research.team.audit import view
from storage.audit_records import actor
from storage.engine.database import Database
from storage.records import now
from storage.tables import audit
from storage.tables.people import annotators

ANY = ("Any", "")
PERIODS = (("All", ""), ("Last 24 hours", "1"), ("Last 7 days", "7"), ("Last 30 days", "30"))
LISTED = 100


class AuditTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._lay_out()
        self.inputs = [self.actor, self.action, self.period, self.search]
        self.outputs = [self.links, self.entries, self.actor, self.action]
        for control in self.inputs:
            on(control.input, self.refresh, self.inputs, self.outputs, access="viewer")

    def _lay_out(self) -> None:
        heading_slot("Audit log", "who did what on the research side")
        with gr.Column(elem_classes="ks-panel"), gr.Row(elem_classes="ks-fields"):
            self.actor = gr.Dropdown([ANY], value="", label="Who", elem_id="audit-actor")
            self.action = gr.Dropdown([ANY], value="", label="Action", elem_id="audit-action")
            self.period = gr.Dropdown(
                list(PERIODS), value="", label="Period", elem_id="audit-period"
            )
            self.search = gr.Textbox(label="Search", elem_id="audit-search", max_lines=1)
        self.links = html_slot(elem_id="audit-downloads")
        self.entries = html_slot(elem_id="audit-entries")

    def refresh(
        self, who: str | None, action: str | None, period: str | None, search: str | None
    ) -> Updates:
        if not self._may_read():
            return {self.links: "", self.entries: render(view.FOR_RESEARCHERS)}
        known = audit.known_values(self._db)
        since = now() - timedelta(days=int(period)) if period else None
        found = audit.listing(
            self._db, actor=who, action=action, since=since, search=search, limit=LISTED + 1
        )
        shown, more = found[:LISTED], len(found) > LISTED
        query = {
            "actor": who or "",
            "action": action or "",
            "search": search or "",
            "since": since.isoformat(timespec="seconds") if since else "",
        }
        return {
            self.links: render(view.downloads(query, len(shown), more=more)) if shown else "",
            self.entries: render(view.entries(shown, filtered=any(query.values()))),
            # What was chosen stays a choice, because Gradio refuses other values.
            self.actor: gr.Dropdown([ANY, *dict.fromkeys([*known.actors, *filter(None, [who])])]),
            self.action: gr.Dropdown(
                [ANY, *dict.fromkeys([*_groups(known.actions), *filter(None, [action])])]
            ),
        }

    def _may_read(self) -> bool:
        # The refresh of a section is for viewers too; the log has network addresses.
        person = actor()
        return person is not None and annotators.get(self._db, person.account).role == "researcher"


def _groups(actions: tuple[str, ...]) -> list[str]:
    """The actions, each group before its actions if it has several."""
    found: list[str] = []
    for action in actions:
        group = action.partition(".")[0]
        members = [each for each in actions if each.startswith(f"{group}.")]
        found += [group] * (len(members) > 1 and group not in found) + [action]
    return list(dict.fromkeys(found))
