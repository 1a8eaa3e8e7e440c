"""Files that researchers upload. A separate route, because Gradio's uploads accept files on all pages.

`labeler/security/access.py` limits a file to `MAX_UPLOAD_BYTES` (32 MB) and refuses annotators; this
module limits it to `MAX_ROWS`.  A file stays in the workspace's folder ``uploads/`` until it is
imported, and its name is made of harmless characters.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from storage.engine.database import Database
from storage.importing.files.filetypes import READABLE
from storage.importing.files.long_rows import TooLong
from storage.importing.files.row_notes import BadFile
from storage.importing.request import ImportRequest, run_import
from storage.records import new_id

MAX_ROWS = 100_000
"""Rows of an uploaded file, because the import holds all of them in memory."""
MAX_REPORTED_ROWS = 20
"""Limit in a response for each of bad rows, skipped rows and warnings."""
MAX_UPLOADS = 10
"""Uploaded files that are kept; an older one is deleted."""
FOLDER = "uploads"


class Uploads:
    """The uploaded files of a workspace, each in a folder of its own: ``uploads/ID/NAME``."""

    def __init__(self, workspace: Path) -> None:
        self.folder = workspace / FOLDER
        # Of an earlier server, whose imports are gone.
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_folder(self) -> Path:
        """An empty folder, readable by the owner alone; the oldest files make room for it."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        kept = sorted(self.folder.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in kept[MAX_UPLOADS - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
        made = self.folder / new_id()
        made.mkdir(mode=0o700)
        return made

    def file(self, upload: str) -> Path:
        """The file of an upload; ValueError if it is not here any more."""
        place = self.folder / upload
        if re.fullmatch(r"[\w-]+", upload) and place.is_dir():
            for each in place.iterdir():
                if each.suffix.lower() in READABLE:
                    return each
        raise ValueError("the uploaded file is not here any more; upload it again")

    def remove(self, upload: str) -> None:
        if re.fullmatch(r"[\w-]+", upload):
            shutil.rmtree(self.folder / upload, ignore_errors=True)


def upload_routes(
    db: Database, uploads: Uploads, too_long: Callable[[], TooLong | None]
) -> APIRouter:
    """``POST /research/upload/file`` and ``/pairs``, ``?name=FILE`` with the file as the body.

    The access check allows only researchers and limits the body. `file` keeps the file for an import
    and answers with its id. `pairs` imports it, and the response is the import's report; if rows are
    bad, nothing is stored, and the response is 422 with ``rows``: the first bad rows, each with
    ``line`` and ``reason``.
    """
    routes = APIRouter(prefix="/research/upload")
    # Uploads run one after another and leave the other threads to annotators.
    one_at_a_time = CapacityLimiter(1)

    async def received(request: Request, name: str) -> Path:
        name = _file_name(name)
        folder = uploads.new_folder()
        try:
            with (folder / name).open("wb") as target:
                async for part in request.stream():
                    target.write(part)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return folder / name

    @routes.post("/file")
    async def keep(
        request: Request, name: Annotated[str, Query(min_length=1, max_length=200)]
    ) -> dict[str, Any]:
        file = await received(request, name)
        return {"upload": file.parent.name, "name": file.name, "bytes": file.stat().st_size}

    @routes.post("/pairs")
    async def pairs(
        request: Request,
        name: Annotated[str, Query(min_length=1, max_length=200)],
        skip_bad: bool = False,
        skip_long: bool = False,
    ) -> JSONResponse:
        file = await received(request, name)
        try:
            wanted = ImportRequest(
                kind="pairs", skip_bad=skip_bad, skip_long=skip_long, max_rows=MAX_ROWS
            )
            return await to_thread.run_sync(
                _imported, db, file, wanted, too_long, limiter=one_at_a_time
            )
        finally:
            shutil.rmtree(file.parent)

    return routes


def _file_name(name: str) -> str:
    """The file's own name without characters that could form a path."""
    kept = re.sub(r"[^\w.-]+", "_", name)[-100:].lstrip(".")
    if Path(kept).suffix.lower() not in READABLE:
        raise HTTPException(422, f"{kept} must end in one of {', '.join(READABLE)}.")
    return kept


def _imported(
    db: Database, file: Path, wanted: ImportRequest, too_long: Callable[[], TooLong | None]
) -> JSONResponse:
    try:
        report = run_import(db, file, wanted, too_long=too_long())
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
