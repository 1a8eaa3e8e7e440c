"""Commands to a server that takes its time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pipeline.simulation.clients import AdminClient


@pytest.fixture
def slow() -> Iterator[str]:
    """The address of a server that answers each command with its name after half a second."""
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            gone.wait(0.5)
            content = json.dumps({"result": call["command"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    gone.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("command", ["import", "export", "backup", "verify"])
def test_what_grows_with_the_data_is_waited_for(slow: str, command: str) -> None:
    with AdminClient(slow, "token", timeout=0.05) as call:
        assert call(command, {}) == command


def test_another_command_may_still_be_running_when_it_is_given_up(slow: str) -> None:
    sentence = r"has not answered `train` for 0\.05 s and may still be running it; check `status`"
    with (
        AdminClient(slow, "token", timeout=0.05) as call,
        pytest.raises(ValueError, match=sentence),
    ):
        call("train", {})
