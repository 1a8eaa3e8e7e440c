"""A local hub for pushes in tests: what it was sent, and pauses and refusals of its answers."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from storage.exporting.model_push import Verdicts
from storage.gate_report import GateReport
from storage.reports import RewardReport
from tests.helpers.local_hub import Answer, LocalHub, serving

TOKEN = "hf_secretsecretsecret"
NO_VERDICTS = Verdicts(GateReport, lambda _: RewardReport(models=()))
"""Of a pipeline that has judged nothing."""


class ModelHub(LocalHub):
    """`created` are the bodies of creations, `tokens` the Authorization headers.

    Uploads of large files set `reached` and wait for `go_on`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.created: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        self.refuses = False
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if self.refuses:
            return 403, {"error": f"{TOKEN} may not write"}, {}
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
        if path.endswith("/info/lfs/objects/batch"):
            self.reached.set()
            self.go_on.wait(30)
        return super().answer(method, path, body)

    @property
    def files(self) -> dict[str, bytes]:
        """The committed files of the repository me/policy."""
        repository = self.folder / "models" / "me" / "policy"
        return {
            path.relative_to(repository).as_posix(): path.read_bytes()
            for path in repository.rglob("*")
            if path.is_file()
        }

    def forget(self) -> None:
        """Remove the committed files of me/policy."""
        for name in self.files:
            (self.folder / "models" / "me" / "policy" / name).unlink()

    def make_public(self, name: str) -> None:
        """Create a public model repository."""
        owner, name = name.split("/")
        super().answer(
            "POST",
            "/api/repos/create",
            json.dumps({"organization": owner, "name": name, "visibility": "public"}).encode(),
        )


@contextmanager
def model_hub(
    monkeypatch: pytest.MonkeyPatch, kind: type[ModelHub] = ModelHub
) -> Iterator[ModelHub]:
    """The hub, to which `huggingface_hub` is directed, and a token for it in HF_TOKEN."""
    with tempfile.TemporaryDirectory() as folder:
        hub = kind(Path(folder))
        with serving(hub, seen=lambda headers: hub.tokens.add(headers.get("Authorization", ""))):
            monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
            monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
            monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
            monkeypatch.setenv("HF_TOKEN", TOKEN)
            try:
                yield hub
            finally:
                hub.go_on.set()
