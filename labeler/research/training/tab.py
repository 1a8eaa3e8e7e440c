"""The "Training" tab: one run at a time, live."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import gradio as gr
from gradio.blocks import Block

from labeler.html import components
from labeler.ports import Loop
from labeler.research.charts import CHARTS_JS, group
from labeler.research.panel import Panel, Updates, attempt, html_slot, render
from labeler.research.phases import nothing_new, stage_title
from labeler.research.reading import latest_run
from labeler.research.top import headline
from labeler.research.training import view as training_view
from labeler.research.training.eta import Eta
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import Run, now
from storage.tables import prompts, runs, snapshots

LATEST = "latest"
"""The choice that follows whatever runs last."""

NO_RUN = components.empty(
    "No run yet",
    "Runs appear here once the loop has begun: sampling first, then the reward model and the policy.",
)


class TrainingTab:
    """Components and handlers of the tab; make it inside the tab's context.

    `retry` leads to the "Loop" tab, where the stage is tried again with other settings.
    """

    def __init__(self, db: Database, loop: Loop, top: gr.HTML) -> None:
        self._db = db
        self._loop = loop
        self._top = top
        self._pace = Eta()
        self._lay_out()
        for button, verb, done in (
            (self.cancel, loop.cancel, ""),  # the card says how it stops
            (self.resume, loop.resume, "Resumed from the last checkpoint."),
        ):
            button.click(
                self._press(verb, done),
                inputs=[self.choice, self.seen],
                outputs=[self.answer, *self._outputs()],
                show_progress="hidden",
                api_visibility="private",
            )
        self.choice.input(
            self.refresh,
            inputs=[self.choice, self.seen],
            outputs=self._outputs(),
            show_progress="hidden",
            api_visibility="private",
        )

    def panel(self) -> Panel:
        return Panel(
            refresh=self.refresh,
            inputs=[self.choice, self.seen],
            outputs=self._outputs(),
            every=2,
        )

    def _lay_out(self) -> None:
        self.seen = gr.State({})
        with gr.Row(elem_classes="ks-buttons"):
            self.choice = gr.Dropdown(
                [("Latest run", LATEST)],
                value=LATEST,
                label="Run",
                show_label=False,
                container=False,
                elem_id="run",
                min_width=260,
                scale=1,
            )
            self.cancel = gr.Button("Cancel", variant="stop", visible=False, elem_id="cancel")
            self.resume = gr.Button("Resume", variant="primary", visible=False, elem_id="resume")
            self.retry = gr.Button("Retry with changes …", visible=False, elem_id="go-retry")
        self.answer = html_slot(elem_id="run-answer")
        self.card = html_slot(elem_id="run-card")
        self.flags = html_slot(elem_id="run-flags")
        self.charts = html_slot(elem_id="run-charts", js_on_load=CHARTS_JS)
        with gr.Accordion("Log", open=False):
            self.log = html_slot(elem_id="run-log", autoscroll=True)
        with gr.Accordion("All other metrics", open=False):
            self.others = html_slot(js_on_load=CHARTS_JS)
        self.samples = html_slot(elem_id="run-samples")

    def _outputs(self) -> list[Block]:
        return [
            self._top,
            self.seen,
            self.choice,
            self.cancel,
            self.resume,
            self.retry,
            self.card,
            self.flags,
            self.charts,
            self.others,
            self.samples,
            self.log,
        ]

    def refresh(self, choice: str, seen: dict[str, Hashable]) -> Updates:
        """What the tab shows now; what `seen` says the browser has already is left out."""
        listed = runs.listing(self._db)
        run = _chosen(listed, choice)
        if run is None:
            return {self.card: render(NO_RUN), self.seen: {}}
        moment = now()
        stopped = self._loop.stopped_stage()
        awaited = stopped if stopped and stopped.run == run.id else None
        cancelling = runs.cancelling(self._db, run)
        left = self._pace.seconds_left(run, now=moment)
        updates: Updates = {
            self._top: headline(self._db),
            self.cancel: gr.Button(
                "Cancelling …" if cancelling else "Cancel",
                visible=run.status == "running",
                interactive=not cancelling,
            ),
            # Only the run that the loop waits for can go on.
            self.resume: gr.Button(visible=awaited is not None and awaited.resumable),
            self.retry: gr.Button(visible=awaited is not None),
            self.card: render(
                training_view.card(run, now=moment, seconds_left=left, cancelling=cancelling)
            ),
        }
        log = self._log(run)
        # Charts weigh the most and change only with new events.
        now_seen: dict[str, Hashable] = {
            "runs": tuple((r.id, r.status) for r in listed),
            "events": (run.id, run.attempt, run.ingested_seq, run.status),
            "log": hash(log),
        }
        if now_seen["runs"] != seen.get("runs"):
            updates[self.choice] = gr.Dropdown(choices=_choices(listed))
        if now_seen["events"] != seen.get("events"):
            updates |= self._events(run)
        if now_seen["log"] != seen.get("log"):
            updates[self.log] = render(components.preformatted(log, empty_text="The log is empty."))
        updates[self.seen] = now_seen
        return updates

    def _events(self, run: Run) -> Updates:
        known, kind = self._loop.metric_help(), runs.kind(run)
        found = training_view.series_by_name(runs.metrics(self._db, run.id))
        main, rest, others = training_view.charts(kind, found, known)
        unit = training_view.unit(kind)
        drawn = [
            group(main, x_title=unit),
            group(rest, x_title=unit, columns=True),
            training_view.results(kind, found, known),
        ]
        notes = runs.notes(self._db, run.id)
        again = components.Markup("")
        if run.stage == "reward":
            again = nothing_new(snapshots.new_in(self._db, run.iteration))
        red = [n for n in notes if n.kind in ("flag", "warning")]
        said = [n for n in notes if n.kind == "sample"]
        asked = prompts.get_many(self._db, [str(n.payload.get("prompt")) for n in said])
        return {
            self.charts: render(_stack(drawn)),
            self.others: render(group(others, x_title=unit, columns=True)),
            self.flags: render(_stack([again, training_view.flags(red, unit=unit)])),
            self.samples: render(
                components.lines(
                    [
                        components.heading("Latest samples"),
                        training_view.samples(said, asked, unit=unit),
                    ]
                )
                if said
                else components.Markup("")
            ),
        }

    def _log(self, run: Run) -> str:
        try:
            return self._loop.log(run.id, tail=200)
        except (OSError, ValueError, NotFound) as error:
            return f"(the log cannot be read: {error})"

    def _press(self, verb: Callable[[str], None], done: str) -> Callable[..., Updates]:
        def press(choice: str, seen: dict[str, Hashable]) -> Updates:
            run = _chosen(runs.listing(self._db), choice)
            if run is None:
                return {self.answer: render(components.note("warn", "There is no run yet."))}
            answer = attempt(lambda: verb(run.id), lambda _: done)
            return {self.answer: answer} | self.refresh(choice, seen)

        return press


def _chosen(listed: list[Run], choice: str) -> Run | None:
    by_id = {run.id: run for run in listed}
    return by_id.get(choice) or latest_run(listed)


def _choices(listed: list[Run]) -> list[tuple[str, str]]:
    named = [
        (f"Iteration {r.iteration} · {stage_title(r)} · {r.status} · {r.id[-6:]}", r.id)
        for r in reversed(listed)
    ]
    return [("Latest run", LATEST), *named]


def _stack(pieces: list[components.Markup]) -> components.Markup:
    return components.Markup('<div class="ks-stack">{}</div>').format(
        components.lines(p for p in pieces if p)
    )
