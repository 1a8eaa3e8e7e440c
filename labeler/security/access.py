"""The access check before every route: `rules` lists who may call which route.

`AccessMiddleware` refuses a request in this order: an unknown Host (400), a body longer than
`_largest_body` allows (413), no sign-in (401), a missing permission (403), and a POST from another
site (403, CSRF: `_origin_allowed`). `Auth.identify` (labeler/security/auth.py) identifies the user;
routes need no checks of their own.

It is in front of both Gradio mounts, because Gradio does not separate roles: hidden functions can be
called by their index, the mounts share a file cache, pages without an upload component accept
uploads, and some routes need no sign-in. So the check is an allow-list: it refuses everything else,
including new routes of a later Gradio.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Literal

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labeler.security.addresses import Addresses
from labeler.security.auth import Auth, Identity
from labeler.security.filedata import BadCall, NotAllowed, checked_call
from labeler.security.headers import GRADIO_POLICY, STRICT_POLICY, WORKER_POLICY, Hardening
from labeler.security.readers import Reader, reader_of
from labeler.security.streams import Streams
from storage.audit_records import acting
from storage.records import AnnotatorRole

Access = Literal["public", "signed-in", "annotator", "adjudicator", "viewer", "researcher", "admin"]
Kind = Literal["plain", "page", "worker", "call", "stream"]
"""One of Kitestring's routes, a Gradio page, a service worker, a call of a Gradio function, or a
stream."""

MAX_BODY_BYTES = 1_000_000
"""Bytes of the body of a request by a researcher or the command line, except for files."""
MAX_ACT_BYTES = 100_000
"""The same for annotators and anonymous clients: a comment takes at most 60 kB, and long bodies
take time to read."""
MAX_UPLOAD_BYTES = 32_000_000
"""Bytes of a file that a researcher uploads; larger files are imported in a terminal."""
MAX_PATH_LENGTH = 255
"""Bytes; the longest file name that file systems allow."""

GRANTS: dict[AnnotatorRole, frozenset[Access]] = {
    "annotator": frozenset({"public", "signed-in", "annotator"}),
    "adjudicator": frozenset({"public", "signed-in", "annotator", "adjudicator"}),
    "viewer": frozenset({"public", "signed-in", "viewer"}),
    "researcher": frozenset(
        {"public", "signed-in", "annotator", "adjudicator", "viewer", "researcher"}
    ),
}
"""What each role may use; each rule names one of these."""

_POLICIES: dict[Kind, str] = {"page": GRADIO_POLICY, "worker": WORKER_POLICY}
_MOUNTS = ("/label", "/research")
_SIGNED_IN = (*_MOUNTS, "/adjudicate")
_ADDRESS_HEADERS = (b"x-forwarded-host", b"x-gradio-server")

# The paths that a browser needs to show a Gradio page: no functions and no files.
_PAGE = r"config|theme\.css|robots\.txt|favicon\.ico|manifest\.json|(assets|static|svelte)/.+"
_PAGE_API = r"gradio_api/(startup-events|app_id|info)/?"
_HEARTBEAT = r"gradio_api/heartbeat/\w+/?"
# Calls of functions go through the queue, as the page makes them. Deliberately absent: run, api and
# call, which are for programs, file=, file/, upload, proxy=, stream, component_server,
# process_recording, vibe-*, run-history, deep_link, dev, monitoring, custom_component.
_EVENTS = r"gradio_api/queue/data/?"
_STATUS = r"gradio_api/queue/status/?"
_WEBHOOK_ACTS = r"test|enable|disable|remove|rotate"
_FUNCTIONS_POST = r"gradio_api/(queue/join|cancel|reset)/?"


@dataclass(frozen=True)
class Rule:
    """Users with `access` may use these methods on paths that fully match `path`."""

    access: Access
    methods: frozenset[str]
    path: re.Pattern[str]
    kind: Kind = "plain"


def _rule(access: Access, methods: str, path: str, kind: Kind = "plain") -> Rule:
    return Rule(access, frozenset(methods.split()), re.compile(path), kind)


def rules(research_pages: Iterable[str] = ()) -> list[Rule]:
    """The allow-list. `research_pages` are further pages of the research Blocks."""
    pages = "".join(f"|{re.escape(page)}/?" for page in research_pages)
    reading = "GET HEAD"
    return [
        _rule("public", reading, r"/|/healthz|/favicon\.ico|/static/[\w.-]+"),
        _rule("public", "GET HEAD POST", r"/sign-in|/invite"),
        _rule("public", "POST", r"/sign-out"),
        _rule("public", "GET", r"/sign-in/oidc(/callback)?"),
        _rule("admin", "POST", r"/admin/api/call"),
        _rule("annotator", reading, r"/label/?", "page"),
        _rule("annotator", reading, rf"/label/({_PAGE}|{_PAGE_API})"),
        _rule("annotator", reading, rf"/label/{_HEARTBEAT}", "stream"),
        _rule("signed-in", "GET HEAD POST", r"/label/password"),
        _rule("adjudicator", "GET HEAD POST", r"/adjudicate"),
        _rule("annotator", reading, r"/label/worker\.js", "worker"),
        _rule("annotator", "GET", r"/label/api/(next|progress|figures|guidelines|openapi\.json)"),
        _rule("annotator", "GET", r"/label/api/texts/\w+"),
        _rule("annotator", "GET", r"/label/api/judgments(/[\w-]+)?"),
        _rule("annotator", "GET", r"/label/api/(flag-answers|follow-ups)"),
        _rule("annotator", "POST", r"/label/api/flag-answers/read"),
        _rule("annotator", "GET", r"/label/api/live"),
        _rule("annotator", "POST", r"/label/api/live/prepare"),
        _rule("annotator", "POST", r"/label/api/live/turns", "stream"),
        _rule("annotator", "POST", r"/label/api/(judgments|skip|flag|undo|release|language)"),
        _rule("viewer", reading, rf"/research(/({pages.removeprefix('|')})?)?", "page"),
        _rule("viewer", reading, rf"/research/({_PAGE}|{_PAGE_API})"),
        _rule("viewer", reading, rf"/research/{_HEARTBEAT}", "stream"),
        _rule("viewer", "GET", rf"/research/{_EVENTS}", "stream"),
        _rule("viewer", "GET", rf"/research/({_STATUS}|download/export)"),
        # Which functions a role may call is another question: `functions` of AccessMiddleware.
        _rule("viewer", "POST", rf"/research/{_FUNCTIONS_POST}", "call"),
        _rule("viewer", "GET", r"/research/api/(openapi\.json|status|settings|runs(/curves)?)"),
        _rule("viewer", "GET", r"/research/api/runs/[\w-]+(/log)?"),
        _rule("researcher", "POST", r"/research/api/runs/(?!curves$)[\w-]+"),
        _rule("viewer", "GET", r"/research/api/studies(/[^/]+(/plot)?)?"),
        _rule("researcher", "POST", r"/research/api/studies(/[^/]+/(cancel|continue))?"),
        _rule("viewer", "GET", r"/research/api/iterations/\d+(/evaluation)?"),
        _rule("viewer", "GET", r"/research/api/(gate|leaderboard|reward|lineage(/[\w-]+)?)"),
        _rule("viewer", "GET", r"/research/api/(judgments(/[\w-]+)?|prompts|flags)"),
        _rule("viewer", "GET", r"/research/api/(guidelines|form|practice)"),
        _rule("researcher", "POST", r"/research/api/(guidelines|form|practice)"),
        _rule("researcher", "POST", r"/research/api/reward/[\w-]+/curve/(start|stop)"),
        _rule("researcher", "POST", r"/research/api/loop/(train|cancel|resume|retry|label-more)"),
        _rule("viewer", "GET", r"/research/api/(config|loop/form)"),
        _rule("researcher", "POST", r"/research/api/config"),
        _rule("researcher", "POST", r"/research/api/gate/override"),
        _rule("researcher", "POST", r"/research/api/judgments/([\w-]+/)?(exclude|restore)"),
        _rule("researcher", "POST", r"/research/api/prompts(/[\w-]+)?"),
        _rule("researcher", "POST", r"/research/api/flags/[\w-]+/(answer|clear)"),
        _rule("researcher", "GET", r"/research/api/adjudication(/[\w-]+)?"),
        _rule("researcher", "POST", r"/research/api/adjudication/[\w-]+/(send|rule)"),
        _rule("researcher", "GET POST", r"/research/api/(gold|people|webhooks)"),
        _rule("researcher", "POST", r"/research/api/gold/[\w-]+/(retire|restore)"),
        _rule("researcher", "POST", r"/research/api/people/(role|disable|enable|revoke)"),
        _rule("researcher", "GET", r"/research/api/(audit|webhooks/deliveries)"),
        _rule("researcher", "POST", r"/research/api/webhooks/deliveries/[\w.-]+/resend"),
        _rule("researcher", "POST", rf"/research/api/webhooks/[\w-]+/({_WEBHOOK_ACTS})"),
        _rule("researcher", "GET", r"/research/download/[\w-]+"),
        _rule("researcher", "POST", r"/research/upload/(pairs|file)"),
        _rule("researcher", "POST", r"/research/api/imports(/[\w-]+/cancel)?"),
        _rule("researcher", "GET", r"/research/api/imports/[\w-]+"),
        _rule("researcher", "GET POST", r"/research/api/pushes"),
        _rule("researcher", "GET", r"/research/api/pushes/(plan/)?[\w-]+"),
        _rule("researcher", "POST", r"/research/api/pushes/[\w-]+/cancel"),
        _rule("researcher", "GET", r"/research/api/playground"),
        _rule("researcher", "POST", r"/research/api/playground/(prepare|pairs)"),
        _rule("researcher", "POST", r"/research/api/playground/replies", "stream"),
    ]


class AccessMiddleware:
    """ASGI middleware that stores the user in ``scope["state"]["identity"]``.

    The pages get the language and theme that `reader_of` finds in the headers.  `sign_in_page` returns the
    page for a browser that is not signed in, given the requested path first; `refusal_page` the page
    for users without access, given the reason first; `missing_page` the page for an unknown address.
    `functions` returns the indices of the functions of the research page that a role may call.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Auth,
        addresses: Addresses,
        admin_token: str,
        rules: list[Rule],
        functions: Callable[[AnnotatorRole], Container[object]],
        sign_in_page: Callable[[str, Reader], str],
        refusal_page: Callable[[str, Reader], str],
        missing_page: Callable[[Reader], str],
    ) -> None:
        self.app = app
        self.auth = auth
        self.addresses = addresses
        self.admin = f"Bearer {admin_token}".encode()
        self.rules = rules
        self.functions = functions
        self.sign_in_page = sign_in_page
        self.refusal_page = refusal_page
        self.missing_page = missing_page
        self.hardening = Hardening(secure=addresses.secure)
        self.streams = Streams(auth)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no route uses WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        passed, identity = self._malformed(headers, scope["path"]), None
        if passed is None:
            identity = self.auth.recall(headers)
            if identity is None and ("cookie" in headers or "authorization" in headers):
                identity = await run_in_threadpool(self.auth.identify, headers)
            passed = self._rule_or_refusal(scope, headers, identity)
            scope.setdefault("state", {})["identity"] = identity
        # The audit log notes what the routes change for this person.
        with acting(identity.actor if identity else None):
            await self._answer(passed, scope, receive, send)

    async def _answer(
        self, passed: Rule | Response, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if isinstance(passed, Response):
            await passed(scope, receive, self.hardening.wrap(send))
            return
        receive = _limited(receive, scope["path"])
        await self._pass(passed, scope, receive, send)

    async def _pass(self, rule: Rule, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer; the details of a bug go only to the log."""
        send = self.hardening.wrap(send, _POLICIES.get(rule.kind, STRICT_POLICY))
        identity: Identity | None = scope["state"]["identity"]
        if scope["path"].startswith(_MOUNTS):
            self._forget_other_addresses(scope)
        if rule.kind == "call":
            assert identity is not None  # no rule of this kind is public
            try:
                known, role = self.functions("researcher"), identity.annotator.role
                receive, session = await checked_call(receive, known, allowed=self.functions(role))
            except (BadCall, HTTPException) as refused:
                status = refused.status_code if isinstance(refused, HTTPException) else 422
                status = 403 if isinstance(refused, NotAllowed) else status
                await _json_error(status, _sentence(refused))(scope, receive, send)
                return
            send = self._once_closed(send, session)
        if rule.kind == "stream" and identity is not None:
            who, role = identity.annotator.id, identity.annotator.role
            await self.streams.serve(self.app, scope, receive, send, annotator=who, role=role)
            return
        started = False

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, tracked_send)
        except Exception:
            # Starlette's own answer would bypass this middleware and its headers.
            if not started:
                await _json_error(500, _DEFECT)(scope, receive, send)
            raise

    def _once_closed(self, send: Send, session: object) -> Send:
        """Answer a call when the page knows whether its stream is open."""

        async def waiting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self.streams.wait_until_read(session)
            await send(message)

        return waiting_send

    def _malformed(self, headers: Headers, path: str) -> Response | None:
        """A refusal of a request that no browser would send, or None."""
        if not self.addresses.knows(headers.get("host", "")):
            return _json_error(400, _unknown_host(headers.get("host", ""), self.addresses))
        length = headers.get("content-length")
        if length is not None:
            if "transfer-encoding" in headers:
                # A proxy may use one and the studio the other, and disagree on the end of the body.
                sentence = "A request cannot have both Content-Length and Transfer-Encoding."
                return _json_error(400, sentence, {"Connection": "close"})
            if int(length) > _largest_body(path):
                return _json_error(413, _too_large(path))
        return None

    def _forget_other_addresses(self, scope: Scope) -> None:
        """Remove headers from which Gradio takes its page's address, because any client can send
        them."""
        address_headers = [each for each in scope["headers"] if each[0] in _ADDRESS_HEADERS]
        for name, value in address_headers:
            if not self.addresses.is_public(value.decode("latin-1")):
                scope["headers"] = [each for each in scope["headers"] if each != (name, value)]

    def _rule_or_refusal(
        self, scope: Scope, headers: Headers, identity: Identity | None
    ) -> Rule | Response:
        method, path = scope["method"], scope["path"]
        # No route's path contains "..", "//" or "\\", which file servers interpret. They also fail
        # on names that are longer than any file name.
        is_traversal = any(part in path for part in ("..", "//", "\\"))
        is_traversal |= len(path.encode()) > MAX_PATH_LENGTH
        matching = [] if is_traversal else [r for r in self.rules if r.path.fullmatch(path)]
        who = self._access(identity)
        if path.startswith("/admin") and self._is_admin(headers):
            who.add("admin")
        allowed = [rule for rule in matching if method in rule.methods and rule.access in who]
        if not allowed:
            return self._refuse(scope, headers, identity, matching)
        changes = method not in ("GET", "HEAD")
        by_script = allowed[0].access == "admin" or (identity is not None and identity.bearer)
        if changes and not self._origin_allowed(headers, by_script=by_script):
            return _json_error(403, "This request came from another site, so it was refused.")
        return allowed[0]

    def _origin_allowed(self, headers: Headers, *, by_script: bool) -> bool:
        """Protect against CSRF: a browser's POST must come from a page of this site."""
        # Browsers send Origin with every POST, so a missing one is refused too.
        origin = headers.get("origin")
        if origin is None:
            return by_script
        return self.addresses.same_origin(origin, headers["host"])

    def _is_admin(self, headers: Headers) -> bool:
        """Whether a program sends the workspace's admin token, which belongs to no account."""
        return hmac.compare_digest(headers.get("authorization", "").encode(), self.admin)

    @staticmethod
    def _access(identity: Identity | None) -> set[Access]:
        return {"public"} if identity is None else set(GRANTS[identity.annotator.role])

    def _refuse(
        self, scope: Scope, headers: Headers, identity: Identity | None, matching: list[Rule]
    ) -> Response:
        """The refusal; anonymous clients learn only that they must sign in."""
        path = scope["path"]
        page = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
        reader = reader_of(headers)
        guarded = path.startswith(_SIGNED_IN)
        if guarded and identity is None:
            if page:
                # The query of the researcher's page names its tab and run.
                query = scope.get("query_string", b"").decode("ascii", "replace")
                wanted = f"{path}?{query}" if query else path
                return HTMLResponse(self.sign_in_page(wanted, reader), status_code=401)
            return _json_error(401, "Sign in first.", {"WWW-Authenticate": "Bearer"})
        if guarded and matching and identity is not None:
            reason = _who_may(matching, identity.annotator.role)
        elif guarded:
            reason = NOT_AVAILABLE
        elif matching and scope["method"] in matching[0].methods:
            return _json_error(401, "This request needs the workspace's admin token.")
        elif matching:
            return _json_error(405, f"{scope['method']} is not allowed here.")
        elif page:
            return HTMLResponse(self.missing_page(reader), status_code=404)
        else:
            return _json_error(404, "This address does not exist.")
        if page:
            return HTMLResponse(self.refusal_page(reason, reader), status_code=403)
        return _json_error(403, reason)


def _who_may(matching: list[Rule], role: AnnotatorRole) -> str:
    """Why a person with this role may not use any of these rules."""
    for reason, accesses in _REASONS:
        if all(rule.access in accesses - GRANTS[role] for rule in matching):
            return reason
    return NOT_AVAILABLE


FOR_RESEARCHERS = "This page is for researchers."
FOR_ADJUDICATORS = "This page is for adjudicators."
FOR_ANNOTATORS = "This page is for annotators."
_REASONS: tuple[tuple[str, frozenset[Access]], ...] = (
    (FOR_RESEARCHERS, frozenset({"viewer", "researcher"})),
    (FOR_ADJUDICATORS, frozenset({"adjudicator"})),
    (FOR_ANNOTATORS, frozenset({"annotator"})),
)
NOT_AVAILABLE = "This address is not available."
_DEFECT = "The server failed. Its log has the details."


def _json_error(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


def _largest_body(path: str) -> int:
    """The limit of a request's body in bytes; a longer one gets 413."""
    if path.startswith("/research/upload/"):
        return MAX_UPLOAD_BYTES
    return MAX_BODY_BYTES if path.startswith(("/research/", "/admin/")) else MAX_ACT_BYTES


def _too_large(path: str) -> str:
    if not path.startswith("/research/upload/"):
        return "The request is too large."
    return (
        f"The file is larger than {MAX_UPLOAD_BYTES / 1e6:g} MB, the limit for uploads. Split it, or "
        "import it from a terminal with `python launch.py import`."
    )


def _limited(receive: Receive, path: str) -> Receive:
    """Refuse a body that is longer than `_largest_body`, regardless of its headers."""
    received, largest = 0, _largest_body(path)

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > largest:
            raise HTTPException(413, _too_large(path))
        return message

    return limited


def _sentence(refused: HTTPException | BadCall) -> str:
    return refused.detail if isinstance(refused, HTTPException) else str(refused)


def _unknown_host(host: str, addresses: Addresses) -> str:
    known = addresses.public_url or "the address that `serve` printed"
    return (
        f"This studio does not accept the host name {host[:100]!r}. Open it at {known}, or start it "
        "with --public-url and its public address."
    )
