"""Datasets of the hub: which files are read, against a stand-in for the hub's HTTP interface."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub.constants
import pandas as pd
import pytest

from labeler.research.data.importing.jobs import Imports, Wanted
from labeler.uploads import Uploads
from storage.commands import Commands
from storage.engine.database import Database
from storage.importing.files.filetypes import read_rows
from storage.importing.files.hub_files import local_file

COMMIT = "0" * 40


def parquet(*texts: str) -> bytes:
    buffer = io.BytesIO()
    pd.DataFrame({"prompt": [*texts]}).to_parquet(buffer)
    return buffer.getvalue()


FILES = {
    ("lab/fruit", "refs/convert/parquet"): {
        "default/train/0000.parquet": parquet("a?"),
        "default/train/0001.parquet": parquet("b?"),
        "default/test/0000.parquet": parquet("c?"),
        "small/train/0000.parquet": parquet("d?"),
        "small/test/0000.parquet": parquet("x?"),
    },
    ("lab/private", "main"): {
        "README.md": b"#",
        "data/train-00000-of-00002.parquet": parquet("e?"),
        "data/train-00001-of-00002.parquet": parquet("f?"),
        "data/test-00000-of-00001.parquet": parquet("g?"),
        "raw.jsonl": json.dumps({"prompt": "h?"}).encode(),
    },
    ("lab/empty", "main"): {"README.md": b"#"},
}


class Hub(BaseHTTPRequestHandler):
    """The three routes that a download uses."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Sizes of named files: api/datasets/OWNER/NAME/paths-info/REVISION."""
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = parse_qs(body)["paths"]
        stored = FILES[("/".join(parts[2:4]), "/".join(parts[5:]))]
        found = [{"type": "file", "path": f, "size": len(stored[f]), "oid": COMMIT} for f in asked]
        self._send(200, json.dumps(found).encode(), **{"Content-Type": "application/json"})

    def _answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[0] == "api":  # api/datasets/OWNER/NAME/tree/REVISION
            self._listing("/".join(parts[2:4]), "/".join(parts[5:]))
        else:  # datasets/OWNER/NAME/resolve/REVISION/PATH
            self._file("/".join(parts[1:3]), "/".join(parts[4:]))

    def _file(self, name: str, rest: str) -> None:
        stored = {f"{rev}/{path}": data for (repo, rev), files in FILES.items() if repo == name
                  for path, data in files.items()}  # fmt: skip
        if rest in stored:
            self._send(200, stored[rest], ETag='"1"', **{"X-Repo-Commit": COMMIT})
        else:
            self._send(404, b"", **{"X-Error-Code": "EntryNotFound"})

    def _listing(self, name: str, revision: str) -> None:
        if files := FILES.get((name, revision)):
            found = [
                {"type": "file", "path": f, "size": len(files[f]), "oid": COMMIT} for f in files
            ]
            self._send(200, json.dumps(found).encode(), **{"Content-Type": "application/json"})
        elif any(name == each for each, _ in FILES):
            self._send(404, b"{}", **{"X-Error-Code": "RevisionNotFound"})
        else:
            self._send(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield
    server.shutdown()
    server.server_close()


def prompts(address: str) -> list[str]:
    with local_file(f"hf://datasets/{address}") as path:
        rows, bad = read_rows(path)
    assert not bad.count
    assert not path.exists()
    return [row.values["prompt"] for row in rows]


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("lab/fruit/default", ["a?", "b?"]),
        ("lab/fruit/default/test", ["c?"]),
        ("lab/fruit/small/train", ["d?"]),
        ("lab/private", ["e?", "f?"]),
        ("lab/private/data/test", ["g?"]),
        ("lab/private/raw.jsonl", ["h?"]),
        ("lab/private@main/raw.jsonl", ["h?"]),
    ],
)
def test_the_rows_of_a_split_or_a_file(address: str, found: list[str]) -> None:
    assert prompts(address) == found


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        (
            "lab/fruit",
            "not clear which split of lab/fruit is meant; .* default/train, default/test, small/train",
        ),
        ("lab/fruit/large", "not clear which split"),
        ("lab/empty", "lab/empty has no parquet files; name a file"),
        ("lab/none", "lab/none cannot be downloaded from the hub: .* needs HF_TOKEN"),
        ("lab/private/none.jsonl", "lab/private cannot be downloaded from the hub"),
        ("lab", "must be hf://datasets/OWNER/NAME"),
        ("lab/private/../../x.jsonl", "must be hf://datasets/OWNER/NAME"),
    ],
)
def test_what_cannot_be_found_is_told(address: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        prompts(address)


def test_a_dataset_that_is_too_large_is_not_downloaded(tmp_path: Path) -> None:
    size = sum(
        len(FILES["lab/private", "main"][f"data/train-0000{n}-of-00002.parquet"]) for n in (0, 1)
    )
    with local_file("hf://datasets/lab/private", folder=tmp_path, max_bytes=size) as path:
        assert tmp_path in path.parents
        assert len(read_rows(path)[0]) == 2
    assert not list(tmp_path.iterdir())
    for address, most in (("lab/private", size - 1), ("lab/private@main/raw.jsonl", 3)):
        with pytest.raises(ValueError, match="the limit for imports from the page"):
            local_file(f"hf://datasets/{address}", folder=tmp_path, max_bytes=most).__enter__()
    assert not list(tmp_path.iterdir())


def test_the_page_previews_and_imports_from_the_hub(db: Database) -> None:
    imports = Imports(db, Uploads(db.workspace), lambda: None)
    address = "hf://datasets/lab/fruit/default/train"
    for preview in (True, False):
        job = imports.begin(Wanted(address=address, preview=preview))
        for _ in range(400):
            if job.over:
                break
            time.sleep(0.05)
        view = job.view()
        assert (view["phase"], view["kind"], view["report"]["added"]["prompts"]) == (
            "done",
            "prompts",
            2,
        )
        assert db.read("SELECT count(*) AS n FROM prompts")[0]["n"] == (0 if preview else 2)
    assert not list((db.workspace / "uploads").rglob("*.parquet"))


def test_the_command_imports_from_the_hub(db: Database) -> None:
    report = Commands(db).call(
        "import", {"kind": "prompts", "file": "hf://datasets/lab/private", "role": "train"}
    )
    assert report["added"]["prompts"] == 2
    assert {row["source"] for row in db.read("SELECT source FROM prompts")} == {"lab--private"}
