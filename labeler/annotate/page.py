"""The annotator's page: one `gr.HTML` that talks to the routes of ``/label/api``.

The page buffers a few pairs, shows the next one immediately and posts labels in the background; the
scripts document their guarantees. There is no build step: this module joins the parts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gradio as gr

from labeler import translation
from labeler.html import formulas

_HERE = Path(__file__).parent
_SCRIPTS = (
    "texts.js", "outbox.js", "offline.js", "pair-buffer.js", "tabs.js", "view.js", "code.js", "conversation.js",
    "sides.js", "differences.js", "ring.js", "draft.js", "marks.js", "keys.js", "drawer.js", "answers.js", "changes.js", "editor.js",
    "practice.js", "counts.js", "live.js", "desk.js", "start.js",
)  # fmt: skip
_STYLES = (
    "page.css", "ring.css", "layout.css", "text.css", "verdict.css", "dialogs.css", "drawer.css",
    "live.css", "editor.css", "marks.css", "changes.css",
)  # fmt: skip
_INCLUDE = re.compile(r"<!-- include ([\w.-]+) -->")


def _read(folder: str, name: str) -> str:
    return (_HERE / folder / name).read_text(encoding="utf-8")


SHELL_CSS = _read("styles", "shell.css")
"""Styles of the page around the component; the mount takes them, not the component."""

HEAD = '<link rel="icon" href="/static/kite.svg">' + formulas.HEAD
"""HTML that the mount adds to the document's head."""


def markup() -> str:
    """The page's HTML, with the files that `page.html` includes."""
    return _INCLUDE.sub(lambda found: _read("markup", found[1]), _read("markup", "page.html"))


def styles() -> str:
    """The page's style sheets, joined."""
    return "\n".join(_read("styles", name) for name in _STYLES)


def script() -> str:
    """The page's scripts, joined into one scope."""
    catalogs = f"const CATALOGS = {json.dumps(translation.versions())};"
    names = f"const LANGUAGES = {json.dumps(translation.LANGUAGES)};"
    parts = [catalogs, names, formulas.SCRIPT, *(_read("scripts", name) for name in _SCRIPTS)]
    return '"use strict";\n' + "\n".join(parts)


def build() -> gr.Blocks:
    """The page, to be mounted at ``/label``.  It exposes no callable Gradio function."""
    with gr.Blocks(title="Kitestring", analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(
            value="",
            html_template=markup(),
            css_template=styles(),
            js_on_load=script(),
            apply_default_css=False,
            padding=False,
        )
    return blocks
