"""The "Loop" tab: where the loop stands, what to do next, and "Train"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gradio as gr
from gradio.blocks import Block

from labeler.html import components
from labeler.ports import Loop, SettingView, Stopped
from labeler.research import reading
from labeler.research.loop import view as loop_view
from labeler.research.loop.train_form import TrainForm, as_text
from labeler.research.panel import Cached, Panel, Updates, attempt, html_slot, render
from labeler.research.policies.tab import GateNote
from labeler.research.top import headline, midnight
from storage.analysis.agreement import agreement
from storage.engine.database import Database
from storage.records import now


class LoopTab:
    """Components and handlers of the tab; make it inside the tab's context."""

    def __init__(self, db: Database, loop: Loop, top: gr.HTML) -> None:
        self._db = db
        self._loop = loop
        self._agreement = Cached(lambda: agreement(db), at_most_every=30)
        self._top = top
        self.head = html_slot(elem_id="loop-head")
        self.glance = html_slot(elem_id="loop-glance")
        self.next = html_slot(elem_id="loop-next")
        self.gate = html_slot(elem_id="loop-gate")
        self._gate = GateNote(loop)
        # Which attempt of which stopped run the form is for; empty for training.
        self.stopped = gr.State("")
        with gr.Column(elem_classes="ks-panel"):
            self.title = html_slot(elem_id="train-title")
            # Above the fields: below them it would lie outside of every screen.
            with gr.Row(elem_classes="ks-buttons"):
                self.train = gr.Button("Train", variant="primary", elem_id="train")
                self.retry = gr.Button("Retry", variant="primary", visible=False, elem_id="retry")
                self.resume = gr.Button("Resume", visible=False, elem_id="resume-stage")
                self.label = gr.Button("Label more", visible=False, elem_id="label-more")
                self.back = gr.Button("Back to this workspace's settings", elem_id="back")
                self.general = gr.Button("General defaults", elem_id="general")
            self.answer = html_slot(elem_id="train-answer")
            self.reason = html_slot(elem_id="train-reason")
            self.form = TrainForm(loop.settings())
        self._wire()

    def _wire(self) -> None:
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        pressed = [self.answer, *self.form.outputs, *self._outputs()]
        self.train.click(self._press_train, self.form.components, pressed, **quiet)
        self.retry.click(self._press_retry, [self.stopped, *self.form.components], pressed, **quiet)
        self.resume.click(
            self._press(self._loop.resume, "Resumed from the last checkpoint."),
            self.stopped, pressed, **quiet,
        )  # fmt: skip
        self.label.click(
            self._press(self._loop.label_more, "Back to labeling. Train again when ready."),
            self.stopped, pressed, **quiet,
        )  # fmt: skip
        for button, defaults in ((self.back, False), (self.general, True)):
            button.click(
                partial(self._fill_with, defaults), None, [self.answer, *self.form.outputs], **quiet
            )
        # Only where another stage has stopped, or none any more: what was typed stays otherwise.
        self.stopped.change(self._switch, None, self.form.outputs, **quiet)

    def panel(self) -> Panel:
        return Panel(refresh=self.refresh, outputs=self._outputs(), every=2)

    def fill(self) -> Updates:
        """The settings that hold now, for a page that has just been opened."""
        return self.form.show(self._loop.settings())

    def _outputs(self) -> list[Block]:
        return [
            self._top, self.head, self.glance, self.next, self.gate, self.stopped, self.title,
            self.train, self.retry, self.resume, self.label, self.back, self.general, self.reason,
        ]  # fmt: skip

    def refresh(self) -> Updates:
        """The loop as it stands."""
        moment = now()
        state = reading.state(self._db, midnight=midnight(moment))
        reason = self._loop.can_train()
        acts = reading.acts(self._db)
        agreed = self._agreement.get(acts)
        stopped = self._loop.stopped_stage()
        return {
            self._top: headline(self._db, state),
            self.head: render(loop_view.headline(state)),
            self.glance: render(loop_view.glance(state, agreed, now=moment)),
            self.next: render(loop_view.next_step(state, reason, stopped)),
            self.gate: self._gate.show(acts, state.turn),
            self.stopped: _attempt(stopped),
            self.title: render(loop_view.form_title(stopped)),
            self.train: gr.Button(interactive=reason is None, visible=stopped is None),
            self.retry: gr.Button(visible=stopped is not None),
            self.resume: gr.Button(visible=stopped is not None and stopped.resumable),
            self.label: gr.Button(visible=stopped is not None and stopped.may_label),
            self.back: gr.Button(visible=stopped is None),
            self.general: gr.Button(visible=stopped is None),
            self.reason: render(_why_not(reason if stopped is None else None)),
        }

    def _switch(self) -> Updates:
        return self.form.switch(self._loop.settings(), self._loop.stopped_stage())

    def _press_train(self, *values: Any) -> Updates:
        refused = ""

        def start() -> dict[str, str]:
            nonlocal refused
            try:
                overrides = self.form.overrides(self._loop.settings(), values)
                self._loop.train(overrides)
            except ValueError as error:
                refused = str(error)
                raise
            return overrides

        answer = attempt(start, _started)
        return {self.answer: answer} | self.form.mark(refused) | self.refresh()

    def _press_retry(self, shown_attempt: str, *values: Any) -> Updates:
        refused = ""

        def start() -> dict[str, str]:
            nonlocal refused
            try:
                overrides = self.form.overrides(self._loop.settings(), values)
                self._loop.retry(self._run(shown_attempt), overrides)
            except ValueError as error:
                refused = str(error)
                raise
            return overrides

        answer = attempt(start, _started_again)
        return {self.answer: answer} | self.form.mark(refused) | self.refresh()

    def _press(self, verb: Callable[[str], None], done: str) -> Callable[[str], Updates]:
        def press(shown_attempt: str) -> Updates:
            answer = attempt(lambda: verb(self._run(shown_attempt)), lambda _: done)
            return {self.answer: answer} | self.refresh()

        return press

    def _run(self, shown_attempt: str) -> str:
        """The run that the page shows as stopped; ValueError where it is stopped no more."""
        stopped = self._loop.stopped_stage()
        if stopped is None or _attempt(stopped) != shown_attempt:
            raise ValueError(
                "The loop has changed since the page was loaded; check the page and try again."
            )
        return stopped.run

    def _fill_with(self, defaults: bool) -> Updates:
        settings = self._loop.settings()
        updates: Updates = self.form.mark("")
        for field, value in self.form.show(settings, defaults=defaults).items():
            updates[field] |= {"value": value}
        updates[self.answer] = render(_warned(settings)) if defaults else ""
        return updates


