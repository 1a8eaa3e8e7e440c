"""The "Runs" page: one run, live."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from functools import partial

import gradio as gr

from labeler.html import components
from labeler.html.components import render
from labeler.ports import Loop
from labeler.research.charts import CHARTS_JS, group
from labeler.research.phases import nothing_new, run_title
from labeler.research.reading import latest_run
from labeler.research.runs import resources_view
from labeler.research.runs import view as runs_view
from labeler.research.runs.eta import Eta
from labeler.research.tab import Tab, Updates, attempt, caller, html_slot, on
from labeler.research.top import headline
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import MAX_RUN_NAME, MAX_RUN_NOTE, Run, RunLabel, now
from storage.reports import Evaluation, from_json
from storage.tables import iterations, prompts, snapshots
from storage.tables.runs import run_labels, run_machines, run_resources, run_settings, runs

LATEST = "latest"
"""The choice that follows the newest run."""

NO_RUN = components.empty(
    "No run yet",
    "The loop's runs appear here: first sampling, then the reward model, the policy and the evaluation.",
)

_FROM_CARD = """
() => {
  const run = document.querySelector("#run-card .ks-run");
  return [["#run-name", run?.dataset.name ?? ""], ["#run-note", run?.dataset.note ?? ""]].map(([place, known]) => {
    const field = document.querySelector(`${place} :is(input, textarea)`);
    if (!field || field.dataset.filled) return known;
    field.dataset.filled = "yes";
    return field.value || known;
  });
}
"""
"""Name and note of the run on the card.  On a busy machine, this runs after somebody has begun to type."""


class RunsTab(Tab):
    """`retry` opens the Overview page, where a stopped stage is retried with other settings.

    `eta` is shared with that page, which watches the same run.
    """

    every = 2

    def __init__(self, db: Database, loop: Loop, top: gr.HTML, eta: Eta) -> None:
        self._db = db
        self._loop = loop
        self._top = top
        self._eta = eta
        self._lay_out()
        self.inputs = [self.choice, self.seen]
        self.describing = [self.name, self.note]
        self.outputs = [
            *self.describing, top, self.seen, self.choice, self.cancel, self.resume, self.retry, self.card,
            self.flags, self.charts, self.others, self.samples, self.settings, self.log,
            self.resources,
        ]  # fmt: skip
        for button, act, done in (
            (self.cancel, loop.cancel, ""),  # the card says how the run stops
            (self.resume, loop.resume, "Resumed from the last checkpoint."),
        ):
            press = partial(self._press, act, done)
            on(button.click, press, self.inputs, [self.answer, *self.outputs])
        described = [*self.inputs, *self.describing]
        on(self.save.click, self._describe, described, [self.answer, *self.outputs])
        self.name_and_note.expand(None, None, self.describing, js=_FROM_CARD)
        on(self.choice.input, self.refresh, self.inputs, self.outputs, access="viewer")
        self.choice.change(None, [self.choice], js="run => window.kitestringRun(run)")
        self.loaded = [self.choice]

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
        self.name_and_note = gr.Accordion("Name and note", open=False, elem_classes="ks-acts")
        with self.name_and_note, gr.Column(elem_classes="ks-panel"):
            self.name = gr.Textbox(
                label="Name", max_lines=1, max_length=MAX_RUN_NAME, elem_id="run-name"
            )
            self.note = gr.Textbox(
                label="Note", lines=2, max_length=MAX_RUN_NOTE, elem_id="run-note"
            )
            with gr.Row(elem_classes="ks-buttons"):
                self.save = gr.Button("Save name and note", elem_id="run-describe")
        self.flags = html_slot(elem_id="run-flags")
        self.charts = html_slot(elem_id="run-charts", js_on_load=CHARTS_JS)
        with gr.Accordion("Settings", open=False):
            self.settings = html_slot(elem_id="run-settings")
        with gr.Accordion("Resources", open=False):
            self.resources = html_slot(elem_id="run-resources", js_on_load=CHARTS_JS)
        with gr.Accordion("Log", open=False):
            self.log = html_slot(elem_id="run-log", autoscroll=True)
        with gr.Accordion("All other metrics", open=False):
            self.others = html_slot(js_on_load=CHARTS_JS)
        self.samples = html_slot(elem_id="run-samples")

    def open_at(self, query: Mapping[str, str]) -> Updates:
        """The run that the address names; the newest one without a name, or if there is no such run."""
        listed = runs.listing(self._db)
        chosen = query.get("run")
        known = chosen in {run.id for run in listed}
        choices = _choices(listed, now(), run_labels.by_run(self._db))
        return {self.choice: gr.Dropdown(choices=choices, value=chosen if known else LATEST)}

    def refresh(self, choice: str, seen: dict[str, Hashable]) -> Updates:
        """The run `choice`, without the parts that the browser already has according to `seen`."""
        listed = runs.listing(self._db)
        run = _chosen(listed, choice)
        if run is None:
            return {self.card: render(NO_RUN), self.seen: {}}
        moment, labels = now(), run_labels.by_run(self._db)
        label = labels.get(run.id, RunLabel(run=run.id))
        stopped = self._loop.stopped_stage()
        awaited = stopped if stopped and stopped.run == run.id else None
        cancelling = runs.cancelling(self._db, run)
        left = self._eta.seconds_left(run, now=moment)
        changed = run_settings.changed(listed, run)
        updates: Updates = {
            self._top: headline(self._db),
            self.cancel: gr.Button(
                "Cancelling …" if cancelling else "Cancel",
                visible=run.status == "running",
                interactive=not cancelling,
            ),
            # Only the run that the loop waits for can be resumed.
            self.resume: gr.Button(visible=awaited is not None and awaited.resumable),
            self.retry: gr.Button(visible=awaited is not None),
            self.card: render(
                runs_view.card(
                    run,
                    now=moment,
                    seconds_left=left,
                    cancelling=cancelling,
                    changed=changed,
                    label=label,
                    resources=run_resources.used(self._db, run),
                    machine=run_machines.of(self._db, run),
                    earlier=runs.attempts(listed, run)[:-1],
                    stages=runs.by_stage(listed, run.iteration),
                )
            ),
        }
        log = self._log(run)
        # Charts are the largest part and change only with new events.
        now_seen: dict[str, Hashable] = {
            "runs": tuple(
                (r.id, r.status, labels[r.id].name if r.id in labels else "") for r in listed
            ),
            "events": (run.id, run.attempt, run.ingested_seq, run.status),
            "log": hash(log),
            "settings": (run.id, run.attempt),
            "label": (run.id, label.name, label.note),
            "resources": (run.id, run_resources.version(self._db, run)),
        }
        if now_seen["runs"] != seen.get("runs"):
            choices = _choices(listed, moment, labels)
            updates[self.choice] = gr.Dropdown(choices=choices)
        if now_seen["events"] != seen.get("events"):
            updates |= self._events(run)
        if now_seen["settings"] != seen.get("settings"):
            updates[self.settings] = render(
                runs_view.run_settings(run, run_settings.run_before(listed, run), changed)
            )
        # The first values are those of the card: an answer may come after somebody has begun to type.
        if seen.get("label") not in (None, now_seen["label"]):
            updates |= {self.name: label.name, self.note: label.note}
        if now_seen["log"] != seen.get("log"):
            updates[self.log] = render(components.preformatted(log, empty_text="The log is empty."))
        if now_seen["resources"] != seen.get("resources"):
            history = run_resources.history(self._db, run)
            updates[self.resources] = render(resources_view.charts(history))
        updates[self.seen] = now_seen
        return updates

    def _events(self, run: Run) -> Updates:
        known, kind = self._loop.metric_help(), runs.kind(run)
        found = runs_view.series_by_name(runs.metrics(self._db, run.id))
        main, rest, others = runs_view.charts(kind, found, known, run.config)
        planned = runs_view.planned_updates(run)
        unit = runs_view.unit(kind)
        notes = runs.notes(self._db, run.id)
        red = [n for n in notes if n.kind in ("flag", "warning")]
        samples = [n for n in notes if n.kind == "sample"]
        asked = prompts.get_many(self._db, [str(n.payload.get("prompt")) for n in samples])
        again = nothing_new(
            snapshots.new_in(self._db, run.iteration) if run.stage == "reward" else None
        )
        return {
            self.charts: render(
                components.stack(
                    group(main, x_title=unit, tools=True, x_end=planned),
                    group(rest, x_title=unit, columns=True, tools=True, x_end=planned),
                    runs_view.results(kind, found, known, self._evaluation(run)),
                )
            ),
            self.others: render(
                group(others, x_title=unit, columns=True, tools=True, x_end=planned)
            ),
            self.flags: render(components.stack(again, runs_view.flags(red, unit=unit))),
            self.samples: render(runs_view.samples(samples, asked, unit=unit)),
        }

    def _evaluation(self, run: Run) -> Evaluation | None:
        """What the run found, if it is the evaluation of its iteration."""
        if run.stage != "evaluate" or run.status != "succeeded":
            return None
        found = iterations.get(self._db, run.iteration).evaluation
        return from_json(Evaluation, found) if found else None

    def _log(self, run: Run) -> str:
        try:
            return self._loop.log(run.id, tail=200)
        except (OSError, ValueError, NotFound) as error:
            return f"(The log cannot be read: {error})"

    def _describe(
        self,
        choice: str,
        seen: dict[str, Hashable],
        name: str | None,
        note: str | None,
        request: gr.Request,
    ) -> Updates:
        who = caller(request).id

        def describe() -> str:
            run = _chosen(runs.listing(self._db), choice)
            if run is None:
                raise ValueError("There is no run yet.")
            run_labels.describe(self._db, run.id, name=name or "", note=note or "", researcher=who)
            return "Saved."

        answer = attempt(describe, "Can't save")
        return {self.answer: answer.html} | ({} if answer.refusal else self.refresh(choice, seen))

    def _press(
        self, act: Callable[[str], None], done: str, choice: str, seen: dict[str, Hashable]
    ) -> Updates:
        def press() -> str:
            run = _chosen(runs.listing(self._db), choice)
            if run is None:
                raise ValueError("There is no run yet.")
            act(run.id)
            return done

        return {self.answer: attempt(press).html} | self.refresh(choice, seen)


def _chosen(listed: list[Run], choice: str) -> Run | None:
    """The run `choice`, or for `LATEST` what a researcher wants to see first: the run that works or has
    stopped; otherwise the newest run of a policy, which later sampling must not hide."""
    by_id = {run.id: run for run in listed}
    newest = latest_run(listed)
    if choice in by_id or newest is None or newest.status != "succeeded":
        return by_id.get(choice, newest)
    return latest_run([run for run in listed if run.stage == "policy"]) or newest


def _choices(
    listed: list[Run], moment: datetime, labels: Mapping[str, RunLabel]
) -> list[tuple[str, str]]:
    unnamed = RunLabel(run="")
    choices = [
        (_label(run, moment, labels.get(run.id, unnamed).name), run.id) for run in reversed(listed)
    ]
    return [("Latest run", LATEST), *choices]


def _label(run: Run, moment: datetime, name: str) -> str:
    """``DPO · iteration 2 · 14:05``; with the date of an earlier day, the attempt, and if it failed."""
    today = run.created_at.date() == moment.date()
    parts = [
        *([name] if name else []),
        run_title(run),
        f"iteration {run.iteration}",
        run.created_at.strftime("%H:%M" if today else "%b %d, %H:%M"),
    ]
    if run.attempt > 1:
        parts.append(f"attempt {run.attempt}")
    return " · ".join(parts if run.status == "succeeded" else [*parts, run.status])
