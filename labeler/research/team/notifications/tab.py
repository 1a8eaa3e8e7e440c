"""The "Notifications" section: webhooks, e-mail, deliveries, and notifications of the browser."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from labeler.html.components import Markup, render
from labeler.research.tab import Tab, Updates, attempt, heading_slot, html_slot, on
from labeler.research.team.notifications import view
from labeler.webhooks.service import Webhooks
from labeler.webhooks.wording import TITLES
from storage.engine.database import Database
from storage.notification_records import EVENTS, EventType
from storage.records import now
from storage.tables.runs import events, webhooks

_HERE = Path(__file__).parent
ACTIONS_JS = (_HERE / "actions.js").read_text(encoding="utf-8")
SWITCH_JS = (_HERE / "switch.js").read_text(encoding="utf-8")
LISTED = 20
"""Deliveries and events."""
_SWITCH = Markup(
    '<div class="ks-tools"><span class="ks-badge" data-word></span><span data-text></span>'
    '<button type="button" class="ks-button"></button></div>'
)


class NotificationsTab(Tab):
    every = 5

    def __init__(self, db: Database, service: Webhooks) -> None:
        self._db = db
        self._service = service
        self._lay_out()
        self.outputs = [self.webhooks, self.deliveries, self.events]
        answered = [self.answer, *self.outputs]
        fields = [self.url, self.description, self.chosen]
        on(self.add.click, self._add, fields, [*answered, self.url, self.description])
        for table in (self.webhooks, self.deliveries):
            on(table.act, self._act, outputs=answered)

    def _lay_out(self) -> None:
        heading_slot("In this browser", "a notification when something happens")
        with gr.Column(elem_classes="ks-panel"):
            html_slot(value=render(_SWITCH), elem_id="notify-switch", js_on_load=SWITCH_JS)
        heading_slot("Webhooks and e-mail", "signed requests to programs, messages to people")
        with gr.Column(elem_classes="ks-panel ks-acts"):
            with gr.Row(elem_classes="ks-fields"):
                self.url = gr.Textbox(
                    label="URL or e-mail address",
                    placeholder="https://hooks.example.org/… or ann@example.org",
                    elem_id="webhook-url",
                    max_lines=1,
                )
                self.description = gr.Textbox(
                    label="Description", elem_id="webhook-description", max_lines=1
                )
            self.chosen = gr.CheckboxGroup(
                [(TITLES[each], each) for each in EVENTS],
                value=list(EVENTS),
                label="Events",
                elem_id="webhook-events",
            )
            with gr.Row(elem_classes="ks-buttons"):
                self.add = gr.Button("Add receiver", variant="primary", elem_id="webhook-add")
        self.answer = html_slot(elem_id="webhook-answer", js_on_load=ACTIONS_JS)
        self.webhooks = html_slot(elem_id="webhooks", js_on_load=ACTIONS_JS)
        heading_slot("Deliveries", f"the {LISTED} with the newest attempts")
        self.deliveries = html_slot(elem_id="deliveries", js_on_load=ACTIONS_JS)
        heading_slot("Events", f"the newest {LISTED}")
        self.events = html_slot(elem_id="recent-events")

    def refresh(self) -> Updates:
        moment, listed = now(), webhooks.listing(self._db)
        sent = webhooks.deliveries(self._db, limit=LISTED)
        return {
            self.webhooks: render(view.webhooks(listed, webhooks.counts(self._db), now=moment)),
            self.deliveries: render(view.deliveries(sent, now=moment)),
            self.events: render(view.events(events.listing(self._db, limit=LISTED))),
        }

    def _add(
        self, url: str | None, description: str | None, chosen: list[EventType] | None
    ) -> Updates:
        def add() -> str | Markup:
            made = self._service.add(url or "", chosen or (), description or "")
            if "secret" in made:
                return view.secret("The webhook is added.", made["secret"])
            return "The e-mail address is added. Send a test to check it."

        answer = attempt(add, "Nothing was added.")
        cleared: Updates = {} if answer.refusal else {self.url: "", self.description: ""}
        return {self.answer: answer.html} | cleared | self.refresh()

    def _act(self, event: gr.EventData) -> Updates:
        """Handle a click on a button in a table."""
        match event._data:
            case {"action": str(action), "id": str(target)}:
                pass
            case _:
                action, target = "", ""

        def act() -> str | Markup:
            match action:
                case "test":
                    found = self._service.test(target)
                    if found["status"] != "delivered":
                        raise ValueError(found["error"])
                    address = webhooks.get(self._db, target).address
                    who = "mail server" if address else "receiver"
                    return f"The {who} accepted the test with {found['code']}."
                case "enable":
                    self._service.enable(target)
                    return "The receiver gets events again."
                case "disable":
                    self._service.disable(target)
                    return "The receiver gets nothing until it is enabled."
                case "rotate":
                    made = self._service.rotate(target)
                    return view.secret("The secret is rotated.", made["secret"])
                case "remove":
                    self._service.remove(target)
                    return "The receiver is removed."
                case "resend":
                    self._service.resend(target)
                    return "The event is being sent again."
            raise ValueError("The page has no such button. Reload the page.")

        refused = "The test was not accepted." if action == "test" else "Nothing was changed."
        return {self.answer: attempt(act, refused).html} | self.refresh()
