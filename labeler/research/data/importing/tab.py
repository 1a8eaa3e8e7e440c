"""The "Import" section: pairs from a file, and the commands of the other imports."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import get_args

from labeler.html import components
from labeler.html.components import Column, Markup, render
from labeler.research.tab import Tab, Updates, heading_slot, html_slot
from labeler.security.access import MAX_UPLOAD_BYTES
from storage.engine.database import Database
from storage.importing.filetypes import READABLE
from storage.records import PromptRole
from storage.tables import prompts

ROLES = {
    "sft": "demonstrations for supervised fine-tuning",
    "train": "sampled for annotators and in policy training",
    "held-out": "samples and win rates before and after training; not used for training",
    "live": "turns of live conversations; reward models learn from them, nothing is sampled",
    "probe": "sent from the playground; reward models learn from them, nothing is sampled",
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


class ImportTab(Tab):
    def __init__(self, db: Database) -> None:
        self._db = db
        heading_slot("Queue pairs", "pairs from a file, for your annotators")
        html_slot(value=render(_UPLOAD), js_on_load=_UPLOAD_SCRIPT, elem_id="upload-pairs")
        heading_slot("Import", "in a terminal, even while the server runs")
        html_slot(value=render(_commands(db.workspace)))
        heading_slot("Prompts", "by role")
        self.prompts = html_slot(elem_id="prompts")
        self.outputs = [self.prompts]

    def refresh(self) -> Updates:
        return {self.prompts: render(_prompts(prompts.counts(self._db)))}


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
