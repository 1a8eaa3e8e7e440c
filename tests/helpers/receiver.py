"""A real HTTP server that receives webhooks and answers as a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Request:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """`answers` are status codes, the last of which repeats; a function answers by itself."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    answers: list[int | Callable[[BaseHTTPRequestHandler], None]] = field(
        default_factory=lambda: [204]
    )
    headers: dict[str, str] = field(default_factory=dict)

    def wait(self, count: int, *, seconds: float = 20) -> list[Request]:
        """The requests, as soon as there are `count`."""
        until = time.monotonic() + seconds
        while len(self.requests) < count:
            assert time.monotonic() < until, f"{len(self.requests)} of {count} requests arrived"
            time.sleep(0.01)
        return self.requests


@contextmanager
def receiving(*, port: int = 0) -> Iterator[Receiver]:
    """A receiver on 127.0.0.1."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            lower = {name.lower(): value for name, value in self.headers.items()}
            found.requests.append(Request(self.path, lower, body))
            answer = found.answers[min(len(found.requests), len(found.answers)) - 1]
            if callable(answer):
                answer(self)
                return
            self.send_response(answer)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
