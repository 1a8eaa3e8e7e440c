"""Pushes over HTTP and on the page, against a stand-in for the hub."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from labeler.research import interrupted
from labeler.research.models.publishing.tab import PublishTab
from storage.engine.database import Database
from storage.records import ModelVersion
from storage.tables.people import tokens
from tests.helpers.browser import chromium, find_chromium, new_page
from tests.helpers.desk_world import add_person, make_app, serving, session_cookie
from tests.helpers.model_hub import TOKEN, ModelHub, model_hub
from tests.helpers.research_tabs import laid_out
from tests.storage.exporting.test_model_push import fill

ORIGIN = {"origin": "http://testserver"}
PUSHES = "/research/api/pushes"
BODY = {"model": "policy-1", "repository": "me/policy"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    with model_hub(monkeypatch) as found:
        yield found


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "study") as db:
        fill(db)
        yield db


def client_of(db: Database, app: Any, role: Any) -> TestClient:
    who = add_person(db, f"some {role}", role)
    return TestClient(app, headers={**session_cookie(app, db, who), **ORIGIN})


def ended(client: TestClient, id: str) -> dict[str, Any]:
    for _ in range(400):
        push = client.get(f"{PUSHES}/{id}").json()
        if push["phase"] in ("done", "failed", "cancelled"):
            return push
        time.sleep(0.05)
    raise AssertionError("the push did not end")


def test_a_push_is_followed_cancelled_and_for_researchers(db, hub, monkeypatch):
    app = make_app(db)
    client = client_of(db, app, "researcher")
    assert client.get(PUSHES).json() == {
        "models": [{"id": "policy-1", "name": "policy-1", "role": "policy", "iteration": 1}],
        "reason": None,
    }
    said = [client.get(f"{PUSHES}/plan/policy-1").text]
    push = client.post(PUSHES, json=BODY).json()
    done = ended(client, push["id"])
    assert (done["phase"], done["url"]) == ("done", f"{hub.url}/me/policy")
    assert done["sent"] == done["bytes"] > 5_000
    assert "config.json" in hub.files

    hub.forget()
    hub.go_on.clear()
    hub.reached.clear()
    push = client.post(PUSHES, json=BODY).json()
    assert hub.reached.wait(20)
    assert client.post(PUSHES, json=BODY).status_code == 409
    with monkeypatch.context() as restarted:
        restarted.setattr(interrupted, "_SERVER", "server-2")
        tab = laid_out(lambda: PublishTab(db))
        shown = tab.refresh()[tab.interrupted]
        assert "The push of policy-1 to me/policy was interrupted" in shown
        assert "Push it again" in shown
    # config.json is sent, the weights are being sent.
    now = client.get(f"{PUSHES}/{push['id']}").json()
    assert (now["phase"], now["sent"]) == ("uploading", 2)
    assert client.post(f"{PUSHES}/{push['id']}/cancel", json={}).status_code == 200
    hub.go_on.set()
    said.append(str(ended(client, push["id"])))
    assert "cancelled" in said[-1]
    assert hub.files == {}

    hub.refuses = True
    failed = ended(client, client.post(PUSHES, json=BODY).json()["id"])
    assert (failed["phase"], "refused me/policy" in failed["error"]) == ("failed", True)
    said.append(str(failed))
    for role in ("annotator", "adjudicator", "viewer"):
        other = client_of(db, app, role)
        assert other.get(PUSHES).status_code == 403
        assert other.get(f"{PUSHES}/plan/policy-1").status_code == 403
        assert other.post(PUSHES, json=BODY).status_code == 403
        assert other.post(f"{PUSHES}/{push['id']}/cancel", json={}).status_code == 403
    monkeypatch.delenv("HF_TOKEN")
    assert "There is no token" in client.get(PUSHES).json()["reason"]
    refused = client.post(PUSHES, json=BODY)
    assert (refused.status_code, "there is no token" in refused.text.lower()) == (422, True)
    assert not [each for each in said if TOKEN in each]


def test_a_model_is_not_pushed_twice_at_once_by_its_id_and_its_name(db, hub):
    folder = db.workspace / "models" / "policy-3"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 6_000)
    db.write(lambda tx: tx.store(
        ModelVersion(id="policy-3", role="policy", name="best", path="models/policy-3", parent="sft-1", iteration=2)
    ))  # fmt: skip
    client = client_of(db, make_app(db), "researcher")
    hub.go_on.clear()
    push = client.post(PUSHES, json={"model": "policy-3", "repository": "me/policy"}).json()
    again = client.post(PUSHES, json={"model": "best", "repository": "me/policy"})
    hub.go_on.set()
    assert again.status_code == 409
    assert ended(client, push["id"])["phase"] == "done"


def test_two_models_are_not_pushed_to_one_repository_at_once(db, hub):
    folder = db.workspace / "models" / "policy-3"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 6_000)
    db.write(lambda tx: tx.store(
        ModelVersion(id="policy-3", role="policy", name="best", path="models/policy-3", parent="sft-1", iteration=2)
    ))  # fmt: skip
    client = client_of(db, make_app(db), "researcher")
    hub.go_on.clear()
    push = client.post(PUSHES, json=BODY).json()
    other = client.post(PUSHES, json={"model": "policy-3", "repository": "Me/Policy"})
    elsewhere = client.post(PUSHES, json={"model": "policy-3", "repository": "me/other"})
    hub.go_on.set()
    assert (other.status_code, elsewhere.status_code) == (409, 200)
    assert "policy-1 is being pushed to Me/Policy; wait for it" in other.text
    assert ended(client, push["id"])["phase"] == "done"
    assert len(hub.files["sub/model.safetensors"]) == 5_000
    assert "model.safetensors" not in hub.files
    assert ended(client, elsewhere.json()["id"])["phase"] == "done"


def test_the_page_shows_card_and_files_and_pushes(db, hub):
    find_chromium()
    app = make_app(db)
    with serving(app) as server, chromium() as browser:
        who = add_person(db, "Rosa", "researcher")
        secret = tokens.issue(db, who.id, "session", lifetime=None)
        with new_page(browser, cookie=(server.url, app.state.auth.cookie, secret)) as page:
            page.goto(f"{server.url}/research/?tab=models&section=publish&model=policy-1")
            form = page.locator("#publish form")
            expect(form).to_contain_text("A policy trained by RLOO")
            form.get_by_text("Files (3)").click()
            expect(form).to_contain_text("sub/model.safetensors")
            form.get_by_role("button", name="Push to the Hub").click()
            expect(form.get_by_role("status")).to_contain_text("Name a repository")
            form.get_by_label("Repository").fill("policy")
            form.get_by_role("button", name="Push to the Hub").click()
            expect(form.get_by_role("status")).to_contain_text("write OWNER/NAME")
            form.get_by_label("Repository").fill("me/policy")
            form.get_by_role("button", name="Push to the Hub").click()
            expect(form.get_by_role("status")).to_contain_text("policy-1 is on the hub, private")
            expect(form.get_by_role("link", name="me/policy")).to_be_visible()
            assert TOKEN not in page.content()
    assert hub.created[0]["visibility"] == "private"
