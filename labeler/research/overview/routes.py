"""The routes of the settings of a workspace and of the form that starts training (docs/http.md).

``settings.js`` and ``train.js`` call them; scripts can use them with an API token.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from labeler.ports import Loop
from labeler.research.phases import STAGE_LABELS, reading_name
from storage.engine.database import Database
from storage.errors import Conflict
from storage.records import Run
from storage.reports import InvalidSettings, SettingValue, SettingView, Stopped, WorkspaceSettings
from storage.tables import iterations, run_settings, runs

MAX_CHANGES = 500
MAX_VALUE_LENGTH = 10_000
Changes = Annotated[
    dict[Annotated[str, Field(max_length=100)], Annotated[str, Field(max_length=MAX_VALUE_LENGTH)]],
    Field(max_length=MAX_CHANGES),
]


class SaveBody(BaseModel):
    """``POST /research/api/settings``."""

    model_config = ConfigDict(extra="forbid")
    version: str = Field(max_length=64)
    changes: Changes


class TrainBody(BaseModel):
    """``POST /research/api/train``."""

    model_config = ConfigDict(extra="forbid")
    changes: Changes = {}


class RetryBody(TrainBody):
    """``POST /research/api/retry``: the stopped run that the page shows, and its attempt."""

    run: str = Field(max_length=100)
    attempt: int


def settings_routes(db: Database, loop: Loop) -> APIRouter:
    """``/research/api/settings``, ``/research/api/train`` and ``/research/api/retry``."""
    routes = APIRouter(prefix="/research/api")

    @routes.get("/settings")
    def settings(request: Request) -> dict[str, Any]:
        return _page(loop.workspace_settings(), request)

    @routes.post("/settings")
    def save(body: SaveBody, request: Request) -> Any:
        return _answer(lambda: _page(loop.save_settings(body.changes, body.version), request))

    @routes.get("/train")
    def form() -> dict[str, Any]:
        stopped, current = loop.stopped_stage(), iterations.latest(db)
        return {
            "iteration": current.number if current else None,
            "reason": loop.can_train(),
            "stopped": _stopped(stopped) if stopped else None,
            "last": _last(run_settings.last_trained(runs.listing(db))),
            "settings": [row(each) for each in loop.settings()],
        }

    @routes.post("/train")
    def train(body: TrainBody) -> Any:
        def start() -> dict[str, Any]:
            loop.train(body.changes)
            return {"started": "training"}

        return _answer(start)

    @routes.post("/retry")
    def retry(body: RetryBody) -> Any:
        def start() -> dict[str, Any]:
            stopped = loop.stopped_stage()
            if stopped is None or (stopped.run, stopped.attempt) != (body.run, body.attempt):
                raise Conflict("The loop has changed since the form was opened. Open it again.")
            loop.retry(stopped.run, body.changes)
            return {"started": stopped.run}

        return _answer(start)

    return routes


def _answer(act: Any) -> Any:
    """The result, or 422 with a sentence for each wrong setting in ``fields``."""
    try:
        return act()
    except InvalidSettings as refused:
        return JSONResponse({"error": str(refused), "fields": refused.problems}, 422)


def _page(found: WorkspaceSettings, request: Request) -> dict[str, Any]:
    return {
        "file": PurePath(found.file).name,
        "version": found.version,
        "preset": found.preset,
        "may_save": request.state.identity.annotator.role == "researcher",
        "settings": [row(each) for each in found.settings],
    }


def row(setting: SettingView) -> dict[str, Any]:
    """A setting as JSON, with its values as text that a field shows and a route accepts."""
    values = {
        name: _text(getattr(setting, name)) for name in ("value", "default", "preset", "last")
    }
    return asdict(setting) | values


def _text(value: SettingValue | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return re.sub(r"e([+-])0+", r"e\1", str(value)).removesuffix(".0")
    return str(value)


def _stopped(stopped: Stopped) -> dict[str, Any]:
    named = {"stage_label": STAGE_LABELS[stopped.stage], "flag_label": reading_name(stopped.flag)}
    return asdict(stopped) | named


def _last(run: Run | None) -> dict[str, str] | None:
    return {"run": run.id, "name": f"{runs.name(run)}, iteration {run.iteration}"} if run else None
