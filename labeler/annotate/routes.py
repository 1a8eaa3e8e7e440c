"""The annotator's HTTP interface (docs/http.md).

`session` reads what the page shows; `storage.labeling.judgments` stores the annotator's acts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from starlette.exceptions import HTTPException as StarletteHTTPException

from labeler.annotate.live import LiveSession, LiveState
from labeler.annotate.openapi import (
    LINES,
    LIVE_EVENTS,
    REFUSALS,
    AnswersReadResponse,
    FlagAnswersResponse,
    GuidelinesResponse,
    JudgedResponse,
    JudgmentsResponse,
    LanguageResponse,
    NextResponse,
    ProgressResponse,
    ReadyResponse,
    ReleasedResponse,
    SavedResponse,
    UndoneResponse,
    described,
    document,
)
from labeler.annotate.session import GivenJudgment, LabelSession, ShownFollowUps
from labeler.ports import Generation
from labeler.security.auth import Identity
from labeler.security.readers import keep_language
from labeler.translation import LANGUAGES, Language, catalog
from storage.engine.database import Database
from storage.errors import Conflict, NotFound, NotLeased, StorageUnavailable
from storage.generation_records import GenerationBusy, GenerationRefused
from storage.labeling import flag_answers, judgments, queue
from storage.labeling.live import MAX_MESSAGE_LENGTH
from storage.labeling.own_figures import OwnFigures
from storage.records import (
    MAX_EDIT_LENGTH,
    MAX_MARKS,
    MAX_QUOTE_LENGTH,
    MAX_TAG_LENGTH,
    MAX_TAGS,
    MAX_VIEW_MS,
    Annotator,
    Criterion,
    SafetyLabel,
    ScreenOutcome,
)
from storage.reports import InvalidSettings
from storage.tables.people import annotators

_LOG = logging.getLogger(__name__)
SIGN_IN_FIRST = "Sign in first."
SOMEONE_ELSE = "Someone else has signed in with this browser. Reload the page."
MAX_COMMENT_LENGTH = 5_000
"""Characters."""


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character, which exports cannot store")
    return text


Comment = Annotated[str, Field(max_length=MAX_COMMENT_LENGTH), AfterValidator(_without_nul)]
ActId = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_without_nul)]

_MAX_FIELDS = 20


def _with_few_names(value: Any) -> Any:
    """Limit the fields before other checks: each unknown one is an error; 10,000 take seconds."""
    if isinstance(value, dict) and len(value) > _MAX_FIELDS:
        raise ValueError(f"has {len(value):,} fields; the limit is {_MAX_FIELDS}")
    return value


Side = Literal["a", "b"]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH), AfterValidator(_without_nul)]


class ActBody(BaseModel):
    """An act of an annotator, with an id that the client creates."""

    model_config = ConfigDict(extra="forbid")
    id: UUID

    def fields(self) -> dict[str, Any]:
        """The checked body as arguments of `storage.labeling.judgments`."""
        return self.model_dump(mode="json")

    @model_validator(mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        return _with_few_names(value)


def _not_a_truth_value(value: Any) -> Any:
    # True equals 1, and pydantic's Literal would take it for 1.
    if isinstance(value, bool):
        raise ValueError("must be 1 (slightly), 2 (clearly) or 3 (much), not true or false")
    return value


Strength = Annotated[Literal[1, 2, 3], BeforeValidator(_not_a_truth_value)]
Place = Annotated[int, Field(ge=0, strict=True)]


class MarkBody(BaseModel):
    """A marked passage and its place: in the response, or in the text of its `html`."""

    model_config = ConfigDict(extra="forbid")
    reason: Tag
    quote: Annotated[str, Field(max_length=MAX_QUOTE_LENGTH), AfterValidator(_without_nul)]
    start: Place | None = None
    end: Place | None = None
    rendered_start: Place | None = None
    rendered_end: Place | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        return _with_few_names(value)

    @model_validator(mode="after")
    def _has_one_place(self) -> MarkBody:
        places = (self.start, self.end), (self.rendered_start, self.rendered_end)
        if sum(None not in place for place in places) != 1 or (None, None) not in places:
            raise ValueError("needs either start and end, or rendered_start and rendered_end")
        return self


class JudgmentBody(ActBody):
    """``POST /label/api/judgments``."""

    comparison: str = Field(min_length=1, max_length=200)
    outcome: ScreenOutcome
    strength: Strength | None = None
    criteria: Annotated[
        dict[Criterion, Literal["a", "b", "tie"]],
        BeforeValidator(_with_few_names),
    ] = {}
    reasons: Annotated[
        dict[Side, Annotated[list[Tag], Field(max_length=MAX_TAGS)]],
        BeforeValidator(_with_few_names),
    ] = {}
    safety: Annotated[dict[Side, SafetyLabel], BeforeValidator(_with_few_names)] = {}
    marks: Annotated[
        dict[Side, Annotated[list[MarkBody], Field(max_length=MAX_MARKS)]],
        BeforeValidator(_with_few_names),
    ] = {}
    comment: Comment = ""
    edit: Annotated[str, Field(max_length=MAX_EDIT_LENGTH), AfterValidator(_without_nul)] = ""
    milliseconds: int | None = Field(default=None, ge=0, le=MAX_VIEW_MS, strict=True)
    guidelines: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    replaces: UUID | None = None


class SkipBody(ActBody):
    """``POST /label/api/skip``."""

    comparison: str = Field(min_length=1, max_length=200)


class FlagBody(SkipBody):
    """``POST /label/api/flag``."""

    comment: Comment = ""


class ReleaseBody(BaseModel):
    """``POST /label/api/release``; the pairs that a page which closes does not need."""

    model_config = ConfigDict(extra="forbid")
    comparisons: list[Annotated[str, Field(max_length=200)]] = Field(max_length=queue.MAX_LEASES)


class AnswersReadBody(BaseModel):
    """``POST /label/api/flag-answers/read``."""

    model_config = ConfigDict(extra="forbid")
    answers: list[ActId] = Field(max_length=flag_answers.LISTED)


class TurnBody(BaseModel):
    """``POST /label/api/live/turns``; without `conversation` a new one begins."""

    model_config = ConfigDict(extra="forbid")
    text: Annotated[str, Field(max_length=MAX_MESSAGE_LENGTH), AfterValidator(_without_nul)]
    conversation: str | None = Field(default=None, min_length=1, max_length=100)


class LanguageBody(BaseModel):
    """``POST /label/api/language``."""

    model_config = ConfigDict(extra="forbid")
    language: Language


class UndoBody(ActBody):
    """``POST /label/api/undo``; `replaces` is the id of the act to take back."""

    replaces: UUID | None = None


# async, because FastAPI would run a plain function in a thread
async def _current_annotator(
    request: Request, x_kitestring_annotator: Annotated[str | None, Header()] = None
) -> Annotator:
    identity: Identity | None = request.state.identity
    if identity is None:
        raise HTTPException(401, SIGN_IN_FIRST)
    # In a shared browser, another person may have signed in since the page was opened.
    if x_kitestring_annotator not in (None, identity.annotator.id):
        raise HTTPException(403, SOMEONE_ELSE)
    return identity.annotator


CurrentAnnotator = Annotated[Annotator, Depends(_current_annotator)]
Offset = Annotated[int, Query(ge=-840, le=840)]
"""Minutes that the annotator's clock is ahead of UTC; 14 hours is the largest offset."""
Search = Annotated[str, Query(max_length=200), AfterValidator(_without_nul)]


