"""`launch.py webhooks`, alone and beside a server; and events over a kill -9 of the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook as Verifier
from typer.testing import CliRunner

from commands.main import app
from commands.studio import PRIVATE_WEBHOOKS, is_up
from storage.engine.database import Database
from storage.labeling import judgments, queue
from tests.helpers.command_line import told
from tests.helpers.mail_server import mail_server
from tests.helpers.receiver import Receiver, receiving
from tests.helpers.storage_world import fill
from tests.helpers.tiny import save_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    save_tiny(tmp_path / "model")
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    with Database.open(place) as db:
        fill(db, 3)
    return place


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def flag(workspace: Path, id: str) -> None:
    """ann flags a pair, while no server is open."""
    with Database.open(workspace) as db:
        pair = queue.lease(db, "ann", 1).pairs[0].comparison.id
        judgments.flag(db, id=id, comparison=pair, annotator="ann")


def start(workspace: Path) -> subprocess.Popen[bytes]:
    server = subprocess.Popen(
        [sys.executable, "launch.py", "serve", "--workspace", workspace, "--port", "0",
         "--allow-private-webhooks"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 90
    while not is_up(workspace):
        assert server.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return server


def refusal(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 1
    return str(done.exception)


def test_a_webhook_is_added_tested_rotated_and_removed(workspace, receiver, monkeypatch):
    monkeypatch.setenv(PRIVATE_WEBHOOKS, "1")
    where = ("--workspace", workspace, "--json")
    made = told(
        "webhooks", "add", receiver.url, "--event", "flag.opened", "--description", "chat", *where
    )
    assert (made["events"], made["description"], made["active"]) == (["flag.opened"], "chat", True)
    assert told("webhooks", "test", made["id"], *where)["code"] == 204
    (request,) = receiver.requests
    assert Verifier(made["secret"]).verify(request.body, request.headers)["type"] == "ping"
    rotated = told("webhooks", "rotate", made["id"], *where)
    assert rotated["secret"] not in (None, made["secret"])
    assert rotated["previous_signs_until"] > rotated["rotated_at"]
    told("webhooks", "disable", made["id"], *where)
    (listed,) = told("webhooks", "list", *where)
    assert (listed["active"], listed["delivered"], "secret" in listed) == (False, 1, False)
    told("webhooks", "enable", made["id"], *where)
    (delivery,) = told("webhooks", "deliveries", *where)
    assert (delivery["type"], delivery["status"], delivery["attempts"]) == ("ping", "delivered", 1)
    told("webhooks", "resend", delivery["id"], *where)
    (delivery,) = told("webhooks", "deliveries", "--status", "pending", *where)
    assert delivery["attempts"] == 0
    told("webhooks", "remove", made["id"], *where)
    assert told("webhooks", "list", *where) == []


def test_a_refused_ping_has_exit_status_1(workspace, receiver, monkeypatch):
    monkeypatch.setenv(PRIVATE_WEBHOOKS, "1")
    receiver.answers = [401]
    made = told("webhooks", "add", receiver.url, "--workspace", workspace, "--json")
    done = CliRunner().invoke(
        app, ["webhooks", "test", made["id"], "--workspace", str(workspace), "--json"]
    )
    assert (done.exit_code, json.loads(done.stdout)["error"]) == (1, "The receiver answered 401.")


def test_private_addresses_and_unknown_events_are_refused(workspace, receiver):
    where = ("--workspace", workspace)
    assert "private address 127.0.0.1" in refusal("webhooks", "add", receiver.url, *where)
    url = "https://example.org/"
    assert "'labels.lost'" in refusal("webhooks", "add", url, "--event", "labels.lost", *where)
    both = ("--event", "labels.lost", "--workspace", workspace / "missing")
    assert "there is no event 'labels.lost'" in refusal("webhooks", "add", url, *both)
    assert "there is no webhook 'wh-x'" in refusal("webhooks", "test", "wh-x", *where)
    assert "status" in refusal("webhooks", "deliveries", "--status", "lost", *where)


def test_events_arrive_once_for_a_receiver_that_knows_ids_over_a_kill_and_a_restart(
    workspace, receiver
):
    """The server is killed after the receiver has got the event and before it has answered."""
    held = threading.Event()
    receiver.answers = [lambda _: held.wait(60), 200]
    for id in ("f1", "f2"):
        flag(workspace, id)
    server = start(workspace)
    try:
        made = told("webhooks", "add", receiver.url, "--workspace", workspace, "--json")
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    flag(workspace, "f3")  # recorded with its delivery, while no server runs
    server = start(workspace)
    receiver.wait(1)
    server.send_signal(signal.SIGKILL)
    server.wait()
    held.set()
    server = start(workspace)
    try:
        receiver.wait(2)
        until = time.monotonic() + 20
        while told(
            "webhooks", "deliveries", "--status", "pending", "--workspace", workspace, "--json"
        ):
            assert time.monotonic() < until
        (delivery,) = told("webhooks", "deliveries", "--workspace", workspace, "--json")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
    assert (delivery["status"], delivery["attempts"], delivery["code"]) == ("delivered", 1, 200)
    verified = [Verifier(made["secret"]).verify(r.body, r.headers) for r in receiver.requests]
    by_id = {
        r.id: found["data"]["flag"] for r, found in zip(receiver.requests, verified, strict=True)
    }
    assert by_id == {delivery["event"]: "f3"}


def set_up_mail(workspace: Path, port: int) -> None:
    lines = (
        'host = "127.0.0.1"',
        f"port = {port}",
        'tls = "none"',
        'sender = "studio@example.org"',
    )
    (workspace / "mail.toml").write_text("\n".join(lines))


def test_an_e_mail_address_is_added_tested_and_removed(workspace):
    where = ("--workspace", workspace, "--json")
    address = ("webhooks", "add", "ann@example.org", "--event", "stage.failed")
    assert "has to create mail.toml" in refusal(*address, *where)
    with mail_server() as mails:
        set_up_mail(workspace, mails.port)
        made = told(*address, *where)
        assert (made["url"], made["events"]) == ("mailto:ann@example.org", ["stage.failed"])
        assert told("webhooks", "test", made["id"], *where)["code"] == 250
        assert mails.recipients == [["ann@example.org"]]
        assert "has no secret" in refusal("webhooks", "rotate", made["id"], *where)
        told("webhooks", "remove", made["id"], *where)
    assert told("webhooks", "list", *where) == []


def test_an_e_mail_survives_a_refusal_and_a_kill_of_the_studio(workspace):
    """The kill comes before the answer is stored, so it arrives again, with the same Message-ID."""
    where = ("--workspace", workspace, "--json")
    with mail_server() as mails:
        mails.answers = ["451 try later", 90.0]
        set_up_mail(workspace, mails.port)
        told("webhooks", "add", "ann@example.org", *where)
        flag(workspace, "f1")
        server = start(workspace)
        try:
            mails.wait(2)  # the second is the retry after 5 s
        finally:
            server.kill()
            server.wait()
        server = start(workspace)
        try:
            mails.wait(3)
            until = time.monotonic() + 20
            while (found := told("webhooks", "deliveries", *where)[0])["status"] == "pending":
                assert time.monotonic() < until
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    assert (found["status"], found["attempts"], found["code"]) == ("delivered", 2, 250)
    assert len(mails.ids) == 3
    assert len(set(mails.ids)) == 1
    link = mails.messages[0].get_content().splitlines()[2]
    assert link.startswith("http://127.0.0.1:")
    assert link.endswith("/research/?tab=team&section=people")
