"""The HTTP interface of the generation service, compatible with OpenAI's chat completions.

Only the web process connects: the service listens on a Unix socket in a directory that only its
owner can open.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pipeline.models.hub import ModelUnavailable
from pipeline.models.text import TooLong
from pipeline.sampling.best_of_n import BestOfN
from pipeline.serving.best_of_n import BestReply
from pipeline.serving.engine import Engine, Piece, QueueFull, Reply
from pipeline.serving.measures import measured
from pipeline.serving.models import Models, UnknownModel, prompt_ids
from storage.generation_records import MeasureRequest, ReplyEnd, ReplyRequest
from storage.records import Message

MAX_MEASURED = 8_192
"""Tokens of a reply that is measured."""

STATUS: dict[type[Exception], int] = {
    UnknownModel: 404,
    QueueFull: 429,
    ModelUnavailable: 503,
    TooLong: 400,
    ValueError: 400,
}


class Turn(BaseModel):
    """One message of a conversation; only text."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: str


class StreamOptions(BaseModel):
    """What a stream contains besides the reply."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class ChatBody(BaseModel):
    """``POST /v1/chat/completions``; an option that the service does not have is an error."""

    model_config = ConfigDict(extra="forbid")
    model: str
    messages: list[Turn] = Field(min_length=1)
    max_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False

    def request(self) -> ReplyRequest:
        """The reply that is asked for; without a seed, another one each time."""
        return ReplyRequest(
            model=self.model,
            messages=tuple(Message(turn.role, turn.content) for turn in self.messages),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=uuid.uuid4().int % 2**63 if self.seed is None else self.seed,
            token_ids=self.return_token_ids,
        )


class MeasureBody(BaseModel):
    """``POST /v1/measure``: the rewards and the tokens of a reply of `model`."""

    model_config = ConfigDict(extra="forbid")
    model: str
    messages: list[Turn] = Field(min_length=1)
    token_ids: list[int] = Field(min_length=1, max_length=MAX_MEASURED)
    temperature: float = Field(default=1.0, ge=0)
    reference: str | None = None
    reward: str | None = None

    def request(self) -> MeasureRequest:
        """The reply to measure."""
        return MeasureRequest(
            model=self.model,
            messages=tuple(Message(turn.role, turn.content) for turn in self.messages),
            ids=tuple(self.token_ids),
            temperature=self.temperature,
            reference=self.reference,
            reward=self.reward,
        )


def service(models: Models, engine: Engine) -> Starlette:
    """The application; `engine` decodes the replies of `models`."""

    async def chat(request: Request) -> Response:
        body = ChatBody.model_validate_json(await request.body())
        asked = body.request()
        pieces = await _Pieces(engine).start(models, asked)
        if body.stream:
            events = _events(asked.model, pieces, usage=body.stream_options.include_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(await _whole(asked.model, pieces))

    one_at_a_time = asyncio.Semaphore(1)  # a long reply takes as much memory as a batch

    async def measuring(request: Request) -> Response:
        asked = MeasureBody.model_validate_json(await request.body()).request()
        async with one_at_a_time:
            found = await asyncio.to_thread(measured, models, asked)
        return JSONResponse(asdict(found))

    async def listing(_request: Request) -> Response:
        data = [{"id": id, "object": "model", "owned_by": "kitestring"} for id in models.ids()]
        return JSONResponse({"object": "list", "data": data})

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok", "replies": engine.replies})

    async def refuse(_request: Request, error: Exception) -> Response:
        status = next(code for kind, code in STATUS.items() if isinstance(error, kind))
        return JSONResponse({"error": {"message": _sentence(error), "code": status}}, status)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/measure", measuring, methods=["POST"]),
            Route("/v1/models", listing),
            Route("/health", health),
        ],
        exception_handlers=dict.fromkeys(STATUS, refuse),
    )


class _Pieces:
    """The pieces of a started reply; `cancel` it when nobody reads them any more."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece] = asyncio.Queue()
        self._reply: Reply | None = None

    async def start(self, models: Models, asked: ReplyRequest) -> Self:
        """Load the model if needed, and queue the reply."""

        def prepared() -> Reply:
            sampler = models.sampler(asked.model)
            prompt = prompt_ids(sampler, asked)
            if isinstance(sampler, BestOfN):
                return BestReply(sampler, prompt, asked, self._emit)
            return Reply(sampler, prompt, asked, self._emit)

        self._reply = await asyncio.to_thread(prepared)
        self._engine.start(self._reply)
        return self

    def _emit(self, piece: Piece) -> None:  # called in the decoding thread
        self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while True:
            piece = await self._queue.get()
            yield piece
            if not isinstance(piece, str):
                return

    def cancel(self) -> None:
        """Stop decoding; does nothing after the end."""
        if self._reply is not None:
            self._engine.cancel(self._reply)


async def _events(model: str, pieces: _Pieces, *, usage: bool) -> AsyncIterator[str]:
    """The server-sent events of a streamed reply."""
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def event(delta: dict[str, str], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _sse(head | {"choices": [choice]})

    try:
        yield event({"role": "assistant", "content": ""})
        async for piece in pieces:
            if isinstance(piece, str):
                yield event({"content": piece})
            elif isinstance(piece, ReplyEnd):
                yield event({}, piece.finish_reason)
                if usage:
                    ids = {"token_ids": piece.ids} if piece.ids else {}
                    usage_of = {"usage": {"completion_tokens": piece.tokens}}
                    yield _sse(head | {"choices": []} | usage_of | ids)
                yield "data: [DONE]\n\n"
            else:
                yield _sse({"error": {"message": _sentence(piece), "code": 500}})
    finally:  # the client may have disconnected
        pieces.cancel()


async def _whole(model: str, pieces: _Pieces) -> dict[str, Any]:
    text, end = "", None
    async for piece in pieces:
        if isinstance(piece, Exception):
            raise ValueError(_sentence(piece)) from piece
        if isinstance(piece, str):
            text += piece
        else:
            end = piece
    assert end is not None  # a reply without an end has an error
    message = {"role": "assistant", "content": text}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": end.finish_reason}],
        "usage": {"completion_tokens": end.tokens},
    }


def _sse(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _sentence(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return " ".join(
            f"{'.'.join(map(str, each['loc'])) or 'The body'}: {each['msg']}."
            for each in error.errors()
        )
    return str(error) or type(error).__name__
