"""Query parameters that Gradio's pages must not see, because Gradio takes them for its own."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send

TAKEN = ("page",)
"""Gradio answers 500 to a `page` that its blocks do not have."""


class WithoutTakenQueries:
    """ASGI middleware: requests reach Gradio without the parameters in `TAKEN`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope.get("query_string", b"")
        if scope["type"] == "http" and any(name.encode() in query for name in TAKEN):
            scope = {**scope, "query_string": _without_taken(query)}
        await self._app(scope, receive, send)


def _without_taken(query: bytes) -> bytes:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    kept = [(name, value) for name, value in pairs if name not in TAKEN]
    return query if len(kept) == len(pairs) else urlencode(kept, encoding="latin-1").encode()
