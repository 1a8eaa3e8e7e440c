"""The "Verdicts" section: whether each policy is better than SFT, and researchers' rulings."""

from __future__ import annotations

import time

import gradio as gr

from labeler.html.components import render
from labeler.ports import Loop
from labeler.research import reading
from labeler.research.charts import CHARTS_JS
from labeler.research.models.verdicts import models_view
from labeler.research.models.verdicts import view as verdicts_view
from labeler.research.tab import (
    Cached,
    Tab,
    Updates,
    address_slot,
    attempt,
    caller,
    heading_slot,
    html_slot,
    named_in_address,
    on,
)
from storage.engine.database import Database
from storage.gate_report import GateReport, ModelBoard

ALL = "All categories"

RULINGS = (
    ("Promote", "promote"),
    ("Block", "block"),
    ("Follow the evidence", "evidence"),
)


class VerdictsTab(Tab):
    every = 10

    def __init__(self, db: Database, loop: Loop) -> None:
        self._db = db
        self._loop = loop
        self._report = Cached(loop.gate, at_most_every=10)
        self.policy = gr.Dropdown(
            [], label="Policy", show_label=False, container=False, elem_id="policy"
        )
        self.standing = html_slot(elem_id="standing")
        self.curve = html_slot(js_on_load=CHARTS_JS, elem_id="evidence")
        self.board = html_slot(elem_id="leaderboard")
        self._lay_out_ruling()
        self.category = gr.Dropdown(
            [ALL], value=ALL, label="Category", visible=False, elem_id="board-category"
        )
        self.models = html_slot(elem_id="all-models")
        self.address = address_slot("models", "", "policy", "#standing")
        self._boards: dict[str, Cached[ModelBoard]] = {}
        self.inputs = [self.policy, self.category]
        self.outputs = [
            self.policy, self.standing, self.curve, self.board, self.overruling, self.category,
            self.models,
        ]  # fmt: skip
        for choice in (self.policy, self.category):
            on(choice.input, self.refresh, self.inputs, self.outputs, access="viewer")
        on(self.address.act, self._at_address, outputs=self.outputs, access="viewer")
        on(
            self.rule.click,
            self._rule,
            [self.policy, self.category, self.ruling, self.reason],
            [self.answer, self.reason, *self.outputs],
        )

    def _lay_out_ruling(self) -> None:
        with gr.Column(elem_classes="ks-panel", visible=False) as self.overruling:
            heading_slot(
                "Override verdict",
                "applies to the policy selected above; the history records the reason",
            )
            with gr.Row():
                self.ruling = gr.Dropdown(
                    list(RULINGS),
                    value="promote",
                    label="Decision",
                    elem_id="ruling",
                    min_width=220,
                )
                self.reason = gr.Textbox(
                    label="Reason", placeholder="Why is the evidence insufficient or misleading?",
                    elem_id="ruling-reason", lines=2, scale=3, min_width=260,
                )  # fmt: skip
            with gr.Row(elem_classes="ks-buttons"):
                self.rule = gr.Button("Override", elem_id="rule")
            self.answer = html_slot(elem_id="ruling-answer")

    def refresh(self, chosen: str | None, category: str = ALL) -> Updates:
        """The gate's report on the policy `chosen`, or on the default one if it is unknown, and the
        leaderboard of all models on prompts of a category."""
        # Settings count too, but not at once: the report is at most a minute old.
        version = (reading.judging_version(self._db), _minute())
        report = self._report.get(version, occasion=reading.gate_occasion(self._db))
        found = verdicts_view.shown_policy(report, chosen)
        return self._all_models(category, report) | {
            self.policy: gr.Dropdown(
                choices=[each.policy for each in report.policies],
                value=found.policy if found else None,
                visible=len(report.policies) > 1,
            ),
            self.standing: render(verdicts_view.standing(report, chosen)),
            self.curve: render(verdicts_view.curve(report, chosen)),
            self.board: render(verdicts_view.board(report)),
            self.overruling: gr.Column(visible=found is not None),
        }

    def _at_address(self, event: gr.EventData) -> Updates:
        return self.refresh(named_in_address(event))

    def _all_models(self, category: str, report: GateReport) -> Updates:
        board = self._board(ALL)
        if not models_view.is_needed(board, report):
            return {self.category: gr.Dropdown(visible=False), self.models: ""}
        names = [ALL, *board.categories]
        if category not in names:
            category = ALL
        return {
            self.category: gr.Dropdown(choices=names, value=category, visible=len(names) > 2),
            self.models: render(models_view.models(self._board(category))),
        }

    def _board(self, category: str) -> ModelBoard:
        """A leaderboard that is at most a minute old."""
        if category not in self._boards:
            wanted = None if category == ALL else category
            self._boards[category] = Cached(lambda: self._loop.model_board(category=wanted))
        return self._boards[category].get(_minute())

    def _rule(
        self, policy: str | None, category: str, ruling: str, reason: str, request: gr.Request
    ) -> Updates:
        # The access check stores the signed-in person in the request.
        who = caller(request).name

        def rule() -> str:
            if policy is None:
                raise ValueError("There is no trained policy yet.")
            found = self._loop.override_gate(ruling, reason, policy=policy, researcher=who)
            return f"{policy} is now {found.verdict}."

        answer = attempt(rule)
        cleared: Updates = {} if answer.refusal else {self.reason: ""}
        return {self.answer: answer.html} | cleared | self.refresh(policy, category)


def _minute() -> int:
    return int(time.monotonic() // 60)
