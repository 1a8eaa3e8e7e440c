"""The "Annotators" tab: people, how they judge, their agreement, and what they reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import gradio as gr
from gradio.blocks import Block

from labeler.html import components
from labeler.research import reading
from labeler.research.annotators import reliability as annotators_reliability
from labeler.research.annotators import view as annotators_view
from labeler.research.panel import Cached, Panel, Updates, alert, attempt, html_slot, render
from labeler.research.top import midnight
from labeler.security.auth import INVITE_LIFETIME
from storage.analysis import reliability
from storage.analysis.agreement import agreement
from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import judgments
from storage.records import Annotator, AnnotatorRole, new_id, now
from storage.tables import annotators, tokens

ACTIONS_JS = (Path(__file__).parent / "actions.js").read_text(encoding="utf-8")


class AnnotatorsTab:
    """Components and handlers of the tab; make it inside the tab's context."""

    def __init__(self, db: Database, people_changed: Callable[[], None]) -> None:
        self._db = db
        self._people_changed = people_changed
        self._agreement = Cached(lambda: agreement(db), at_most_every=30)
        self._figures = Cached(lambda: reliability.annotator_figures(db), at_most_every=30)
        self._lay_out()
        self.add.click(
            self._add,
            inputs=[self.name, self.role],
            outputs=[self.answer, self.name, *self._outputs()],
            api_visibility="private",
        )
        for table in (self.people, self.flags):
            table.act(
                self._act,
                outputs=[self.answer, *self._outputs()],
                show_progress="hidden",
                api_visibility="private",
            )

    def _lay_out(self) -> None:
        with gr.Row(elem_classes="ks-panel ks-buttons"):
            self.name = gr.Textbox(
                label="Name",
                placeholder="of a new annotator",
                elem_id="annotator-name",
                max_lines=1,
                min_width=200,
                scale=2,
            )
            self.role = gr.Dropdown(
                ["annotator", "researcher"],
                value="annotator",
                label="Role",
                min_width=150,
                scale=1,
            )
            self.add = gr.Button("Add", variant="primary", elem_id="annotator-add")
        self.answer = html_slot(elem_id="annotator-answer", js_on_load=ACTIONS_JS)
        self.people = html_slot(elem_id="people", js_on_load=ACTIONS_JS)
        html_slot(value=render(components.heading("How they judge", "figures beside each other")))
        self.reliability = html_slot(elem_id="reliability")
        html_slot(
            value=render(components.heading("Agreement", "on comparisons judged by two or more"))
        )
        self.agreement = html_slot(elem_id="agreement")
        html_slot(value=render(components.heading("Flags", "what annotators reported")))
        self.flags = html_slot(elem_id="flags", js_on_load=ACTIONS_JS)

    def panel(self) -> Panel:
        return Panel(refresh=self.refresh, outputs=self._outputs(), every=5)

    def _outputs(self) -> list[Block]:
        return [self.people, self.reliability, self.agreement, self.flags]

    def refresh(self) -> Updates:
        """Everybody's work as it stands."""
        moment = now()
        work = reading.work(self._db, midnight=midnight(moment))
        acts = reading.acts(self._db)
        figures, agreed = self._figures.get(acts), self._agreement.get(acts)
        fitted = reliability.fitted(self._db)
        return {
            self.people: render(annotators_view.people(work, now=moment)),
            self.reliability: render(annotators_reliability.table(figures.values(), fitted)),
            self.agreement: render(annotators_reliability.agreement(agreed, fitted)),
            self.flags: render(annotators_view.flags(reading.flags(self._db), now=moment)),
        }

    def _add(self, name: str | None, role: AnnotatorRole | None, request: gr.Request) -> Updates:
        try:
            if role is None:  # no press of the page's own button sends that
                raise ValueError("choose a role")
            person = Annotator(id=new_id("annotator"), name=(name or "").strip(), role=role)
            annotators.add(self._db, person)
        except ValueError as error:  # an empty name, or one that is taken
            return {self.answer: alert("bad", "Nobody was added.", str(error))}
        return {self.answer: self._invite(person, request), self.name: ""} | self.refresh()

    def _act(self, event: gr.EventData, request: gr.Request) -> Updates:
        """What a button in a table asks for."""
        action, target = _pressed(event)
        if action == "invite":
            try:
                return {self.answer: self._invite(annotators.get(self._db, target), request)}
            except (ValueError, NotFound) as error:  # disabled since the table was shown
                return {
                    self.answer: alert("bad", "There is no invite.", str(error))
                } | self.refresh()
        acts: dict[str, Callable[[], str]] = {
            "disable": lambda: self._set_disabled(target, disabled=True),
            "enable": lambda: self._set_disabled(target, disabled=False),
            "clear": lambda: self._clear(target, request),
        }
        act = acts.get(action, _unknown)
        return {self.answer: attempt(act, lambda done: done)} | self.refresh()

    def _invite(self, person: Annotator, request: gr.Request) -> str:
        secret = tokens.issue(self._db, person.id, "invite", lifetime=INVITE_LIFETIME)
        # The page's own address is the one people can reach, behind a proxy too.
        origin = request.headers.get("origin", "")
        link = f"{origin}/invite?token={quote(secret)}"
        return render(annotators_view.invite(person.name, link))

    def _set_disabled(self, target: str, *, disabled: bool) -> str:
        person = annotators.set_disabled(self._db, target, disabled=disabled)
        self._people_changed()
        if disabled:
            return f"{person.name} is signed out everywhere and cannot sign in. Labels stay."
        return f"{person.name} may sign in again, with a new invite link."

    def _clear(self, flag: str, request: gr.Request) -> str:
        # The gate puts the person into every request; without one nothing is cleared.
        assert request.request is not None
        who = request.request.state.identity.annotator.id
        judgments.clear_flag(self._db, id=new_id(), flag=flag, researcher=who)
        return "Cleared: the pair is back in the queue."


def _pressed(event: gr.EventData) -> tuple[str, str]:
    """The action of a button in a table, and whom or what it is for; ("", "") for what no button sends."""
    data = event._data
    known = data if isinstance(data, dict) else {}
    action, target = known.get("action"), known.get("id")
    if isinstance(action, str) and isinstance(target, str):
        return action, target
    return "", ""


def _unknown() -> str:
    raise ValueError("The page has no such button; reload it.")
