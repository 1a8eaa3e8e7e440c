"""The first view: the section of the address in the document that Gradio serves."""

from __future__ import annotations

import gzip
import html
import json
import re
import time
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from labeler.app import create_app
from labeler.documents import IMMUTABLE
from labeler.research.first_view import document
from labeler.research.overview.tab import OverviewTab
from storage.engine.database import Database
from storage.records import Annotator, AnnotatorRole
from storage.tables.people import annotators, tokens
from tests.helpers.recording_loop import HOSTILE, RecordingLoop, in_a_loop
from tests.helpers.research_seed import Seeding


@pytest.fixture(scope="module")
def studio(tmp_path_factory) -> Iterator[tuple[Database, TestClient]]:
    with Database.open(tmp_path_factory.mktemp("workspace") / "study") as db:
        Seeding(db).history(labels=40)
        loop = RecordingLoop(db=db)
        app = in_a_loop(
            lambda: create_app(
                db, loop=loop, admin=lambda *_: None, admin_token="t", accounts_required=False
            )
        )
        secret = tokens.issue(db, "researcher", "session", lifetime=None)
        client = TestClient(
            app, base_url="http://127.0.0.1", cookies={app.state.auth.cookie: secret}
        )
        client.headers["accept-encoding"] = "identity"
        yield db, client


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    monkeypatch.setattr(document, "PATIENCE", 60)


def first_view(client: TestClient, query: str = "") -> str:
    """The first view in the document of an address; "" without one."""
    answer = client.get(f"/research/{query}")
    assert answer.status_code == 200
    found = re.search(
        r'<template id="first-view-content">(.*?)</template>', answer.text, flags=re.DOTALL
    )
    return found[1] if found else ""


def section(html: str) -> str:
    """The name of the section that the navigation marks."""
    return re.findall(r'data-tab="([^"]+)" aria-current="page"', html)[-1]


@pytest.mark.parametrize(
    ("query", "name", "content"),
    [
        ("", "Overview: Loop", "Last iterations"),
        ("?tab=data", "Data: Judgments", "272 judgments"),
        ("?tab=team", "Team: People", "Björn"),
        ("?tab=models&section=verdicts", "Models: Verdicts", "policy-2"),
        ("?tab=nothing&section=people", "Overview: Loop", "Last iterations"),
        ("?tab=data&section=nothing", "Data: Judgments", "No pair open"),
    ],
)
def test_the_document_has_the_section_of_its_address(studio, query, name, content) -> None:
    db, client = studio
    judged = db.read("SELECT count(*) AS n FROM judgments")[0]["n"]
    seen = first_view(client, query)
    assert section(seen) == name
    assert content.replace("272", str(judged)) in seen
    assert db.workspace.name in seen


def test_the_filters_of_an_address_are_applied(studio) -> None:
    _, client = studio
    whole = first_view(client, "?tab=data&section=prompts")
    assert "How do I write a thank-you note" in whole
    assert '<textarea rows="1" placeholder="text in any message">' in whole


def test_names_stay_text(studio) -> None:
    _, client = studio
    assert "<img src=x" in HOSTILE
    seen = first_view(client, "?tab=team")
    assert "&lt;img src=x" in seen
    assert "<img src=x" not in seen


def test_only_people_who_may_read_the_sections_get_one(studio) -> None:
    db, client = studio

    def seen_by(role: AnnotatorRole) -> str:
        annotators.add(db, Annotator(id=f"a-{role}", name=f"One {role}", role=role))
        secret = tokens.issue(db, f"a-{role}", "session", lifetime=None)
        [name] = client.cookies.keys()
        return client.get("/research/", headers={"cookie": f"{name}={secret}"}).text

    assert "Your role is viewer" in seen_by("viewer")
    assert "first-view" not in seen_by("annotator")


def test_a_section_that_fails_is_left_to_gradio(studio, monkeypatch, caplog) -> None:
    _, client = studio

    def fail(*_: object) -> None:
        raise RuntimeError("no such table")

    monkeypatch.setattr(OverviewTab, "refresh", fail)
    assert first_view(client) == ""
    assert "No first view of Overview: Loop" in caplog.text
    assert "no such table" in caplog.text


def test_a_slow_section_delays_the_document_only_for_so_long(studio, monkeypatch) -> None:
    _, client = studio
    monkeypatch.setattr(document, "PATIENCE", 0.05)
    refresh = OverviewTab.refresh

    def slow(tab: OverviewTab) -> object:
        time.sleep(1)
        return refresh(tab)

    monkeypatch.setattr(OverviewTab, "refresh", slow)
    assert first_view(client) == ""


def test_the_document_is_compressed_for_browsers_that_take_it(studio) -> None:
    _, client = studio
    plain = client.get("/research/")
    assert "content-encoding" not in plain.headers
    with client.stream("GET", "/research/", headers={"accept-encoding": "gzip, br"}) as answer:
        body = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(body) < len(plain.content) / 3
    assert b"first-view-content" in gzip.decompress(body)


def test_assets_are_kept_by_the_browser_because_their_names_change_with_their_content(
    studio,
) -> None:
    _, client = studio
    names = re.findall(r'"\./(assets/[^"]+)"', client.get("/research/").text)
    assert names
    for name in names:
        assert client.get(f"/research/{name}").headers["cache-control"] == IMMUTABLE
    missing = client.get("/research/assets/none.js")
    assert missing.status_code == 404
    assert missing.headers["cache-control"] == "no-store"
    assert client.get("/research/").headers["cache-control"] == "no-store"


def test_what_is_in_a_closed_fold_is_not_waited_for(studio) -> None:
    _, client = studio
    found = re.search(r'data-filled="([^"]+)"', client.get("/research/?tab=team").text)
    assert found
    ids = json.loads(html.unescape(found[1]))
    assert "people" in ids
    assert "reliability" not in ids  # Gradio makes it when the fold is opened