def label_routes(db: Database, generation: Generation | None = None) -> APIRouter:
    """The routes under ``/label/api``.  FastAPI runs the plain functions in threads."""
    routes, session = APIRouter(prefix="/label/api", responses=REFUSALS), LabelSession(db)
    _add_act_routes(routes, db, session)
    _add_reading_routes(routes, db, session)
    _add_answer_routes(routes, db)
    _add_language_routes(routes, db)
    _add_live_routes(routes, LiveSession(db, generation))

    @routes.get("/next", **described(NextResponse))
    def next_pairs(
        annotator: CurrentAnnotator,
        n: int = 4,
        holding: Annotated[list[str] | None, Query()] = None,
    ) -> JSONResponse:
        """Lease pairs to judge."""
        held = [id for part in holding or [] for id in part.split(",") if id]
        found = session.lease(annotator, n, held)
        none = {"waiting_for": None, "with_others": None}
        if not found.pairs:
            none = {
                "waiting_for": session.waiting_for(),
                "with_others": session.with_others(annotator),
            }
        # Encoded here, in the thread: FastAPI would copy every text again in the event loop.
        return JSONResponse(asdict(found) | none)

    @routes.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(document(routes))

    return routes


def _add_act_routes(routes: APIRouter, db: Database, session: LabelSession) -> None:
    """The annotator's acts; each answer comes after the commit."""

    @routes.post("/judgments", **described(JudgedResponse))
    async def judge(body: JudgmentBody, annotator: CurrentAnnotator) -> JSONResponse:
        """Store a judgment, or revise one."""
        # Answers only after the commit, because "Saved" on the screen must be true.  It does not
        # block a thread, because a group of writes may be larger than the number of threads.
        fields = body.fields()
        if fields["marks"]:
            fields["marks"] = await asyncio.to_thread(session.marks, annotator, **fields)
        operation = session.judgment_operation(annotator, **fields)
        stored, practice = await asyncio.wrap_future(db.submit(operation))
        answer = {"practice": asdict(practice)} if practice else {}
        return JSONResponse({"id": stored.id, "saved": True} | answer)

    @routes.post("/skip", **described(SavedResponse))
    def skip(body: SkipBody, annotator: CurrentAnnotator) -> dict[str, Any]:
        """Leave a pair to others."""
        stored = judgments.skip(db, annotator=annotator.id, **body.fields())
        return {"id": stored.id, "saved": True}

    @routes.post("/flag", **described(SavedResponse))
    def flag(body: FlagBody, annotator: CurrentAnnotator) -> dict[str, Any]:
        """Take a pair out of all queues until a researcher clears the flag."""
        stored = judgments.flag(db, annotator=annotator.id, **body.fields())
        return {"id": stored.id, "saved": True}

    @routes.post("/release", **described(ReleasedResponse))
    def release(body: ReleaseBody, annotator: CurrentAnnotator) -> dict[str, Any]:
        """Give pairs back for others."""
        return {"released": queue.release(db, annotator.id, body.comparisons)}

    @routes.post("/undo", **described(UndoneResponse))
    def undo(body: UndoBody, annotator: CurrentAnnotator) -> dict[str, Any]:
        """Take back the latest act, or the one in `replaces`."""
        undone = session.undo(annotator, **body.fields())
        return {"id": str(body.id), "saved": True, "undone": asdict(undone)}


