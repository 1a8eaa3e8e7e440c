"""A small world to label in: a workspace with people and pairs, and the real app on a real port."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from labeler.app import create_app
from labeler.security.addresses import Addresses
from labeler.security.listening import listen
from labeler.serving import server as http_server
from pipeline.reward.report.report import RewardReports
from storage.engine.database import Database
from storage.errors import StorageUnavailable
from storage.gate_report import GateReport, Standing
from storage.records import (
    Annotator,
    Comparison,
    Completion,
    Iteration,
    Message,
    ModelVersion,
    Prompt,
    digest,
)
from storage.reports import LabelBudget, SettingView, WorkspaceSettings
from storage.tables import comparisons, completions, iterations, models, prompts
from storage.tables.people import annotators, tokens

ADMIN_TOKEN = "admin-token-of-the-tests"


class QuietLoop:
    """A pipeline in which nothing is running: what the research page is given here."""

    reports = RewardReports(Path(), list, lambda: {"message": ""})

    def settings(self) -> list[SettingView]:
        return []

    def workspace_settings(self) -> WorkspaceSettings:
        return WorkspaceSettings(file="config.toml", version="", preset="demo", settings=())

    def save_settings(self, changes: Mapping[str, str], version: str) -> WorkspaceSettings:
        raise ValueError(f"no settings in this test: {changes} {version}")

    def can_train(self) -> str | None:
        return "There is nothing to train on in this test."

    def train(self, overrides: dict[str, str]) -> None:
        raise ValueError(f"no training in this test, and no {overrides}")

    def cancel(self, run: str) -> None:
        raise ValueError(f"there is no run {run}")

    resume = label_more = cancel

    def retry(self, run: str, overrides: Mapping[str, str] | None = None) -> None:
        raise ValueError(f"there is no run {run} to try again with {overrides}")

    def stopped_stage(self) -> None:
        return None

    def gate(self) -> GateReport:
        return GateReport()

    def label_budget(self) -> LabelBudget:
        return LabelBudget()

    def override_gate(
        self, ruling: str, reason: str, *, policy: str | None = None, researcher: str = ""
    ) -> Standing:
        raise ValueError(f"there is no policy {policy} to {ruling}, {researcher}: {reason}")

    def log(self, run: str, tail: int = 200) -> str:
        return f"the last {tail} lines of {run}"

    def metric_help(self) -> dict[str, str]:
        return {}


def admin(command: str, arguments: dict[str, Any]) -> Any:
    """The command line's end of the server: echoes, or refuses as a command would."""
    if command == "full":
        raise StorageUnavailable("/w/journal.jsonl is gone")
    if command == "refuse":
        raise ValueError("That cannot be done.")
    return {"command": command, **arguments}


def add_pairs(
    db: Database,
    texts: Sequence[tuple[str | list[Message], str, str]],
    *,
    iteration: int = 1,
    wanted: int = 1,
) -> list[Comparison]:
    """Comparisons (prompt, first, second) of an iteration that is being labeled, in this order."""
    models.add(db, ModelVersion(id="policy-secret", role="policy", name="secret policy"))
    asked = [Prompt.make(prompt, role="train") for prompt, _, _ in texts]
    answers = [
        Completion(
            id=f"x-{digest(prompt.id, text)}", prompt=prompt.id, policy="policy-secret", text=text
        )
        for prompt, (_, *both) in zip(asked, texts, strict=True)
        for text in both
    ]
    pairs = [
        Comparison(
            id=f"c-{digest(prompt.id, str(index))}",
            prompt=prompt.id,
            first=answers[2 * index].id,
            second=answers[2 * index + 1].id,
            iteration=iteration,
            arm="random",
            wanted=wanted,
            position=index,
        )
        for index, prompt in enumerate(asked)
    ]
    prompts.add(db, asked)
    completions.add(db, list({answer.id: answer for answer in answers}.values()))
    comparisons.add(db, pairs)
    iterations.save(db, Iteration(number=iteration, phase="labeling", labels_wanted=len(pairs)))
    return pairs


def plain_pairs(count: int) -> list[tuple[str | list[Message], str, str]]:
    """Pairs whose texts say which is which: "first answer 3" is the canonical first of pair 3."""
    return [
        (f"Question number {i}?", f"first answer {i}", f"second answer {i}") for i in range(count)
    ]


def add_person(db: Database, name: str, role: Any = "annotator", kind: Any = "person") -> Annotator:
    """Somebody whose id is made of the name, so that sides do not change from run to run."""
    return annotators.add(db, Annotator(id=f"who-{digest(name)}", name=name, role=role, kind=kind))


def session_cookie(app: FastAPI, db: Database, who: Annotator) -> dict[str, str]:
    """The Cookie header of a browser in which `who` is signed in."""
    secret = tokens.issue(db, who.id, "session", lifetime=None)
    return {"cookie": f"{app.state.auth.cookie}={secret}"}


def bearer(db: Database, who: Annotator) -> dict[str, str]:
    """The header of a script of `who`."""
    secret = tokens.issue(db, who.id, "api", lifetime=None)
    return {"authorization": f"Bearer {secret}"}


def make_app(db: Database, **settings: Any) -> FastAPI:
    """The real application."""
    given = {
        "accounts_required": False,
        "admin": admin,
        "admin_token": ADMIN_TOKEN,
        "addresses": Addresses.of(more=["testserver"]),
    } | settings
    with warnings.catch_warnings():
        # Gradio makes an event loop for each of its locks and leaves it open.
        warnings.simplefilter("ignore", ResourceWarning)
        app = create_app(db, loop=QuietLoop(), **given)
        asyncio.set_event_loop(None)
        gc.collect()
    return app


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Server:
    """A running server; `url` has no slash at its end."""

    url: str
    app: FastAPI
    stop: Any


@contextmanager
def serving(app: FastAPI, *, port: int | None = None) -> Iterator[Server]:
    """The app behind the real server in a thread of this process."""
    listener = listen("127.0.0.1", port or 0)
    port = listener.getsockname()[1]
    server = http_server(app, behind_proxy=False)
    server.config.timeout_graceful_shutdown = 1
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}"

    def stop() -> None:
        server.should_exit = True
        thread.join(timeout=20)

    try:
        _wait_until_up(url, thread)
        yield Server(url=url, app=app, stop=stop)
    finally:
        stop()


def _wait_until_up(url: str, thread: threading.Thread) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and thread.is_alive():
        try:
            if httpx.get(f"{url}/healthz", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")


@contextmanager
def workspace(folder: Path, texts: list[Any] | None = None) -> Iterator[Database]:
    """An open workspace with pairs (6 plain ones unless `texts`)."""
    with Database.open(folder) as db:
        add_pairs(db, plain_pairs(6) if texts is None else texts)
        yield db
