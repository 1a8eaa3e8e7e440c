"""Files and streams behind the access middleware: nothing of this machine is copied, and who is out hears no more."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading
import time
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from labeler.security import streams
from labeler.security.filedata import names_a_file
from labeler.serving import private_cache
from storage.tables.people import annotators
from tests.helpers.desk_world import (
    ADMIN_TOKEN,
    add_person,
    make_app,
    serving,
    session_cookie,
    workspace,
)

FILE = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where Gradio puts what it copies."""
    folder = tmp_path_factory.mktemp("gradio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def world(tmp_path_factory, cache):  # noqa: ARG001 (the application is to use it)
    with workspace(tmp_path_factory.mktemp("files")) as db:

        def admin(command, arguments):
            assert command == "disable"
            annotators.set_disabled(db, arguments["id"], disabled=True)

        add_person(db, "owner", "researcher")
        with serving(make_app(db, admin=admin)) as server:
            yield db, server


@pytest.fixture
def researcher(world, request):
    db, server = world
    who = add_person(db, request.node.name, "researcher")
    headers = {**session_cookie(server.app, db, who), "origin": server.url}
    with httpx.Client(base_url=server.url, headers=headers, timeout=20) as client:
        yield who, client


def preview_function(client) -> int:
    """The function that previews the guidelines: a text in, HTML out."""
    config = client.get("/research/config").json()
    [box] = [
        part["id"] for part in config["components"] if part["props"].get("elem_id") == "guidelines"
    ]
    return next(
        function["id"] for function in config["dependencies"] if function["inputs"] == [box]
    )


def call(client, function: int, value: object, session: str) -> tuple[int, str]:
    """The status of the call, and all that its stream says."""
    body = {"data": [value], "fn_index": function, "session_hash": session}
    joined = client.post("/research/gradio_api/queue/join", json=body)
    if joined.status_code != 200:
        return joined.status_code, joined.text
    with client.stream("GET", f"/research/gradio_api/queue/data?session_hash={session}") as stream:
        for line in stream.iter_lines():
            if "process_completed" in line:
                return joined.status_code, line
    raise AssertionError("the stream ended early")


@pytest.mark.parametrize(
    "hidden",
    [
        FILE,
        [FILE],
        {"deep": [{"er": FILE}]},
        {"path": "/etc/hostname", "url": None, "meta": {"_type": "gradio.FileData"}, "size": 1},
        {"path": "http://127.0.0.1:1/x", "meta": {"_type": "gradio.FileData"}},
    ],
)
def test_a_call_that_names_a_file_is_refused_and_copies_nothing(researcher, cache, hidden):
    _, client = researcher
    function = preview_function(client)
    status, said = call(client, function, "**plain**", "one")
    assert (status, "<strong>plain" in said) == (200, True)  # the control

    status, said = call(client, function, hidden, "two")

    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert (status, "file" in json.loads(said)["error"]) == (422, True)


def test_what_could_be_a_file_is_found_wherever_it_stands():
    for value in (FILE, [[FILE]], {"x": {"y": [1, FILE]}}, {"_type": "gradio.FileData"}):
        assert names_a_file(value)
    deep: object = FILE
    for _ in range(5000):  # deeper than Python recurses
        deep = [deep]
    assert names_a_file(deep)
    for value in (None, 1, "path", ["path"], {"data": ["a/path", 1, None, {"id": "path"}]}):
        assert not names_a_file(value)


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"data": [NaN'])
def test_a_call_that_is_not_json_is_refused_in_a_sentence(researcher, body):
    _, client = researcher
    headers = {"content-type": "application/json"}
    answer = client.post("/research/gradio_api/queue/join", content=body, headers=headers)
    assert (answer.status_code, answer.json()) == (422, {"error": "The request body is not JSON."})
    for large, status in ((b" " * 1_000_001, 413), (iter([b"x" * 600_000] * 2), 411)):
        answer = client.post("/research/gradio_api/queue/join", content=large, headers=headers)
        assert answer.status_code == status


def test_gradios_files_are_the_owners_alone_and_go_with_the_server(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "/nowhere")
    (tmp_path / "gradio-cache").mkdir()
    (tmp_path / "gradio-cache" / "left.txt").write_text("by a server that was killed")
    with private_cache(tmp_path) as folder:
        assert os.environ["GRADIO_TEMP_DIR"] == str(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert list(folder.iterdir()) == []
        (folder / "made.txt").write_text("x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_or_file_in_the_place_of_the_cache_goes_and_what_it_leads_to_stays(tmp_path, kind):
    elsewhere, workspace = tmp_path / "elsewhere", tmp_path / "workspace"
    elsewhere.mkdir()
    workspace.mkdir()
    (elsewhere / "kept.txt").write_text("of somebody else")
    if kind == "link":
        (workspace / "gradio-cache").symlink_to(elsewhere)
    else:
        (workspace / "gradio-cache").write_text("x")
    with private_cache(workspace) as folder:
        assert folder.is_dir()
        assert not folder.is_symlink()
    assert (elsewhere / "kept.txt").read_text() == "of somebody else"


def test_a_cache_that_cannot_be_emptied_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    (tmp_path / "gradio-cache").mkdir()
    with pytest.raises(ValueError, match="gradio-cache cannot be emptied"), private_cache(tmp_path):
        pass


def test_every_function_of_the_page_is_called_through_the_queue(researcher):
    """Else the page would call ``run``, which the middleware keeps closed."""
    _, client = researcher
    functions = client.get("/research/config").json()["dependencies"]
    assert len(functions) > 30
    # Others run in the browser only.
    assert all(function["queue"] for function in functions if function["backend_fn"])


@pytest.mark.parametrize("path", ["run/predict", "api/predict", "call/predict", "call/v2/predict"])
def test_the_ways_in_for_programs_are_closed(researcher, path):
    _, client = researcher
    answer = client.post(f"/research/gradio_api/{path}", json={"data": []})
    assert (answer.status_code, answer.json()["error"]) == (403, "This address is not available.")


def test_a_session_that_is_not_known_is_told_so_and_nothing_is_logged(researcher, caplog, capfd):
    _, client = researcher
    answer = client.get("/research/gradio_api/queue/data?session_hash=nobody")
    assert answer.status_code == 200
    assert json.loads(answer.text.removeprefix("data: "))["session_not_found"]
    assert client.get("/healthz").status_code == 200
    assert "Traceback" not in caplog.text + capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"fn_index": -1}, "no such function"),
        ({"fn_index": 9999}, "no such function"),
        ({"fn_index": 10**30}, "no such function"),
        ({"fn_index": "0"}, "no such function"),
        ({"session_hash": ""}, "session's name"),
        ({"session_hash": "s" * 65}, "session's name"),
        ({"session_hash": "é"}, "session's name"),
        ({"session_hash": "\ud800"}, "not JSON"),
        ({"data": [{"deep": "\ud800"}]}, "not JSON"),
    ],
)
def test_a_call_that_gradio_fails_at_is_refused_in_a_sentence(researcher, capfd, given, sentence):
    _, client = researcher
    body = json.dumps({"data": [], "fn_index": 0, "session_hash": "odd"} | given)
    headers = {"content-type": "application/json"}
    answer = client.post("/research/gradio_api/queue/join", content=body, headers=headers)
    assert answer.status_code == 422
    assert sentence in answer.json()["error"]
    assert "Traceback" not in capfd.readouterr().err


