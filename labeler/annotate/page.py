"""The annotator's page: one `gr.HTML` that talks to the routes of ``/label/api``.

The page buffers a few pairs, shows the next one immediately and posts labels in the background; the
scripts document their guarantees. There is no build step: this module joins the parts.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

_HERE = Path(__file__).parent
_SCRIPTS = ("outbox.js", "pair-buffer.js", "view.js", "draft.js", "desk.js", "start.js")

SHELL_CSS = (_HERE / "shell.css").read_text(encoding="utf-8")
"""Styles of the page around the component; the mount takes them, not the component."""

HEAD = '<link rel="icon" href="/static/kite.svg">'
"""HTML that the mount adds to the document's head."""


def build() -> gr.Blocks:
    """The page, to be mounted at ``/label``.  It exposes no callable Gradio function."""
    script = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    with gr.Blocks(title="Kitestring", analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(
            value="",
            html_template=(_HERE / "page.html").read_text(encoding="utf-8"),
            css_template=(_HERE / "page.css").read_text(encoding="utf-8"),
            js_on_load=f'"use strict";\n{script}',
            apply_default_css=False,
            padding=False,
        )
    return blocks