def _attempt(stopped: Stopped | None) -> str:
    return f"{stopped.run} {stopped.attempt}" if stopped else ""


def _started(overrides: dict[str, str]) -> str:
    return f"Training has started. Follow it under Training.{_changed(overrides)}"


def _started_again(overrides: dict[str, str]) -> str:
    return f"Started again from scratch. Follow it under Training.{_changed(overrides)}"


def _changed(overrides: dict[str, str]) -> str:
    changed = ", ".join(f"{name}={value}" for name, value in overrides.items())
    return f" Changed: {changed}." if changed else ""


def _warned(settings: Sequence[SettingView]) -> components.Markup:
    """Beside the general defaults: what this workspace has set otherwise."""
    other = [
        f"{s.name}={as_text(s.value)}" for s in settings if s.value != s.default and not s.why_fixed
    ]
    if not other:
        return components.Markup("")
    named = ", ".join(other[:4]) + (f" and {len(other) - 4} more" if len(other) > 4 else "")
    return components.note(
        "warn",
        "These defaults are not this workspace's.",
        f"They are meant for a model of your own. This workspace has its own: {named}.",
    )


def _why_not(reason: str | None) -> components.Markup:
    if reason is None:
        return components.Markup("")
    return components.Markup('<span class="ks-detail">Cannot train yet. {}</span>').format(reason)