def test_of_a_key_given_twice_the_one_that_was_checked_counts(researcher, cache):
    _, client = researcher
    named = f'"data": [{json.dumps(FILE)}]'
    call = f'"fn_index": {preview_function(client)}, "session_hash": "twice"'
    headers = {"content-type": "application/json"}
    path = "/research/gradio_api/queue/join"
    body = f'{{"data": ["**a**"], {call}, {named}}}'
    assert client.post(path, content=body, headers=headers).status_code == 422
    body = f'{{{named}, {call}, "data": ["**a**"]}}'
    assert client.post(path, content=body, headers=headers).status_code == 200
    with client.stream("GET", "/research/gradio_api/queue/data?session_hash=twice") as stream:
        assert "<strong>a" in "".join(stream.iter_lines())
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_two_lengths_of_one_body_are_refused_and_what_follows_is_not_read(world):
    _, server = world
    smuggled = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    request = (
        "POST /sign-out HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
        f"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
    )
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as opened:
        opened.sendall(request.encode())
        answer = opened.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"cannot have both" in answer
    assert answer.count(b"HTTP/1.1") == 1


def listen_to(client, path: str, told: list[object]) -> threading.Thread:
    """A thread that notes the status of a stream, then when it ended."""

    def listen() -> None:
        with client.stream("GET", path, timeout=30) as stream:
            told.append(stream.status_code)
            try:
                for _ in stream.iter_raw():
                    pass
            except httpx.TransportError:
                pass
            told.append(time.monotonic())

    thread = threading.Thread(target=listen)
    thread.start()
    while not told:
        time.sleep(0.01)
    return thread


