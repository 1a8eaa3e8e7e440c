"""Routes for what annotators are given: guidelines, the form, and practice."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body

from labeler.project import Project
from labeler.research.api.bodies import PREFIX, Text
from labeler.translation import Language
from storage.engine.database import Database
from storage.records import Criterion
from storage.tables.settings import Presence, Scale, StrengthRule


def project_routes(db: Database) -> APIRouter:
    """The routes; what they change, annotators get within about a minute."""
    routes, project = APIRouter(prefix=PREFIX), Project(db)
    routes.get("/guidelines")(project.guidelines)
    routes.get("/form")(project.form)
    routes.get("/practice")(project.practice)

    @routes.post("/guidelines")
    def save(
        text: Text, language: Annotated[Language | None, Body(embed=True)] = None
    ) -> dict[str, str]:
        return project.save_guidelines(text, language)

    @routes.post("/form")
    def set_form(
        scale: Annotated[Scale | None, Body(embed=True)] = None,
        strength: Annotated[StrengthRule | None, Body(embed=True)] = None,
        criteria: Annotated[list[Criterion] | None, Body(embed=True)] = None,
        reasons: Annotated[list[str] | None, Body(embed=True)] = None,
        rationale: Annotated[Presence | None, Body(embed=True)] = None,
        safety: Annotated[Presence | None, Body(embed=True)] = None,
        marks: Annotated[bool | None, Body(embed=True)] = None,
    ) -> dict[str, Any]:
        """Change the form; a field that is left out stays."""
        return project.set_form(scale, strength, criteria, reasons, rationale, safety, marks)

    @routes.post("/practice")
    def ask(asked: Annotated[bool, Body(embed=True)]) -> dict[str, Any]:
        return project.ask_for_practice(asked)

    return routes
