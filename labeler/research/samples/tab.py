"""The "Samples" tab: what SFT, the previous and the new policy say to held-out prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import gradio as gr
from gradio.blocks import Block

from labeler.html import components
from labeler.research.panel import Panel, Updates, html_slot, render
from labeler.research.reading import latest_run
from labeler.research.samples import view as samples_view
from labeler.research.samples.view import ORDERS, Order, Sample
from storage import worker_files
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import ModelVersion, Run
from storage.tables import iterations, models, runs

NONE_YET = components.empty(
    "No samples yet",
    "Once an iteration has been evaluated, the answers of SFT, the previous and the new policy "
    "to held-out prompts stand here side by side.",
)


class SamplesTab:
    """Components and handlers of the tab; make it inside the tab's context."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # Read from parquet once a run; a retried evaluation has another attempt number.
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
                placeholder="a word in the prompt or an answer",
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
        for control in filters:
            control.input(
                self._filter,
                inputs=filters,
                outputs=self._outputs(),
                show_progress="hidden",
                api_visibility="private",
            )
        for button, step in ((self.back, -1), (self.forth, 1)):
            button.click(
                self._turn(step),
                inputs=[*filters, self.number],
                outputs=self._outputs(),
                show_progress="hidden",
                api_visibility="private",
            )

    def panel(self) -> Panel:
        return Panel(
            refresh=self.refresh,
            inputs=[self.iteration, self.order, self.needle, self.number],
            outputs=self._outputs(),
        )

    def _outputs(self) -> list[Block]:
        return [
            self.iteration,
            self.summary,
            self.list,
            self.where,
            self.number,
            self.back,
            self.forth,
        ]

    def _filter(self, iteration: int | None, order: Order, needle: str) -> Updates:
        return self.refresh(iteration, order, needle, 1)

    def _turn(self, step: int) -> Callable[..., Updates]:
        def turn(iteration: int | None, order: Order, needle: str, number: int) -> Updates:
            return self.refresh(iteration, order, needle, number + step)

        return turn

    def refresh(self, iteration: int | None, order: Order, needle: str, number: int) -> Updates:
        """One page of the samples of an iteration; the last evaluated one when None is chosen."""
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
            gone = components.empty("The samples of this iteration are gone", str(error))
            return updates | self._nothing(gone)
        found = samples_view.select(samples, needle=needle or "", order=order)
        count = samples_view.pages(len(found))
        number = min(max(number, 1), count)
        return updates | {
            self.summary: render(samples_view.summary(samples, self._reward_model(chosen))),
            self.list: render(samples_view.page(found, number)),
            self.where: render(_where(len(found), number, count)),
            self.number: number,
            self.back: gr.Button(visible=count > 1, interactive=number > 1),
            self.forth: gr.Button(visible=count > 1, interactive=number < count),
        }

    def _nothing(self, why: components.Markup) -> Updates:
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


def _where(found: int, number: int, count: int) -> components.Markup:
    text = f"{components.plural(found, 'prompt')} · page {number} of {count}"
    return components.Markup('<span class="ks-detail">{}</span>').format(text)
