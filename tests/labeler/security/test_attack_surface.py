"""Who may do what: every route, every method and every role against one table, tricks included."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.routing import Mount, Route

from storage.tables.people import annotators, tokens
from tests.helpers.desk_world import (
    ADMIN_TOKEN,
    add_person,
    bearer,
    make_app,
    session_cookie,
    workspace,
)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FROB")
STRANGERS = ("stranger", "disabled", "admin's token", "invite as a cookie", "two names")
ANNOTATORS = ("annotator", "annotator's token")
ADJUDICATORS = ("adjudicator", "adjudicator's token")
VIEWERS = ("viewer", "viewer's token")
RESEARCHERS = ("researcher", "researcher's token")
LABELING = ANNOTATORS + ADJUDICATORS + RESEARCHERS
READING = VIEWERS + RESEARCHERS
ROLES = (*STRANGERS, *ANNOTATORS, *ADJUDICATORS, *VIEWERS, *RESEARCHERS)

READ, ACT = frozenset({"GET", "HEAD"}), frozenset({"POST"})
PUBLIC: dict[str, frozenset[str]] = {
    "/": READ, "/healthz": READ, "/favicon.ico": READ, "/static/0": READ,
    "/sign-in": READ | ACT, "/invite": READ | ACT, "/sign-out": ACT,
}  # fmt: skip
LABEL: dict[str, frozenset[str]] = {
    **dict.fromkeys(("/label/api/next", "/label/api/progress", "/label/api/figures"), frozenset({"GET"})),
    **dict.fromkeys(("/label/api/guidelines", "/label/api/openapi.json"), frozenset({"GET"})),
    "/label/api/flag-answers": frozenset({"GET"}), "/label/api/flag-answers/read": ACT,
    "/label/api/follow-ups": frozenset({"GET"}),
    "/label/api/live": frozenset({"GET"}),
    **dict.fromkeys(("/label/api/live/prepare", "/label/api/live/turns"), ACT),
    "/label/api/texts/0": frozenset({"GET"}), "/label/api/language": ACT,
    "/label/worker.js": READ,
    "/label/api/judgments": ACT | {"GET"}, "/label/api/judgments/0": frozenset({"GET"}),
    **dict.fromkeys(("/label/api/skip", "/label/api/flag"), ACT),
    **dict.fromkeys(("/label/api/undo", "/label/api/release"), ACT),
}  # fmt: skip
PAGE = (
    "", "/", "/config", "/theme.css", "/robots.txt", "/favicon.ico", "/manifest.json", "/assets/0",
    "/static/0", "/svelte/0", "/gradio_api/startup-events", "/gradio_api/app_id",
    "/gradio_api/app_id/", "/gradio_api/info", "/gradio_api/info/", "/gradio_api/heartbeat/0",
)  # fmt: skip
TYPED = re.compile(r"/research/(overview|runs|models|data|team)(/(?!nothing)[\w-]+)?/?")
"""Addresses that lead to pages."""
READ_BY_VIEWERS = (
    "openapi.json", "status", "settings", "runs", "runs/curves", "runs/0/log",
    "iterations/0", "iterations/0/evaluation", "gate", "leaderboard", "reward", "lineage", "lineage/0",
    "judgments", "judgments/0", "flags", "loop/form",
    "studies/0", "studies/0/plot",
)  # fmt: skip
READ_BY_RESEARCHERS = ("audit", "webhooks/deliveries", "adjudication", "adjudication/0")
READ_AND_CHANGED = (
    "runs/0", "prompts", "guidelines", "form", "practice", "config", "studies",
    "judgments/exclude", "judgments/restore",  # a GET asks for the judgment of this name
)  # fmt: skip
BOTH = ("gold", "people", "webhooks")
ACTS = (
    *(f"loop/{act}" for act in ("train", "cancel", "resume", "retry", "label-more")),
    "studies/0/cancel", "studies/0/continue",
    "gate/override", "reward/0/curve/start", "reward/0/curve/stop", "judgments/0/exclude", "judgments/0/restore", "prompts/0",

    "flags/0/answer", "flags/0/clear", "adjudication/0/send", "adjudication/0/rule",
    "gold/0/retire", "gold/0/restore", "webhooks/deliveries/0/resend",
    *(f"people/{act}" for act in ("role", "disable", "enable", "revoke")),
    *(f"webhooks/0/{act}" for act in ("test", "enable", "disable", "remove", "rotate")),
)  # fmt: skip
RESEARCH: dict[str, frozenset[str]] = {
    "/research/gradio_api/queue/data": frozenset({"GET"}),
    "/research/gradio_api/queue/status": frozenset({"GET"}),
    "/research/download/export": frozenset({"GET"}),
    "/research/download/audit": frozenset({"GET"}),
    "/research/download/evidence": frozenset({"GET"}),
    "/research/upload/pairs": ACT, "/research/upload/file": ACT,
    "/research/api/imports": ACT, "/research/api/imports/0": frozenset({"GET"}),
    "/research/api/pushes": ACT | {"GET"}, "/research/api/pushes/0/cancel": ACT,
    **dict.fromkeys(("/research/api/pushes/0", "/research/api/pushes/plan/0"), frozenset({"GET"})),
    "/research/api/imports/0/cancel": ACT, "/research/download/left-out": frozenset({"GET"}),
    **dict.fromkeys((f"/research/api/{name}" for name in READ_BY_VIEWERS), frozenset({"GET"})),
    **dict.fromkeys((f"/research/api/{name}" for name in READ_BY_RESEARCHERS), frozenset({"GET"})),
    **dict.fromkeys((f"/research/api/{name}" for name in ACTS), ACT),
    **dict.fromkeys((f"/research/api/{name}" for name in BOTH), ACT | {"GET"}),
    **dict.fromkeys((f"/research/api/{name}" for name in READ_AND_CHANGED), ACT | {"GET"}),
    "/research/api/playground": frozenset({"GET"}),
    **dict.fromkeys((f"/research/api/playground/{name}" for name in ("prepare", "replies", "pairs")), ACT),
    **dict.fromkeys(
        (f"/research/gradio_api/{call}" for call in ("queue/join", "cancel", "reset", "reset/")), ACT,
    ),
}  # fmt: skip


def allowed(role: str, path: str) -> frozenset[str]:
    """The methods that this role may use at this path: the table of permissions."""
    if path in PUBLIC:
        return PUBLIC[path]
    if path == "/admin/api/call":
        return ACT if role == "admin's token" else frozenset()
    if path == "/label/password":  # everybody's own
        return READ | ACT if role in LABELING + VIEWERS else frozenset()
    if path == "/adjudicate":
        return READ | ACT if role in ADJUDICATORS + RESEARCHERS else frozenset()
    if path in LABEL:
        return LABEL[path] if role in LABELING else frozenset()
    if path.startswith("/label") and path.removeprefix("/label") in PAGE:
        return READ if role in LABELING else frozenset()
    if path.startswith("/research") and path.removeprefix("/research") in PAGE:
        return READ if role in READING else frozenset()
    if TYPED.fullmatch(path):
        return READ if role in READING else frozenset()
    closed = ("/research/upload", "/research/download/audit", "/research/api/playground")
    closed += ("/research/api/imports", "/research/api/pushes", "/research/download/left-out")
    closed += tuple(f"/research/api/{name}" for name in (*READ_BY_RESEARCHERS, *BOTH))
    if role in VIEWERS and (path.startswith(closed) or path == "/research/download/evidence"):
        return frozenset()
    if role in VIEWERS and path.startswith("/research/api/"):
        return RESEARCH.get(path, frozenset()) & {"GET"}
    return RESEARCH.get(path, frozenset()) if role in READING else frozenset()


@dataclass(frozen=True)
class World:
    """The application, what each role sends, and all paths that anything answers at."""

    app: Any
    headers: dict[str, dict[str, str]]
    paths: list[str]
    loop: asyncio.AbstractEventLoop


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    with workspace(tmp_path_factory.mktemp("surface")) as db:
        app = make_app(db)
        ben, gone = add_person(db, "Ben"), add_person(db, "Gone", "researcher")
        ada, vic = add_person(db, "Ada", "researcher"), add_person(db, "Vic", "viewer")
        jud = add_person(db, "Jud", "adjudicator")
        headers = {
            "stranger": {},
            "disabled": session_cookie(app, db, gone) | {"x": "1"},
            "admin's token": {"authorization": f"Bearer {ADMIN_TOKEN}"},
            "invite as a cookie": {
                "cookie": f"{app.state.auth.cookie}={tokens.issue(db, ada.id, 'invite', lifetime=None)}"
            },
            # A wrong token is not rescued by a good cookie.
            "two names": session_cookie(app, db, ada) | {"authorization": "Bearer wrong"},
            "annotator": session_cookie(app, db, ben),
            "annotator's token": bearer(db, ben),
            "adjudicator": session_cookie(app, db, jud),
            "adjudicator's token": bearer(db, jud),
            "viewer": session_cookie(app, db, vic),
            "viewer's token": bearer(db, vic),
            "researcher": session_cookie(app, db, ada),
            "researcher's token": bearer(db, ada),
        }
        annotators.set_disabled(db, gone.id, disabled=True)
        with asyncio.Runner() as runner:  # Gradio's queues belong to the first loop they see
            yield World(app, headers, sorted(paths_of(app)), runner.get_loop())


def paths_of(app: Any) -> set[str]:
    """Every path that a route stands for, parameters filled in; and some that none does."""
    found = {
        "/nothing",
        "/admin",
        "/admin/api",
        "/label/api",
        "/label/nothing",
        "/research/nothing",
    }
    for prefix, route in walk(app.routes, ""):
        found.add(prefix + re.sub(r"\{\w+(:\w+)?\}", "0", route.path))
    return found | {"/label", "/label/", "/research", "/research/"}


def walk(routes: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from walk(route.app.routes, prefix + route.path)
        elif isinstance(route, Route):
            yield prefix, route
        elif getattr(route, "original_router", None) is not None:
            yield from walk(route.original_router.routes, prefix)


def ask(
    world: World, role: str, method: str, path: str, **more: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of exactly this request: clients would tidy it up first."""
    given = {
        "host": "testserver",
        "origin": "http://testserver",
        "content-type": "application/json",
    }
    headers = given | world.headers[role] | {k.replace("_", "-"): v for k, v in more.items()}
    return world.loop.run_until_complete(_ask(world.app, method, path, headers))