def test_what_goes_on_for_somebody_ends_with_their_account(world, researcher, request):
    db, server = world
    who, client = researcher
    other = add_person(db, f"{request.node.name} of another", "researcher")
    told: list[object] = []
    others: list[object] = []
    listener = listen_to(client, "/research/gradio_api/heartbeat/abc", told)
    with httpx.Client(base_url=server.url, headers=session_cookie(server.app, db, other)) as second:
        on = listen_to(second, "/research/gradio_api/heartbeat/def", others)
        time.sleep(0.5)
        assert told == [200]
        before = time.monotonic()
        body = {"command": "disable", "arguments": {"id": who.id}}
        admin = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        assert httpx.post(f"{server.url}/admin/api/call", json=body, headers=admin).is_success
        listener.join(20)
        assert told[1] - before < 2
        assert client.get("/research/gradio_api/heartbeat/abc").status_code == 401
        assert others == [200]  # nobody else's
        assert second.post("/sign-out", headers={"origin": server.url}).status_code == 303
        on.join(20)
        assert len(others) == 2


@pytest.mark.parametrize("ends_itself", [True, False])
def test_a_stream_that_is_ended_has_one_last_message(ends_itself):
    """A framework may complete its response while it is cancelled; uvicorn refuses a second end."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        try:
            await asyncio.sleep(60)
        finally:
            if ends_itself:
                await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        open_streams = streams.Streams(Mock())
        scope = {"type": "http", "headers": []}
        serving = open_streams.serve(app, scope, Mock(), send, annotator="ann", role="researcher")
        task = asyncio.ensure_future(serving)
        while len(sent) < 2:
            await asyncio.sleep(0)
        for stream in list(open_streams._open):
            stream.end()
        await task

    asyncio.run(run())
    assert sent[2:] == [{"type": "http.response.body", "body": b""}]


def test_one_person_has_so_many_streams_and_no_more(researcher, monkeypatch):
    monkeypatch.setattr(streams, "MAX_STREAMS", 3)
    _, client = researcher
    kept: list[list[object]] = [[] for _ in range(5)]
    threads = [
        listen_to(client, f"/research/gradio_api/heartbeat/s{i}", t) for i, t in enumerate(kept)
    ]
    for thread in threads[:2]:
        thread.join(20)
    assert [len(each) for each in kept] == [2, 2, 1, 1, 1]
    client.post("/sign-out")
    for thread in threads:
        thread.join(20)
    assert [len(each) for each in kept] == [2] * 5


PAGE = {"accept": "text/event-stream"}


def test_a_call_is_answered_once_the_page_has_read_that_its_stream_is_closed(researcher):
    """Else a page awaits the result on a closed stream, until its next call opens another."""
    _, client = researcher
    body = {"data": ["**one**"], "fn_index": preview_function(client), "session_hash": "closing"}
    join, data = (f"/research/gradio_api/queue/{name}" for name in ("join", "data"))
    asked = {"params": {"session_hash": "closing"}, "headers": PAGE}
    answers: list[int] = []
    again = threading.Thread(
        target=lambda: answers.append(client.post(join, json=body).status_code)
    )
    assert client.post(join, json=body).status_code == 200
    with client.stream("GET", data, **asked) as stream:
        lines = stream.iter_lines()  # without a name it is deleted, which drops the connection
        assert next(line for line in lines if "close_stream" in line)
        again.start()
        again.join(0.5)
        assert answers == []
        other = body | {"session_hash": "another"}
        assert client.post(join, json=other).status_code == 200  # another page need not wait
        assert answers == []
    again.join(20)
    assert answers == [200]

    with client.stream("GET", data, **asked) as stream:
        assert "<strong>one" in next(line for line in stream.iter_lines() if "completed" in line)


def test_a_page_that_does_not_answer_delays_its_next_call_for_seconds_only(researcher, monkeypatch):
    monkeypatch.setattr(streams, "CLOSING", 0.3)
    _, client = researcher
    body = {"data": ["**one**"], "fn_index": preview_function(client), "session_hash": "silent"}
    join, data = (f"/research/gradio_api/queue/{name}" for name in ("join", "data"))
    assert client.post(join, json=body).status_code == 200
    with client.stream("GET", data, params={"session_hash": "silent"}, headers=PAGE) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if "close_stream" in line)
        assert client.post(join, json=body).status_code == 200
