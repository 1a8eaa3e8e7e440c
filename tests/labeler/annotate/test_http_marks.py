"""Marked passages over HTTP: what is stored, and what is refused."""

from __future__ import annotations

import uuid

import pytest
from starlette.testclient import TestClient

from tests.helpers.desk_world import add_person, bearer, make_app, workspace

MARKDOWN = "Plants need **light** to grow.\n\n1. Water\n2. Wait"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    texts = [(f"Question {i}?", MARKDOWN, MARKDOWN) for i in range(60)]
    with workspace(tmp_path_factory.mktemp("marks"), texts) as db:
        yield db, make_app(db)


@pytest.fixture
def client(world):
    """A script of a new annotator."""
    db, app = world
    return TestClient(app, headers=bearer(db, add_person(db, f"annotator {uuid.uuid4()}")))


@pytest.fixture
def marked(client):
    """A function that returns the judgment of a pair with one mark in response A."""
    (pair,) = client.get("/label/api/next", params={"n": 1}).json()["pairs"]

    def judgment(**mark):
        marks = {"a": [{"reason": "wrong", **mark}]}
        sent = {"id": str(uuid.uuid4()), "comparison": pair["id"], "outcome": "a"}
        return sent | {"marks": marks}

    return judgment


def test_a_mark_is_stored_with_both_places(client, marked):
    for given, stored in (
        # "Plants need light to grow." in the formatted text
        (
            {"quote": "need light", "rendered_start": 7, "rendered_end": 17},
            {"prefix": "Plants ", "start": 7, "end": 19},
        ),
        (
            {"quote": "**light**", "start": 12, "end": 21},
            {"suffix": " to grow.\n\n1. Water\n2. Wait", "rendered_start": 12, "rendered_end": 17},
        ),
    ):
        sent = marked(**given)
        for _ in range(2):  # sent again
            assert client.post("/label/api/judgments", json=sent).status_code == 200
        found = client.get(f"/label/api/judgments/{sent['id']}").json()["judgment"]["marks"]
        (mark,) = found["a"]
        expected = {"reason": "wrong"} | given | stored
        assert {name: mark[name] for name in expected} == expected
        other = sent | {"marks": {}}
        assert client.post("/label/api/judgments", json=other).status_code == 409


@pytest.mark.parametrize(
    "wrong",
    [
        {"quote": "light", "start": 12, "end": 17},  # its place in the other text
        {"quote": "light", "rendered_start": 14, "rendered_end": 19},
        {"quote": "light", "rendered_start": 10_000, "rendered_end": 10_005},
        {"quote": "light"},
        {"quote": "light", "rendered_start": 12},
        {"quote": "light", "rendered_start": 12, "rendered_end": 17, "start": 14, "end": 19},
        {"quote": "light", "rendered_start": "12", "rendered_end": 17},
        {"quote": "light", "rendered_start": -5, "rendered_end": 17},
        {"quote": "", "rendered_start": 12, "rendered_end": 12},
        {"quote": " ", "rendered_start": 11, "rendered_end": 12},
        {"quote": "light", "rendered_start": 12, "rendered_end": 17, "reason": ""},
        {"quote": "light", "rendered_start": 12, "rendered_end": 17, "reason": "x" * 61},
        {"quote": "light", "rendered_start": 12, "rendered_end": 17, "color": "red"},
        {"quote": "x" * 1001, "rendered_start": 0, "rendered_end": 1001},
    ],
)
def test_a_mark_that_is_none_is_refused(client, marked, wrong):
    answer = client.post("/label/api/judgments", json=marked(**wrong))
    assert answer.status_code == 422, answer.json()


def test_a_mark_does_not_reveal_a_pair_of_somebody_else(world, marked):
    db, app = world
    other = TestClient(app, headers=bearer(db, add_person(db, f"other {uuid.uuid4()}")))
    place = {"rendered_start": 12, "rendered_end": 17}
    answers = [
        other.post("/label/api/judgments", json=marked(quote=quote, **place))
        for quote in ("light", "shade")
    ]
    assert [answer.status_code for answer in answers] == [409, 409]
    assert answers[0].json() == answers[1].json()