async def _ask(
    app: Any, method: str, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    body = [{"type": "http.request", "body": b"{}", "more_body": False}]
    sent: list[dict[str, Any]] = []
    started = asyncio.Event()

    async def receive() -> dict[str, Any]:
        return body.pop() if body else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        started.set()

    path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": unquote(path), "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "server": ("testserver", 80), "client": ("192.0.2.1", 1),
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()],
    }  # fmt: skip
    task = asyncio.ensure_future(app(scope, receive, send))
    # A stream of events would go on; how it begins is what counts.
    begun = asyncio.ensure_future(started.wait())
    await asyncio.wait([task, begun], return_when="FIRST_COMPLETED")
    begun.cancel()
    _, running = await asyncio.wait([task], timeout=0.05)
    for each in running:
        each.cancel()
    await asyncio.gather(task, return_exceptions=True)
    start = next(message for message in sent if message["type"] == "http.response.start")
    answer = {k.decode(): v.decode() for k, v in start["headers"]}
    return start["status"], answer, b"".join(m.get("body", b"") for m in sent)


def test_the_table_names_real_routes(world):
    """Otherwise the tests below would pass on nothing."""
    assert len(world.paths) > 130
    named = {*PUBLIC, *LABEL, *RESEARCH, "/admin/api/call", "/label/password", "/adjudicate"}
    assert named - set(world.paths) <= {path for path in RESEARCH if path.endswith("/")}


