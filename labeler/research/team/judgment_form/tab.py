"""The "Judgment form" section: what annotators are asked about a pair."""

from __future__ import annotations

import gradio as gr

from labeler.research.tab import Tab, Updates, attempt, heading_slot, html_slot, on
from storage.engine.database import Database
from storage.records import CRITERIA, MAX_TAGS, Criterion, Presence, Scale, StrengthRule
from storage.tables import settings

SCALES = (
    ("Two steps", "two-step"),
    ("One press", "one-press"),
)
STRENGTH_RULES = (("Optional", "optional"), ("Required with A or B", "required"))
PRESENCES = (("Off", "off"), ("Optional", "optional"), ("Required", "required"))
CRITERION_LABELS = tuple((name.capitalize(), name) for name in CRITERIA)


class JudgmentFormTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._lay_out()
        choices = (self.scale, self.strength, self.criteria)
        self.form = [*choices, self.reasons, self.rationale, self.safety, self.marks]
        self.loaded = self.form
        on(self.save_form.click, self._save_form, self.form, [self.form_answer])

    def _lay_out(self) -> None:
        heading_slot("Judgment form", "what annotators are asked about a pair")
        with gr.Column(elem_classes="ks-panel"):
            with gr.Row(elem_classes="ks-fields"):
                self.scale = gr.Dropdown(
                    list(SCALES),
                    label="Scale",
                    info="A strength, then A or B; or seven steps in one press.",
                    elem_id="scale",
                )
                self.strength = gr.Dropdown(
                    list(STRENGTH_RULES),
                    label="Strength",
                    info="Slightly, clearly or much. One press always states it.",
                    elem_id="strength",
                )
                self.rationale = gr.Dropdown(
                    list(PRESENCES),
                    label="Rationale",
                    info="Why the annotator decided this way, in the comment.",
                    elem_id="rationale",
                )
                self.safety = gr.Dropdown(
                    list(PRESENCES),
                    label="Safety label",
                    info="Safe, borderline or unsafe, for each response by itself.",
                    elem_id="safety",
                )
            with gr.Row(elem_classes="ks-fields"):
                self.criteria = gr.CheckboxGroup(
                    list(CRITERION_LABELS),
                    label="Criteria",
                    info="By which annotators can compare the two responses.",
                    elem_id="criteria",
                )
                self.reasons = gr.Textbox(
                    label="Reason tags",
                    info=f"One per line, at most {MAX_TAGS}; given to each response.",
                    lines=4,
                    elem_id="reasons",
                    interactive=True,
                )
            self.marks = gr.Checkbox(
                label="Marked passages",
                info="Annotators can mark passages of a response as good, bad or with a reason tag.",
                elem_id="marks",
            )
            with gr.Row(elem_classes="ks-buttons"):
                self.save_form = gr.Button("Save", variant="primary", elem_id="form-save")
            self.form_answer = html_slot(elem_id="form-answer")

    def load(self) -> Updates:
        form = settings.judgment_form(self._db)
        return {
            self.scale: form.scale,
            self.strength: form.strength,
            self.criteria: list(form.criteria),
            self.reasons: "\n".join(form.reasons),
            self.rationale: form.rationale,
            self.safety: form.safety,
            self.marks: form.marks,
        }

    def refresh(self) -> Updates:
        """Nothing: what the researcher types must stay."""
        return {}

    def _save_form(
        self,
        scale: Scale,
        strength: StrengthRule,
        criteria: list[Criterion],
        reasons: str,
        rationale: Presence,
        safety: Presence,
        marks: bool,
    ) -> str:
        def save() -> str:
            tags = [tag.strip() for tag in reasons.splitlines() if tag.strip()]
            form = settings.JudgmentForm(scale, strength, criteria, tags, rationale, safety, marks)
            settings.choose_judgment_form(self._db, form)
            return "Saved. Within about a minute, annotators get the form with their next pair."

        return attempt(save, "The form was not saved.").html
