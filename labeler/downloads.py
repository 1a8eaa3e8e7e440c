"""Downloads for researchers. A separate route, because Gradio's mounts share a file cache.

`rules` in labeler/security/access.py allows the route to researchers and viewers, with the cookie or
an API token; viewers get no names. `exports.export` writes the file.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from storage.engine.database import Database
from storage.exporting import exports
from storage.exporting.formats import Format, Ties

NAMES = "Only researchers can download names. Leave out names=true."


def download_routes(db: Database) -> APIRouter:
    """``/research/download/…``; the access check allows researchers and viewers."""
    routes = APIRouter(prefix="/research/download")

    @routes.get("/export")
    def export(
        request: Request,
        format: Format = "trl",
        ties: Ties = "drop",
        file: Literal["jsonl", "parquet", "csv"] = "jsonl",
        names: bool = False,
        csv_safe: bool = False,
    ) -> FileResponse:
        if names and request.state.identity.annotator.role != "researcher":
            raise HTTPException(403, NAMES)
        folder = Path(tempfile.mkdtemp(prefix="kitestring-export-"))
        name = f"kitestring-{format}.{file}"
        try:
            out = str(folder / name)
            exports.export(db, format=format, ties=ties, out=out, names=names, csv_safe=csv_safe)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return FileResponse(
            folder / name,
            filename=name,
            background=BackgroundTask(shutil.rmtree, folder),
        )

    return routes
