"""The "Loop" tab: where the loop stands, what to do next, and "Train"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gradio as gr
from gradio.blocks import Block

from labeler import view
from labeler.ports import Loop, Setting
from labeler.research import loop_view, reading
from labeler.research.panel import Cached, Panel, Updates, attempt, piece, shown
from labeler.research.policies_tab import GateNote
from labeler.research.top import headline, midnight
from labeler.research.train_form import TrainForm, as_text
from storage.agreement import agreement
from storage.database import Database
from storage.records import now


class LoopTab:
    """Components and handlers of the tab; make it inside the tab's context."""

    def __init__(self, db: Database, loop: Loop, top: gr.HTML) -> None:
        self._db = db
        self._loop = loop
        self._agreement = Cached(lambda: agreement(db), at_most_every=30)
        self._top = top
        self.head = piece(elem_id="loop-head")
        self.glance = piece(elem_id="loop-glance")
        self.next = piece(elem_id="loop-next")
        self.gate = piece(elem_id="loop-gate")
        self._gate = GateNote(loop)
        with gr.Column(elem_classes="ks-panel"):
            piece(
                value=shown(
                    view.heading(
                        "Train",
                        "a reward model on every judgment so far, then PPO against it, then an "
                        "evaluation on held-out prompts",
                    )
                )
            )
            self.form = TrainForm(loop.settings())
            # Above the buttons: below them an answer would lie outside of many screens.
            self.answer = piece(elem_id="train-answer")
            self.reason = piece(elem_id="train-reason")
            with gr.Row(elem_classes="ks-buttons"):
                self.train = gr.Button("Train", variant="primary", elem_id="train")
                self.back = gr.Button("Back to this workspace's settings", elem_id="back")
                self.general = gr.Button("General defaults", elem_id="general")
        self.train.click(
            self._press_train,
            inputs=self.form.components,
            outputs=[self.answer, *self.form.outputs, *self._outputs()],
            show_progress="hidden",
            api_visibility="private",
        )
        for button, defaults in ((self.back, False), (self.general, True)):
            button.click(
                partial(self._fill_with, defaults),
                outputs=[self.answer, *self.form.outputs],
                show_progress="hidden",
                api_visibility="private",
            )

    def panel(self) -> Panel:
        return Panel(refresh=self.refresh, outputs=self._outputs(), every=2)

    def fill(self) -> Updates:
        """The settings that hold now, for a page that has just been opened."""
        return self.form.show(self._loop.settings())

    def _outputs(self) -> list[Block]:
        return [self._top, self.head, self.glance, self.next, self.gate, self.train, self.reason]

    def refresh(self) -> Updates:
        """The loop as it stands."""
        moment = now()
        state = reading.state(self._db, midnight=midnight(moment))
        reason = self._loop.can_train()
        acts = reading.acts(self._db)
        agreed = self._agreement.get(acts)
        return {
            self._top: headline(self._db, state),
            self.head: shown(loop_view.headline(state)),
            self.glance: shown(loop_view.glance(state, agreed, now=moment)),
            self.next: shown(loop_view.next_step(state, reason)),
            self.gate: self._gate.show(acts, state.turn),
            self.train: gr.Button(interactive=reason is None),
            self.reason: shown(_why_not(reason)),
        }

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

    def _fill_with(self, defaults: bool) -> Updates:
        settings = self._loop.settings()
        updates: Updates = self.form.mark("")
        for field, value in self.form.show(settings, defaults=defaults).items():
            updates[field] |= {"value": value}
        updates[self.answer] = shown(_warned(settings)) if defaults else ""
        return updates


def _started(overrides: dict[str, str]) -> str:
    changed = ", ".join(f"{name}={value}" for name, value in overrides.items())
    return "Training has begun. Follow it under Training." + (
        f" Changed: {changed}." if changed else ""
    )


def _warned(settings: Sequence[Setting]) -> view.Markup:
    """Beside the general defaults: what this workspace has set otherwise."""
    other = [
        f"{s.name}={as_text(s.value)}" for s in settings if s.value != s.default and not s.why_fixed
    ]
    if not other:
        return view.Markup("")
    named = ", ".join(other[:4]) + (f" and {len(other) - 4} more" if len(other) > 4 else "")
    return view.note(
        "warn",
        "These defaults are not this workspace's.",
        f"They are meant for a model of your own. This workspace has its own: {named}.",
    )


def _why_not(reason: str | None) -> view.Markup:
    if reason is None:
        return view.Markup("")
    return view.Markup('<span class="ks-detail">Train is not possible now. {}</span>').format(
        reason
    )
