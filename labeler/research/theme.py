"""The theme of the site: adds ``theme.js`` to the page, where it runs before the first paint.

Gradio adds the scripts of its `head` only after its own start, when a page has been shown already.
"""

from __future__ import annotations

from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEAD = b"<head>"
_SCRIPT = (Path(__file__).parent / "theme.js").read_text(encoding="utf-8")
_ADDED = _HEAD + f"<script>{_SCRIPT}</script>".encode()


class ThemeScript:
    """ASGI middleware inside Gradio's compression: puts the script first into each HTML document."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        body = b""

        async def adding(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_html(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    whole = body.replace(_HEAD, _ADDED, 1)
                    await send({**start, "headers": _with_length(start, len(whole))})
                    await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, adding if scope["type"] == "http" else send)


def _is_html(start: Message) -> bool:
    return dict(start["headers"]).get(b"content-type", b"").startswith(b"text/html")


def _with_length(start: Message, length: int) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in start["headers"] if name != b"content-length"]
    return [*kept, (b"content-length", str(length).encode())]
