"""Roles: what each may call of the research page, download, and see; and how a role changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from labeler.security.filedata import READING_ONLY
from storage.engine.database import Database
from storage.engine.workspace import JOURNAL
from storage.labeling import judgments, queue
from storage.records import new_id
from storage.tables.people import annotators
from tests.helpers.browser import chromium, new_page
from tests.helpers.desk_browser import cookie_of
from tests.helpers.desk_world import (
    Server,
    add_person,
    make_app,
    serving,
    session_cookie,
    workspace,
)

ROLES = ("annotator", "adjudicator", "viewer", "researcher")
# Components whose events change something, by elem_id; everything else on the page reads.
ACTS = {
    "resume-stage", "label-more", "cancel", "resume", "curve-start", "curve-stop",
    "rule", "judgments-total", "annotator-add", "people", "gold", "gold-make", "practice-asked", "practice-pairs",
    "flags", "guidelines-save", "form-save",
    "judgment-pair", "waiting-pair", "prompt-add", "prompts-table", "webhook-add", "webhooks",
    "deliveries", "run-describe",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Server, Any]]:
    folder = tmp_path_factory.mktemp("roles")
    with pytest.MonkeyPatch.context() as patch, workspace(folder) as db:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "gradio"))
        people = {role: add_person(db, role.capitalize(), role) for role in ROLES}
        who = people["annotator"].id
        [pair] = queue.lease(db, who, 1).pairs
        judgments.judge(db, id=new_id(), comparison=pair.comparison.id, annotator=who, outcome="a")
        with serving(make_app(db)) as server:
            yield db, server, people


@pytest.fixture(scope="module")
def clients(world) -> Iterator[dict[str, httpx.Client]]:
    db, server, people = world
    made = {}
    for role, who in people.items():
        headers = {**session_cookie(server.app, db, who), "origin": server.url}
        made[role] = httpx.Client(base_url=server.url, headers=headers, timeout=20)
    yield made
    for client in made.values():
        client.close()


def join(client: httpx.Client, function: dict[str, Any], **more: Any) -> httpx.Response:
    values = [None] * len(function["inputs"])
    body = {"data": values, "fn_index": function["id"], "session_hash": f"s{function['id']}",
            "event_data": {"action": "disable", "id": "x"}, "trigger_id": None} | more  # fmt: skip
    return client.post("/research/gradio_api/queue/join", json=body)


def functions(client: httpx.Client) -> tuple[list[dict[str, Any]], dict[int, str]]:
    config = client.get("/research/config").json()
    names = {part["id"]: part["props"].get("elem_id") or "" for part in config["components"]}
    return config["dependencies"], names


def test_every_function_as_every_role(world, clients):
    db, _, _ = world
    listed, names = functions(clients["researcher"])
    acting = [f for f in listed if {names.get(part) for part, _ in f["targets"]} & ACTS]
    reading = [f for f in listed if f not in acting and f["backend_fn"]]
    assert len(acting) >= len(ACTS)
    assert len(reading) > 20
    before = (db.workspace / JOURNAL).read_bytes()
    for function in listed:
        for role in ("annotator", "adjudicator"):
            assert join(clients[role], function).status_code == 403
    for function in acting:
        refused = join(clients["viewer"], function)
        assert (refused.status_code, refused.json()) == (403, {"error": READING_ONLY})
    fills = {"go-retry"}  # opens a form that a viewer does not have
    for function in reading:
        expected = 403 if {names.get(part) for part, _ in function["targets"]} & fills else 200
        assert join(clients["viewer"], function).status_code == expected, function
    assert (db.workspace / JOURNAL).read_bytes() == before
    assert all(join(clients["researcher"], function).status_code == 200 for function in reading)


@pytest.mark.parametrize("path", ["queue/join", "cancel", "reset"])
@pytest.mark.parametrize(
    "index", ["{0}", '"{0}"', "{0}.0", "[{0}]", "null", "-1", "true", "1e999", '{{"0": {0}}}']
)
def test_no_spelling_of_an_index_calls_an_acting_function(world, clients, path, index):
    """`{0}` is the function behind "Add"."""
    db, _, _ = world
    listed, names = functions(clients["researcher"])
    [add] = [f for f in listed if "annotator-add" in {names.get(part) for part, _ in f["targets"]}]
    before = len(annotators.listing(db))
    for extra in ("", '"fn_index": 0, ', f'"FN_INDEX": {add["id"]}, "api_name": "/_add", '):
        body = (
            f'{{"data": ["Mallory", "researcher"], {extra}"fn_index": {index.format(add["id"])}, '
            '"session_hash": "s", "event_id": "e", "trigger_id": null, "fn_name": "_add"}'
        )
        answer = clients["viewer"].post(
            f"/research/gradio_api/{path}",
            content=body,
            headers={"content-type": "application/json"},
        )
        if path == "queue/join" and answer.status_code == 200:  # `true` is the number 1
            assert index == "true"
    assert len(annotators.listing(db)) == before


@pytest.mark.parametrize("path", ["run/{0}", "api/_add", "call/_add", "run/_add", "upload"])
def test_a_viewer_has_no_other_way_to_functions(clients, path):
    listed, _ = functions(clients["researcher"])
    for function in listed:
        body = {"data": [], "fn_index": function["id"], "session_hash": "x"}
        address = f"/research/gradio_api/{path.format(function['id'])}"
        assert clients["viewer"].post(address, json=body).status_code == 403


def test_viewers_download_everything_but_names(clients):
    exported = clients["viewer"].get("/research/download/export?format=raw")
    assert exported.status_code == 200
    assert "Annotator" not in exported.text
    for names in ("true", "1", "yes", "on", "false&names=true"):
        refused = clients["viewer"].get(f"/research/download/export?format=raw&names={names}")
        assert (refused.status_code, refused.json()["error"][:16]) == (403, "Only researchers")
    named = clients["researcher"].get("/research/download/export?format=raw&names=true")
    assert '"Annotator"' in named.text
    queued = clients["viewer"].post("/research/upload/pairs?name=x.jsonl", content=b"{}")
    assert queued.status_code == 403


def test_everybody_arrives_where_they_may_be(clients):
    arrive = {role: clients[role].get("/").headers["location"] for role in ROLES}
    assert arrive == {"annotator": "/label/", "adjudicator": "/label/", "viewer": "/research/",
                      "researcher": "/research/"}  # fmt: skip
    labeling = clients["viewer"].get("/label/", headers={"accept": "text/html"})
    assert labeling.status_code == 403
    assert "This page is for annotators." in labeling.text
    assert 'href="/"' in labeling.text
    assert clients["adjudicator"].get("/label/api/next").status_code == 200
    assert clients["viewer"].get("/label/password").status_code == 200


def test_another_role_counts_at_once(world):
    db, server, _ = world
    who = add_person(db, "Changing", "researcher")
    headers = {**session_cookie(server.app, db, who), "origin": server.url}
    with httpx.Client(base_url=server.url, headers=headers, timeout=20) as client:
        listed, names = functions(client)
        [add] = [f for f in listed if "annotator-add" in {names.get(p) for p, _ in f["targets"]}]
        assert client.get("/research/config").status_code == 200
        for role, page, acts in (("viewer", 200, 403), ("annotator", 403, 403)):
            annotators.set_role(db, who.id, role)
            assert client.get("/research/config").status_code == page
            assert join(client, add, data=["Eve", "researcher"]).status_code == acts
    assert not annotators.by_name(db, "Eve")


def test_the_stream_of_another_role_ends(world):
    db, server, _ = world
    who = add_person(db, "Listening", "researcher")
    headers = {**session_cookie(server.app, db, who), "origin": server.url}
    with (
        httpx.Client(base_url=server.url, headers=headers, timeout=10) as client,
        client.stream("GET", "/research/gradio_api/heartbeat/abc") as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        annotators.set_role(db, who.id, "viewer")
        server.app.state.auth.accounts_changed()
        assert len(list(lines)) < 5  # ends; without the end, reading would time out


def test_a_viewer_sees_every_section_and_no_button_that_acts(world):
    db, server, people = world
    cookie = cookie_of((db, server.app), server.url, people["viewer"])
    with chromium() as browser, new_page(browser, cookie=cookie) as page:
        page.goto(f"{server.url}/research/")
        expect(page.locator(".ks-viewer")).to_contain_text("Your role is viewer")
        sections = page.locator("#sections [role=tab]")
        assert sections.count() > 8
        for section in sections.all():
            section.evaluate("tab => tab.click()")
            page.wait_for_timeout(300)
            assert (
                page.locator(".ks-acts:visible, [data-action]:visible, .ks-upload:visible").count()
                == 0
            )
        assert page.locator("#guidelines-save").count()
        expect(page.locator(".toast-wrap .error")).to_have_count(0)


def test_a_researcher_changes_a_role_on_the_page(world):
    db, server, people = world
    ann = add_person(db, "Ann to be viewer")
    cookie = cookie_of((db, server.app), server.url, people["researcher"])
    with chromium() as browser, new_page(browser, cookie=cookie) as page:
        page.goto(f"{server.url}/research/")
        expect(page.locator(".ks-viewer")).to_have_count(0)
        page.get_by_role("link", name="Team").click()
        row = page.locator("#people tr", has_text="Ann to be viewer")
        row.get_by_role("button", name="Manage Ann to be viewer").click()
        page.get_by_role("radio", name="viewer").check()
        page.get_by_role("button", name="Save role").click()
        expect(page.locator("#annotator-answer")).to_contain_text(
            "Ann to be viewer is now a viewer."
        )
        assert annotators.get(db, ann.id).role == "viewer"


def test_the_journal_file_is_the_one_that_the_tests_read(world):
    db, _, _ = world
    assert Path(db.workspace / JOURNAL).stat().st_size > 1000
