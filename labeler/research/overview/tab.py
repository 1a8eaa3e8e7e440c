"""The "Loop" section: the state of the loop, the next step, and the form that starts training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gradio as gr

from labeler.html import components
from labeler.html.components import Markup, render
from labeler.ports import Loop
from labeler.research import reading
from labeler.research.models.verdicts import view as verdicts_view
from labeler.research.overview import view as overview_view
from labeler.research.overview.train_form import TrainForm, as_text
from labeler.research.tab import Cached, Tab, Updates, attempt, html_slot, on
from labeler.research.top import headline
from storage.analysis.agreement import agreement
from storage.engine.database import Database
from storage.labeling.queue import midnight
from storage.records import now
from storage.reports import SettingView, Stopped


class OverviewTab(Tab):
    every = 2

    def __init__(self, db: Database, loop: Loop, top: gr.HTML) -> None:
        self._db = db
        self._loop = loop
        self._agreement = Cached(lambda: agreement(db), at_most_every=30)
        self._gate_report = Cached(loop.gate, at_most_every=10)
        self._top = top
        self._lay_out()
        self.outputs = [
            top, self.head, self.glance, self.next, self.gate, self.stopped, self.title,
            self.train, self.retry, self.resume, self.label, self.back, self.general, self.reason,
        ]  # fmt: skip
        self.loaded = [self.panel, *self.form.outputs]
        self._wire()

    def _lay_out(self) -> None:
        self.head = html_slot(elem_id="loop-head")
        self.glance = html_slot(elem_id="loop-glance")
        self.next = html_slot(elem_id="loop-next")
        self.gate = html_slot(elem_id="loop-gate")
        # The run and attempt that the form retries; empty for training.
        self.stopped = gr.State("")
        # Hidden until the current settings have loaded, which would replace what the user typed.
        with gr.Column(elem_classes="ks-panel", visible=False) as self.panel:
            self.title = html_slot(elem_id="train-title")
            # Above the fields, because below them the buttons would be off screen.
            with gr.Row(elem_classes="ks-buttons"):
                self.train = gr.Button("Train", variant="primary", elem_id="train")
                self.retry = gr.Button("Retry", variant="primary", visible=False, elem_id="retry")
                self.resume = gr.Button("Resume", visible=False, elem_id="resume-stage")
                self.label = gr.Button("Label more", visible=False, elem_id="label-more")
                self.back = gr.Button("Reset to workspace settings", elem_id="back")
                self.general = gr.Button("Use general defaults", elem_id="general")
            self.answer = html_slot(elem_id="train-answer")
            self.reason = html_slot(elem_id="train-reason")
            self.form = TrainForm(self._loop.settings())

    def _wire(self) -> None:
        answered = [self.answer, *self.outputs]
        filled = [self.answer, *self.form.outputs]
        started = [*answered, *self.form.outputs]
        fields, loop = self.form.components, self._loop
        on(self.train.click, self._train, fields, started)
        on(self.retry.click, self._retry, [self.stopped, *fields], started)
        for button, act, done in (
            (self.resume, loop.resume, "Resumed from the last checkpoint."),
            (self.label, loop.label_more, "Labeling continues. Train again when you are ready."),
        ):
            on(button.click, partial(self._press, act, done), [self.stopped], answered)
        for button, defaults in ((self.back, False), (self.general, True)):
            on(button.click, partial(self._fill_with, defaults), outputs=filled)
        # Reset the form only when the stopped stage changes, to keep what the user typed.
        on(self.stopped.change, self._show_stopped, outputs=filled, access="viewer")

    def load(self) -> Updates:
        # Includes the suggestions for a stopped stage, which `stopped.change` may have shown.
        return self._switch() | {self.panel: gr.Column(visible=True)}

    def refresh(self) -> Updates:
        moment = now()
        state = reading.state(self._db, midnight=midnight(moment))
        reason = self._loop.can_train()
        version = reading.judging_version(self._db)
        agreed = self._agreement.get(version)
        stopped = self._loop.stopped_stage()
        gate = self._gate_report.get(version, occasion=state.turn)
        return {
            self._top: headline(self._db, state),
            self.head: render(overview_view.headline(state)),
            self.glance: render(overview_view.glance(state, agreed, now=moment)),
            self.next: render(overview_view.next_step(state, reason, stopped)),
            self.gate: render(verdicts_view.gate_notice(gate)),
            self.stopped: _attempt(stopped),
            self.title: render(overview_view.form_title(stopped)),
            self.train: gr.Button(interactive=reason is None, visible=stopped is None),
            self.retry: gr.Button(visible=stopped is not None),
            self.resume: gr.Button(visible=stopped is not None and stopped.resumable),
            self.label: gr.Button(visible=stopped is not None and stopped.may_label),
            self.back: gr.Button(visible=stopped is None),
            self.general: gr.Button(visible=stopped is None),
            self.reason: render(_why_not(reason if _waits_for_labels(state) else None)),
        }

    def _show_stopped(self) -> Updates:
        """The form of a stage that has stopped, without the answer of the button that started it."""
        answer = {self.answer: ""} if self._loop.stopped_stage() else {}
        return self._switch() | answer

    def _switch(self) -> Updates:
        return self.form.switch(self._loop.settings(), self._loop.stopped_stage())

    def _train(self, *values: Any) -> Updates:
        return self._start("Training has started.", self._loop.train, values)

    def _retry(self, shown_attempt: str, *values: Any) -> Updates:
        def retry(overrides: dict[str, str]) -> None:
            self._loop.retry(self._run(shown_attempt), overrides)

        return self._start("The stage has started again.", retry, values)

    def _start(
        self, done: str, start: Callable[[dict[str, str]], None], values: Sequence[Any]
    ) -> Updates:
        """Start training with the form's settings; mark the fields that a refusal names."""

        def act() -> str:
            overrides = self.form.overrides(self._loop.settings(), values)
            start(overrides)
            changed = ", ".join(f"{name}={value}" for name, value in overrides.items())
            return f"{done} The Runs page shows its progress.{changed and f' Changed: {changed}.'}"

        answer = attempt(act)
        return {self.answer: answer.html} | self.form.mark(answer.refusal) | self.refresh()

    def _press(self, act: Callable[[str], None], done: str, shown_attempt: str) -> Updates:
        def press() -> str:
            act(self._run(shown_attempt))
            return done

        return {self.answer: attempt(press).html} | self.refresh()

    def _run(self, shown_attempt: str) -> str:
        """The run that the page shows as stopped; ValueError if it is no longer stopped."""
        stopped = self._loop.stopped_stage()
        if stopped is None or _attempt(stopped) != shown_attempt:
            raise ValueError(
                "The loop has changed since the page was loaded. Check the page and try again."
            )
        return stopped.run

    def _fill_with(self, defaults: bool) -> Updates:
        settings = self._loop.settings()
        updates: Updates = self.form.mark("")
        for field, value in self.form.show(settings, defaults=defaults).items():
            updates[field] |= {"value": value}
        updates[self.answer] = render(_defaults_note(settings)) if defaults else ""
        return updates


def _attempt(stopped: Stopped | None) -> str:
    return f"{stopped.run} {stopped.attempt}" if stopped else ""


def _defaults_note(settings: Sequence[SettingView]) -> Markup:
    """A note on the settings of this workspace that differ from the general defaults."""
    other = [
        f"{s.name}={as_text(s.value)}" for s in settings if s.value != s.default and not s.why_fixed
    ]
    if not other:
        return Markup("")
    named = ", ".join(other[:4]) + (f" and {len(other) - 4} more" if len(other) > 4 else "")
    return components.note(
        "warn",
        "These are the general defaults, which suit a model of your own.",
        f"This workspace uses other values: {named}.",
    )


def _waits_for_labels(state: reading.State) -> bool:
    """Whether *Train* is the next step; while a stage runs or has stopped, the page says so."""
    return state.iteration is None or state.iteration.phase == "labeling"


def _why_not(reason: str | None) -> Markup:
    return components.detail(f"Cannot train yet. {reason}") if reason else Markup("")
