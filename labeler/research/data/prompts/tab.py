"""The "Prompts" section: a table with search, adding one, retiring, and categories."""

from __future__ import annotations

from typing import Any, cast, get_args

import gradio as gr

from labeler.html import components
from labeler.html.components import render
from labeler.research.data.pair_view import BROWSE_JS, pressed
from labeler.research.data.prompts import view
from labeler.research.tab import Tab, Updates, attempt, caller, heading_slot, html_slot, on
from storage.browsing.judgments import Value
from storage.browsing.prompts import (
    AddedRole,
    PromptFilter,
    PromptListing,
    add_prompt,
    browse_prompts,
    edit_prompt,
)
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import PromptRole
from storage.wording import plural

_ANY = ""
_NO_CATEGORY = "∅"
_STATES = (("In use and retired", _ANY), ("In use", "used"), ("Retired", "retired"))


class PromptsTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._lay_out()
        self.filters = [self.text, self.role, self.category, self.state]
        self.inputs = [*self.filters, self.befores]
        self.outputs = [
            self.role, self.category, self.total, self.table, self.back, self.forth, self.befores,
        ]  # fmt: skip
        for control in self.filters:
            # `input` of a text field does not notice a text that is pasted or filled in.
            event = control.change if isinstance(control, gr.Textbox) else control.input
            on(event, self._filter, self.filters, self.outputs, access="viewer")
        for button, turn in ((self.back, self._back), (self.forth, self._forth)):
            on(button.click, turn, self.inputs, self.outputs, access="viewer")
        adding = [self.new, self.new_role, self.new_category]
        on(
            self.add.click,
            self._add,
            [*adding, *self.filters],
            [self.answer, self.new, *self.outputs],
        )
        on(self.table.act, self._act, self.inputs, [self.answer, *self.outputs])

    def _lay_out(self) -> None:
        heading_slot("Add a prompt", "one message; a role never changes later")
        with gr.Column(elem_classes="ks-panel ks-acts"):
            self.new = gr.Textbox(
                label="Prompt", lines=2, elem_id="prompt-new", placeholder="what a user would ask"
            )
            with gr.Row(elem_classes="ks-fields ks-level"):
                self.new_role = gr.Dropdown(
                    [
                        ("Automatic", _ANY),
                        *((role, role) for role in get_args(AddedRole)),
                    ],
                    value=_ANY, label="Role", elem_id="prompt-role",
                    info="Automatic: as in an import, 80% train, 15% held-out, 5% audit.",
                )  # fmt: skip
                self.new_category = gr.Textbox(
                    label="Category", max_lines=1, elem_id="prompt-category"
                )
                self.add = gr.Button("Add prompt", variant="primary", elem_id="prompt-add")
        self.answer = html_slot(elem_id="prompt-answer")
        heading_slot("Prompts", "a retired prompt is not sampled, and its pairs leave the queue")
        with gr.Row(elem_classes="ks-panel ks-fields"):
            self.text = gr.Textbox(
                label="Contains", placeholder="text in any message",
                elem_id="prompts-text",
            )  # fmt: skip
            self.role = gr.Dropdown(
                [("Any", _ANY)], value=_ANY, label="Role", elem_id="prompts-role"
            )
            self.category = gr.Dropdown(
                [("Any", _ANY)], value=_ANY, label="Category", elem_id="prompts-category"
            )
            self.state = gr.Dropdown(
                list(_STATES), value=_ANY, label="State", elem_id="prompts-state"
            )
        self.total = html_slot(elem_id="prompts-total")
        self.table = html_slot(elem_id="prompts-table", js_on_load=BROWSE_JS)
        with gr.Row(elem_classes="ks-buttons"):
            self.back = gr.Button("Newer", size="sm")
            self.forth = gr.Button("Older", size="sm")
        self.befores = gr.State([])

    def refresh(self, *values: Any) -> Updates:
        *filters, befores = values
        return self._show(filters, befores)

    def _filter(self, *filters: Any) -> Updates:
        return self._show(list(filters), [])

    def _back(self, *values: Any) -> Updates:
        *filters, befores = values
        return self._show(filters, befores[:-1])

    def _forth(self, *values: Any) -> Updates:
        *filters, befores = values
        last = browse_prompts(self._db, _filter_of(filters), before=(befores or [None])[-1]).after
        return self._show(filters, [*befores, last] if last else befores)

    def _show(self, filters: list[Any], befores: list[str]) -> Updates:
        try:
            found = browse_prompts(self._db, _filter_of(filters), before=(befores or [None])[-1])
        except (ValueError, NotFound) as error:
            refused = components.empty("Can't search", components.sentence(str(error)))
            return {self.table: render(refused), self.total: ""}
        _, role, category, _ = filters
        return {
            self.role: _dropdown(found.roles, role),
            self.category: _dropdown(found.categories, category),
            self.total: render(components.detail(_counted(found))),
            self.table: render(view.table(found, filtered=any(filters))),
            self.back: gr.Button(interactive=bool(befores)),
            self.forth: gr.Button(interactive=found.after is not None),
            self.befores: befores,
        }

    def _add(self, text: str | None, role: str, category: str | None, *filters: Any) -> Updates:
        def add() -> str:
            chosen = cast("AddedRole | None", role or None)
            made = add_prompt(self._db, text or "", role=chosen, category=category or "")
            return f"The prompt is stored with the role {made.role}."

        answer = attempt(add, "No prompt was added.")
        cleared: Updates = {} if answer.refusal else {self.new: ""}
        return {self.answer: answer.html} | cleared | self._show(list(filters), [])

    def _act(self, event: gr.EventData, request: gr.Request, *values: Any) -> Updates:
        action, target, text = pressed(event)
        who = caller(request).id

        def act() -> str:
            match action:
                case "retire":
                    edit_prompt(self._db, target, retired=True, researcher=who)
                    return "The prompt is retired. What was judged stays."
                case "restore":
                    edit_prompt(self._db, target, retired=False, researcher=who)
                    return "The prompt is used again."
                case "category":
                    edit_prompt(self._db, target, category=text, researcher=who)
                    return "The category is saved."
                case _:
                    raise ValueError("The page has no such button. Reload the page.")

        return {self.answer: attempt(act).html} | self.refresh(*values)


def _filter_of(filters: list[Any]) -> PromptFilter:
    text, role, category, state = filters
    return PromptFilter(
        text=text or "",
        role=cast("PromptRole | None", role or None),
        category="" if category == _NO_CATEGORY else category or None,
        retired={"used": False, "retired": True}.get(state),
    )


def _dropdown(values: Any, chosen: str) -> gr.Dropdown:
    found: list[Value] = list(values)
    choices = [
        ("Any", _ANY),
        *(
            (f"{each.label or '(none)'} ({each.count:,})", each.value or _NO_CATEGORY)
            for each in found
        ),
    ]
    if chosen not in {value for _, value in choices}:
        choices.append((f"{chosen} (0)", chosen))
    return gr.Dropdown(choices=choices, value=chosen)


def _counted(found: PromptListing) -> str:
    retired = f", {found.retired:,} retired" if found.retired else ""
    return plural(found.total, "prompt") + retired
