"""Uploads by researchers. A separate route, because Gradio's uploads accept files on all pages.

`labeler/security/access.py` limits a file to `MAX_UPLOAD_BYTES` (32 MB) and refuses annotators; this
module limits it to `MAX_ROWS`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from storage.engine.database import Database
from storage.importing.apart import import_apart
from storage.importing.filetypes import READABLE
from storage.importing.imports import import_pairs
from storage.importing.row_notes import BadFile

MAX_ROWS = 100_000
"""Rows of an uploaded file, because the import holds all of them in memory."""
MAX_REPORTED_ROWS = 20
"""Limit in a response for each of bad rows, skipped rows and warnings."""


def upload_routes(db: Database) -> APIRouter:
    """``POST /research/upload/pairs?name=FILE`` with the file as the body.

    The access check allows only researchers and limits the body. The response is the import's
    report. If rows are bad, nothing is stored, and the response is 422 with ``rows``: the first bad
    rows, each with ``line`` and ``reason``.
    """
    routes = APIRouter(prefix="/research/upload")
    # Uploads run one after another and leave the other threads to annotators.
    one_at_a_time = CapacityLimiter(1)

    @routes.post("/pairs")
    async def pairs(
        request: Request,
        name: Annotated[str, Query(min_length=1, max_length=200)],
        skip_bad: bool = False,
    ) -> JSONResponse:
        folder = Path(tempfile.mkdtemp(prefix="kitestring-upload-"))
        try:
            file = folder / _file_name(name)
            with file.open("wb") as target:
                async for part in request.stream():
                    target.write(part)
            return await to_thread.run_sync(_imported, db, file, skip_bad, limiter=one_at_a_time)
        finally:
            shutil.rmtree(folder)

    return routes


def _file_name(name: str) -> str:
    """The file's own name without characters that could form a path."""
    kept = re.sub(r"[^\w.-]+", "_", name)[-100:].lstrip(".")
    if Path(kept).suffix.lower() not in READABLE:
        raise HTTPException(422, f"{kept} must end in one of {', '.join(READABLE)}.")
    return kept


def _imported(db: Database, file: Path, skip_bad: bool) -> JSONResponse:
    try:
        report = import_apart(import_pairs, db, file, skip_bad=skip_bad, max_rows=MAX_ROWS)
    except BadFile as bad:
        answer: dict[str, Any] = {
            "error": f"{bad.summary[:1].upper()}{bad.summary[1:]}.",
            "bad": bad.count,
        }
        return JSONResponse(
            answer | {"rows": [asdict(row) for row in bad.rows[:MAX_REPORTED_ROWS]]}, 422
        )
    found = asdict(report)
    for kind in ("skipped", "warnings"):
        found[kind] = found[kind][:MAX_REPORTED_ROWS]
    return JSONResponse(found)
