"""The HTTP interface of imports with a preview (docs/http.md); the access check allows researchers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from labeler.research.data.importing.jobs import NOTES, Imports, Wanted
from storage.errors import NotFound
from storage.importing.detect import ImportKind
from storage.records import PromptRole

Text = Annotated[str, Field(max_length=500)]


class ImportBody(BaseModel):
    """``POST /research/api/imports``."""

    model_config = ConfigDict(extra="forbid")
    upload: Text | None = None
    address: Text | None = None
    kind: ImportKind | None = None
    source: Text | None = None
    names: dict[Text, Text] = Field(default={}, max_length=20)
    role: PromptRole | None = None
    skip_bad: bool = False
    skip_long: bool = False
    preview: bool = False


def import_routes(imports: Imports) -> APIRouter:
    """The routes under ``/research/api/imports``, and the download of the rows left out."""
    routes = APIRouter(prefix="/research")

    @routes.post("/api/imports")
    def start(body: ImportBody) -> dict[str, Any]:
        return imports.begin(Wanted(**body.model_dump())).view()

    @routes.get("/api/imports/{id}")
    def view(id: str) -> dict[str, Any]:
        return imports.get(id).view()

    @routes.post("/api/imports/{id}/cancel")
    def cancel(id: str) -> dict[str, Any]:
        return imports.cancel(id).view()

    @routes.get("/download/left-out")
    def left_out(id: Annotated[str, Field(max_length=100)]) -> FileResponse:
        notes = imports.get(id).notes_file
        if notes is None or not notes.exists():
            raise NotFound("this import has no list of rows that were left out; preview it again")
        return FileResponse(notes, filename=NOTES, media_type="text/csv; charset=utf-8")

    return routes
