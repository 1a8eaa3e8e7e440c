"""The annotator's page: one `gr.HTML` that talks to the routes of ``/label/api``.

The page buffers a few pairs, shows the next one at once and posts labels in the background; the
scripts say what they guarantee. There is no build step: the parts are joined here.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

_HERE = Path(__file__).parent
_SCRIPTS = ("outbox.js", "pair-buffer.js", "view.js", "draft.js", "desk.js", "start.js")

SHELL_CSS = (_HERE / "shell.css").read_text(encoding="utf-8")
"""Styles of the page around the component; they go to the mount, not to the component."""

HEAD = '<link rel="icon" href="/static/kite.svg">'
"""What the mount adds to the document's head."""


def build() -> gr.Blocks:
    """The page, to be mounted at ``/label``.  It has no Gradio function that could be called."""
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
