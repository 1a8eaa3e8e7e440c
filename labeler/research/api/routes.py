"""All routes under ``/research/api``, and their OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi

from labeler.ports import Loop
from labeler.research.api.bodies import PREFIX
from labeler.research.api.data import data_routes
from labeler.research.api.loop import loop_routes
from labeler.research.api.project import project_routes
from labeler.research.api.settings import settings_routes
from labeler.research.api.studies import study_routes
from labeler.research.api.team import audit_routes, people_routes, webhook_routes
from labeler.webhooks.service import Webhooks
from storage.commands import Commands
from storage.engine.database import Database


def api_routes(
    db: Database,
    loop: Loop,
    *,
    webhooks: Webhooks | None,
    accounts_changed: Callable[[], None],
    public_url: str | None,
) -> list[APIRouter]:
    """What the pages and the commands do, for programs (docs/http.md)."""
    commands = Commands(db)
    return [
        *data_routes(db, commands),
        *loop_routes(db, loop, commands),
        settings_routes(db, loop),
        study_routes(db, loop),
        people_routes(commands, accounts_changed=accounts_changed, public_url=public_url),
        project_routes(db),
        audit_routes(commands),
        webhook_routes(webhooks),
    ]


def openapi_routes(described: Sequence[APIRouter]) -> APIRouter:
    """``/research/api/openapi.json``: the document of the routes of these routers."""
    routes = APIRouter(prefix=PREFIX)
    all_routes = [route for router in described for route in router.routes]

    @routes.get("/openapi.json", include_in_schema=False)
    def document() -> dict[str, Any]:
        found = get_openapi(
            title="Kitestring: research",
            version="1",
            summary="Read judgments, runs and models, and start what the pages start.",
            routes=all_routes,
        )
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        return found

    return routes
