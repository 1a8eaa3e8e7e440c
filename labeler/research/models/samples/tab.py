"""The "Samples" section: responses of SFT, the previous and the new policy to held-out prompts."""

from __future__ import annotations

from functools import lru_cache, partial

import gradio as gr

from labeler.html import components
from labeler.html.components import Markup, render
from labeler.research.models.samples import view as samples_view
from labeler.research.models.samples.view import ORDERS, Order, Sample
from labeler.research.reading import latest_run
from labeler.research.tab import Tab, Updates, html_slot, on
from storage import worker_files
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import ModelVersion, Run
from storage.tables import iterations, models
from storage.tables.runs import runs
from storage.wording import plural

NONE_YET = components.empty(
    "No samples yet",
    "After the evaluation of an iteration, this page shows the responses of SFT, the previous policy "
    "and the new policy to held-out prompts side by side.",
)


class SamplesTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        # Each run is read from parquet once; a retried evaluation has another attempt number.
        self._read = lru_cache(maxsize=4)(self._samples)
        with gr.Row(elem_classes="ks-panel ks-fields"):
            self.iteration = gr.Dropdown(
                [], label="Iteration", elem_id="samples-iteration", min_width=140, scale=1
            )
            self.order = gr.Dropdown(
                list(ORDERS), value="gain", label="Order", min_width=190, scale=1
            )
            self.needle = gr.Textbox(
                label="Contains",
                placeholder="text in a prompt or response",
                elem_id="samples-needle",
                min_width=220,
                scale=2,
            )
        self.summary = html_slot(elem_id="samples-summary")
        self.list = html_slot(elem_id="samples")
        with gr.Row(elem_classes="ks-buttons"):
            self.back = gr.Button("Previous page", size="sm")
            self.forth = gr.Button("Next page", size="sm")
            self.where = html_slot()
        self.number = gr.State(1)
        filters = [self.iteration, self.order, self.needle]
        self.inputs = [*filters, self.number]
        self.outputs = [
            self.iteration, self.summary, self.list, self.where, self.number, self.back, self.forth,
        ]  # fmt: skip
        for control in filters:
            on(control.input, self._filter, filters, self.outputs, access="viewer")
        for button, step in ((self.back, -1), (self.forth, 1)):
            on(button.click, partial(self._turn, step), self.inputs, self.outputs, access="viewer")

    def _filter(self, iteration: int | None, order: Order, needle: str) -> Updates:
        return self.refresh(iteration, order, needle, 1)

    def _turn(
        self, step: int, iteration: int | None, order: Order, needle: str, number: int
    ) -> Updates:
        return self.refresh(iteration, order, needle, number + step)

    def refresh(self, iteration: int | None, order: Order, needle: str, number: int) -> Updates:
        """One page of the samples of `iteration`, or of the last evaluated one."""
        evaluated = self._evaluated()
        chosen = iteration if iteration in evaluated else max(evaluated, default=None)
        choices = [(f"Iteration {n}", n) for n in sorted(evaluated, reverse=True)]
        updates: Updates = {self.iteration: gr.Dropdown(choices=choices, value=chosen)}
        if chosen is None:
            return updates | self._nothing(NONE_YET)
        run = evaluated[chosen]
        try:
            samples = self._read(chosen, run.id, run.attempt)
        except (OSError, NotFound, KeyError) as error:
            gone = components.empty("The samples of this iteration are missing", str(error))
            return updates | self._nothing(gone)
        found = samples_view.select(samples, needle=needle or "", order=order)
        count = samples_view.pages(len(found))
        number = min(max(number, 1), count)
        where = f"{plural(len(found), 'prompt')} · page {number} of {count}"
        return updates | {
            self.summary: render(samples_view.summary(samples, self._reward_model(chosen))),
            self.list: render(samples_view.page(found, number)),
            self.where: render(components.detail(where)),
            self.number: number,
            self.back: gr.Button(visible=count > 1, interactive=number > 1),
            self.forth: gr.Button(visible=count > 1, interactive=number < count),
        }

    def _nothing(self, why: Markup) -> Updates:
        return {
            self.summary: "",
            self.list: render(why),
            self.where: "",
            self.number: 1,
            self.back: gr.Button(visible=False),
            self.forth: gr.Button(visible=False),
        }

    def _evaluated(self) -> dict[int, Run]:
        """The run that evaluated each iteration."""
        found = {}
        for iteration in iterations.listing(self._db):
            of = runs.listing(self._db, iteration=iteration.number)
            last = latest_run([r for r in of if r.stage == "evaluate"])
            if last is not None and last.status == "succeeded":
                found[iteration.number] = last
        return found

    def _reward_model(self, iteration: int) -> ModelVersion | None:
        name = iterations.get(self._db, iteration).reward_model
        return next((m for m in models.listing(self._db) if m.id == name), None)

    def _samples(self, iteration: int, _run: str, _attempt: int) -> list[Sample]:
        return samples_view.collect(worker_files.evaluated(self._db, iteration))
