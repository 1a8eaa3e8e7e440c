"""The "Loop" section: the next step with its buttons, and the state of the loop.

``train.js`` opens the drawer that starts training or another attempt at a stopped stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import gradio as gr

from labeler.html import components
from labeler.html.components import render
from labeler.ports import Loop
from labeler.research import reading
from labeler.research.caveats import warnings
from labeler.research.models.verdicts import view as verdicts_view
from labeler.research.overview import iterations_view, time_left, trust
from labeler.research.overview import view as overview_view
from labeler.research.runs.eta import Eta
from labeler.research.tab import Cached, Tab, Updates, attempt, html_slot, on
from labeler.research.top import headline
from storage.analysis.agreement import agreement
from storage.engine.database import Database
from storage.labeling.queue import midnight
from storage.records import now
from storage.reports import Stopped
from storage.tables import iterations, models
from storage.tables.runs import runs

TRAIN_JS = (Path(__file__).parent / "train.js").read_text(encoding="utf-8")


class OverviewTab(Tab):
    """`eta` is shared with the page of the runs, which watches the same run."""

    every = 2

    def __init__(self, db: Database, loop: Loop, top: gr.HTML, eta: Eta) -> None:
        self._db = db
        self._loop = loop
        self._eta = eta
        self._agreement = Cached(lambda: agreement(db), at_most_every=30)
        self._gate_report = Cached(loop.gate, at_most_every=10)
        self._reward_report = Cached(loop.reports.report, at_most_every=10)
        self._top = top
        self._lay_out()
        self.outputs = [
            top, self.head, self.trust, self.next, self.warnings, self.gate, self.stopped,
            self.train, self.retry, self.resume, self.label, self.iterations,
        ]  # fmt: skip
        self._wire()

    def _lay_out(self) -> None:
        # The run and attempt that the buttons act on; empty for training.
        self.stopped = gr.State("")
        with gr.Row(elem_classes="ks-panel ks-action-bar"):
            self.next = html_slot(elem_id="loop-next")
            with gr.Row(elem_classes="ks-buttons"):
                # train.js opens the drawer.
                self.train = gr.Button(
                    "Train …",
                    variant="primary",
                    elem_id="train",
                    elem_classes="ks-acts",
                    interactive=False,
                )
                self.retry = gr.Button(
                    "Retry with changes …", variant="primary", visible=False, elem_id="retry",
                    elem_classes="ks-acts",
                )  # fmt: skip
                self.resume = gr.Button("Resume", visible=False, elem_id="resume-stage")
                self.label = gr.Button("Label more", visible=False, elem_id="label-more")
        self.answer = html_slot(elem_id="loop-answer")
        self.started = html_slot(
            value='<div class="ks-started" role="status"></div>', elem_id="train-answer",
            js_on_load=TRAIN_JS,
        )  # fmt: skip
        self.head = html_slot(elem_id="loop-head")
        self.warnings = html_slot(elem_id="loop-warnings")
        self.gate = html_slot(elem_id="loop-gate")
        self.trust = html_slot(elem_id="loop-trust")
        self.iterations = html_slot(elem_id="loop-iterations")

    def _wire(self) -> None:
        answered = [self.answer, *self.outputs]
        for button, act, done in (
            (self.resume, self._loop.resume, "Resumed from the last checkpoint."),
            (
                self.label,
                self._loop.label_more,
                "Labeling continues. Train again when you are ready.",
            ),
        ):
            on(button.click, partial(self._press, act, done), [self.stopped], answered)
        on(self.started.act, self.refresh, outputs=self.outputs, access="viewer")
        # A stage that stops ends the answer of the button that started it.
        on(self.stopped.change, self._forget_answer, outputs=[self.answer], access="viewer")

    def refresh(self) -> Updates:
        moment = now()
        state = reading.state(self._db, midnight=midnight(moment), moment=moment)
        reason = self._loop.can_train()
        version = reading.judging_version(self._db)
        agreed = self._agreement.get(version)
        stopped = self._loop.stopped_stage()
        gate = self._gate_report.get(version, occasion=state.turn)
        report = self._reward_report.get(version, occasion=state.turn)
        return {
            self._top: headline(self._db, state),
            self.head: render(overview_view.headline(state)),
            self.trust: render(
                trust.summaries(
                    state, gate, report, agreed, open_flags=reading.open_flags(self._db), now=moment
                )
            ),
            self.warnings: render(
                components.stack(trust.not_ready(state, report), warnings(state.judge))
            ),
            self.iterations: render(
                iterations_view.newest(
                    iterations.listing(self._db),
                    runs.listing(self._db),
                    gate,
                    models.listing(self._db),
                )
            ),
            self.next: render(
                overview_view.next_step(
                    state,
                    reason,
                    stopped,
                    left=time_left.shown(state, self._eta, now=moment),
                    budget=self._loop.label_budget(),
                )
            ),
            self.gate: render(verdicts_view.gate_notice(gate)),
            self.stopped: _attempt(stopped),
            self.train: gr.Button(interactive=reason is None, visible=stopped is None),
            self.retry: gr.Button(visible=stopped is not None),
            self.resume: gr.Button(visible=stopped is not None and stopped.resumable),
            self.label: gr.Button(visible=stopped is not None and stopped.may_label),
        }

    def _forget_answer(self) -> Updates:
        # With one output, Gradio shows an empty dictionary as a value.
        return {self.answer: ""} if self._loop.stopped_stage() else gr.skip()

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


def _attempt(stopped: Stopped | None) -> str:
    return f"{stopped.run} {stopped.attempt}" if stopped else ""
