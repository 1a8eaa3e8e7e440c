"""Routes for studies: sweeps over KL weights, comparisons of methods, retrained reward models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from labeler.ports import Loop
from labeler.research.api.bodies import PREFIX, person
from storage.browsing.studies import StudyDetails, StudySummary, details, plot, summaries
from storage.engine.database import Database
from storage.records import StudyKind
from storage.reports import StudyOffer

Nats = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


_VALUES: dict[StudyKind, tuple[str, ...]] = {
    "sweep": ("kl_weight", "kl_budget"),
    "compare": ("methods", "kl", "snapshots"),
    "retrain": ("without", "only", "guidelines", "before", "iteration", "controls"),
}
"""The values of each kind of study."""


class StudyBody(BaseModel):
    """``POST /research/api/studies``: a sweep has `kl_weight` and `kl_budget`, a comparison
    `methods`, `kl` and `snapshots`; a reward model that is trained again has the criteria `without`,
    `only`, `guidelines` and `before`, the `iteration`, and the number of `controls`."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["sweep", "compare", "retrain"]
    name: Annotated[str, Field(min_length=1, max_length=100)]
    kl_weight: Annotated[list[Beta], Field(max_length=20)] = []
    kl_budget: Nats = 5
    methods: Annotated[list[str], Field(max_length=20)] = []
    kl: Nats = 2
    snapshots: Annotated[int, Field(ge=0, le=50)] = 5
    without: Annotated[list[str], Field(max_length=1000)] = []
    only: Annotated[list[str], Field(max_length=20)] = []
    guidelines: Annotated[list[str], Field(max_length=1000)] = []
    before: Annotated[str | None, Field(max_length=40)] = None
    iteration: Annotated[int | None, Field(ge=1)] = None
    controls: Annotated[int, Field(ge=0, le=20)] = 0
    settings: dict[str, str] = {}

    @property
    def plan(self) -> dict[str, Any]:
        """The values of the kind of study."""
        return {name: getattr(self, name) for name in _VALUES[self.kind]}


@dataclass(frozen=True, kw_only=True)
class Studies:
    """All studies, the newest first, and what a new one would repeat."""

    offer: StudyOffer
    studies: list[StudySummary]


def study_routes(db: Database, loop: Loop) -> APIRouter:
    """The routes under ``/research/api/studies``."""
    routes = APIRouter(prefix=f"{PREFIX}/studies")

    @routes.get("")
    def listed() -> Studies:
        return Studies(offer=loop.studies.offer(), studies=summaries(db))

    @routes.post("")
    def start(body: StudyBody, request: Request) -> StudyDetails:
        """Start a study, or continue the one with the same name and values."""
        kind: StudyKind = body.kind
        made = loop.studies.start(
            kind, body.name.strip(), body.plan, body.settings, created_by=person(request).id
        )
        return details(db, made.id)

    @routes.get("/{id}")
    def show(id: str) -> StudyDetails:
        return details(db, id)

    @routes.get("/{id}/plot", response_class=FileResponse)
    def drawn(id: str) -> FileResponse:
        """The plot of a finished study, as SVG."""
        headers = {"Cache-Control": "no-store"}
        return FileResponse(plot(db, id), media_type="image/svg+xml", headers=headers)

    @routes.post("/{id}/cancel")
    def cancel(id: str) -> StudyDetails:
        """Stop the study after the current step of its worker."""
        return details(db, loop.studies.cancel(id).id)

    @routes.post("/{id}/continue")
    def go_on(id: str) -> StudyDetails:
        """Continue a study that failed or was cancelled; finished runs are not repeated."""
        return details(db, loop.studies.resume(id).id)

    return routes
