"""The "Data" tab: export, prompts by role, import, and the annotators' guidelines."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import cast, get_args
from urllib.parse import urlencode

import gradio as gr

from labeler.annotate.session import DEFAULT_GUIDELINES
from labeler.html import components, formulas
from labeler.html.components import Column, Markup, render
from labeler.html.markdown import render as render_markdown
from labeler.research import reading
from labeler.research.data.marks_view import marked_passages
from labeler.research.tab import Tab, Updates, attempt, heading_slot, html_slot, on
from labeler.security.access import MAX_UPLOAD_BYTES
from labeler.translation import LANGUAGES, translated
from storage.engine.database import Database
from storage.exporting.exports import why_empty
from storage.exporting.formats import Format, Ties
from storage.importing.filetypes import READABLE
from storage.records import (
    CRITERIA,
    MAX_TAGS,
    Criterion,
    Presence,
    PromptRole,
    Scale,
    StrengthRule,
    digest,
)
from storage.tables import guidelines, prompts, settings
from storage.tables.guidelines import GuidelinesVersion

FORMATS = (
    ("TRL preference pairs", "trl"),
    ("TRL, conversational", "trl-conversational"),
    ("TRL, unpaired (for KTO)", "trl-unpaired"),
    ("Edited responses as preference pairs", "trl-edits"),
    ("Edited responses as demonstrations (SFT)", "sft"),
    ("Raw: one row per judgment", "raw"),
)
TIES = (
    ("Drop ties", "drop"),
    ("Split: two rows, one each way", "split"),
    ("Keep, if the format supports ties", "keep"),
)
FILES = (("JSON Lines", "jsonl"), ("Parquet", "parquet"), ("CSV", "csv"))
ROLES = {
    "sft": "demonstrations for supervised fine-tuning",
    "train": "sampled for annotators and in policy training",
    "held-out": "samples and win rates before and after training; not used for training",
    "live": "turns of live conversations; reward models learn from them, nothing is sampled",
    "audit": "reserved for an audit reward model that PPO does not use",
}
COMMANDS = (
    ("Prompts", "--prompts prompts.jsonl"),
    ("Demonstrations", "--sft demonstrations.jsonl"),
    ("Judgments from elsewhere", "--judgments judgments.csv"),
    ("A TRL preference dataset", "--preferences dataset.parquet"),
    ("Pairs to judge here", "--pairs pairs.jsonl"),
    ("Gold pairs", "--gold gold.jsonl"),
    ("Practice pairs", "--practice practice.jsonl"),
)
_LANGUAGES = tuple((name, language) for language, name in LANGUAGES.items())
SCALES = (
    ("Two steps", "two-step"),
    ("One press", "one-press"),
)
STRENGTH_RULES = (("Optional", "optional"), ("Required with A or B", "required"))
PRESENCES = (("Off", "off"), ("Optional", "optional"), ("Required", "required"))
CRITERION_LABELS = tuple((name.capitalize(), name) for name in CRITERIA)
_UPLOAD = Markup(
    '<form class="ks-card ks-upload" data-largest="{}">'
    "<p>Each row has <code>prompt</code>, <code>response_a</code> and <code>response_b</code>; "
    "<code>model_a</code>, <code>model_b</code>, <code>category</code> and <code>id</code> are "
    "optional. The pairs are added to the loop's queue. Annotators do not see the models' names.</p>"
    '<label>File <input type="file" name="file" accept="{}"></label>'
    '<label><input type="checkbox" name="skip"> Skip bad rows</label>'
    '<button class="ks-button ks-info">Add to queue</button>'
    '<div role="status"></div></form>'
).format(MAX_UPLOAD_BYTES, ",".join(READABLE))
_UPLOAD_SCRIPT = (Path(__file__).parent / "upload.js").read_text(encoding="utf-8")
_TYPESET = f"""
{formulas.SCRIPT}
new MutationObserver(() => typesetEach(element)).observe(element, {{ childList: true, subtree: true }});
typesetEach(element);
"""
_FOR_SPREADSHEETS = Markup(
    '<p class="ks-detail">Spreadsheets run cells that begin with =, +, - or @ as formulas. '
    '<a href="/research/download/export?{}&amp;csv_safe=true" download>Download for a '
    "spreadsheet</a> puts an apostrophe in front of them.</p>"
)


class DataTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._export()
        heading_slot("Prompts", "by role")
        self.prompts = html_slot(elem_id="prompts")
        heading_slot("Queue pairs", "pairs from a file, for your annotators")
        html_slot(value=render(_UPLOAD), js_on_load=_UPLOAD_SCRIPT, elem_id="upload-pairs")
        heading_slot("Import", "in a terminal, even while the server runs")
        html_slot(value=render(_commands(db.workspace)))
        self._form()
        self.marked = html_slot(elem_id="marked-passages")
        self._guidelines()
        self.inputs = [self.format, self.ties, self.file, self.names]
        self.outputs = [self.link, self.prompts, self.marked, self.versions]
        choices = (self.scale, self.strength, self.criteria)
        self.form = [*choices, self.reasons, self.rationale, self.safety, self.marks]
        self.loaded = [self.language, self.guidelines, self.preview, *self.form]
        for control in (self.format, self.ties, self.file, self.names):
            on(control.input, self._link, self.inputs, [self.link], access="viewer")
        on(self.guidelines.change, _preview, [self.guidelines], [self.preview], access="viewer")
        on(
            self.language.change,
            self._in_language,
            [self.language],
            [self.guidelines],
            access="viewer",
        )
        on(self.save.click, self._save, [self.guidelines, self.language], [self.answer])
        on(self.save_form.click, self._save_form, self.form, [self.form_answer])

    def load(self) -> Updates:
        text = guidelines.current(self._db, DEFAULT_GUIDELINES)
        form = settings.judgment_form(self._db)
        return {
            self.language: "",
            self.guidelines: text,
            self.preview: _preview(text),
            self.scale: form.scale,
            self.strength: form.strength,
            self.criteria: list(form.criteria),
            self.reasons: "\n".join(form.reasons),
            self.rationale: form.rationale,
            self.safety: form.safety,
            self.marks: form.marks,
        }

    def _export(self) -> None:
        heading_slot("Export", "the current judgments as a dataset")
        with gr.Column(elem_classes="ks-panel"):
            with gr.Row(elem_classes="ks-fields"):
                self.format = gr.Dropdown(list(FORMATS), value="trl", label="Format")
                self.ties = gr.Dropdown(list(TIES), value="drop", label="Ties")
                self.file = gr.Dropdown(list(FILES), value="jsonl", label="File")
                self.names = gr.Checkbox(
                    label="Include names",
                    info="Annotators' names instead of pseudonyms.",
                    elem_classes="ks-acts",  # a viewer may not download names
                    value=False,
                )
            self.link = html_slot(elem_id="export-link")

    def _form(self) -> None:
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

    def _guidelines(self) -> None:
        heading_slot("Guidelines", "in Markdown; annotators can open them beside each pair")
        with gr.Row():
            with gr.Column(elem_classes="ks-panel", min_width=300):
                self.language = gr.Dropdown(
                    [("All languages without their own", ""), *_LANGUAGES],
                    value="",
                    label="For annotators in",
                    elem_id="guidelines-language",
                )
                self.guidelines = gr.Textbox(
                    label="Text", lines=14, max_lines=40, elem_id="guidelines", interactive=True
                )
                with gr.Row(elem_classes="ks-buttons"):
                    self.save = gr.Button("Save", variant="primary", elem_id="guidelines-save")
                self.answer = html_slot(elem_id="guidelines-answer")
            with gr.Column(elem_classes="ks-panel", min_width=300):
                html_slot(value='<div class="ks-label">Preview</div>')
                self.preview = html_slot(elem_id="guidelines-preview", js_on_load=_TYPESET)
        self.versions = html_slot(elem_id="guidelines-versions")

    def refresh(self, format: str, ties: str, file: str, names: bool) -> Updates:
        return {
            self.link: self._link(format, ties, file, names),
            self.prompts: render(_prompts(prompts.counts(self._db))),
            self.marked: render(
                marked_passages(reading.mark_reasons(self._db), reading.marked_judgments(self._db))
            ),
            self.versions: render(_versions(guidelines.versions(self._db))),
        }

    def _link(self, format: str, ties: str, file: str, names: bool) -> str:
        """The download link, or why the export would be empty."""
        count = self._db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"]
        if not count:
            return render(components.empty("Nothing to export yet", "There are no judgments yet."))
        if reason := why_empty(self._db, format=cast("Format", format), ties=cast("Ties", ties)):
            title, _, why = reason.partition(": ")
            return render(components.empty(_capitalized(title), f"{_capitalized(why)}."))
        query = urlencode(
            {"format": format, "ties": ties, "file": file, "names": str(names).lower()}
        )
        link = Markup(
            '<a class="ks-download" href="/research/download/export?{}" download>Download</a>{}'
        ).format(query, components.detail(components.plural(count, "current judgment")))
        return render(link + (_FOR_SPREADSHEETS.format(query) if file == "csv" else ""))

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

    def _in_language(self, language: str) -> str:
        default = translated(DEFAULT_GUIDELINES, language or "en")
        return guidelines.current(self._db, default, language)

    def _save(self, text: str | None, language: str = "") -> str:
        def save() -> str:
            if text is None:  # the page's field always sends a text
                raise ValueError("The page sent no text. Reload the page.")
            guidelines.save(self._db, text, language=language, default=DEFAULT_GUIDELINES)
            return (
                "Saved. Within about a minute, the annotators' pages show the new guidelines or mark "
                "them as new."
            )

        return attempt(save, "The guidelines were not saved.").html


def _capitalized(sentence: str) -> str:
    """Capitalize the first letter; unlike `str.capitalize`, keep the rest unchanged."""
    return sentence[:1].upper() + sentence[1:]


def _preview(text: str | None) -> str:
    """The guidelines as annotators see them."""
    if text is None or not text.strip():
        return render(
            components.empty(
                "No guidelines yet", "Describe what a good response is, with examples."
            )
        )
    # `render_markdown` returns safe HTML for any Markdown.
    rendered = Markup(render_markdown(text, document=True))
    return render(Markup('<div class="ks-guidelines">{}</div>').format(rendered))


def _versions(versions: list[GuidelinesVersion]) -> Markup:
    """The versions that judgments were given under; nothing while there is only one."""
    if len(versions) < 2:
        return Markup("")
    columns = [
        Column("Version"), Column("Judgments", "right"), Column("First used"), Column("Begins with"),
    ]  # fmt: skip
    rows = [
        (
            each.version,
            components.number(each.judgments),
            components.moment(each.first),
            _first_line(each),
        )
        for each in versions
    ]
    return components.table(columns, rows, caption="Current judgments by version of the guidelines")


def _first_line(version: GuidelinesVersion) -> str:
    if version.text is None:
        default = version.version == digest(DEFAULT_GUIDELINES)
        return "(the default guidelines)" if default else "(text not stored)"
    return version.text.strip().partition("\n")[0][:80]


def _prompts(counts: dict[str, int]) -> Markup:
    columns = [Column("Role"), Column("Prompts", "right"), Column("Purpose")]
    rows = [
        (role, components.number(counts.get(role, 0)), ROLES.get(role, ""))
        for role in get_args(PromptRole)
    ]
    return components.table(columns, rows, caption="Prompts by role")


def _commands(workspace: Path) -> Markup:
    start = f"python launch.py import --workspace {shlex.quote(str(workspace))}"
    rows = [(what, Markup("<code>{} {}</code>").format(start, rest)) for what, rest in COMMANDS]
    return components.card(components.definitions(rows))
