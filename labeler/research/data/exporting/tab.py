"""The "Export" section: the current judgments as a dataset."""

from __future__ import annotations

import shlex
from typing import cast
from urllib.parse import urlencode

import gradio as gr

from labeler.html import components
from labeler.html.components import Markup, render
from labeler.research.tab import Tab, Updates, heading_slot, html_slot, on
from storage.engine.database import Database
from storage.exporting.exports import why_empty
from storage.exporting.formats import Format, Ties
from storage.wording import plural

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
_FOR_SPREADSHEETS = Markup(
    '<p class="ks-detail">Spreadsheets run cells that begin with =, +, - or @ as formulas. '
    '<a href="/research/download/export?{}&amp;csv_safe=true" download>Download for a '
    "spreadsheet</a> puts an apostrophe in front of them.</p>"
)
_ON_THE_HUB = Markup(
    "<details><summary>Push it to the Hugging Face hub in a terminal</summary>{}</details>"
)


class ExportTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        self._lay_out()
        self.inputs = [self.format, self.ties, self.file, self.names]
        self.outputs = [self.link]
        for control in self.inputs:
            on(control.input, self._link, self.inputs, [self.link], access="viewer")

    def _lay_out(self) -> None:
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

    def refresh(self, format: str, ties: str, file: str, names: bool) -> Updates:
        return {self.link: self._link(format, ties, file, names)}

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
        ).format(query, components.detail(plural(count, "current judgment")))
        sheets = _FOR_SPREADSHEETS.format(query) if file == "csv" else Markup("")
        return render(link + sheets + self._push(format, ties, names))

    def _push(self, format: str, ties: str, names: bool) -> Markup:
        """The command that pushes the chosen export."""
        where = shlex.quote(str(self._db.workspace))
        command = (
            f"python launch.py export --workspace {where} --format {format} --ties {ties} "
            f"{'--names ' if names else ''}--out hf://datasets/OWNER/NAME"
        )
        rows = [
            (
                "Private, with a dataset card; needs HF_TOKEN",
                Markup("<code>{}</code>").format(command),
            )
        ]
        return _ON_THE_HUB.format(components.definitions(rows))


def _capitalized(sentence: str) -> str:
    """Capitalize the first letter; unlike `str.capitalize`, keep the rest unchanged."""
    return sentence[:1].upper() + sentence[1:]
