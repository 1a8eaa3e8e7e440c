"""The routes of the Hugging Face hub that the push of a model calls, on localhost."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import huggingface_hub.constants
import pytest

TOKEN = "hf_secretsecretsecret"
LARGE = ".safetensors"
"""Files with this ending go to the storage of large files (LFS), as on the hub."""


@dataclass
class ModelHub:
    """`files` are committed, `large` are uploaded contents by SHA-256, `tokens` the tokens sent."""

    public: set[str] = field(default_factory=set)
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    refuses: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if self.refuses:
            return 403, {"error": f"{TOKEN} may not write"}
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return 200, {"url": f"{self.url}/me/policy"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            names = [each["path"] for each in json.loads(body)["files"]]
            mode = {True: "lfs", False: "regular"}
            return 200, {"files": [{"path": n, "uploadMode": mode[n.endswith(LARGE)], "shouldIgnore": False} for n in names]}  # fmt: skip
        if path.endswith("/info/lfs/objects/batch"):
            self.reached.set()
            self.go_on.wait(30)
            asked = json.loads(body)["objects"]
            return 200, {"transfer": "basic", "objects": [{**o, "actions": {"upload": {"href": f"{self.url}/store/{o['oid']}"}}} for o in asked]}  # fmt: skip
        if method == "PUT" and path.startswith("/store/"):
            self.large[path.removeprefix("/store/")] = body
            return 200, {}
        if "/commit/" in path:
            self._commit(map(json.loads, body.splitlines()))
            return 200, {"commitUrl": f"{self.url}/me/policy/commit/1", "commitOid": "1" * 40}
        if method == "GET" and path.startswith("/api/models/"):
            name = path.removeprefix("/api/models/").removesuffix("/revision/main")
            return 200, {"id": name, "private": name not in self.public, "sha": "1" * 40}
        return 404, {"error": f"unexpected {method} {path}"}

    def _commit(self, lines: Any) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self.large[value["oid"]]


@contextmanager
def model_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    """The hub, to which `huggingface_hub` is directed, and a token for it in HF_TOKEN."""
    hub = ModelHub()
    hub.go_on.set()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.tokens.add(self.headers.get("Authorization", ""))
            status, answer = hub.answer(self.command, self.path.split("?")[0], body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = respond

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
