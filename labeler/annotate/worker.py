"""The route of the annotator page's service worker, which shows the page without a connection.

Browsers run it only over https and on localhost.  It is under ``/label/``, so it never sees requests
of the research page.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response
from gradio import __version__ as gradio_version

from labeler.annotate import page
from storage.records import digest

_SCRIPT = Path(__file__).parent / "scripts" / "worker.js"


def worker_routes() -> APIRouter:
    """``/label/worker.js``."""
    routes, script = APIRouter(), worker_script()

    @routes.get("/label/worker.js")
    def worker() -> Response:
        # The browser must see a new version at once.
        return Response(script, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    return routes


def worker_script() -> str:
    """The worker, with a version that changes with the page, with Gradio and with the worker."""
    script = _SCRIPT.read_text(encoding="utf-8")
    parts = (page.markup(), page.styles(), page.script(), page.SHELL_CSS, page.HEAD, gradio_version)
    version = digest(script, *parts)
    return f'"use strict";\nconst VERSION = "{version}";\n{script}'
