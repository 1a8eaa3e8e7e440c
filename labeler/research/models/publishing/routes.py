"""The HTTP interface of pushes to the hub (docs/http.md); the access check allows researchers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from labeler.research.models.publishing.jobs import Pushes

Name = Annotated[str, Field(min_length=1, max_length=200)]


class PushBody(BaseModel):
    """``POST /research/api/pushes``."""

    model_config = ConfigDict(extra="forbid")
    model: Name
    repository: Name
    private: bool = True


def push_routes(pushes: Pushes) -> APIRouter:
    """The routes under ``/research/api/pushes``."""
    routes = APIRouter(prefix="/research/api/pushes")

    @routes.get("")
    def models() -> dict[str, Any]:
        return pushes.models()

    @routes.post("")
    def start(body: PushBody) -> dict[str, Any]:
        return pushes.begin(body.model, body.repository, private=body.private).view()

    @routes.get("/plan/{model}")
    def plan(model: str) -> dict[str, Any]:
        return pushes.plan(model)

    @routes.get("/{id}")
    def view(id: str) -> dict[str, Any]:
        return pushes.get(id).view()

    @routes.post("/{id}/cancel")
    def cancel(id: str) -> dict[str, Any]:
        return pushes.cancel(id).view()

    return routes
