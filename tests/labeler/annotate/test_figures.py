"""An annotator's own figures: for nobody else, and without what others said of a pair."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from storage.engine import lookup
from storage.records import Comparison, Judgment, now
from storage.tables.people import tokens
from tests.helpers.browser import chromium, new_page, wait_for_pair
from tests.helpers.desk_world import add_person, bearer, make_app, serving, workspace

ROUTE = "/label/api/figures"
SAYS = {
    "judgments", "today", "decided", "left_rate", "tie_rate", "both_bad_rate", "median_seconds",
    "shared_pairs", "agreement",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    texts = [(f"Question {i}?", f"first {i}", f"second {i}") for i in range(60)]
    with workspace(tmp_path_factory.mktemp("figures"), texts) as db:
        yield db, make_app(db)


@pytest.fixture
def people(world):
    """Two annotators nobody else has judged with, and a client for the first."""
    db, app = world
    ann, bob = (add_person(db, f"{name} {uuid.uuid4().hex[:8]}") for name in ("Ann", "Bob"))
    return ann, bob, TestClient(app, headers=bearer(db, ann))


def judge(db, who, outcomes, *, days_ago=1, **more):
    asked = lookup.select(db, Comparison, "SELECT * FROM comparisons ORDER BY position, id")
    said = [
        Judgment(id=str(uuid.uuid4()), comparison=pair.id, annotator=who.id, outcome=outcome,
                 shown_swapped=False, created_at=now() - timedelta(days=days_ago), **more)
        for pair, outcome in zip(asked, outcomes, strict=False)
    ]  # fmt: skip
    db.write(lambda tx: tx.store(*said))


@pytest.fixture(scope="module")
def fresh_world(tmp_path_factory):
    """For those who want to be alone with their figures."""
    texts = [(f"Question {i}?", f"first {i}", f"second {i}") for i in range(60)]
    with workspace(tmp_path_factory.mktemp("alone"), texts) as db:
        yield db, make_app(db)


def test_an_annotator_gets_his_own_figures(fresh_world):
    db, app = fresh_world
    ann, bob = add_person(db, "Ann"), add_person(db, "Bob")
    judge(db, ann, ["first"] * 20 + ["tie"] * 5, milliseconds=4000)
    judge(db, bob, ["first"] * 15 + ["tie"] * 5)
    client = TestClient(app, headers=bearer(db, ann))
    found = client.get(ROUTE)
    assert found.status_code == 200
    assert found.json() == {
        "judgments": 25, "today": 0, "decided": 20, "left_rate": 1.0, "tie_rate": 0.2,
        "both_bad_rate": 0.0, "median_seconds": 4.0, "shared_pairs": 20, "agreement": 0.75,
    }  # fmt: skip


def test_an_offset_moves_today_and_not_what_others_said(world, people):
    db, _ = world
    ann, bob, client = people
    for who in (ann, bob):
        judge(db, who, ["first"] * 40, days_ago=2 / 1440)
    minutes = now().hour * 60 + now().minute
    at_midnight = -minutes if minutes <= 840 else 1440 - minutes  # where the day begins now
    found = [client.get(ROUTE, params={"offset": each}).json() for each in (0, at_midnight)]
    assert found[1]["today"] == 0
    for name in ("agreement", "shared_pairs"):
        assert found[0][name] == found[1][name]


def test_there_is_no_way_to_anothers_figures(world, people):
    db, app = world
    ann, bob, client = people
    judge(db, bob, ["tie"] * 7)
    for question in (
        {"annotator": bob.id}, {"who": bob.id}, {"id": bob.id}, {"name": bob.name}, {"user": bob.id}
    ):  # fmt: skip
        assert client.get(ROUTE, params=question).json()["judgments"] == 0
    assert client.get(f"{ROUTE}/{bob.id}").status_code == 403
    assert client.post(ROUTE, json={"annotator": bob.id}).status_code == 403
    # the page of somebody who has signed out meanwhile
    header = {"x-kitestring-annotator": bob.id}
    assert client.get(ROUTE, headers=header).status_code == 403
    assert TestClient(app).get(ROUTE).status_code == 401
    judge(db, ann, ["first"])
    assert client.get(ROUTE).json()["judgments"] == 1


def test_the_figures_name_nobody_and_no_pair(world, people):
    db, _ = world
    ann, bob, client = people
    judge(db, ann, ["first"] * 25)
    judge(db, bob, ["second"] * 25)
    answer = client.get(ROUTE)
    assert set(answer.json()) == SAYS
    assert all(value is None or isinstance(value, int | float) for value in answer.json().values())
    for told in (bob.id, bob.name, "c-", "Question", '"second"'):
        assert told not in answer.text


def test_a_pair_just_judged_does_not_tell_what_another_said(world, people):
    db, _ = world
    ann, bob, client = people
    judge(db, bob, ["first"] * 40, days_ago=2)
    judge(db, ann, ["first"] * 30, days_ago=2)
    before = client.get(ROUTE).json()
    fetched = client.get("/label/api/next", params={"n": 1}).json()["pairs"]
    assert fetched
    verdict = {"id": str(uuid.uuid4()), "comparison": fetched[0]["id"], "outcome": "a"}
    assert client.post("/label/api/judgments", json=verdict).status_code == 200
    after = client.get(ROUTE).json()
    assert (before["judgments"], after["judgments"], after["today"]) == (30, 31, 1)
    assert (after["agreement"], after["shared_pairs"]) == (
        before["agreement"], before["shared_pairs"]
    )  # fmt: skip


def test_the_menu_shows_the_figures(fresh_world):
    db, app = fresh_world
    eve = add_person(db, "Eve")
    judge(db, eve, ["first"] * 3 + ["tie"], days_ago=0, milliseconds=2500)
    secret = tokens.issue(db, eve.id, "session", lifetime=None)
    with serving(app) as server, chromium() as browser:
        cookie = (server.url, app.state.auth.cookie, secret)
        with new_page(browser, cookie=cookie) as page:
            page.goto(f"{server.url}/label/")
            wait_for_pair(page)
            page.locator(".menu summary").click()
            page.get_by_role("button", name="My statistics").click()
            dialog = page.locator("dialog.figures")
            expect(dialog).to_be_visible()
            for text in ("4 in total", "25%", "100%", "2.5 s", "20 of your pairs"):
                expect(dialog).to_contain_text(text)
            page.keyboard.press("1")  # judges nothing behind the dialog
            page.keyboard.press("Escape")
            expect(dialog).to_be_hidden()
    assert db.read("SELECT count(*) AS n FROM judgments WHERE annotator = $a", a=eve.id) == [
        {"n": 4}
    ]
