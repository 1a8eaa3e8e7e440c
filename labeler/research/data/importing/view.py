"""The form of the Import section as HTML; import.js does the rest."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from labeler.html import components
from labeler.html.components import Markup
from labeler.research.data.importing.jobs import MAX_HUB_BYTES
from labeler.security.access import MAX_UPLOAD_BYTES
from labeler.uploads import MAX_ROWS
from storage.importing.files.filetypes import READABLE
from storage.importing.files.hub_files import PREFIX
from storage.importing.request import IMPORTED_ROLES
from storage.importing.sources.registry import SOURCES

OWN = (
    ("prompts", "Prompts", "prompt or messages; optional: role, category, source"),
    ("sft", "Demonstrations", "prompt, and response, completion or output"),
    (
        "judgments",
        "Judgments",
        "prompt, response_a, response_b, annotator, outcome (a, b, tie, both_bad)",
    ),
    ("preferences", "Preference dataset (TRL)", "prompt, chosen, rejected; UltraFeedback and HH-RLHF too"),
    ("pairs", "Pairs to judge here", "prompt, response_a, response_b; optional: model_a, model_b, category, id"),
    ("gold", "Gold pairs", "prompt, response_a, response_b, answer (a or b)"),
    ("practice", "Practice pairs", "prompt, response_a, response_b, answer, explanation"),
)  # fmt: skip
OTHERS = (
    ("judgments", "argilla", "Argilla: judgments", "dataset.records.to_json() or to_list(flatten=True) of Argilla 2"),
    ("pairs", "argilla", "Argilla: pairs without a judgment, to judge here", "as for Argilla: judgments"),
    ("judgments", "label-studio", "Label Studio: judgments", "the export JSON, not JSON-MIN"),
    ("gold", "label-studio", "Label Studio: ground truths as gold pairs", "the export JSON, not JSON-MIN"),
    ("judgments", "arena", "Chatbot Arena or MT-Bench: judgments", "conversation_a, conversation_b, winner"),
    ("judgments", "helpsteer3", "HelpSteer3: judgments", "context, response1, response2, individual_preference; CC-BY-4.0"),
)  # fmt: skip
_COMMANDS = (
    ("Prompts", "--prompts prompts.jsonl"),
    ("Demonstrations", "--sft demonstrations.jsonl"),
    ("Judgments from elsewhere", "--judgments judgments.csv"),
    ("Another tool's file", "--judgments export.json --from label-studio"),
    ("A TRL preference dataset", "--preferences dataset.parquet"),
    ("Pairs to judge here", "--pairs pairs.jsonl"),
    ("Gold pairs", "--gold gold.jsonl"),
    ("Practice pairs", "--practice practice.jsonl"),
)
_FORM = Markup(
    '<form class="ks-card ks-upload ks-import" data-largest="{largest}" novalidate>'
    '<div class="im-file"><label class="im-drop"><b>Drop a file here</b><span>or choose one: {types}, at '
    'most {size} MB and {rows} rows</span><input type="file" name="file" accept="{accept}"></label>'
    '<label class="im-field">Or a dataset of the Hugging Face hub'
    '<input name="address" type="text" spellcheck="false" autocomplete="off" placeholder="{prefix}OWNER/NAME">'
    '<small>Add /CONFIG/SPLIT if there are several. At most {hub} MB.</small></label></div>'
    '<div class="im-options"><label class="im-field">What it contains<select name="what">'
    '<option value="">Detect from the columns</option>'
    '<optgroup label="Own columns">{own}</optgroup><optgroup label="Other tools and datasets">{others}'
    '</optgroup></select><small class="im-columns"></small></label>'
    '<label class="im-field">Role of new prompts<select name="role"><option value="">Default</option>{roles}'
    '</select></label>'
    '<label class="im-field im-names" hidden>Names of fields'
    '<textarea name="names" rows="3" spellcheck="false" placeholder="prompt=instruction"></textarea>'
    '<small></small></label></div>'
    '<div class="im-act"><button class="ks-button ks-primary" data-do="preview">Preview</button>'
    '<span class="ks-detail">Nothing is stored before you press Import.</span></div>'
    '<div class="im-answer" role="status"></div><div class="im-result"></div></form>'
)  # fmt: skip


def form() -> Markup:
    """The form: a file or an address, what it contains, and the place of the preview."""
    own = [
        _option(f"{kind}:", title, columns)
        for kind, title, columns in OWN
    ]  # fmt: skip
    others = [
        _option(f"{kind}:{source}", title, columns, _names(source))
        for kind, source, title, columns in OTHERS
    ]
    roles = [
        Markup('<option value="{0}">{0}</option>').format(r) for r in IMPORTED_ROLES if r != "sft"
    ]
    return _FORM.format(
        largest=MAX_UPLOAD_BYTES,
        size=f"{MAX_UPLOAD_BYTES / 1e6:g}",
        rows=f"{MAX_ROWS:,}",
        hub=f"{MAX_HUB_BYTES / 1e6:g}",
        types=", ".join(READABLE),
        accept=",".join(READABLE),
        prefix=PREFIX,
        own=components.lines(own),
        others=components.lines(others),
        roles=components.lines(roles),
    )


def _option(value: str, title: str, columns: str, names: str = "") -> Markup:
    return Markup('<option value="{}" data-columns="{}" data-names="{}">{}</option>').format(
        value, columns, names, title
    )


def _names(source: str) -> str:
    """What the names of a tool's fields mean."""
    options = SOURCES[source].options
    return "; ".join(f"{name}: {meaning}" for name, meaning in options.items())


def commands(workspace: Path) -> Markup:
    """The same imports in a terminal."""
    start = f"python launch.py import --workspace {shlex.quote(str(workspace))}"
    rows: Sequence[tuple[str, Markup]] = [
        (what, Markup("<code>{} {}</code>").format(start, rest)) for what, rest in _COMMANDS
    ]
    return Markup(
        '<details class="ks-card"><summary>Import larger files in a terminal</summary>{}</details>'
    ).format(components.definitions(rows))
