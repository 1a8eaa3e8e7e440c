"""The playground's HTTP interface (docs/http.md); the access check allows only researchers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from labeler.ports import Generation
from labeler.research.models.playground.session import MAX_MODELS, MAX_TURNS, Ask, Playground
from storage.engine.database import Database
from storage.labeling.live import MAX_MESSAGE_LENGTH
from storage.records import Message

LINES = "application/x-ndjson"
ModelId = Annotated[str, Field(min_length=1, max_length=200)]


class Turn(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_MESSAGE_LENGTH)]


class ModelsBody(BaseModel):
    """``POST /research/api/playground/prepare``."""

    model_config = ConfigDict(extra="forbid")
    models: list[ModelId] = Field(min_length=1, max_length=MAX_MODELS)


class AskBody(ModelsBody):
    """``POST /research/api/playground/replies``."""

    messages: list[Turn] = Field(min_length=1, max_length=MAX_TURNS)
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None

    def ask(self) -> Ask:
        """What is asked; ValueError if it cannot be."""
        messages = tuple(Message(turn.role, turn.content) for turn in self.messages)
        fields = self.model_dump(exclude={"messages", "models"})
        return Ask(messages=messages, models=tuple(self.models), **fields)


class PairBody(BaseModel):
    """``POST /research/api/playground/pairs``; the ids of two finished replies."""

    model_config = ConfigDict(extra="forbid")
    replies: list[Annotated[str, Field(max_length=100)]] = Field(min_length=2, max_length=2)


def playground_routes(db: Database, generation: Generation | None) -> APIRouter:
    """The routes under ``/research/api/playground``.  FastAPI runs the plain functions in threads."""
    routes, playground = APIRouter(prefix="/research/api/playground"), Playground(db, generation)

    @routes.get("")
    def state() -> JSONResponse:
        return JSONResponse(asdict(playground.state()))

    @routes.post("/prepare")
    async def prepare(body: ModelsBody) -> dict[str, bool]:
        await playground.prepare(body.models)
        return {"ready": True}

    @routes.post("/replies")
    async def replies(body: AskBody, request: Request) -> StreamingResponse:
        ask, person = body.ask(), request.state.identity.annotator.id
        await asyncio.to_thread(playground.check, ask)

        async def lines() -> AsyncGenerator[str]:
            async with aclosing(playground.replies(ask, person=person)) as events:
                async for event in events:
                    yield json.dumps(event, ensure_ascii=False) + "\n"

        # Without the header, nginx holds the reply back until it is complete.
        return StreamingResponse(lines(), media_type=LINES, headers={"X-Accel-Buffering": "no"})

    @routes.post("/pairs")
    def pairs(body: PairBody) -> dict[str, object]:
        sent = playground.send(body.replies)
        return {"id": sent.comparison.id, "new": sent.is_new, "learned_from": sent.learned_from}

    return routes
