"""The "Policies" tab: is each policy better than SFT, and what a researcher rules."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gradio as gr

from labeler.html import components
from labeler.ports import Loop
from labeler.research.charts import CHARTS_JS
from labeler.research.panel import Cached, Panel, Updates, attempt, html_slot, render
from labeler.research.policies import view as policies_view

RULINGS = (
    ("Promote it", "promote"),
    ("Block it", "block"),
    ("Leave it to the evidence", "evidence"),
)


class PoliciesTab:
    """Components and handlers of the tab; make it inside the tab's context."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.policy = gr.Dropdown(
            [], label="Policy", show_label=False, container=False, elem_id="policy"
        )
        self.standing = html_slot(elem_id="standing")
        self.curve = html_slot(js_on_load=CHARTS_JS, elem_id="evidence")
        self.board = html_slot(elem_id="leaderboard")
        self._lay_out_ruling()
        self.policy.input(
            self.refresh,
            inputs=self.policy,
            outputs=self._outputs(),
            show_progress="hidden",
            api_visibility="private",
        )
        self.rule.click(
            self._rule,
            inputs=[self.policy, self.ruling, self.reason],
            outputs=[self.answer, self.reason, *self._outputs()],
            api_visibility="private",
        )

    def _lay_out_ruling(self) -> None:
        with gr.Column(elem_classes="ks-panel", visible=False) as self.overruling:
            html_slot(
                value=render(
                    components.heading(
                        "Overrule the gate",
                        "for the policy shown above; the reason stays in the history",
                    )
                )
            )
            with gr.Row():
                self.ruling = gr.Dropdown(
                    list(RULINGS), value="promote", label="Ruling", elem_id="ruling", min_width=220
                )
                self.reason = gr.Textbox(
                    label="Reason", placeholder="why the evidence is not enough, or misleads",
                    elem_id="ruling-reason", lines=2, scale=3, min_width=260,
                )  # fmt: skip
            with gr.Row(elem_classes="ks-buttons"):
                self.rule = gr.Button("Overrule", elem_id="rule")
            self.answer = html_slot(elem_id="ruling-answer")

    def panel(self) -> Panel:
        return Panel(
            refresh=self.refresh, inputs=[self.policy], outputs=[*self._outputs()], every=10
        )

    def _outputs(self) -> list[Any]:
        return [self.policy, self.standing, self.curve, self.board, self.overruling]

    def refresh(self, chosen: str | None) -> Updates:
        """The gate as it stands; the policy that is shown stays the one that was chosen."""
        report = self._loop.gate()
        found = policies_view.shown_policy(report, chosen)
        return {
            self.policy: gr.Dropdown(
                choices=[each.policy for each in report.policies],
                value=found.policy if found else None,
                visible=len(report.policies) > 1,
            ),
            self.standing: render(policies_view.standing(report, chosen)),
            self.curve: render(policies_view.curve(report, chosen)),
            self.board: render(policies_view.board(report)),
            self.overruling: gr.Column(visible=found is not None),
        }

    def _rule(self, policy: str | None, ruling: str, reason: str, request: gr.Request) -> Updates:
        # The gate before every route puts the person into the request.
        assert request.request is not None
        who = request.request.state.identity.annotator.name

        def rule() -> str:
            if policy is None:
                raise ValueError("There is no trained policy to rule on yet.")
            found = self._loop.override_gate(ruling, reason, policy=policy, researcher=who)
            return f"{policy} is {found.verdict} now."

        said = attempt(rule, str)
        stored = "ks-good" in said
        return {self.answer: said, self.reason: "" if stored else reason} | self.refresh(policy)


class GateNote:
    """The gate's line on the "Loop" tab, worked out again when somebody has judged or ruled, and
    when the loop has moved on."""

    def __init__(self, loop: Loop) -> None:
        self._report = Cached(loop.gate, at_most_every=10)

    def show(self, acts: int, occasion: Hashable) -> str:
        return render(policies_view.gate_notice(self._report.get(acts, occasion=occasion)))
