"""Open event streams: each belongs to a user and ends when the user is signed out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labeler.security.auth import Auth

MAX_STREAMS = 32
"""Open streams per user; a page has two."""
CLOSING = 5.0
"""Seconds to wait, at most, for a page to read that Gradio has closed its stream of results."""
_CLOSE = b'"msg":"close_stream"'
_EVENTS = "text/event-stream"
"""What pages accept, and other clients do not name."""


@dataclass(eq=False)
class _Stream:
    """An open stream: its user, the request's headers, and the task that answers."""

    annotator: str
    role: str
    headers: Headers
    task: asyncio.Task[None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    ended: bool = False

    def end(self) -> None:
        self.ended = True
        self.task.cancel()


class _Closing:
    """The end of a page's stream, which is held until the page has read of it.

    Gradio closes a page's stream when no call is pending.  If the page is told that its next call was
    accepted before it has read that, it awaits the result on the closed stream: until another call
    opens a new stream, or forever if that other call awaits its turn.  A page that reads of the end
    drops the connection.
    """

    def __init__(
        self, closing: dict[object, asyncio.Event], scope: Scope, receive: Receive
    ) -> None:
        self._closing, self._receive = closing, receive
        self._session = parse_qs(scope.get("query_string", b"").decode("latin-1")).get(
            "session_hash", [None]
        )[-1]
        # Other clients read to the end.
        self._is_page = _EVENTS in Headers(scope=scope).get("accept", "")
        self._read: asyncio.Event | None = None

    async def before(self, message: Message) -> None:
        """Note the message that closes the stream; wait before the last one."""
        if self._is_page and _CLOSE in message.get("body", b""):
            self._read = self._closing[self._session] = asyncio.Event()
        elif self._read and not message.get("more_body"):
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    while (await self._receive())["type"] != "http.disconnect":
                        pass

    def end(self) -> None:
        """The page knows, or will not read it."""
        if self._read:
            self._read.set()
            if self._closing.get(self._session) is self._read:
                del self._closing[self._session]


class Streams:
    """All open streams."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        self._open: dict[_Stream, None] = {}
        self._closing: dict[object, asyncio.Event] = {}  # by session: its page has read the end
        auth.when_accounts_change(self._recheck)

    async def serve(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, annotator: str, role: str
    ) -> None:
        """Run `app` until it has answered, or the user is signed out or gets another role."""
        started = finished = False
        closing = _Closing(self._closing, scope, receive)

        async def tracked_send(message: Message) -> None:
            nonlocal started, finished
            started = True
            await closing.before(message)
            await send(message)
            finished = message["type"] == "http.response.body" and not message.get("more_body")

        async def finish() -> None:
            if not finished:  # the cancelled response may have ended itself
                await send({"type": "http.response.body", "body": b""})

        task = asyncio.ensure_future(app(scope, receive, tracked_send))
        stream = _Stream(annotator, role, Headers(scope=scope), task)  # type: ignore[arg-type]
        self._make_room(annotator)
        self._open[stream] = None
        try:
            await task
        except Exception as error:
            if not (started and _is_refusal(error)):
                raise
            await finish()
        except asyncio.CancelledError:
            if not stream.ended:  # the server is stopping
                raise
            if not started:
                await send({"type": "http.response.start", "status": 401, "headers": []})
            await finish()
        finally:
            del self._open[stream]
            closing.end()

    async def wait_until_read(self, session: object) -> None:
        """Wait until the session's page has read that its stream is closed, if Gradio closed it."""
        if session in self._closing:
            await self._closing[session].wait()

    def _make_room(self, annotator: str) -> None:
        own = [stream for stream in self._open if stream.annotator == annotator]
        if len(own) >= MAX_STREAMS:
            own[0].end()

    def _recheck(self) -> None:
        """End the streams of users who were signed out or have another role.  Call it in a thread:
        it queries the database."""
        for stream in list(self._open):
            found = self._auth.identify(stream.headers)
            who = (found.annotator.id, found.annotator.role) if found else None
            if who != (stream.annotator, stream.role):
                stream.loop.call_soon_threadsafe(stream.end)


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the error only repeats the stream's own message, such as an unknown Gradio session.

    Gradio raises HTTPException within a stream, which Starlette can no longer answer and reports as
    an error.
    """
    return isinstance(error, HTTPException) or (
        isinstance(error, RuntimeError) and isinstance(error.__cause__, HTTPException)
    )
