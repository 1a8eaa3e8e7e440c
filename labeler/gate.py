"""The one gate in front of everything, by path prefix.

It stands before both Gradio mounts, because nothing inside Gradio keeps one role from the other's
functions: handlers answer to their index whatever is hidden, the file cache is shared between
mounts, uploads work on pages without an upload component and some routes ask nobody.  So the gate
lists what may pass and refuses the rest, unknown routes of a future Gradio included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labeler.auth import Auth, Identity

Access = Literal["public", "signed-in", "researcher", "admin"]

LARGEST_BODY = 1_000_000
"""Bytes of a request's body; more than any route of ours needs."""

# What the browser needs to show a Gradio page; no functions, no files.
_PAGE = r"|config|theme\.css|robots\.txt|favicon\.ico|manifest\.json|(assets|static|svelte)/.+"
_PAGE_API = r"gradio_api/(startup-events|app_id|heartbeat/\w+|info)/?"
# Calling functions.  Deliberately absent: file=, file/, upload, proxy=, stream, component_server,
# process_recording, vibe-*, run-history, deep_link, dev, monitoring, custom_component.
_FUNCTIONS_GET = r"gradio_api/(queue/(data|status)|call/[\w-]+/\w+)/?"
_FUNCTIONS_POST = r"gradio_api/(queue/join|cancel|reset|(run|api|call|call/v2)/[\w-]+)/?"

CONTENT_POLICY = "; ".join(
    [
        "default-src 'self'",
        # Gradio compiles templates in the browser; the model's text is never markup (rendering.py).
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)


@dataclass(frozen=True)
class Rule:
    """`path` (a full match) may be reached with these methods by whoever has `access`."""

    access: Access
    methods: frozenset[str]
    path: re.Pattern[str]


def _rule(access: Access, methods: str, path: str) -> Rule:
    return Rule(access, frozenset(methods.split()), re.compile(path))


def rules(research_pages: Iterable[str] = ()) -> list[Rule]:
    """All that may pass.  `research_pages` are the further pages of the research Blocks."""
    pages = "".join(f"|{re.escape(page)}/?" for page in research_pages)
    return [
        _rule("public", "GET HEAD", r"/|/healthz|/favicon\.ico|/static/[\w.-]+"),
        _rule("public", "GET HEAD POST", r"/sign-in|/invite"),
        _rule("public", "POST", r"/sign-out"),
        _rule("admin", "POST", r"/admin/api/call"),
        _rule("signed-in", "GET HEAD", rf"/label(/({_PAGE}|{_PAGE_API}))?"),
        _rule("signed-in", "GET", r"/label/api/(next|progress|figures|guidelines)"),
        _rule("signed-in", "POST", r"/label/api/(judgments|skip|flag|undo)"),
        _rule("researcher", "GET HEAD", rf"/research(/({_PAGE}{pages}|{_PAGE_API}))?"),
        _rule("researcher", "GET", rf"/research/({_FUNCTIONS_GET}|download/[\w-]+)"),
        _rule("researcher", "POST", rf"/research/{_FUNCTIONS_POST}"),
    ]


class Gate:
    """ASGI middleware.  What passes finds the person in ``scope["state"]["identity"]``.

    `sign_in_page` makes the page for a browser that is not signed in, given where it wanted to go;
    `refusal_page` the one for somebody without the right, given the reason.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Auth,
        rules: list[Rule],
        sign_in_page: Callable[[str], str],
        refusal_page: Callable[[str], str],
    ) -> None:
        self.app = app
        self.auth = auth
        self.rules = rules
        self.sign_in_page = sign_in_page
        self.refusal_page = refusal_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # nothing of ours speaks WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return
        send = partial(_send_hardened, send)
        headers = Headers(scope=scope)
        identity = self.auth.recall(headers)
        if identity is None:
            identity = await run_in_threadpool(self.auth.identify, headers)
        refusal = self._refusal(scope, headers, identity)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        scope.setdefault("state", {})["identity"] = identity
        await self.app(scope, _limited(receive), send)
        # An account may have been disabled by this; a page's handlers run while its GET of
        # queue/data is open, not during the POST that asked for them.
        if scope["path"].startswith(("/research", "/admin")):
            self.auth.forget()

    def _refusal(
        self, scope: Scope, headers: Headers, identity: Identity | None
    ) -> Response | None:
        method, path = scope["method"], scope["path"]
        # "..", "//" and "\\" have no business in any path of ours; file servers read them freely.
        devious = any(part in path for part in ("..", "//", "\\"))
        matching = [] if devious else [r for r in self.rules if r.path.fullmatch(path)]
        if int(headers.get("content-length") or 0) > LARGEST_BODY:
            return _say(413, "The request is too large.")
        who = self._access(identity)
        allowed = [rule for rule in matching if method in rule.methods and rule.access in who]
        if not allowed:
            return self._no(scope, headers, identity, matching)
        changes = method not in ("GET", "HEAD")
        by_script = allowed[0].access == "admin" or (identity is not None and identity.bearer)
        if changes and not self._origin_is_fine(headers, by_script=by_script):
            return _say(403, "This request came from another site; it was not carried out.")
        return None

    def _origin_is_fine(self, headers: Headers, *, by_script: bool) -> bool:
        if by_script and "origin" not in headers:
            return True
        return self.auth.same_origin(headers)

    @staticmethod
    def _access(identity: Identity | None) -> set[Access]:
        # The admin route checks its own token: it is a program's, not a person's.
        if identity is None:
            return {"public", "admin"}
        if identity.annotator.role == "researcher":
            return {"public", "admin", "signed-in", "researcher"}
        return {"public", "admin", "signed-in"}

    def _no(
        self, scope: Scope, headers: Headers, identity: Identity | None, matching: list[Rule]
    ) -> Response:
        """The refusal: never says more to a stranger than that he must sign in."""
        path = scope["path"]
        page = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
        guarded = path.startswith(("/label", "/research"))
        if guarded and identity is None:
            if page:
                return HTMLResponse(self.sign_in_page(path), status_code=401)
            return _say(401, "Sign in first.", {"WWW-Authenticate": "Bearer"})
        if guarded and matching and all(rule.access == "researcher" for rule in matching):
            reason = "This page is for researchers."
        elif guarded:
            reason = "This address is closed."
        elif matching:
            return _say(405, f"{scope['method']} is not possible here.")
        else:
            return _say(404, "There is no such address.")
        if page:
            return HTMLResponse(self.refusal_page(reason), status_code=403)
        return _say(403, reason)


def _say(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


def _limited(receive: Receive) -> Receive:
    """Refuse a body that is longer than it said (or did not say)."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            raise HTTPException(413, "The request is too large.")
        return message

    return limited


async def _send_hardened(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        headers = MutableHeaders(raw=message["headers"])
        # Gradio answers any Origin with credentials under a public host; no other site is invited.
        for name in [key for key in headers if key.startswith("access-control-")]:
            del headers[name]
        headers["X-Content-Type-Options"] = "nosniff"
        headers["X-Frame-Options"] = "DENY"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        # not "no-referrer": with it a browser sends "Origin: null" with our own forms
        headers["Referrer-Policy"] = "same-origin"
        headers["Content-Security-Policy"] = CONTENT_POLICY
        headers.setdefault("Cache-Control", "no-store")
    await send(message)
