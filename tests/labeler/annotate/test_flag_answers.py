"""Answers to flags over HTTP: only one's own, and what has been read."""

from __future__ import annotations

import uuid

import pytest
from starlette.testclient import TestClient

from storage.labeling import judgments, queue
from storage.labeling.flag_answers import answer_flag
from tests.helpers.desk_world import add_person, bearer, make_app, workspace


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("answers")) as db:
        yield db


@pytest.fixture(scope="module")
def app(db):
    return make_app(db)


def client(app, db, who):
    return TestClient(app, headers=bearer(db, who))


def flag(db, who, comment="broken"):
    id = str(uuid.uuid4())
    pair = queue.lease(db, who.id, 1).pairs[0].comparison.id
    judgments.flag(db, id=id, comparison=pair, annotator=who.id, comment=comment)
    return id


def answer(db, flag, text):
    return answer_flag(db, id=str(uuid.uuid4()), flag=flag, researcher="rosa", text=text).id


def test_an_annotator_reads_the_answers_to_their_own_flags(app, db):
    ann, ben = add_person(db, "Ann"), add_person(db, "Ben")
    anns, bens = client(app, db, ann), client(app, db, ben)
    assert anns.get("/label/api/flag-answers").json() == {"answers": []}
    id = answer(db, flag(db, ann, "rude"), "Removed.")
    assert anns.get("/label/api/progress").json()["unread_answers"] == 1
    assert bens.get("/label/api/progress").json()["unread_answers"] == 0
    assert bens.get("/label/api/flag-answers").json() == {"answers": []}
    [found] = anns.get("/label/api/flag-answers").json()["answers"]
    assert found.pop("created_at")
    assert found == {
        "id": id,
        "text": "Removed.",
        "read": False,
        "comment": "rude",
        "prompt": "Question number 0?",
    }
    theirs = {"answers": [id]}
    assert bens.post("/label/api/flag-answers/read", json=theirs).json() == {"read": 0}
    assert anns.get("/label/api/progress").json()["unread_answers"] == 1
    assert anns.post("/label/api/flag-answers/read", json=theirs).json() == {"read": 1}
    assert anns.get("/label/api/progress").json()["unread_answers"] == 0
    assert anns.get("/label/api/flag-answers").json()["answers"][0]["read"] is True


@pytest.mark.parametrize(
    "body", [{}, {"answers": "x"}, {"answers": [""]}, {"answers": ["x"] * 101}]
)
def test_a_body_that_names_no_answers_is_refused_in_a_sentence(app, db, body):
    eve = client(app, db, add_person(db, f"Eve {uuid.uuid4()}"))
    refused = eve.post("/label/api/flag-answers/read", json=body)
    assert refused.status_code == 422
    assert refused.json()["error"]
