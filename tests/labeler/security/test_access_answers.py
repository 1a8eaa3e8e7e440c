"""`AccessMiddleware` before an application of a few lines: what it lets through, and its exact answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from labeler.security.access import AccessMiddleware, rules
from labeler.security.addresses import Addresses
from labeler.security.auth import Identity
from storage.records import Annotator

BROWSER = {"accept": "text/html,*/*"}
OURS = {"origin": "http://testserver"}
BEN = Annotator(id="ben", name="Ben")
ROSA = Annotator(id="rosa", name="Rosa", role="researcher")
PEOPLE = {
    "ben": Identity(BEN, bearer=False),
    "rosa": Identity(ROSA, bearer=False),
    "ben's script": Identity(BEN, bearer=True),
    "rosa's script": Identity(ROSA, bearer=True),
}


class People:
    """Stands for `Auth`: the cookie is the person's name, and nobody is remembered."""

    def __init__(self) -> None:
        self.lookups = 0

    def recall(self, _headers: Any) -> None:
        return None

    def identify(self, headers: Any) -> Identity | None:
        self.lookups += 1
        return PEOPLE.get(headers.get("cookie", ""))

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None  # accounts do not change here


class Studio:
    """The middleware with an application that tells what reached it."""

    def __init__(self) -> None:
        self.auth = People()
        self.reached: list[tuple[str, str, str | None]] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.app: Any = self.answer
        self.middleware = AccessMiddleware(
            lambda *given: self.app(*given),
            auth=self.auth,  # type: ignore[arg-type]
            addresses=Addresses.of(public_url="https://label.example", more=["testserver"]),
            admin_token="key",
            rules=rules(["people"]),
            functions={"researcher": {1, 3}, "viewer": {3}}.__getitem__,
            sign_in_page=lambda path, reader: f"sign in for {path} in {reader.language}",
            refusal_page=lambda reason, reader: f"refused in {reader.language}: {reason}",
            missing_page=lambda reader: f"nothing here in {reader.language}",
        )

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        who = scope["state"]["identity"]
        self.reached.append((scope["method"], scope["path"], who and who.annotator.id))
        self.headers = scope["headers"]
        answer: Response
        try:
            body = await Request(scope, receive).body() if scope["method"] == "POST" else b""
            answer = Response(b"%d" % len(body))
        except HTTPException as refused:  # as Starlette's own applications do
            answer = JSONResponse({"error": refused.detail}, refused.status_code)
        await answer(scope, receive, send)

    def ask(
        self, method: str, path: str, who: str = "", body: bytes = b"", **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of the answer to one request."""
        sent: list[Any] = []
        given = {"host": "testserver", **({"cookie": who} if who else {}), **headers}
        scope = {
            "type": "http", "method": method, "path": path, "query_string": b"",
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in given.items()],
        }  # fmt: skip
        parts = [body[:1], body[1:]]  # a body that comes in two pieces

        async def receive() -> Any:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.middleware(scope, receive, send))
        answered = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent), answered


@pytest.fixture
def studio() -> Studio:
    return Studio()


@pytest.mark.parametrize(
    ("who", "method", "path", "headers", "status", "says"),
    [
        ("", "GET", "/label/", BROWSER, 401, b"sign in for /label/ in en"),
        ("", "GET", "/label/", {}, 401, b'{"error":"Sign in first."}'),
        ("", "HEAD", "/label/", BROWSER, 401, b"Sign in first."),
        ("", "DELETE", "/label/", BROWSER, 401, b"Sign in first."),
        ("", "GET", "/label/nothing", {}, 401, b"Sign in first."),
        ("ben", "GET", "/research/", BROWSER, 403, b"refused in en: This page is for researchers."),
        ("ben", "GET", "/research/", {}, 403, b'{"error":"This page is for researchers."}'),
        ("ben", "GET", "/research/people", {}, 403, b"for researchers"),
        ("ben", "GET", "/label/nothing", BROWSER, 403, b"refused in en: This address is not available."),
        ("ben", "DELETE", "/label/", BROWSER, 403, b'{"error":"This address is not available."}'),
        ("rosa", "POST", "/research/", OURS, 403, b"not available"),
        ("", "POST", "/admin/api/call", {}, 401, b"needs the workspace's admin token"),
        ("rosa", "POST", "/admin/api/call", OURS, 401, b"needs the workspace's admin token"),
        ("", "GET", "/admin/api/call", {}, 405, b"GET is not allowed here."),
        ("", "POST", "/healthz", {}, 405, b"POST is not allowed here."),
        ("", "DELETE", "/sign-in", BROWSER, 405, b"DELETE is not allowed here."),
        ("", "GET", "/nothing", BROWSER, 404, b"nothing here in en"),
        ("", "DELETE", "/nothing", BROWSER, 404, b'{"error":"This address does not exist."}'),
        ("", "GET", "/nothing", {}, 404, b'{"error":"This address does not exist."}'),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(studio, who, method, path, headers, status, says):
    found, body, _ = studio.ask(method, path, who, **headers)
    assert (found, says in body) == (status, True), body
    assert studio.reached == []


def test_a_program_without_a_sign_in_is_told_how_to_send_its_token(studio):
    assert studio.ask("GET", "/label/")[2]["www-authenticate"] == "Bearer"


def test_who_asks_is_looked_up_once_and_a_stranger_never(studio):
    assert studio.ask("GET", "/healthz")[0] == 200
    assert (studio.auth.lookups, studio.reached) == (0, [("GET", "/healthz", None)])
    assert studio.ask("GET", "/label/", "ben")[0] == 200
    assert (studio.auth.lookups, studio.reached[1]) == (1, ("GET", "/label/", "ben"))
    studio.ask("GET", "/label/", authorization="Basic x")
    assert studio.auth.lookups == 2


@pytest.mark.parametrize(
    ("who", "headers", "status"),
    [
        ("ben", OURS, 200),
        ("ben", {}, 403),  # browsers send Origin with every POST
        ("ben", {"origin": "http://evil.example"}, 403),
        ("ben's script", {}, 200),  # and scripts need not
        ("ben's script", {"origin": "http://evil.example"}, 403),
    ],
)
def test_a_post_comes_from_our_own_page_or_a_script(studio, who, headers, status):
    found, body, _ = studio.ask("POST", "/label/api/skip", who, **headers)
    assert (found, b"another site" in body) == (status, status == 403)
    assert studio.reached == ([("POST", "/label/api/skip", "ben")] if status == 200 else [])


def test_reading_needs_no_origin(studio):
    foreign = {"origin": "http://evil.example"}
    for method in ("GET", "HEAD"):
        assert studio.ask(method, "/label/", "ben", **foreign)[0] == 200
    assert studio.ask("POST", "/sign-out")[0] == 403


def test_the_admin_token_opens_the_admin_route_alone(studio):
    key = {"authorization": "Bearer key"}
    assert studio.ask("POST", "/admin/api/call", **key)[0] == 200
    assert studio.ask("POST", "/admin/api/call", authorization="Bearer key ")[0] == 401
    for path in ("/label/", "/research/", "/research/download/export"):
        assert studio.ask("GET", path, **key)[0] == 401
    assert len(studio.reached) == 1


@pytest.mark.parametrize(
    ("path", "headers", "largest"),
    [
        ("/label/api/judgments", {}, 100_000),
        ("/research/gradio_api/cancel", {}, 1_000_000),
        ("/admin/api/call", {"authorization": "Bearer key"}, 1_000_000),
        ("/research/upload/pairs", {}, 32_000_000),
    ],
)
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_may_have_so_many_bytes_and_not_one_more(studio, path, headers, largest, announced):
    def ask(size: int) -> tuple[int, bytes]:
        length = {"content-length": str(size)} if announced else {}
        body = b'"' + b"x" * (size - 2) + b'"'
        return studio.ask("POST", path, "rosa", body, **OURS, **headers, **length)[:2]

    assert ask(largest) == (200, str(largest).encode())
    assert len(studio.reached) == 1
    status, said = ask(largest + 1)
    assert status == 413
    if path.startswith("/research/upload/"):
        assert json.loads(said)["error"].startswith("The file is larger than 32 MB,")
    else:
        assert said == b'{"error":"The request is too large."}'


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(studio):
    both = {"content-length": "2", "transfer-encoding": "chunked"}
    status, body, headers = studio.ask("POST", "/sign-out", body=b"xx", **OURS, **both)
    assert (status, headers["connection"]) == (400, "close")
    assert b"both Content-Length and Transfer-Encoding" in body
    assert studio.ask("POST", "/sign-out", transfer_encoding="chunked", **OURS)[0] == 200


def test_a_path_has_at_most_255_bytes(studio):
    folder = "/label/static/"
    longest = folder + "a" * (255 - len(folder))
    assert studio.ask("GET", longest, "ben")[0] == 200
    assert studio.ask("GET", longest + "a", "ben")[0] == 403
    # ä has two bytes: 241 letters with 255 characters are 14 + 2 · 121 = 256 bytes.
    assert studio.ask("GET", folder + "ä" * 120, "ben")[0] == 200
    assert studio.ask("GET", folder + "ä" * 121, "ben")[0] == 403


@pytest.mark.parametrize("path", ["/label/static/../x", "/label/static//x", "/label/static/a\\b"])
def test_a_path_that_a_file_server_would_interpret_is_refused(studio, path):
    assert studio.ask("GET", path, "ben")[0] == 403
    assert studio.reached == []


@pytest.mark.parametrize("name", ["x-forwarded-host", "x-gradio-server"])
def test_gradio_is_told_its_address_by_the_public_proxy_alone(studio, name):
    def passed(path: str, value: str) -> bool:
        studio.ask("GET", path, "ben", **{name: value, "x-other": "1"})
        # All others stay.
        assert {(b"cookie", b"ben"), (b"x-other", b"1")} < set(studio.headers)
        return (name.encode(), value.encode()) in studio.headers

    assert not passed("/label/", "evil.example")
    assert passed("/label/", "label.example")
    assert passed("/healthz", "evil.example")  # where nobody reads it


def test_scripts_run_on_pages_alone(studio):
    policy = "content-security-policy"
    assert "script-src" in studio.ask("GET", "/label/", "ben")[2][policy]
    for path in ("/label/config", "/healthz", "/nothing"):
        assert "script-src" not in studio.ask("GET", path, "ben")[2][policy]


def test_a_call_is_checked_before_gradio_sees_it(studio):
    path = "/research/gradio_api/queue/join"
    assert studio.ask("POST", path, "rosa", b'{"fn_index": 1}', **OURS)[:2] == (200, b"15")
    status, body, _ = studio.ask("POST", path, "rosa", b'{"fn_index": 2}', **OURS)
    assert (status, b"no such function" in body) == (422, True)
    # What is no call may say anything.
    assert studio.ask("POST", "/label/api/skip", "rosa", b'{"fn_index": 2}', **OURS)[0] == 200


def test_another_host_name_is_refused(studio):
    status, body, _ = studio.ask("GET", "/healthz", host="evil.example")
    assert (status, b"evil.example" in body, studio.reached) == (400, True, [])


@pytest.mark.parametrize("who", [b"", b"ben"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_defect_is_answered_unless_an_answer_has_begun(studio, begun, who):
    """Two beginnings of one answer would be a defect of their own; the error goes to the log."""
    sent: list[Any] = []

    async def broken(_scope: Any, _receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("the secret is 42")

    async def send(message: Any) -> None:
        sent.append(message)

    studio.app = broken
    scope = {
        "type": "http", "method": "GET", "path": "/healthz",
        "headers": [(b"host", b"testserver"), (b"cookie", who)],
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="42"):
        asyncio.run(studio.middleware(scope, None, send))  # type: ignore[arg-type]
    starts = [each["status"] for each in sent if each["type"] == "http.response.start"]
    assert starts == [200 if begun else 500]
    assert b"42" not in b"".join(each.get("body", b"") for each in sent)


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request(studio, kind):
    sent: list[Any] = []
    reached: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        reached.append(scope["type"])

    async def send(message: Any) -> None:
        sent.append(message)

    studio.app = app
    asyncio.run(studio.middleware({"type": kind}, None, send))  # type: ignore[arg-type]
    closed = [{"type": "websocket.close", "code": 1008}]
    assert (reached, sent) == (([kind], []) if kind == "lifespan" else ([], closed))
