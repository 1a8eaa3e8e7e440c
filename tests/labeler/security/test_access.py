"""`AccessMiddleware`, on the real application: every route of it, as nobody, as annotator, as researcher."""

from __future__ import annotations

import asyncio
import re

import pytest
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from tests.helpers.desk_world import (
    ADMIN_TOKEN,
    add_person,
    bearer,
    make_app,
    session_cookie,
    workspace,
)

ORIGIN = {"origin": "http://testserver"}
REFUSED = (401, 403, 404, 405)
GRADIO_FILES = (
    "gradio_api/file=/etc/passwd",
    "gradio_api/file=README.md",
    "gradio_api/file=http://127.0.0.1:1/x",
    "gradio_api/file/README.md",
    "file=/etc/passwd",
    "gradio_api/proxy=http://127.0.0.1:1/x",
    "gradio_api/stream/a/b/c/playlist.m3u8",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where Gradio keeps the files it made; both mounts share it."""
    folder = tmp_path_factory.mktemp("gradio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def world(tmp_path_factory, cache):  # noqa: ARG001 (the application is to use it)
    with workspace(tmp_path_factory.mktemp("access")) as db:
        app = make_app(db)
        ben, ada = add_person(db, "Ben"), add_person(db, "Ada", "researcher")
        people = {
            "nobody": {},
            "annotator's cookie": session_cookie(app, db, ben),
            "annotator's token": bearer(db, ben),
            "researcher": session_cookie(app, db, ada),
        }
        yield app, {who: client_of(app, headers) for who, headers in people.items()}


def client_of(app, headers):
    return TestClient(
        app, headers={**headers, **ORIGIN}, follow_redirects=False, raise_server_exceptions=False
    )


def gradio(app, path):
    """The Gradio application mounted at `path`."""
    mounts = [route for route in app.routes if isinstance(route, Mount) and route.path == path]
    assert len(mounts) == 1
    return mounts[0].app


def all_routes(app, path):
    """(method, address) of every route inside a mount, parameters filled in."""
    found = []
    for route in walk(gradio(app, path).routes):
        address = re.sub(r"\{\w+(:path)?\}", "0", route.path)
        found += [(method, path + address) for method in route.methods or ["GET"]]
    return sorted(set(found))


def walk(routes):
    for route in routes:
        if isinstance(route, Route):
            yield route
        elif getattr(route, "routes", None):
            yield from walk(route.routes)
        elif getattr(route, "original_router", None) is not None:
            yield from walk(route.original_router.routes)


def test_the_list_of_routes_is_the_real_one(world):
    """If Gradio changes how it keeps its routes, the tests below must not pass on nothing."""
    found = {address for _, address in all_routes(world[0], "/research")}

    assert len(found) > 60
    for known in ("/", "/config", "/gradio_api/queue/join", "/gradio_api/upload", "/theme.css"):
        assert f"/research{known}" in found
    assert any("file=" in address for address in found)


@pytest.mark.parametrize("who", ["nobody", "annotator's cookie", "annotator's token"])
def test_every_research_route_is_refused(world, who):
    app, clients = world
    expected = 401 if who == "nobody" else 403

    for method, address in [
        *all_routes(app, "/research"),
        ("GET", "/research"),
        ("GET", "/research/nothing"),
        ("GET", "/research/download/export?format=raw"),
        ("POST", "/research/download/export"),
        ("OPTIONS", "/research/"),
        ("PUT", "/research/"),
    ]:
        answer = clients[who].request(method, address)
        assert answer.status_code == expected, (method, address)


@pytest.mark.parametrize("who", ["nobody", "annotator's cookie", "annotator's token"])
def test_no_function_answers_to_its_index(world, who):
    app, clients = world
    functions = gradio(app, "/research").get_blocks().fns
    assert len(functions) > 10
    call = {"data": [], "session_hash": "x", "event_data": None, "trigger_id": None}

    for index, function in functions.items():
        for mount in ("/research", "/label"):
            for path in (
                "queue/join",
                f"run/{index}",
                f"api/{function.api_name}",
                f"call/{function.api_name}",
                f"call/v2/{function.api_name}",
                f"run/{function.api_name}",
                "component_server",
            ):
                body = {**call, "fn_index": index, "fn_name": function.name, "component_id": index}
                answer = clients[who].post(f"{mount}/gradio_api/{path}", json=body)
                assert answer.status_code in (401, 403), (mount, path)


@pytest.mark.parametrize("who", ["nobody", "annotator's cookie", "annotator's token", "researcher"])
@pytest.mark.parametrize("mount", ["/label", "/research"])
def test_files_and_uploads_are_closed_to_everybody(world, who, mount):
    client = world[1][who]

    for path in GRADIO_FILES:
        assert client.get(f"{mount}/{path}").status_code in (401, 403), path
        assert client.head(f"{mount}/{path}").status_code in (401, 403), path
    upload = client.post(f"{mount}/gradio_api/upload", files={"files": ("x.txt", b"x")})
    assert upload.status_code in (401, 403)


@pytest.mark.parametrize("who", ["nobody", "annotator's cookie", "annotator's token", "researcher"])
def test_a_file_that_gradio_made_is_served_to_nobody(world, cache, who):
    app, clients = world
    made = cache / "made" / "export.txt"
    made.parent.mkdir(exist_ok=True)
    made.write_text("all the labels")

    for mount in ("/label", "/research"):
        # The control: behind the middleware, Gradio gives it to anybody who asks.
        behind = TestClient(gradio(app, mount)).get(f"/gradio_api/file={made}")
        assert (behind.status_code, behind.text) == (200, "all the labels")
        for path in (f"gradio_api/file={made}", f"gradio_api/file/{made}", f"file={made}"):
            answer = clients[who].get(f"{mount}/{path}")
            assert answer.status_code in (401, 403)
            assert "labels" not in answer.text


def test_nothing_on_label_but_its_page_and_routes(world):
    app, clients = world
    allowed = re.compile(
        r"/label(/(|config|theme\.css|robots\.txt|favicon\.ico|manifest\.json"
        r"|(assets|static|svelte)/0|gradio_api/(startup-events|app_id/?|info/?|heartbeat/0)))?"
    )
    for method, address in all_routes(app, "/label"):
        passes = method in ("GET", "HEAD") and allowed.fullmatch(address)
        if not passes:
            for who in ("annotator's cookie", "annotator's token", "researcher"):
                answer = clients[who].request(method, address)
                assert answer.status_code == 403, (who, method, address)
    assert gradio(app, "/label").get_blocks().fns == {}


def test_the_pages_open_to_those_they_are_for(world):
    """The control: the refusals above are the middleware's, not a broken application's."""
    _, clients = world
    browser = {"accept": "text/html"}

    for who in ("annotator's cookie", "annotator's token", "researcher"):
        assert clients[who].get("/label/", headers=browser).status_code == 200
        assert clients[who].get("/label/config").status_code == 200
    assert clients["researcher"].get("/research/", headers=browser).status_code == 200
    assert clients["researcher"].get("/research/config").status_code == 200
    assert clients["researcher"].get("/research/theme.css").status_code == 200
    nothing = clients["researcher"].get("/research/download/export")
    assert (nothing.status_code, "export" in nothing.json()["error"]) == (422, True)


def test_strangers_get_the_sign_in_form_and_annotators_a_word(world):
    _, clients = world
    browser = {"accept": "text/html,*/*"}

    stranger = clients["nobody"].get("/label/", headers=browser)
    assert stranger.status_code == 401
    assert '<form method="post" action="/sign-in">' in stranger.text
    annotator = clients["annotator's cookie"].get("/research/", headers=browser)
    assert annotator.status_code == 403
    assert "for researchers" in annotator.text


@pytest.mark.parametrize(
    "path",
    [
        "/label/../research/",
        "/label//research/",
        "/label/..%2fresearch/config",
        "/%72esearch/config",
        "/research%2fconfig",
        "/Research/",
        "/label/assets/../../research/config",
        "/label/static/..%2f..%2f..%2fpyproject.toml",
        "/label/assets/..\\..\\x",
        "//research/config",
        "/static/..%2fauth.py",
        "/static/auth.py",
        "/docs",
        "/openapi.json",
        "/redoc",
        "/monitoring",
        "/nothing",
    ],
)
@pytest.mark.parametrize("who", ["nobody", "annotator's cookie"])
def test_no_spelling_of_a_path_gets_around(world, who, path):
    answer = raw_get(world[0], path, dict(world[1][who].headers))

    assert answer in REFUSED


def test_a_longer_name_than_any_files_is_no_defect(world):
    """The server of static files fails at one, with a traceback in the log for each request."""
    _, clients = world
    for folder in ("/label/assets/", "/label/static/"):
        answer = clients["annotator's cookie"].get(folder + "a" * 300)
        assert (answer.status_code, answer.json()) == (
            403,
            {"error": "This address is not available."},
        )
    assert clients["nobody"].get("/static/" + "ä" * 150).status_code == 404


def raw_get(app, path, headers):
    """The status of a GET with exactly this path: clients would tidy it up first."""
    from urllib.parse import unquote  # noqa: PLC0415

    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"testserver"),
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
        ],
        "server": ("testserver", 80),
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"]


def test_no_other_site_is_invited_and_every_answer_is_hardened(world):
    _, clients = world
    foreign = {"origin": "https://evil.example"}

    for path in ("/healthz", "/sign-in", "/label/", "/label/config", "/label/api/progress"):
        answer = clients["annotator's cookie"].get(path, headers=foreign)
        assert not [name for name in answer.headers if name.startswith("access-control-")], path
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"


def test_a_websocket_is_turned_away(world):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    asyncio.run(world[0]({"type": "websocket", "path": "/research/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_an_admin_token_opens_nothing_else(world):
    client = TestClient(world[0], headers={"authorization": f"Bearer {ADMIN_TOKEN}"})

    for path in ("/label/api/progress", "/research/config"):
        assert client.get(path).status_code == 401


def test_scripts_run_on_the_two_pages_alone(world):
    _, clients = world
    browser = {"accept": "text/html"}
    pages = {
        ("researcher", "/label/"): 200,
        ("researcher", "/research/"): 200,
    }
    others = {
        ("nobody", "/label/"): 401,
        ("annotator's cookie", "/research/"): 403,
        ("nobody", "/sign-in"): 200,
        ("nobody", "/sign-in?token=x"): 401,
        ("nobody", "/invite?token=x"): 410,
        ("nobody", "/healthz"): 200,
        ("nobody", "/nothing"): 404,
        ("nobody", "/static/kite.svg"): 200,
        ("researcher", "/label/api/progress"): 200,
        ("researcher", "/label/config"): 200,
        ("researcher", "/label/password"): 200,
        ("nobody", "/label/password"): 401,
        ("researcher", "/research/download/export"): 422,
    }
    for (who, path), status in (pages | others).items():
        answer = clients[who].get(path, headers=browser)
        assert answer.status_code == status, path
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        if (who, path) in pages:
            assert "script-src 'self'" in policy
        else:
            assert policy.startswith("default-src 'none'; "), path
            assert "script" not in policy
            assert "unsafe" not in policy


def test_a_defect_is_told_to_the_log_and_not_to_strangers(world, monkeypatch):
    app, clients = world

    def broken(*_: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr(app.state.auth.browsers, "cookie", broken)
    monkeypatch.setattr(app.state.auth, "link_owner", broken)
    answer = clients["nobody"].get("/sign-in?token=x")
    assert answer.status_code == 500
    assert "42" not in answer.text
    assert answer.json()["error"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
