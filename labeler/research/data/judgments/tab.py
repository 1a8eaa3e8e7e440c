"""The "Judgments" section: a list with filters, and beside it the pair that is open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import gradio as gr

from labeler.html import components
from labeler.html.components import render
from labeler.research.data.judgments import view
from labeler.research.data.pair_view import BROWSE_JS, OUTCOMES, TYPESET, pressed
from labeler.research.tab import (
    Tab,
    Updates,
    address_slot,
    attempt,
    caller,
    html_slot,
    named_in_address,
    on,
)
from storage.browsing.exclusion import exclude_all, narrows, restore_all
from storage.browsing.judgments import Filter, Listing, Value, browse
from storage.browsing.pair import pair_in_full, pair_of
from storage.engine.database import Database
from storage.errors import NotFound
from storage.labeling import adjudication, exclusions, flag_answers, judgments
from storage.records import Arm, Outcome, new_id, now
from storage.wording import plural

_FACETS = ("annotator", "arm", "outcome", "category", "iteration")
_ANY = ""
# An empty category is a value of its own, and "" means any.
_NO_CATEGORY = "∅"


class JudgmentsTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._lay_out()
        self.inputs = [*self.filters, self.befores, self.opened]
        self.outputs = [
            *self.choices.values(), self.only, self.total, self.list, self.back, self.forth,
            self.befores, self.pair,
        ]  # fmt: skip
        for control in self.filters:
            # `input` of a text field does not notice a text that is pasted or filled in.
            event = control.change if isinstance(control, gr.Textbox) else control.input
            on(
                event,
                self._filter,
                [*self.filters, self.opened],
                self.outputs,
                access="viewer",
            )
        for button, turn in ((self.back, self._back), (self.forth, self._forth)):
            on(button.click, turn, self.inputs, self.outputs, access="viewer")
        on(
            self.clear.click,
            self._clear,
            [self.opened],
            [self.text, *self.outputs],
            access="viewer",
        )
        on(self.address.act, self._at_address, outputs=self.outputs, access="viewer")
        on(
            self.list.act,
            self._open,
            outputs=[self.pair, self.opened, self.answer],
            access="viewer",
        )
        on(self.pair.act, self._act, self.inputs, [self.answer, *self.outputs])
        on(self.total.act, self._act_on_all, self.inputs, [self.answer, *self.outputs])

    def _lay_out(self) -> None:
        with gr.Column(elem_classes="ks-panel"):
            with gr.Row(elem_classes="ks-fields ks-narrow"):
                self.text = gr.Textbox(
                    label="Contains", placeholder="text in prompt, responses or comment",
                    elem_id="judgments-text",
                )  # fmt: skip
                self.choices = {
                    name: gr.Dropdown(
                        [("Any", _ANY)], value=_ANY, label=name.capitalize(),
                        elem_id=f"judgments-{name}",
                    )
                    for name in _FACETS
                }  # fmt: skip
            self.only = gr.CheckboxGroup(
                [(label, name) for name, label in view.MARKS.items()], label="Only judgments with",
                elem_id="judgments-only", elem_classes="ks-only",
            )  # fmt: skip
        with gr.Row(elem_classes="ks-buttons"):
            self.total = html_slot(elem_id="judgments-total", js_on_load=BROWSE_JS)
            self.clear = gr.Button("Clear filters", size="sm")
        self.answer = html_slot(elem_id="judgments-answer")
        with gr.Row(elem_classes="ks-browser"):
            with gr.Column():
                self.list = html_slot(elem_id="judgments", js_on_load=BROWSE_JS)
                with gr.Row(elem_classes="ks-buttons"):
                    self.back = gr.Button("Newer", size="sm")
                    self.forth = gr.Button("Older", size="sm")
            self.pair = html_slot(elem_id="judgment-pair", js_on_load=BROWSE_JS + TYPESET)
        self.address = address_slot("data", "", "iteration", "#judgments")
        # The last id of each page before this one.
        self.befores = gr.State([])
        self.opened = gr.State("")
        self.filters = [self.text, *self.choices.values(), self.only]

    def refresh(self, *values: Any) -> Updates:
        *filters, befores, opened = values
        return self._show(filters, befores, opened) | {self.pair: self._pair(opened)}

    def _filter(self, *values: Any) -> Updates:
        *filters, opened = values
        return self._show(filters, [], opened)

    def _clear(self, opened: str) -> Updates:
        nothing = ["", *(_ANY for _ in _FACETS), []]
        return {self.text: ""} | self._show(nothing, [], opened)

    def _at_address(self, event: gr.EventData) -> Updates:
        """Only the judgments of the iteration that the address names."""
        number = named_in_address(event)
        nothing = dict.fromkeys(_FACETS, _ANY) | {
            "iteration": number if number.isdecimal() else _ANY
        }
        return self._show(["", *nothing.values(), []], [], "") | {self.pair: self._pair("")}

    def _back(self, *values: Any) -> Updates:
        *filters, befores, opened = values
        return self._show(filters, befores[:-1], opened)

    def _forth(self, *values: Any) -> Updates:
        *filters, befores, opened = values
        last = browse(self._db, _filter_of(filters), before=(befores or [None])[-1]).after
        return self._show(filters, [*befores, last] if last else befores, opened)

    def _show(self, filters: list[Any], befores: list[str], opened: str) -> Updates:
        """The list; the pair beside it stays."""
        try:
            found = browse(self._db, _filter_of(filters), before=(befores or [None])[-1])
        except (ValueError, NotFound) as error:
            refused = render(components.empty("Can't search", components.sentence(str(error))))
            return {self.list: refused, self.total: ""}
        updates = self._counted(found, filters)
        filtered = bool(filters[0] or filters[-1] or any(each != _ANY for each in filters[1:-1]))
        return updates | {
            self.total: render(
                view.total(
                    found,
                    narrowed=narrows(_filter_of(filters)),
                    excluded="excluded" in (filters[-1] or []),
                )
            ),
            self.list: render(
                view.listing(
                    found,
                    opened,
                    filtered=filtered,
                    now=now(),
                    flagged=self._unjudged(filters, befores),
                )
            ),
            self.back: gr.Button(interactive=bool(befores)),
            self.forth: gr.Button(interactive=found.after is not None),
            self.befores: befores,
        }

    def _unjudged(self, filters: list[Any], befores: list[str]) -> list[flag_answers.ListedFlag]:
        """Flags of pairs without a judgment: on the first page of the whole list or of flagged pairs."""
        *others, only = filters
        wanted = not befores and only in ([], None, ["flagged"])
        if not wanted or others[0] or any(each != _ANY for each in others[1:]):
            return []
        return flag_answers.unjudged(self._db)

    def _counted(self, found: Listing, filters: list[Any]) -> Updates:
        """The choices of each filter with their counts, and what is chosen."""
        updates: Updates = {}
        for (name, dropdown), chosen in zip(self.choices.items(), filters[1:-1], strict=True):
            choices = [("Any", _ANY), *(_choice(name, each) for each in found.facets[name])]
            if chosen not in {value for _, value in choices}:
                choices.append((f"{chosen} (0)", chosen))
            updates[dropdown] = gr.Dropdown(choices=choices, value=chosen)
        updates[self.only] = gr.CheckboxGroup(
            choices=[
                (f"{label} ({found.marks[name]:,})", name) for name, label in view.MARKS.items()
            ],
            value=filters[-1],
        )
        return updates

    def _pair(self, opened: str) -> str:
        try:
            return render(view.pair(pair_in_full(self._db, pair_of(self._db, opened))))
        except NotFound:
            return render(view.NOTHING_OPEN)

    def _open(self, event: gr.EventData) -> Updates:
        _, target, _ = pressed(event)
        return {self.pair: self._pair(target), self.opened: target, self.answer: ""}

    def _act(self, event: gr.EventData, request: gr.Request, *values: Any) -> Updates:
        """Handle a click on a button of the open pair."""
        action, target, text = pressed(event)
        who = caller(request).id

        def act() -> str:
            match action:
                case "exclude":
                    exclusions.exclude(self._db, target, reason=text, researcher=who)
                    return (
                        "The judgment is excluded. No figure uses it, and no model learns from it."
                    )
                case "restore":
                    exclusions.restore(self._db, target, researcher=who)
                    return "The judgment counts again."
                case "send":
                    adjudication.send(self._db, target, researcher=who)
                    return "The pair waits for a ruling."
                case "clear":
                    judgments.clear_flag(self._db, id=new_id(), flag=target, researcher=who)
                    return (
                        "The flag is cleared. The pair returns to the queue if it needs judgments."
                    )
                case "answer" | "answer-and-clear":
                    flag_answers.answer_flag(
                        self._db, id=new_id(), flag=target, researcher=who, text=text,
                        clear=action == "answer-and-clear",
                    )  # fmt: skip
                    return "The annotator finds the answer in My judgments."
                case _:
                    raise ValueError("The page has no such button. Reload the page.")

        return {self.answer: attempt(act).html} | self.refresh(*values)

    def _act_on_all(self, event: gr.EventData, request: gr.Request, *values: Any) -> Updates:
        """Exclude or restore the judgments that match the filters."""
        action, target, text = pressed(event)
        *filters, _, _ = values
        wanted, who = _filter_of(list(filters)), caller(request).id

        def act() -> str:
            if action not in ("exclude-all", "restore-all"):
                raise ValueError("The page has no such button. Reload the page.")
            restored = action == "restore-all"
            count = browse(self._db, replace(wanted, excluded=restored), limit=1).total
            if str(count) != target:
                raise ValueError(
                    f"{plural(count, 'judgment')} match now. Look at the list and press again."
                )
            if restored:
                done = restore_all(self._db, wanted, reason=text, researcher=who)
                return f"{plural(done, 'judgment')} restored."
            done = exclude_all(self._db, wanted, reason=text, researcher=who)
            return f"{plural(done, 'judgment')} excluded. No figure uses them, and no model learns from them."

        return {self.answer: attempt(act).html} | self.refresh(*values)


def _filter_of(filters: list[Any]) -> Filter:
    text, annotator, arm, outcome, category, iteration, only = filters
    marks: dict[str, Any] = dict.fromkeys(only or [], True)
    return Filter(
        text=text or "",
        annotator=annotator or None,
        arm=cast("Arm | None", arm or None),
        outcome=cast("Outcome | None", outcome or None),
        category="" if category == _NO_CATEGORY else category or None,
        iteration=int(iteration) if iteration else None,
        **marks,
    )


def _choice(name: str, each: Value) -> tuple[str, str]:
    label = each.label
    if name == "outcome":
        label = OUTCOMES[cast("Outcome", each.value)]
    value = each.value or _NO_CATEGORY
    return f"{label or '(none)'} ({each.count:,})", value
