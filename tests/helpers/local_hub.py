"""The routes of the Hugging Face hub that pushes and downloads call, over a folder on this machine.

    python -m tests.helpers.local_hub FOLDER [--port 8799]

Keeps what is pushed in FOLDER/models/OWNER/NAME and FOLDER/datasets/OWNER/NAME, and serves it to
`huggingface_hub`, transformers and datasets with HF_ENDPOINT=http://127.0.0.1:8799.  Any token is
accepted, and there is one revision, main.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".parquet")
"""Files with these endings go to the storage of large files (LFS), as on the hub."""
_API = re.compile(r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?")
_FILE = re.compile(r"/(?P<kind>datasets/)?(?P<name>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>.+)")
_LFS = re.compile(r"/(datasets/)?[^/]+/[^/]+\.git/info/lfs/objects/batch")
Answer = tuple[int, Any, Mapping[str, str]]
"""Status, body (bytes, or what becomes JSON) and headers."""


class LocalHub:
    """Repositories in a folder; `url` is set by `serving`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """What the hub answers to a request; the path has no query."""
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if _LFS.fullmatch(path):
            return self._batch(json.loads(body)["objects"])
        if method == "PUT" and path.startswith("/store/"):
            self._store(path.removeprefix("/store/")).write_bytes(body)
            return 200, {}, {}
        if found := _API.fullmatch(path):
            repository = self.folder / found["kind"] / _safe(found["name"])
            return self._repository(method, repository, found["rest"] or "", body)
        if found := _FILE.fullmatch(path):
            repository = self.folder / ("datasets" if found["kind"] else "models")
            return self._file(repository / _safe(found["name"]), _safe(found["file"]))
        return 404, {"error": f"this local hub has no {method} {path}"}, {}

    def _create(self, asked: Mapping[str, Any]) -> Answer:
        kind = "datasets" if asked.get("type") == "dataset" else "models"
        name = _safe("/".join(filter(None, (asked.get("organization"), asked["name"]))))
        repository = self.folder / kind / name
        status = 409 if repository.exists() else 200
        repository.mkdir(parents=True, exist_ok=True)
        if status == 200 and asked.get("visibility", "private") != "private":
            self._public(repository).touch()
        prefix = "datasets/" if kind == "datasets" else ""
        return status, {"url": f"{self.url}/{prefix}{name}", "error": "it exists"}, {}

    def _public(self, repository: Path) -> Path:
        return repository.parent / f".{repository.name}.public"

    def _store(self, oid: str) -> Path:
        store = self.folder / "store"
        store.mkdir(parents=True, exist_ok=True)
        return store / _safe(oid)

    def _batch(self, asked: list[dict[str, Any]]) -> Answer:
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.url}/store/{each['oid']}"}}}
            for each in asked
        ]
        return 200, {"transfer": "basic", "objects": objects}, {}

    def _repository(self, method: str, repository: Path, rest: str, body: bytes) -> Answer:
        if not repository.is_dir():
            return 404, {"error": "no such repository"}, {"X-Error-Code": "RepoNotFound"}
        if rest.startswith("/preupload/"):
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": name, "uploadMode": modes[name.endswith(LARGE)], "shouldIgnore": False}
                for name in (each["path"] for each in json.loads(body)["files"])
            ]
            return 200, {"files": files}, {}
        if rest.startswith("/commit/"):
            self._commit(repository, map(json.loads, body.splitlines()))
            commit = _commit(repository)
            prefix = "datasets/" if repository.parent.parent.name == "datasets" else ""
            url = f"{self.url}/{prefix}{'/'.join(repository.parts[-2:])}/commit/{commit}"
            return 200, {"commitUrl": url, "commitOid": commit}, {}
        listed = [_described(repository, path) for path in _files(repository)]
        if rest.startswith("/tree/"):
            return 200, listed, {}
        if rest.startswith("/paths-info/"):
            asked = parse_qs(body.decode()).get("paths", [])
            return 200, [each for each in listed if each["path"] in asked], {}
        if method == "GET" and (not rest or rest.startswith("/revision/")):
            name = "/".join(repository.parts[-2:])
            private = not self._public(repository).exists()
            siblings = [{"rfilename": each["path"]} for each in listed]
            about = {"id": name, "private": private, "sha": _commit(repository)}
            return 200, about | {"siblings": siblings}, {}
        return 404, {"error": f"this local hub has no {method} {rest}"}, {}

    def _commit(self, repository: Path, lines: Iterator[Any]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] not in ("file", "lfsFile"):
                continue
            path = repository / _safe(value["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
            if line["key"] == "file":
                path.write_bytes(base64.b64decode(value["content"]))
            else:
                self._store(value["oid"]).replace(path)

    def _file(self, repository: Path, name: str) -> Answer:
        path = repository / name
        if not path.is_file():
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        content = path.read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        return 200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": _commit(repository)}


def _safe(name: str) -> str:
    if any(part in ("", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name in a repository")
    return name


def _files(repository: Path) -> list[Path]:
    return sorted(path for path in repository.rglob("*") if path.is_file())


def _described(repository: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(repository).as_posix()
    oid = hashlib.sha1(path.read_bytes()).hexdigest()
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": oid}


def _commit(repository: Path) -> str:
    """An id that changes with the content of the repository."""
    listed = [_described(repository, path) for path in _files(repository)]
    return hashlib.sha1(json.dumps(listed).encode()).hexdigest()


@contextmanager
def serving(
    hub: LocalHub, *, port: int = 0, seen: Callable[[Message], None] = lambda _: None
) -> Iterator[str]:
    """Serve the hub on localhost until the context ends; `seen` gets each request's headers."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen(self.headers)
            path = unquote(urlsplit(self.path).path)
            status, answer, headers = hub.answer(self.command, path, body)
            isjson = not isinstance(answer, bytes)
            content = json.dumps(answer).encode() if isjson else answer
            self.send_response(status)
            self.send_header(
                "Content-Type", "application/json" if isjson else "application/octet-stream"
            )
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = respond

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub.url
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8799)
    given = parser.parse_args()
    with serving(LocalHub(given.folder), port=given.port) as url:
        sys.stdout.write(f"export HF_ENDPOINT={url} HF_HUB_DISABLE_XET=1 HF_TOKEN=hf_local\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
