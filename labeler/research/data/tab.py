"""The "Data" tab: export, prompts by role, how to import, and the annotators' guidelines."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import cast, get_args
from urllib.parse import urlencode

import gradio as gr
from gradio.blocks import Block

from labeler.annotate.session import DEFAULT_GUIDELINES
from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.html.markdown import render as render_markdown
from labeler.research.panel import Panel, Updates, alert, html_slot, render
from labeler.uploads import LARGEST_UPLOAD
from storage.engine.database import Database
from storage.exporting.exports import why_empty
from storage.exporting.formats import Format, Ties
from storage.importing.filetypes import READABLE
from storage.records import PromptRole
from storage.tables import prompts, settings

FORMATS = (
    ("TRL preference pairs", "trl"),
    ("TRL, conversational", "trl-conversational"),
    ("TRL, unpaired (for KTO)", "trl-unpaired"),
    ("Raw: one row a judgment", "raw"),
)
TIES = (
    ("Leave ties out", "drop"),
    ("Split: each tie both ways", "split"),
    ("Keep, where the format can", "keep"),
)
FILES = (("JSON Lines", "jsonl"), ("Parquet", "parquet"), ("CSV", "csv"))
ROLES = {
    "sft": "demonstrations that fine-tune the reference",
    "train": "sampled for annotators and by PPO",
    "held-out": "before/after samples and win rates; never trained on",
    "audit": "kept for an audit reward model that PPO never sees",
}
COMMANDS = (
    ("Prompts", "--prompts prompts.jsonl --role train"),
    ("Demonstrations", "--sft pairs.jsonl"),
    ("Judgments made elsewhere", "--judgments judgments.csv"),
    ("A TRL preference dataset", "--preferences dataset.parquet"),
    ("Pairs to be judged here", "--pairs pairs.jsonl"),
)
GUIDELINES = "guidelines"
_UPLOAD = Markup(
    '<form class="ks-card ks-upload" data-largest="{}">'
    "<p>A file with <code>prompt</code>, <code>response_a</code> and <code>response_b</code> in each "
    "row; <code>model_a</code>, <code>model_b</code>, <code>category</code> and <code>id</code> are "
    "optional. Annotators find the pairs among those of the loop and are not told the models.</p>"
    '<label>File <input type="file" name="file" accept="{}"></label>'
    '<label><input type="checkbox" name="skip"> Leave bad rows out</label>'
    '<button class="ks-button ks-info">Queue the pairs</button>'
    '<div role="status"></div></form>'
).format(LARGEST_UPLOAD, ",".join(READABLE))
_UPLOAD_SCRIPT = (Path(__file__).parent / "upload.js").read_text(encoding="utf-8")
_FOR_SPREADSHEETS = Markup(
    '<p class="ks-detail">A spreadsheet runs cells that begin with = + - or @. '
    '<a href="/research/download/export?{}&amp;csv_safe=true" download>Download for a '
    "spreadsheet</a>: an apostrophe stands before them.</p>"
)


class DataTab:
    """Components and handlers of the tab; make it inside the tab's context."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._export()
        html_slot(value=render(components.heading("Prompts", "by what they are used for")))
        self.prompts = html_slot(elem_id="prompts")
        html_slot(
            value=render(components.heading("Queue pairs", "written elsewhere, to be judged here"))
        )
        html_slot(value=render(_UPLOAD), js_on_load=_UPLOAD_SCRIPT, elem_id="upload-pairs")
        html_slot(
            value=render(components.heading("Import", "from a terminal, beside the running server"))
        )
        html_slot(value=render(_commands(db.workspace)))
        self._guidelines()

    def panel(self) -> Panel:
        return Panel(
            refresh=self.refresh,
            inputs=[self.format, self.ties, self.file, self.names],
            outputs=[self.link, self.prompts],
        )

    def load(self) -> Updates:
        """The guidelines that annotators see, for a page that has just been opened."""
        text = str(settings.get(self._db, GUIDELINES, DEFAULT_GUIDELINES))
        return {self.guidelines: text, self.preview: _preview(text)}

    def _export(self) -> None:
        html_slot(value=render(components.heading("Export", "the current judgments as a dataset")))
        with gr.Column(elem_classes="ks-panel"):
            with gr.Row(elem_classes="ks-fields"):
                self.format = gr.Dropdown(list(FORMATS), value="trl", label="Format")
                self.ties = gr.Dropdown(list(TIES), value="drop", label="Ties")
                self.file = gr.Dropdown(list(FILES), value="jsonl", label="File")
                self.names = gr.Checkbox(
                    label="Names",
                    info="Annotators by name; otherwise by pseudonym.",
                    value=False,
                )
            self.link = html_slot(elem_id="export-link")
        for control in (self.format, self.ties, self.file, self.names):
            control.input(
                self._link,
                inputs=[self.format, self.ties, self.file, self.names],
                outputs=self.link,
                show_progress="hidden",
                api_visibility="private",
            )

    def _guidelines(self) -> None:
        html_slot(
            value=render(
                components.heading("Guidelines", "Markdown; annotators see them beside pairs")
            )
        )
        with gr.Row():
            with gr.Column(elem_classes="ks-panel", min_width=300):
                self.guidelines = gr.Textbox(
                    label="Text", lines=14, max_lines=40, elem_id="guidelines", interactive=True
                )
                with gr.Row(elem_classes="ks-buttons"):
                    self.save = gr.Button("Save", variant="primary", elem_id="guidelines-save")
                self.answer = html_slot(elem_id="guidelines-answer")
            with gr.Column(elem_classes="ks-panel", min_width=300):
                html_slot(value=render(components.Markup('<div class="ks-label">Preview</div>')))
                self.preview = html_slot(elem_id="guidelines-preview")
        self.guidelines.change(
            _preview,
            inputs=self.guidelines,
            outputs=self.preview,
            show_progress="hidden",
            api_visibility="private",
        )
        self.save.click(
            self._save,
            inputs=self.guidelines,
            outputs=[self.answer],
            api_visibility="private",
        )

    def outputs_of_load(self) -> list[Block]:
        return [self.guidelines, self.preview]

    def refresh(self, format: str, ties: str, file: str, names: bool) -> Updates:
        """The download link for these choices, and the prompts."""
        return {
            self.link: self._link(format, ties, file, names),
            self.prompts: render(_prompts(prompts.counts(self._db))),
        }

    def _link(self, format: str, ties: str, file: str, names: bool) -> str:
        count = self._db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"]
        if not count:
            return render(components.empty("Nothing to export yet", "Judgments come first."))
        if reason := why_empty(self._db, format=cast("Format", format), ties=cast("Ties", ties)):
            title, _, why = reason.partition(": ")
            return render(components.empty(_begun(title), f"{_begun(why)}."))
        query = {"format": format, "ties": ties, "file": file, "names": str(names).lower()}
        link = Markup(
            '<a class="ks-download" href="/research/download/export?{}" download>Download</a>'
            '<span class="ks-detail">from {}, as of the click</span>'
        ).format(urlencode(query), components.plural(count, "current judgment"))
        return render(link + (_FOR_SPREADSHEETS.format(urlencode(query)) if file == "csv" else ""))

    def _save(self, text: str | None) -> Updates:
        if text is None:
            return {
                self.answer: alert(
                    "bad", "Nothing was saved.", "There was no text; reload the page."
                )
            }
        settings.put(self._db, GUIDELINES, text)
        return {self.answer: alert("good", "Saved. Annotators see it with their next pair.")}


def _begun(sentence: str) -> str:
    """With a capital letter; the rest, names too, as it is."""
    return sentence[:1].upper() + sentence[1:]


def _preview(text: str | None) -> str:
    """Exactly what an annotator sees."""
    if text is None or not text.strip():
        return render(
            components.empty("No guidelines yet", "Say what a good answer is, with examples.")
        )
    # `render_markdown` is the one door for Markdown of strangers: its output is safe HTML.
    rendered = Markup(render_markdown(text, document=True))
    return render(Markup('<div class="ks-guidelines">{}</div>').format(rendered))


def _prompts(counts: dict[str, int]) -> Markup:
    columns = [Column("Role"), Column("Prompts", "right"), Column("What for")]
    rows = [
        (role, components.number(counts.get(role, 0)), ROLES.get(role, ""))
        for role in get_args(PromptRole)
    ]
    return components.table(columns, rows, caption="Prompts by role")


def _commands(workspace: Path) -> Markup:
    start = f"python launch.py import --workspace {shlex.quote(str(workspace))}"
    rows = [(what, Markup("<code>{} {}</code>").format(start, rest)) for what, rest in COMMANDS]
    return Markup('<div class="ks-card">{}</div>').format(components.definitions(rows))