@pytest.mark.parametrize("role", ["stranger", "annotator", "adjudicator", "viewer", "researcher"])
def test_every_route_as_each_role(world, role):
    hold_to_the_table(world, role, ("GET", "POST"))


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_every_route_and_method_as_every_role(world, role):
    hold_to_the_table(world, role, METHODS)


def hold_to_the_table(world, role, methods):
    """Who is refused is refused by the access middleware; who is let through reaches what answers."""
    wrong, counted = [], Counter()
    for path in world.paths:
        for method in methods:
            permitted = method in allowed(role, path)
            if permitted and path in ("/sign-out", "/research/gradio_api/queue/data"):
                continue  # would end the session; would wait for events
            status, headers, body = ask(world, role, method, path)
            refused = status in (401, 403, 404, 405) and (
                b"Sign in first" in body
                or b"is not available" in body
                or b"for researchers" in body
                or b"for annotators" in body
                or b"for adjudicators" in body
                or b"not allowed here" in body
                or b"address does not exist" in body
                or b"page does not exist" in body
                or b"needs the workspace's admin token" in body
            )
            counted[refused] += 1
            if refused == permitted and not (permitted and method == "HEAD"):
                wrong.append((method, path, status, body[:80]))
            assert headers["x-content-type-options"] == "nosniff", (method, path)
            assert "frame-ancestors 'none'" in headers["content-security-policy"], (method, path)
            assert not [name for name in headers if name.startswith("access-control-")]
            if body:
                kind = headers["content-type"]
                assert not kind.startswith("text/") or "charset=utf-8" in kind.lower(), path
    assert wrong == []
    assert counted[True] > 100 * (len(methods) - 1)


