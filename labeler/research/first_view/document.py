"""Puts the first view into the document of the site."""

from __future__ import annotations

from pathlib import Path

import anyio
from starlette.datastructures import QueryParams
from starlette.types import Scope

from labeler.research.calls import FirstView

PATIENCE = 1.0
"""Seconds that a document waits for its first view; a slower section is shown by Gradio alone."""
FRAME = (Path(__file__).parent / "frame.css").read_text(encoding="utf-8")
"""The style of the frame around Gradio's components."""

_HEAD, _APP = b"<head>", b"<gradio-app"
_STYLE = _HEAD + f"<style>{FRAME}</style>".encode()


class FirstViewed:
    """Adds the first view to each document that a browser opens (`labeler.documents.Edit`)."""

    def __init__(self, first_view: FirstView) -> None:
        self._first_view = first_view

    async def __call__(self, scope: Scope, document: bytes) -> bytes:
        shown = await self._shown(scope) if scope["method"] == "GET" else ""
        return document.replace(_HEAD, _STYLE, 1).replace(_APP, shown.encode() + _APP, 1)

    async def _shown(self, scope: Scope) -> str:
        person = scope["state"]["identity"].annotator
        query = QueryParams(scope["query_string"])
        with anyio.move_on_after(PATIENCE):
            return await anyio.to_thread.run_sync(
                self._first_view, person, query, abandon_on_cancel=True
            )
        return ""
