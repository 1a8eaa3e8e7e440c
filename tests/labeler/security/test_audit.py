"""The audit log over HTTP: who acted on the page, sign-ins, refused sign-ins, and the download."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from labeler.security.passwords import Refusals, hash_password
from storage.commands import Commands
from storage.engine.database import Database
from storage.tables import audit
from storage.tables.people import annotators, tokens
from tests.helpers.desk_world import (
    ADMIN_TOKEN,
    add_person,
    bearer,
    make_app,
    serving,
    session_cookie,
    workspace,
)
from tests.helpers.page_calls import Page

GOOD = "correct horse battery"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Any, str]]:
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch, workspace(folder) as db:
        patch.setenv("GRADIO_TEMP_DIR", str(folder))
        with serving(make_app(db)) as server:
            yield db, server.app, server.url


def browser(world: tuple[Database, Any, str], name: str, role: str = "researcher") -> httpx.Client:
    """A browser in which a new person has signed in."""
    db, app, url = world
    headers = session_cookie(app, db, add_person(db, name, role)) | {"origin": url}
    return httpx.Client(base_url=url, headers=headers, timeout=20)


def told(db: Database, **filters) -> list[tuple]:
    """(actor, via, action, subject), oldest first."""
    db.write(lambda _: None)  # what was submitted before is stored
    rows = [each.row() for each in audit.listing(db, limit=None, **filters)]
    return [(r["actor"], r["via"], r["action"], r["subject"]) for r in reversed(rows)]


def test_an_action_on_the_page_is_noted_for_the_person_who_clicked(world):
    db = world[0]
    with browser(world, "Rosa") as rosa, browser(world, "Kurt") as kurt:
        for client, name in ((rosa, "Ann"), (kurt, "Bob")):
            page = Page(client)
            page.call(page.of("annotator-add", "click"), [name, "annotator"])
    assert told(db, action="account.added") == [
        ("Rosa", "browser", "account.added", "Ann"), ("Kurt", "browser", "account.added", "Bob"),
    ]  # fmt: skip


def test_an_upload_and_a_download_are_noted_for_a_script(world):
    db, _, url = world
    who = add_person(db, "Script", "researcher")
    with httpx.Client(base_url=url, headers=bearer(db, who)) as c:
        row = {"prompt": "Why?", "response_a": "Because.", "response_b": "No."}
        assert c.post("/research/upload/pairs?name=new.jsonl", content=json.dumps(row)).is_success
        made = c.get("/research/download/export?format=raw&file=jsonl")
    found = told(db, actor="Script")
    assert ("Script", "token", "import", "pairs") in found
    assert made.status_code == 422  # there are no judgments to export
    assert ("Script", "token", "export", "raw") not in found


def test_the_command_line_is_the_operator_also_beside_a_server(world):
    db = world[0]
    Commands(db).call("users.add", {"name": "Olga", "token": True})
    assert ("operator", "command line", "account.added", "Olga") in told(db)
    assert ADMIN_TOKEN not in (db.workspace / "journal.jsonl").read_text()


def test_signing_in_and_out_is_noted(world):
    db, _, url = world
    who = add_person(db, "Sina")
    invite = tokens.issue(db, who.id, "invite", lifetime=None)
    assert annotators.accept_invite(db, invite, password_hash=hash_password(GOOD))
    with httpx.Client(base_url=url, headers={"origin": url}) as client:
        client.post("/sign-in", data={"name": "Sina", "password": GOOD})
        client.post("/sign-out")
    assert told(db, actor="Sina") == [
        ("Sina", "browser", "sign-in", "Sina"), ("Sina", "browser", "session.ended", "Sina"),
    ]  # fmt: skip


def test_refused_sign_ins_are_noted_once_and_without_what_was_typed(world):
    db, _, url = world
    who = add_person(db, "Rudi")
    invite = tokens.issue(db, who.id, "invite", lifetime=None)
    annotators.accept_invite(db, invite, password_hash=hash_password(GOOD))
    with httpx.Client(base_url=url, headers={"origin": url}) as client:
        for name in ("Rudi", "Rudi", "my-secret-password", "other-secret-password"):
            client.post("/sign-in", data={"name": name, "password": "wrong-secret-password"})
    found = audit.listing(db, action="sign-in.refused")
    db.write(lambda _: None)
    found = audit.listing(db, action="sign-in.refused")
    assert {each.actor for each in found} == {"unknown"}
    assert sorted((each.subject, each.entry.details["attempts"]) for each in found) == [
        ("", 1), ("Rudi", 1),
    ]  # fmt: skip
    assert {each.entry.details["address"] for each in found} == {"127.0.0.1"}
    assert "secret-password" not in (db.workspace / "journal.jsonl").read_text()


def test_strangers_cannot_fill_the_log():
    clock = [0.0]
    limit = Refusals(clock=lambda: clock[0])
    noted = 0
    for _ in range(50_000):  # 1,000 accounts, ten hours
        clock[0] += 0.72
        noted += limit.count(f"a{int(clock[0] * 7) % 1000}") > 0
    assert noted <= 100 * 11
    quiet = Refusals(clock=lambda: clock[0])
    assert [quiet.count("a") for _ in range(3)] == [1, 0, 0]
    clock[0] += 600
    assert quiet.count("a") == 3  # two that were counted, and this one


def test_the_log_is_downloaded_by_researchers_with_filters(world):
    with browser(world, "Dora") as client:
        page = Page(client)
        page.call(page.of("annotator-add", "click"), ["Zoe", "annotator"])
        answer = client.get("/research/download/audit", params={"actor": "Dora", "file": "csv"})
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert {row["actor"] for row in rows} == {"Dora"}
        assert ("account.added", "Zoe") in {(row["action"], row["subject"]) for row in rows}
        assert "attachment" in answer.headers["content-disposition"]
        lines = client.get("/research/download/audit?actor=Dora&file=jsonl").text.splitlines()
        assert {json.loads(line)["actor"] for line in lines} == {"Dora"}
        refused = client.get("/research/download/audit?since=yesterday")
        assert (refused.status_code, "yesterday" in refused.json()["error"]) == (422, True)
    with browser(world, "Vic", "viewer") as client:
        assert client.get("/research/download/audit").status_code == 403


def test_bad_values_of_a_script_are_refused_with_a_sentence(world):
    with browser(world, "Rita") as rita:
        for limit in ("-1", "0", "99999999999999999999"):
            refused = rita.get(f"/research/api/audit?limit={limit}")
            assert (refused.status_code, "must be from 1 to" in refused.text) == (422, True)
        for name in ("annotator", "category", "text"):
            body = f'{{"reason": "no", "{name}": "\\ud800"}}'
            for act in ("exclude", "restore"):
                refused = rita.post(f"/research/api/judgments/{act}", content=body)
                assert (refused.status_code, list(refused.json())) == (422, ["error"])