def _add_reading_routes(routes: APIRouter, db: Database, session: LabelSession) -> None:
    """What an annotator may read besides pairs."""

    @routes.get("/progress", **described(ProgressResponse))
    def progress(annotator: CurrentAnnotator, offset: Offset = 0) -> dict[str, Any]:
        """The annotator's progress and the form in which preferences are stated."""
        person = {
            "id": annotator.id,
            "name": annotator.name,
            "role": annotator.role,
            "password": annotator.password_hash is not None,
            "language": annotators.language(db, annotator.id),
        }
        return {"annotator": person, **session.progress(annotator, offset=offset)}

    @routes.get("/figures", **described(OwnFigures))
    def figures(annotator: CurrentAnnotator, offset: Offset = 0) -> dict[str, Any]:
        """The annotator's own figures."""
        return asdict(session.figures(annotator, offset=offset))

    @routes.get("/judgments", **described(JudgmentsResponse))
    def judgments_given(
        annotator: CurrentAnnotator, search: Search = "", before: ActId | None = None
    ) -> dict[str, Any]:
        """The annotator's current judgments, the newest first."""
        found, more = session.judgments(annotator, search=search, before=before)
        return {"judgments": [asdict(each) for each in found], "more": more}

    @routes.get("/judgments/{id}", **described(GivenJudgment))
    def judgment_given(annotator: CurrentAnnotator, id: ActId) -> dict[str, Any]:
        """One of the annotator's current judgments, with its pair."""
        return asdict(session.judgment(annotator, id))

    @routes.get("/follow-ups", **described(ShownFollowUps))
    def follow_ups(
        annotator: CurrentAnnotator, iteration: Annotated[int | None, Query(ge=1)] = None
    ) -> JSONResponse:
        """A new policy's answers to prompts that the annotator judged, with their judgments."""
        return JSONResponse(asdict(session.follow_ups(annotator, iteration)))

    @routes.get("/guidelines", **described(GuidelinesResponse))
    def guidelines(
        annotator: CurrentAnnotator,  # noqa: ARG001 (asks for a signed-in person)
        language: Language = "en",
    ) -> dict[str, str]:
        """The guidelines for annotators."""
        return session.guidelines(language)


def _add_answer_routes(routes: APIRouter, db: Database) -> None:
    """Answers of researchers to the annotator's flags."""

    @routes.get("/flag-answers", **described(FlagAnswersResponse))
    def answers(annotator: CurrentAnnotator) -> dict[str, Any]:
        """Answers to the annotator's flags, the newest first."""
        return {"answers": [asdict(each) for each in flag_answers.own_answers(db, annotator.id)]}

    @routes.post("/flag-answers/read", **described(AnswersReadResponse))
    def answers_read(body: AnswersReadBody, annotator: CurrentAnnotator) -> dict[str, int]:
        """Note that the annotator has read these answers."""
        return {"read": flag_answers.mark_read(db, annotator.id, body.answers)}


