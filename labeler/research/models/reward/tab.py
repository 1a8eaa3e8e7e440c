"""The "Reward model" section: whether it is good enough, and what more labels would add."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gradio as gr

from labeler.html import components
from labeler.html.components import render
from labeler.ports import Loop
from labeler.research.models.reward import view as reward_view
from labeler.research.tab import (
    Tab,
    Updates,
    address_slot,
    attempt,
    html_slot,
    named_in_address,
    on,
)


class RewardTab(Tab):
    every = 4

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.model = gr.Dropdown(
            [], label="Reward model", show_label=False, container=False, elem_id="reward-model"
        )
        self.verdict = html_slot(elem_id="reward-verdict")
        self.figures = html_slot(elem_id="reward-figures")
        self.plots = html_slot(elem_id="reward-plots")
        self.progress = html_slot(elem_id="curve-progress")
        with gr.Row(elem_classes="ks-buttons"):
            self.start = gr.Button("Compute learning curve", visible=False, elem_id="curve-start")
            self.stop = gr.Button("Stop", variant="stop", visible=False, elem_id="curve-stop")
        self.answer = html_slot(elem_id="curve-answer")
        self.tables = html_slot(elem_id="reward-tables")
        self.address = address_slot("models", "reward-model", "model", "#reward-verdict")
        self.inputs = [self.model]
        self.outputs = [
            self.model, self.verdict, self.figures, self.plots, self.progress, self.start,
            self.stop, self.tables,
        ]  # fmt: skip
        on(self.model.input, self.refresh, self.inputs, self.outputs, access="viewer")
        on(self.address.act, self._at_address, outputs=self.outputs, access="viewer")
        reports = loop.reports
        for button, act in ((self.start, reports.start_curve), (self.stop, reports.cancel_curve)):
            on(button.click, partial(self._press, act), self.inputs, [self.answer, *self.outputs])

    def refresh(self, chosen: str | None) -> Updates:
        """The report of the reward model `chosen`, or of the newest."""
        report = self._loop.reports.report(chosen)
        state = report.curve.state if report.curve else "done"
        running = state in ("running", "cancelling")
        measured = report.quality is not None
        begun = state in ("stopped", "failed")
        return {
            self.model: gr.Dropdown(
                choices=list(report.models), value=report.model, visible=len(report.models) > 1
            ),
            self.verdict: render(reward_view.verdict(report)),
            self.figures: render(reward_view.figures(report)),
            self.plots: render(
                components.side_by_side(reward_view.reliability(report), reward_view.curve(report))
            ),
            self.progress: render(reward_view.progress(report)),
            self.start: gr.Button(
                "Continue learning curve" if begun else "Compute learning curve",
                visible=measured and not running and state != "done",
            ),
            self.stop: gr.Button(
                "Stopping …" if state == "cancelling" else "Stop",
                visible=running,
                interactive=state == "running",
            ),
            self.tables: render(
                components.side_by_side(
                    reward_view.by_margin(report), reward_view.by_agreement(report)
                )
            ),
        }

    def _at_address(self, event: gr.EventData) -> Updates:
        name = named_in_address(event)
        known = name in self._loop.reports.report().models
        return self.refresh(name if known else None)

    def _press(self, act: Callable[[str], None], chosen: str | None) -> Updates:
        def press() -> str:
            model = self._loop.reports.report(chosen).model
            if model is None:
                raise ValueError("There is no reward model yet.")
            act(model)
            return ""  # the progress shows the success

        return {self.answer: attempt(press).html} | self.refresh(chosen)
