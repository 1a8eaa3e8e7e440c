"""The OpenAPI document is valid, and describes every response of a real conversation."""

from __future__ import annotations

import uuid

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.testclient import TestClient

from labeler.annotate.routes import label_routes
from storage.labeling.flag_answers import answer_flag
from storage.records import FollowUp
from storage.tables import comparisons
from tests.helpers.desk_world import add_person, bearer, make_app, plain_pairs, workspace
from tests.helpers.scripted_generation import Scripted


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("openapi"), plain_pairs(6)) as db:
        yield db


@pytest.fixture(scope="module")
def client(db):
    app = make_app(db, generation=Scripted(texts=["One.", "Two."]))
    return TestClient(app, headers=bearer(db, add_person(db, "Ann")))


@pytest.fixture(scope="module")
def document(client):
    return client.get("/label/api/openapi.json").json()


def test_the_document_is_valid_and_needs_a_sign_in(client, document):
    validate(document)
    stranger = TestClient(client.app)
    assert stranger.get("/label/api/openapi.json").status_code == 401


def test_it_lists_every_route_of_the_interface(db, document):
    served = {
        (method.lower(), route.path)
        for route in label_routes(db).routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    described = {
        (method, path) for path, methods in document["paths"].items() for method in methods
    }
    assert served - described == {("get", "/label/api/openapi.json")}
    assert len(described) >= 11


STREAMED = {("post", "/label/api/live/turns", "2")}
"""Lines of JSON, which tests/labeler/annotate/test_live.py reads."""


def answered_again(db, comparison, judgment):
    """A follow-up of this judgment."""
    prompt = comparisons.get(db, comparison).prompt
    again = FollowUp(
        id="u", iteration=1, prompt=prompt, policy="policy-secret", text="So.", learned=[judgment],
        tokens=2, finish_reason="stop", temperature=1.0, top_p=1.0, seed=0,
    )  # fmt: skip
    db.write(lambda tx: tx.store(again))


def conversation(client, db):
    """Requests with their path in the document, until every operation had a success."""
    pairs = client.get("/label/api/next?n=3")
    yield "/label/api/next", pairs
    first, second, third = (pair["id"] for pair in pairs.json()["pairs"])

    def post(act, **body):
        answer = client.post(f"/label/api/{act}", json={"id": str(uuid.uuid4()), **body})
        return f"/label/api/{act}", answer

    judged = post("judgments", comparison=first, outcome="a", strength=2, comment="good")
    yield judged
    yield post("skip", comparison=second)
    yield post("undo")
    flagged = post("flag", comparison=third)
    yield flagged
    id = str(uuid.uuid4())
    answer_flag(db, id=id, flag=flagged[1].json()["id"], researcher="rosa", text="Thanks.")
    yield "/label/api/flag-answers", client.get("/label/api/flag-answers")
    read = client.post("/label/api/flag-answers/read", json={"answers": [id]})
    yield "/label/api/flag-answers/read", read
    yield (
        "/label/api/release",
        client.post("/label/api/release", json={"comparisons": [second]}),
    )
    id = judged[1].json()["id"]
    yield "/label/api/judgments/{id}", client.get(f"/label/api/judgments/{id}")
    language = client.post("/label/api/language", json={"language": "de"})
    yield "/label/api/language", language
    yield "/label/api/texts/{language}", client.get("/label/api/texts/de")
    answered_again(db, first, id)
    for path in ("judgments", "progress", "figures", "guidelines", "follow-ups"):
        yield f"/label/api/{path}", client.get(f"/label/api/{path}")
    assert client.post("/label/api/live/turns", json={"text": "Hi"}).status_code == 200
    yield "/label/api/live", client.get("/label/api/live")
    yield "/label/api/live/prepare", client.post("/label/api/live/prepare")
    yield "/label/api/undo", client.post("/label/api/undo", json={"id": "none"})


def closed(schema):
    """The schema, without fields that it does not name."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(part) for name, part in schema.items()}
    if "properties" in found:
        found["additionalProperties"] = False
    return found


def test_responses_are_as_described(client, db, document):
    seen = set()
    for path, response in conversation(client, db):
        method, status = response.request.method.lower(), str(response.status_code)
        responses = document["paths"][path][method]["responses"]
        described = responses.get(status) or responses[f"{status[0]}XX"]
        shape = described["content"]["application/json"]["schema"]
        assert "$ref" in shape or path == "/label/api/texts/{language}"
        schema = {**shape, "components": closed(document["components"])}
        Draft202012Validator(schema).validate(response.json())
        seen.add((method, path, status[0]))
    operations = {
        (method, path, "2") for path, methods in document["paths"].items() for method in methods
    } - STREAMED
    assert operations < seen  # and one refusal