def _add_language_routes(routes: APIRouter, db: Database) -> None:
    """The language of the annotator's page."""

    @routes.post("/language", **described(LanguageResponse))
    def choose_language(body: LanguageBody, annotator: CurrentAnnotator) -> JSONResponse:
        """Show the pages in another language from now on, in every browser of the annotator."""
        annotators.set_language(db, annotator.id, body.language)
        response = JSONResponse({"language": body.language})
        keep_language(response, body.language)
        return response

    @routes.get("/texts/{language}", **described(dict[str, Any]))
    async def texts(language: str) -> JSONResponse:
        """The translations of the page's English texts into a language."""
        if language not in LANGUAGES:
            raise NotFound(f"There are no texts in {language!r}; there are {', '.join(LANGUAGES)}.")
        return JSONResponse(dict(catalog(language)))


def _add_live_routes(routes: APIRouter, session: LiveSession) -> None:
    """Live conversations.  A turn is judged, skipped and flagged as every other pair."""

    @routes.get("/live", **described(LiveState))
    def live(annotator: CurrentAnnotator) -> JSONResponse:
        """Whether live conversations are possible, and the annotator's newest one."""
        return JSONResponse(asdict(session.state(annotator)))

    @routes.post("/live/prepare", **described(ReadyResponse))
    async def prepare(annotator: CurrentAnnotator) -> dict[str, bool]:  # noqa: ARG001 (asks for a signed-in person)
        """Load the models; responds when the first reply would come at once."""
        await session.prepare()
        return {"ready": True}

    @routes.post("/live/turns", **LIVE_EVENTS)
    async def turn(body: TurnBody, annotator: CurrentAnnotator) -> StreamingResponse:
        """Send a message and get two replies, as lines of JSON; a closed connection cancels both."""
        begun = await asyncio.to_thread(session.begin, annotator, body.text, body.conversation)

        async def lines() -> AsyncGenerator[str]:
            async with aclosing(session.replies(begun)) as events:
                async for event in events:
                    yield json.dumps(event, ensure_ascii=False) + "\n"

        # Without the header, nginx holds the reply back until it is complete.
        return StreamingResponse(lines(), media_type=LINES, headers={"X-Accel-Buffering": "no"})


def explain_errors(app: FastAPI) -> None:
    """Answer every refused request with ``{"error": "a sentence"}``, for wrong settings with a
    sentence for each in ``fields``.

    After most 4xx, the same request will fail again; after 401, 408 and 429 it can succeed later.
    After a 5xx, the client should retry later; after a 503, nothing was stored.
    """

    def answer(status: int) -> Any:
        def handler(request: Request, error: Exception) -> JSONResponse:
            if status != 503:
                later = {"Retry-After": "5"} if status == 429 else None
                wrong = {"fields": error.problems} if isinstance(error, InvalidSettings) else {}
                return JSONResponse({"error": _sentence(error), **wrong}, status, later)
            _LOG.error("A request was refused: %s", error)
            sentence = str(error) if _is_researcher(request) else NOT_STORED
            return JSONResponse({"error": sentence}, status, {"Retry-After": "5"})

        return handler

    for kind, status in {
        ValueError: 422,
        Conflict: 409,
        NotLeased: 409,
        NotFound: 404,
        GenerationRefused: 409,
        GenerationBusy: 429,
        StorageUnavailable: 503,
        RequestValidationError: 422,
    }.items():
        app.add_exception_handler(kind, answer(status))

    def http_error(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, StarletteHTTPException)
        if error.detail == _UNREADABLE:
            return JSONResponse({"error": NOT_JSON}, 422)
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    app.add_exception_handler(StarletteHTTPException, http_error)


NOT_JSON = "The request body is not JSON."
NOT_AN_OBJECT = "The request body must be a JSON object, sent with Content-Type: application/json."
_NO_OBJECT = ("model_attributes_type", "model_type", "dict_type", "missing")
"""Pydantic's types of errors for a body of another kind, or without one."""
_UNREADABLE = "There was an error parsing the body"
"""FastAPI's message for a body that is not UTF-8 or is nested too deeply."""


NOT_STORED = "The server cannot save right now. No saved label is lost. Tell the researcher"
"""The message to annotators if a write fails.  Only researchers may see file names."""


def _is_researcher(request: Request) -> bool:
    identity: Identity | None = getattr(request.state, "identity", None)
    return identity is not None and identity.annotator.role == "researcher"


def _sentence(error: Exception) -> str:
    if not isinstance(error, RequestValidationError):
        return str(error)
    if any(problem["type"] == "json_invalid" for problem in error.errors()):
        return NOT_JSON
    if any(
        problem["loc"] == ("body",) and problem["type"] in _NO_OBJECT for problem in error.errors()
    ):
        return NOT_AN_OBJECT
    return " ".join(map(_about_field, error.errors()))


def _about_field(problem: Mapping[str, Any]) -> str:
    """The field and the message of one pydantic error."""
    field = ".".join(str(part) for part in problem["loc"][1:] if part != "[key]") or "The body"
    return f"{field}: {problem['msg'].removeprefix('Value error, ')}."