TRICKS = (
    {"x_forwarded_for": "127.0.0.1"},
    {"x_forwarded_host": "testserver", "x_forwarded_prefix": "/label"},
    {"x_original_url": "/research/config", "x_rewrite_url": "/research/config"},
    {"x_http_method_override": "GET", "x_method_override": "GET"},
    {"x_kitestring_annotator": "who-ada", "x_user": "Ada", "remote_user": "Ada"},
    {"x_gradio_user": "app", "x_gradio_server": "http://testserver"},
    {"forwarded": "for=127.0.0.1;host=testserver;proto=https"},
    {"upgrade": "websocket", "connection": "upgrade"},
    {"range": "bytes=0-10", "if_none_match": "*"},
)


@pytest.mark.slow
@pytest.mark.parametrize("role", [*STRANGERS, *ANNOTATORS, *ADJUDICATORS])
@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: next(iter(trick)))
def test_no_header_opens_what_is_closed(world, role, trick):
    for path in world.paths:
        if path.startswith(("/research", "/admin")) and "GET" not in allowed(role, path):
            for method in ("GET", "POST"):
                if method in allowed(role, path):
                    continue
                status, _, body = ask(world, role, method, path, **trick)
                assert status in (401, 403, 404, 405), (method, path, status, body[:80])


SPELLINGS = (
    "/label/..{0}", "/label/%2e%2e{0}", "//label/..{0}", "/.{0}", "{0};x=1", "{0}%00", "{0}%20",
    "{0}/.", "/{0}", "{0}//", "{0}%2f", "{0}?a=/label/", "{0}#/label/", "/label{0}", "/label/static{0}",
    "/LABEL/..{0}", "/static/..{0}", "{0}\\",
)  # fmt: skip


@pytest.mark.parametrize("role", ["stranger", "annotator", "annotator's token", "adjudicator"])
def test_no_spelling_of_a_closed_path_opens_it(world, role):
    for closed in (
        "/research/config",
        "/research/",
        "/research/download/export",
        "/admin/api/call",
    ):
        for spelling in (*SPELLINGS, "{0}"):
            path = spelling.format(closed)
            status, _, body = ask(world, role, "GET", path)
            assert status in (401, 403, 404, 405), (path, status)
            assert b"components" not in body


@pytest.mark.parametrize("role", ROLES)
def test_whatever_changes_something_wants_our_origin(world, role):
    """Only a script, which no browser sends here, may leave it out."""
    for path in world.paths:
        if "POST" not in allowed(role, path):
            continue
        for origin in (
            "null",
            "http://evil.example",
            "http://testserver.evil.example",
            "http://testserver:81",
        ):
            status, _, body = ask(world, role, "POST", path, origin=origin)
            assert (status, b"another site" in body) == (403, True), (path, origin, status)
        foreign, _, _ = ask(world, role, "POST", path, host="evil.example")
        assert foreign == 400


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("runs", "?tab=runs"), ("runs/", "?tab=runs"), ("runs/compare", "?tab=runs&section=compare"),
        ("models/reward-model", "?tab=models&section=reward-model"), ("overview", "?tab=overview"),
    ],
)  # fmt: skip
def test_a_typed_address_leads_to_its_page(world, typed, meant):
    status, headers, _ = ask(world, "viewer", "GET", f"/research/{typed}")
    assert (status, headers["location"]) == (303, f"/research/{meant}")
