"""The documents that Gradio serves: what is put into them, and how they and its assets are sent.

Gradio compresses only paths with an extension, so not its largest file, the document, and lets the
browser keep nothing.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Edit = Callable[[Scope, bytes], Awaitable[bytes]]
"""Takes a request's scope and a document; returns the changed document."""

IMMUTABLE = "private, max-age=31536000, immutable"
"""For Gradio's assets: their names contain the hash of their content."""

_COMPRESSION = 4


class Documents:
    """ASGI middleware inside Gradio's application: makes the `edits` in each HTML document."""

    def __init__(self, app: ASGIApp, *, edits: Sequence[Edit]) -> None:
        self._app = app
        self._edits = edits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"].removeprefix(scope["root_path"]).startswith("/assets/"):
            await self._app(scope, receive, _immutable(send))
        else:
            await self._document(scope, receive, send)

    async def _document(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        body = b""

        async def edited(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_html(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    for edit in self._edits:
                        body = await edit(scope, body)
                    await _send(scope, start, body, send)

        await self._app(scope, receive, edited)


async def _send(scope: Scope, start: Message, body: bytes, send: Send) -> None:
    headers = MutableHeaders(raw=list(start["headers"]))
    headers.add_vary_header("Accept-Encoding")
    if "gzip" in Headers(scope=scope).get("accept-encoding", ""):
        body = gzip.compress(body, _COMPRESSION)
        headers["content-encoding"] = "gzip"
    headers["content-length"] = str(len(body))
    await send({**start, "headers": headers.raw})
    await send({"type": "http.response.body", "body": body})


def _is_html(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("text/html")


def _immutable(send: Send) -> Send:
    async def kept(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            headers = MutableHeaders(raw=list(message["headers"]))
            headers["cache-control"] = IMMUTABLE
            message = {**message, "headers": headers.raw}
        await send(message)

    return kept
