"""The adjudicators' page: a blind form, the votes after the ruling, and who may use it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from labeler.app import create_app
from storage.engine.database import Database
from storage.labeling import adjudication
from storage.records import Annotator
from storage.sides import shown_swapped
from storage.tables.people import annotators, tokens
from tests.helpers.browsed import fill
from tests.helpers.recording_loop import RecordingLoop, in_a_loop


@pytest.fixture
def db(tmp_path) -> Iterator[Database]:
    with Database.open(tmp_path / "w") as opened:
        fill(opened)
        annotators.add(opened, Annotator(id="adam", name="Adam", role="adjudicator"))
        annotators.add(opened, Annotator(id="vi", name="Vi", role="viewer"))
        yield opened


@pytest.fixture
def app(db):
    return in_a_loop(
        lambda: create_app(
            db, loop=RecordingLoop(db=db), admin=lambda *_: None, admin_token="t",
            accounts_required=True,
        )
    )  # fmt: skip


def client(app, db, who: str) -> TestClient:
    secret = tokens.issue(db, who, "session", lifetime=None)
    signed_in = TestClient(
        app, cookies={app.state.auth.cookie: secret}, base_url="http://127.0.0.1"
    )
    signed_in.headers["origin"] = "http://127.0.0.1"
    return signed_in


def form(html: str) -> dict[str, str]:
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', html))


def test_an_adjudicator_rules_blind_and_then_reads_the_votes_on_their_sides(app, db) -> None:
    page = client(app, db, "adam")
    shown = page.get("/adjudicate").text
    assert "1 pair waits" in shown
    assert "How do I boil rice?" in shown
    for hidden in ("ann:", "bob:", "policy-1"):
        assert hidden not in shown
    swapped = shown_swapped("adam", "c-1")
    assert (shown.index("Rinse it first.") < shown.index("Use a fish kettle.")) is not swapped
    fields = form(shown)
    assert fields["comparison"] == "c-1"
    refused = page.post("/adjudicate", data=fields | {"outcome": "a", "reason": " "})
    assert refused.status_code == 422
    assert "needs a reason" in refused.text
    given = fields | {"outcome": "a", "reason": "kettles are for fish"}
    stored = page.post("/adjudicate", data=given)
    assert "Ruling stored: A is better." in stored.text
    first, second = ("B", "A") if swapped else ("A", "B")
    assert f"ann: {first} is better, bob: {second} is better" in stored.text
    assert "No pair waits for you." in stored.text
    again = page.post("/adjudicate", data=given)  # a reload sends it again
    assert "Ruling stored" in again.text
    [ruling] = adjudication.rulings(db)
    assert (ruling.outcome, ruling.adjudicator) == ("second" if swapped else "first", "Adam")


@pytest.mark.parametrize(("who", "status"), [("id-ann", 403), ("vi", 403), ("rosa", 200)])
def test_only_adjudicators_and_researchers_see_it(app, db, who, status) -> None:
    page = client(app, db, who)
    assert page.get("/adjudicate").status_code == status
    body = {"id": "r", "comparison": "c-1", "outcome": "tie", "reason": "r"}
    assert page.post("/adjudicate", data=body).status_code == status
    assert len(adjudication.rulings(db)) == (status == 200)


def test_another_site_cannot_send_a_ruling(app, db) -> None:
    page = client(app, db, "adam")
    body = {"id": "r", "comparison": "c-1", "outcome": "tie", "reason": "r"}
    sent = page.post("/adjudicate", data=body, headers={"origin": "https://evil.example"})
    assert sent.status_code == 403
    assert adjudication.rulings(db) == []
