"""The HTTP server under people who send slowly, half, or nothing, and with few files to open."""

from __future__ import annotations

import asyncio
import logging
import platform
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from labeler import serving
from labeler.security.listening import listen

ROOT = Path(__file__).parents[2]
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: loc"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"


async def application(scope, receive, send):
    """Answers with the client's address once the body is there; /slow takes its time.

    /page is 30 kB, /large a megabyte, and /endless goes on until nobody listens; /early asks for no body.
    """
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while scope["path"] != "/early" and (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    if scope["path"] == "/page":
        await asyncio.sleep(0.002)  # as a thread that reads a file; the server may read meanwhile
    if scope["path"] == "/never":
        await receive()  # until nobody listens
        return
    if scope["path"] == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        listening = asyncio.ensure_future(receive())
        while not listening.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        return
    body = f"{scope['client'][0]} {scope['scheme']}".encode()
    body = {"/page": b"x" * 30_000, "/large": b"x" * 1_000_000}.get(scope["path"], body)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Door:
    """A running server's address."""

    port: int

    def connect(self, *pieces: bytes, pause: float = 0.0, window: int = 0) -> socket.socket:
        opened = socket.socket()
        if window:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        opened.settimeout(8)
        opened.connect(("127.0.0.1", self.port))
        for piece in pieces:
            opened.sendall(piece)
            time.sleep(pause)
        return opened

    def ask(self, request: bytes = GET) -> bytes:
        closing_request = request.replace(b"Host", b"Connection: close\r\nHost")
        with self.connect(closing_request) as opened:
            return opened.makefile("rb").read()


@contextmanager
def running(server: uvicorn.Server) -> Iterator[Door]:
    with closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield Door(port)
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture
def door(monkeypatch) -> Iterator[Door]:
    """A server that waits half a second for a head and one second for a body."""
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(serving, "BODY_SECONDS", 1.0)
    with running(serving.server(application, behind_proxy=False)) as opened:
        yield opened


def seconds_until_closed(connection: socket.socket, *, drip: bytes = b"") -> float:
    """How long the server keeps it, `drip` arriving byte by byte."""
    start = time.monotonic()
    connection.settimeout(0.1)
    for each in (drip[i : i + 1] for i in range(80)):
        try:
            connection.sendall(each)
            if not connection.recv(4096):
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    return time.monotonic() - start


@pytest.mark.parametrize("sent", [b"", HALF])
def test_a_connection_without_a_whole_head_is_closed(door, sent):
    with door.connect(sent) as opened:
        assert 0.3 < seconds_until_closed(opened) < 3


def test_a_head_that_trickles_gets_no_more_time(door):
    with door.connect(HALF) as opened:
        assert 0.3 < seconds_until_closed(opened, drip=b"a" * 80) < 3


def test_the_next_request_on_a_connection_is_timed_too(door):
    with door.connect(GET) as opened:
        assert opened.recv(4096).startswith(b"HTTP/1.1 200")
        opened.sendall(HALF)
        assert 0.3 < seconds_until_closed(opened, drip=b"a" * 80) < 3
    with door.connect(GET + HALF) as opened:  # sent at once, before the first is answered
        assert opened.recv(4096).startswith(b"HTTP/1.1 200")
        assert seconds_until_closed(opened, drip=b"a" * 80) < 3


def test_a_body_that_does_not_come_ends_the_request(door):
    with door.connect(POST, b"12345") as opened:
        assert 0.7 < seconds_until_closed(opened) < 4
    with door.connect(GET + POST) as opened:  # nothing arrives any more
        assert opened.recv(4096).startswith(b"HTTP/1.1 200")
        assert seconds_until_closed(opened) < 4


def test_a_large_body_gets_the_time_it_needs_and_a_trickle_does_not(door, monkeypatch):
    monkeypatch.setattr(serving, "BODY_RATE", 1000)
    large = POST.replace(b"10", b"3000", 1)
    with door.connect(large, *[b"x" * 300] * 10, pause=0.2) as opened:  # two seconds
        assert opened.recv(4096).startswith(b"HTTP/1.1 200")
    with door.connect(large) as opened:  # ten bytes a second
        assert 0.7 < seconds_until_closed(opened, drip=b"x" * 80) < 4


def test_who_waits_for_a_slow_answer_is_not_cut_off(door):
    assert b"127.0.0.1" in door.ask(GET.replace(b"/ ", b"/slow "))
    with door.connect(POST, b"12345", b"67890", pause=0.2) as opened:
        assert opened.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.fixture
def events(monkeypatch) -> list[Any]:
    """What the server's parser has found, in turn."""
    found = []
    parse = h11.Connection.next_event

    def noting(connection: h11.Connection) -> Any:
        found.append(parse(connection))
        return found[-1]

    monkeypatch.setattr(h11.Connection, "next_event", noting)
    return found


@pytest.mark.parametrize(
    ("length", "says"),
    [(b"", b"411 Length Required"), (b"Content-Length: 5\r\n", b"400 Bad Request")],
)
@pytest.mark.parametrize("before", [b"", GET])
def test_a_body_in_chunks_is_refused_before_it_is_parsed(events, before, length, says):
    head = POST.replace(b"Content-Length: 10\r\n", length + b"Transfer-Encoding: Chunked\r\n")
    with running(serving.server(application, behind_proxy=False)) as door:
        with door.connect(before + head + b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n" + GET) as opened:
            answers = opened.makefile("rb").read()
        assert (b"HTTP/1.1 " + says) in answers
        assert b'{"error": "' in answers
        assert answers.count(b"HTTP/1.1") == (2 if before else 1)
        assert len(events) < 10
        assert not any(isinstance(event, h11.Data) for event in events)
        assert door.ask().startswith(b"HTTP/1.1 200")


EARLY = POST.replace(b"/ ", b"/early ", 1)


def test_who_is_answered_before_the_body_gets_the_answer_and_the_end(events):
    with running(serving.server(application, behind_proxy=False)) as door:
        with door.connect(EARLY) as opened:
            answer = opened.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"\r\nconnection: close\r\n" in answer.lower()  # sends no second request
            opened.sendall(b"1234567890" + GET)
            assert b"HTTP/1.1" not in opened.makefile("rb").read()
        found = len(events)
        with door.connect(EARLY.replace(b"10", b"5000000", 1), b"x" * 5_000_000) as opened:
            answer = opened.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert len(events) - found < 100


def test_an_answered_body_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(serving, "REST", 100_000)
    with running(serving.server(application, behind_proxy=False)) as door:
        with door.connect(EARLY.replace(b"10", b"1000000000000", 1)) as opened:
            assert opened.recv(4096).startswith(b"HTTP/1.1 200")
            with pytest.raises(ConnectionError):
                opened.sendall(b"x" * 100_000_000)
        assert door.ask().startswith(b"HTTP/1.1 200")


def test_when_all_connections_are_taken_those_without_a_request_go_first(monkeypatch):
    monkeypatch.setattr(serving, "raise_file_limit", lambda: 40)  # 20 connections
    server = serving.server(application, behind_proxy=False)
    with running(server) as door, ExitStack() as stack:
        slow = stack.enter_context(door.connect(GET.replace(b"/ ", b"/slow ")))
        wait_until(lambda: server.server_state.tasks)  # it has been read
        for _ in range(100):
            stack.enter_context(door.connect(HALF))
        assert door.ask().startswith(b"HTTP/1.1 200")
        assert len(server.server_state.connections) <= 20
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")  # it had asked


def unread(door: Door, path: bytes = b"/large") -> socket.socket:
    """A connection that asks again and again and reads nothing."""
    opened = door.connect(window=4096)
    opened.setblocking(False)
    with suppress(BlockingIOError):
        for _ in range(100):
            opened.send(GET.replace(b"/ ", path + b" ", 1) * 20_000)
    return opened


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("path", [b"/large", b"/endless"])
def test_who_does_not_read_the_answers_is_cut_off(monkeypatch, path):
    monkeypatch.setattr(serving, "ANSWER_SECONDS", 0.5)
    server = serving.server(application, behind_proxy=False)
    with running(server) as door, unread(door, path):
        wait_until(lambda: server.server_state.total_requests or server.server_state.tasks)
        wait_until(lambda: not server.server_state.connections)
        wait_until(lambda: not server.server_state.tasks)


@pytest.mark.parametrize("path", [b"/page", b"/large"])
def test_requests_sent_ahead_are_left_in_the_kernel(path):
    server = serving.server(application, behind_proxy=False)
    with running(server) as door, unread(door, path) as opened:
        refused = 0
        while refused < 50:  # nothing is taken for a second
            time.sleep(0.02)
            try:
                opened.send(GET.replace(b"/ ", path + b" ", 1) * 20_000)
                refused = 0
            except BlockingIOError:
                refused += 1
        kept: Any
        [kept] = server.server_state.connections
        assert kept.flow.write_paused
        assert len(kept.conn.trailing_data[0]) <= 600_000  # two reads at most
        assert kept.transport.get_write_buffer_size() <= 1_100_000  # one answer


def test_requests_sent_ahead_are_all_answered_in_turn(door):
    with door.connect() as opened:
        many = (GET + POST + b"1234567890") * 10_000  # more than is read at once
        sender = threading.Thread(target=opened.sendall, args=(many,))
        sender.start()
        answers = opened.makefile("rb")
        for _ in range(20_000):
            assert answers.readline().startswith(b"HTTP/1.1 200")
            head = iter(answers.readline, b"\r\n")
            [length] = [int(line[16:]) for line in head if line.startswith(b"content-length: ")]
            assert answers.read(length) == b"127.0.0.1 http"
        sender.join()
        opened.sendall(GET)
        assert opened.recv(4096).startswith(b"HTTP/1.1 200")


def test_when_all_connections_are_taken_those_who_do_not_read_go_too(monkeypatch):
    monkeypatch.setattr(serving, "raise_file_limit", lambda: 40)  # 20 connections
    server = serving.server(application, behind_proxy=False)
    with running(server) as door, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(unread(door))
        state: Any = server.server_state
        wait_until(lambda: sum(each.flow.write_paused for each in state.connections) == 20)
        for _ in range(10):
            assert door.ask().startswith(b"HTTP/1.1 200")


def test_when_all_connections_are_taken_those_who_send_ahead_go_too(monkeypatch):
    monkeypatch.setattr(serving, "raise_file_limit", lambda: 40)  # 20 connections
    server = serving.server(application, behind_proxy=False)
    with running(server) as door, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(door.connect(GET.replace(b"/ ", b"/never ") + GET))
        wait_until(lambda: len(server.server_state.tasks) == 20)
        assert door.ask().startswith(b"HTTP/1.1 200")


@dataclass
class Kernel:
    """What a protocol writes to, and a clock; `hold` bytes are not taken yet."""

    now: float = 0.0
    hold: int = 0
    aborted: bool = False
    timers: list[tuple[float, Any]] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function: Any) -> Any:
        timer = (self.now + seconds, function)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.timers and self.timers.remove(timer))

    def write(self, data: bytes) -> None:
        self.hold += len(data)

    def get_write_buffer_size(self) -> int:
        return self.hold

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_extra_info(self, _name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == 0

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for timer in [each for each in self.timers if each[0] <= self.now]:
            self.timers.remove(timer)
            timer[1]()


@pytest.fixture
def kernel(monkeypatch) -> Kernel:
    monkeypatch.setattr(serving, "_limit_unsent_bytes", lambda _: None)
    return Kernel()


def read_slowly(kernel: Any, *, size: int, seconds: float, times: int) -> float:
    """After how long a peer is cut off that takes `size` bytes at once, every so many `seconds`."""
    config = uvicorn.Config(application, log_config=None)
    kernel.__init__()
    made = serving.protocol(most=9)(config, ServerState(), {}, _loop=kernel)
    made.connection_made(kernel)
    kernel.timers.clear()  # that of the head
    for _ in range(times):
        made.transport.write(b"x" * size)
        made.pause_writing()
        for _ in range(10):
            kernel.wait(seconds / 10)
            if kernel.aborted:
                return kernel.now
        kernel.hold = 0
        made.resume_writing()
    return kernel.now


def test_a_slow_reader_has_all_the_time_it_needs_and_a_trickle_has_not(kernel):
    assert (
        read_slowly(kernel, size=65_536, seconds=65_536 / 50_000, times=1000) > 1300
    )  # 60 MB, 50 kB/s
    assert (
        read_slowly(kernel, size=1_500_000, seconds=30, times=40) == 1200
    )  # the same in large steps
    assert read_slowly(kernel, size=65_536, seconds=30, times=1000) <= 70  # 2 kB/s
    assert read_slowly(kernel, size=10, seconds=59, times=1000) <= 70


def test_one_address_has_so_many_connections_and_a_proxy_any_number(monkeypatch):
    monkeypatch.setattr(serving, "MAX_CONNECTIONS_PER_ADDRESS", 3)
    for behind_proxy, here, kept in ((False, False, 3), (False, True, 8), (True, False, 8)):
        monkeypatch.setattr(serving, "_is_this_machine", lambda _, here=here: here)
        server = serving.server(application, behind_proxy=behind_proxy)
        with running(server) as door, ExitStack() as stack:
            opened = [stack.enter_context(door.connect()) for _ in range(8)]
            wait_until(lambda: len(server.server_state.connections) == kept)  # noqa: B023
            opened[0].sendall(GET)
            assert opened[0].recv(4096).startswith(b"HTTP/1.1 200")
            opened[0].close()
            wait_until(lambda: len(server.server_state.connections) == kept - 1)  # noqa: B023
            assert door.ask().startswith(b"HTTP/1.1 200")  # its place is free again


def test_which_addresses_are_this_machines():
    here = ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "/run/socket")
    assert all(map(serving._is_this_machine, here))
    assert not any(map(serving._is_this_machine, ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1")))


def test_a_proxys_word_counts_only_behind_a_proxy():
    forwarded = GET.replace(
        b"\r\n\r\n", b"\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\r\n"
    )
    for behind_proxy, seen in ((False, b"127.0.0.1 http"), (True, b"203.0.113.9 https")):
        with running(serving.server(application, behind_proxy=behind_proxy)) as door:
            answer = door.ask(forwarded)
            assert answer.endswith(seen)
            assert b"uvicorn" not in answer


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from labeler import serving
from labeler.security.listening import listen
from tests.labeler.test_serving import application
listener = listen("127.0.0.1", 0)
server = serving.server(application, behind_proxy=False)
print(listener.getsockname()[1], flush=True)
server.run(sockets=[listener])
"""


def test_without_files_to_open_the_log_stays_readable(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as out:
        command = [sys.executable, "-W", "ignore", "-c", FEW_FILES]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=out, text=True)
    try:
        assert process.stdout
        door = Door(int(process.stdout.readline()))
        with ExitStack() as stack:
            stack.callback(process.stdout.close)
            for _ in range(120):
                stack.enter_context(door.connect(HALF))
            time.sleep(2.5)
        deadline = time.monotonic() + 10
        while not door.ask().startswith(b"HTTP/1.1 200"):
            assert time.monotonic() < deadline
    finally:
        process.terminate()
        process.wait(timeout=20)
    lines = log.read_text().splitlines()
    assert 1 <= len(lines) < 60, lines[:40]


def test_the_soft_limit_of_files_is_raised_to_the_hard_one():
    code = (
        "import resource\n"
        "from labeler import serving\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 500))\n"
        "print(serving.raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["500", "500", "500"]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert serving.raise_file_limit(most=soft - 1) == soft  # never lowered


def test_a_flood_of_one_log_line_is_told_once_a_minute_and_counted():
    seconds = [0.0]
    throttle = serving.Throttle(("Invalid HTTP",), every=60, clock=lambda: seconds[0])

    def passes(line: str) -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, line, (), None)
        return record.getMessage() if throttle.filter(record) else None

    told = [passes("Invalid HTTP request received.") for _ in range(50)]
    assert told == ["Invalid HTTP request received.", *[None] * 49]
    assert [passes("Exception in ASGI application")] * 2 == ["Exception in ASGI application"] * 2
    seconds[0] = 61
    assert "49 more" in str(passes("Invalid HTTP request received."))
    seconds[0] = 122
    assert passes("Invalid HTTP request received.") == "Invalid HTTP request received."


def test_a_defect_is_logged_once_a_minute_for_each_place():
    seconds = [0.0]
    throttle = serving.Throttle((), every=60, clock=lambda: seconds[0])

    def passes(place: str) -> bool:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "A call failed", (), None)
        record.place = place
        return throttle.filter(record)

    assert [passes("a.py:1"), passes("a.py:1"), passes("a.py:2")] == [True, False, True]
    seconds[0] = 60
    assert [passes("a.py:1"), passes("a.py:1")] == [True, False]


def test_a_request_that_ends_with_a_defect_is_logged_once_a_minute_for_each_place():
    throttle = serving.Throttle((), every=60, clock=lambda: 0.0)

    def one() -> None:
        raise RuntimeError("one")

    def other() -> None:
        raise RuntimeError("other")

    def passes(broken: Callable[[], None]) -> bool:
        try:
            broken()
        except RuntimeError:
            line, found = "Exception in ASGI application\n", sys.exc_info()
            return throttle.filter(
                logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, line, (), found)
            )
        raise AssertionError

    assert [passes(broken) for broken in (one, one, other, one)] == [True, False, True, False]


KEPT = """
import sys
import psutil
from labeler.serving import return_freed_memory

if sys.argv[1] == "yes":
    assert return_freed_memory()
process = psutil.Process()
for _ in range(3):
    blocks = [b"x" * size for size in range(300_000, 420_000, 400)]
    last = b"x" * 300_000  # above the others: glibc cannot shrink the heap below it
    full = process.memory_info().rss
    del blocks
print((full - process.memory_info().rss) / full)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_returned_to_the_system():
    def returned(which: str) -> float:
        command = [sys.executable, "-c", KEPT, which]
        return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    assert returned("yes") > 0.5
