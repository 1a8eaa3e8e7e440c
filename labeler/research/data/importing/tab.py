"""The "Import" section: a file or a dataset of the hub, its preview, and its import."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from labeler.html import components
from labeler.html.components import Column, Markup, render
from labeler.research.data.importing import view
from labeler.research.interrupted import Started
from labeler.research.tab import Tab, Updates, heading_slot, html_slot
from storage.engine.database import Database
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
_HERE = Path(__file__).parent


class ImportTab(Tab):
    """Its script calls ``/research/upload/file`` and ``/research/api/imports``."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._started = Started(db.workspace, "import")
        heading_slot("Import", "from a file or the Hugging Face hub")
        self.interrupted = html_slot(elem_id="import-interrupted")
        html_slot(
            value=render(view.form()),
            css_template=(_HERE / "import.css").read_text(encoding="utf-8"),
            js_on_load=(_HERE / "import.js").read_text(encoding="utf-8"),
            elem_id="import-data",
        )
        html_slot(value=render(view.commands(db.workspace)))
        heading_slot("Prompts", "by role")
        self.prompts = html_slot(elem_id="prompts")
        self.outputs = [self.interrupted, self.prompts]

    def refresh(self) -> Updates:
        return {
            self.interrupted: render(self._started.note()),
            self.prompts: render(_prompts(prompts.counts(self._db))),
        }


def _prompts(counts: dict[str, int]) -> Markup:
    columns = [Column("Role"), Column("Prompts", "right"), Column("Purpose")]
    rows = [
        (role, components.number(counts.get(role, 0)), ROLES.get(role, ""))
        for role in get_args(PromptRole)
    ]
    return components.table(columns, rows, caption="Prompts by role")
