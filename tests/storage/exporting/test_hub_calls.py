"""A hub that refuses, breaks or does not answer: one sentence for the person, without the token."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from storage.engine.database import Database
from storage.exporting import hub_calls
from storage.exporting.exports import Destination
from storage.exporting.hub import push
from storage.exporting.hub_calls import check_repository
from storage.exporting.model_push import TOKEN as FILE
from storage.exporting.model_push import hub_token, push_model
from storage.records import ModelVersion
from tests.helpers.local_hub import Answer
from tests.helpers.model_hub import NO_VERDICTS, TOKEN, ModelHub, model_hub


class BrokenHub(ModelHub):
    """A hub that answers requests of paths with `at` in them as `broken` says."""

    at = "/never"
    broken: Answer = (500, b"", {})

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if self.at in path:
            return self.broken
        return super().answer(method, path, body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenHub]:
    with model_hub(monkeypatch, BrokenHub) as found:
        assert isinstance(found, BrokenHub)
        yield found


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "study") as db:
        folder = db.workspace / "models" / "policy-1"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"w" * 5_000)
        policy = ModelVersion(
            id="policy-1", role="policy", name="policy-1", path=f"models/{folder.name}"
        )
        db.write(lambda tx: tx.store(policy))
        yield db


@pytest.fixture
def export(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.parquet").write_bytes(b"rows")
    return folder


def refusals(db: Database, export: Path) -> list[str]:
    """What a person reads when a model and an export are pushed."""
    found: list[str] = []
    with pytest.raises(ValueError) as of_model:  # the caller compares the text
        push_model(db, NO_VERDICTS, "policy-1", "me/policy")
    with pytest.raises(ValueError) as of_export:
        push(export, "me/prefs", private=True)
    for refused in (of_model, of_export):
        assert type(refused.value) is ValueError
        assert refused.value.__suppress_context__
        found.append(str(refused.value))
    return found


HTML = (200, b"<html>It works</html>", {})


@pytest.mark.parametrize(
    ("at", "broken", "told"),
    [
        ("/api/repos/create", (401, b"", {}), "can write there"),
        ("/store/", (403, b"", {}), "can write there"),  # the library's RuntimeError hides it
        ("/commit/", (409, b"", {}), "somebody else is changing this repository; push again"),
        ("/commit/", (500, b"", {}), "the hub failed while it stored me/"),
        ("/api/repos/create", (429, b"", {}), "wait and push again"),
        ("/api/repos/create", HTML, "is not that of a hub"),
        ("/preupload/", HTML, "is not that of a hub"),
        ("/objects/batch", (200, [], {}), "is not that of a hub"),
        ("/commit/", (200, [], {}), "is not that of a hub"),
    ],
)
def test_each_failure_of_the_hub_says_what_to_do(
    db: Database, export: Path, hub: BrokenHub, at: str, broken: Answer, told: str
) -> None:
    hub.at, hub.broken = at, broken
    for text in refusals(db, export):
        assert told in text
        assert "\n" not in text
    assert hub.files == {}


def test_a_hub_that_quotes_the_token_does_not_show_it(
    db: Database, export: Path, hub: BrokenHub
) -> None:
    hub.at, hub.broken = "/commit/", (400, {"error": f"Bearer {TOKEN} is unknown"}, {})
    for text in refusals(db, export):
        assert "HTTP 400 Bearer … is unknown" in text


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.usefixtures("hub")
def test_a_hub_that_does_not_answer_ends_the_push(
    db: Database, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_calls, "WAIT", 0.5)
    with silent_server() as url:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        found: list[list[str]] = []
        pushes = threading.Thread(target=lambda: found.append(refusals(db, export)), daemon=True)
        pushes.start()
        pushes.join(30)
    assert found, "the push waits without limit"
    assert all("did not reach the hub" in text for text in found[0])


@pytest.mark.usefixtures("hub")
def test_a_cut_connection_has_a_reason(
    db: Database, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        texts = refusals(db, export)
        server.shutdown()
    assert all("did not reach the hub: Server disconnected" in text for text in texts)


@pytest.mark.parametrize(
    "content",
    [b"hf_first\nhf_second\n", b"hf_\0x", "hf_a\n".encode("utf-16"), b"hf_\xe9", "hf_€".encode(),
     b"hf_" * 5_000],
)  # fmt: skip
def test_what_is_no_token_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    file = tmp_path / FILE
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(ValueError, match="does not hold a token of the hub") as refused:
        hub_token(tmp_path)
    assert "hf_" not in str(refused.value).replace(str(file), "")


def test_a_token_that_an_editor_saved_with_a_byte_order_mark_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / FILE).write_text("hf_file\r\n", encoding="utf-8-sig")
    (tmp_path / FILE).chmod(0o600)
    assert hub_token(tmp_path) == "hf_file"


def test_a_token_of_several_lines_in_the_environment_is_not_shown(
    db: Database, export: Path, hub: BrokenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_first\nhf_second")
    with pytest.raises(ValueError, match="HF_TOKEN does not hold a token") as refused:
        push_model(db, NO_VERDICTS, "policy-1", "me/policy")
    assert "hf_first" not in str(refused.value)
    monkeypatch.setenv("HF_TOKEN", "hf_€")
    with pytest.raises(ValueError, match="HF_TOKEN does not hold a token"):
        push(export, "me/prefs", private=True)
    assert not hub.created


@pytest.mark.parametrize(
    "name",
    ["me/..", "me/a..b", "me/a--b", "me/a.git", "me/a-", "me/ünï", "٣/٣", f"me/{'x' * 300}", "me/a\n"],
)  # fmt: skip
def test_a_name_that_the_hub_does_not_accept_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ValueError, match="is not a repository; write OWNER/NAME") as refused:
        check_repository(name)
    assert type(refused.value) is ValueError
    assert len(str(refused.value)) < 600
    if "\n" not in name:
        with pytest.raises(ValueError, match="is not a repository; write OWNER/NAME"):
            Destination.of(f"hf://datasets/{name}")
