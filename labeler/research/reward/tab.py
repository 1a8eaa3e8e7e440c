"""The "Reward model" tab: is it good enough, and what would more labels bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from labeler.html import components
from labeler.ports import Loop
from labeler.research.panel import Panel, Updates, attempt, html_slot, render
from labeler.research.reward import view as reward_view


class RewardTab:
    """Components and handlers of the tab; make it inside the tab's context."""

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
            self.start = gr.Button("Make learning curve", visible=False, elem_id="curve-start")
            self.stop = gr.Button("Stop", variant="stop", visible=False, elem_id="curve-stop")
        self.answer = html_slot(elem_id="curve-answer")
        self.tables = html_slot(elem_id="reward-tables")
        self.model.input(
            self.refresh,
            inputs=self.model,
            outputs=self._outputs(),
            show_progress="hidden",
            api_visibility="private",
        )
        for button, verb in ((self.start, "start_curve"), (self.stop, "cancel_curve")):
            button.click(
                self._press(verb),
                inputs=self.model,
                outputs=[self.answer, *self._outputs()],
                show_progress="hidden",
                api_visibility="private",
            )

    def panel(self) -> Panel:
        return Panel(refresh=self.refresh, inputs=[self.model], outputs=self._outputs(), every=4)

    def _outputs(self) -> list[Any]:
        return [
            self.model, self.verdict, self.figures, self.plots, self.progress, self.start,
            self.stop, self.tables,
        ]  # fmt: skip

    def refresh(self, chosen: str | None) -> Updates:
        """The report of the chosen reward model, of the newest where none is."""
        report = self._loop.reports.report(chosen)
        curve = report["curve"] or {"state": "done"}
        running = curve["state"] in ("running", "cancelling")
        measured = report["quality"] is not None
        begun = curve["state"] in ("stopped", "failed")
        plots = [reward_view.reliability(report), reward_view.curve(report)]
        tables = [reward_view.by_margin(report), reward_view.by_agreement(report)]
        return {
            self.model: gr.Dropdown(
                choices=report["models"], value=report["model"], visible=len(report["models"]) > 1
            ),
            self.verdict: render(reward_view.verdict(report)),
            self.figures: render(reward_view.figures(report)),
            self.plots: render(_beside(plots)),
            self.progress: render(reward_view.progress(report)),
            self.start: gr.Button(
                "Go on with the curve" if begun else "Make learning curve",
                visible=measured and not running and curve["state"] != "done",
            ),
            self.stop: gr.Button(
                "Stopping …" if curve["state"] == "cancelling" else "Stop",
                visible=running,
                interactive=curve["state"] == "running",
            ),
            self.tables: render(_beside(tables)),
        }

    def _press(self, verb: str) -> Callable[[str | None], Updates]:
        def press(chosen: str | None) -> Updates:
            def act() -> None:
                model = self._loop.reports.report(chosen)["model"]
                if model is None:
                    raise ValueError("There is no reward model yet.")
                getattr(self._loop.reports, verb)(model)

            # What the button did is seen in its place; only a refusal needs words.
            return {self.answer: attempt(act, lambda _: "")} | self.refresh(chosen)

        return press


def _beside(pieces: list[components.Markup]) -> components.Markup:
    """Side by side where there is room; nothing where there is nothing."""
    if not any(pieces):
        return components.Markup("")
    return components.Markup('<div class="ks-beside">{}</div>').format(
        components.lines(p for p in pieces if p)
    )
