"""The OpenAPI document of the annotator's HTTP interface, and the shapes of its responses.

Routes encode their responses themselves, so the shapes only describe them; a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi

from labeler.annotate.session import NextPairs, PracticeAnswer, Undone
from labeler.translation import Language
from storage.labeling.flag_answers import OwnAnswer
from storage.labeling.own_judgments import ListedJudgment
from storage.labeling.queue import Progress
from storage.records import AnnotatorRole, Phase
from storage.tables.settings import JudgmentForm


@dataclass(frozen=True, kw_only=True)
class NextResponse(NextPairs):
    """The next pairs; if there are none, what the annotator waits for."""

    waiting_for: Phase | Literal["nothing"] | None
    with_others: int | None


@dataclass(frozen=True, kw_only=True)
class SavedResponse:
    """The act is on disk."""

    id: str
    saved: Literal[True]


@dataclass(frozen=True, kw_only=True)
class JudgedResponse(SavedResponse):
    """The judgment is on disk; `practice` only after a practice pair."""

    practice: PracticeAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class UndoneResponse(SavedResponse):
    """The undo is on disk; `undone` is the act that was undone."""

    undone: Undone


@dataclass(frozen=True, kw_only=True)
class LanguageResponse:
    """The language from now on."""

    language: Language


@dataclass(frozen=True, kw_only=True)
class ReleasedResponse:
    """How many leases ended."""

    released: int


@dataclass(frozen=True, kw_only=True)
class Person:
    """The annotator who is signed in; `password` says whether one is set.

    `language` is the one that they chose, or null.
    """

    id: str
    name: str
    role: AnnotatorRole
    password: bool
    language: Language | None


@dataclass(frozen=True)
class ProgressResponse(Progress):
    """The annotator's progress; `latest` is the act that an undo takes back, and `unread_answers`
    counts answers to their flags."""

    latest: str | None
    form: JudgmentForm
    unread_answers: int
    annotator: Person


@dataclass(frozen=True, kw_only=True)
class JudgmentsResponse:
    """A page of the annotator's current judgments, the newest first."""

    judgments: list[ListedJudgment]
    more: bool


@dataclass(frozen=True, kw_only=True)
class FlagAnswersResponse:
    """Answers of researchers to the annotator's flags, the newest first."""

    answers: list[OwnAnswer]


@dataclass(frozen=True, kw_only=True)
class AnswersReadResponse:
    """How many of the answers were unread."""

    read: int


@dataclass(frozen=True, kw_only=True)
class GuidelinesResponse:
    """The guidelines in Markdown and as HTML."""

    version: str
    text: str
    html: str


@dataclass(frozen=True, kw_only=True)
class ReadyResponse:
    """The models are loaded."""

    ready: Literal[True]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request was refused, and what to do."""

    error: str


def described(shape: Any) -> dict[str, Any]:
    """Arguments of a route that responds with this shape."""
    # Without a response model, FastAPI does not copy and check every response.
    return {"response_model": None, "responses": {200: {"model": shape}}}


LINES = "application/x-ndjson"
LIVE_EVENTS: dict[str, Any] = {
    "response_model": None,
    "responses": {
        200: {
            "description": "Lines of JSON: the turn, pieces of both replies, and the stored pair.",
            "content": {LINES: {"schema": {"type": "string"}}},
        }
    },
}
"""Arguments of the route that streams a live turn."""


REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": Refusal, "description": description}
    for code, description in {
        "4XX": "Refused. The same request will fail again, except after 401, 408 and 429.",
        "5XX": "An error of the server. Send the same request again later. After 503, nothing was stored.",
    }.items()
}
"""The errors that all routes have in common."""


def document(routes: APIRouter) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes."""
    found = get_openapi(
        title="Kitestring: labeling",
        version="1",
        summary="Get pairs of responses, and send judgments and other acts.",
        routes=routes.routes,
    )
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{"token": []}]
    return found
