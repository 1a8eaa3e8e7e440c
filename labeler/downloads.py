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

from labeler.ports import Loop
from storage.engine.database import Database
from storage.exporting import exports
from storage.exporting.formats import Format, Ties
from storage.tables import audit

EVIDENCE = "kitestring-evidence.zip"
NAMES = "Only researchers can download names. Leave out names=true."


def download_routes(db: Database, loop: Loop) -> APIRouter:
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
        history: bool = False,
    ) -> FileResponse:
        if names and request.state.identity.annotator.role != "researcher":
            raise HTTPException(403, NAMES)
        folder = Path(tempfile.mkdtemp(prefix="kitestring-export-"))
        name = f"kitestring-{format}.{file}"
        try:
            out = str(folder / name)
            exports.export(
                db, format=format, ties=ties, out=out, names=names, csv_safe=csv_safe,
                history=history,
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(folder)
            raise
        return FileResponse(
            folder / name,
            filename=name,
            background=BackgroundTask(shutil.rmtree, folder),
        )

    @routes.get("/audit")
    def audit_log(
        actor: str | None = None,
        action: str | None = None,
        since: str | None = None,
        until: str | None = None,
        search: str | None = None,
        file: Literal["jsonl", "csv"] = "csv",
    ) -> FileResponse:
        found = audit.listing(
            db, actor=actor, action=action, search=search, limit=None,
            since=audit.moment(since), until=audit.moment(until),
        )  # fmt: skip
        folder = Path(tempfile.mkdtemp(prefix="kitestring-audit-"))
        name = f"kitestring-audit.{file}"
        try:
            audit.write_file([each.row() for each in found], folder / name)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return FileResponse(
            folder / name,
            filename=name,
            background=BackgroundTask(shutil.rmtree, folder),
        )

    @routes.get("/evidence")
    def evidence() -> FileResponse:
        folder = Path(tempfile.mkdtemp(prefix="kitestring-evidence-"))
        try:
            loop.evidence(str(folder / EVIDENCE))
        except BaseException:
            shutil.rmtree(folder)
            raise
        return FileResponse(
            folder / EVIDENCE, filename=EVIDENCE, background=BackgroundTask(shutil.rmtree, folder)
        )

    return routes
