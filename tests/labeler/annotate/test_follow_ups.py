"""Follow-ups over HTTP: one's own, rendered safely, and nothing that names a model."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.helpers.desk_world import add_person, bearer, make_app, workspace
from tests.helpers.followed_up import follow_up


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("follow-ups")) as db:
        yield db


@pytest.fixture(scope="module")
def app(db):
    return make_app(db)


def test_an_annotator_gets_the_new_answers_to_their_own_pairs(app, db):
    ann, ben = add_person(db, "Ann"), add_person(db, "Ben")
    follow_up(db, ann, [("a", 3, "**New** <script>alert(1)</script>"), ("tie", None, "x" * 30_000)])
    anns, bens = (TestClient(app, headers=bearer(db, who)) for who in (ann, ben))
    answer = anns.get("/label/api/follow-ups")
    found = answer.json()
    context = ("iterations", "iteration", "judgments", "total", "blocked", "withheld")
    assert [found[name] for name in context] == [[1], 1, 2, 366, False, 0]
    pair = next(each for each in found["pairs"] if each["outcome"] == "a")
    assert (pair["strength"], pair["same_as"], pair["formatted"]) == (3, None, True)
    assert pair["new"]["html"].startswith('<p dir="auto"><strong>New</strong> &lt;script&gt;')
    assert {pair["a"]["text"], pair["b"]["text"]} == {"first answer 0", "second answer 0"}
    assert "policy" not in answer.text
    assert "reward-1" not in answer.text
    assert bens.get("/label/api/follow-ups").json()["pairs"] == []
    assert anns.get("/label/api/follow-ups?iteration=1").json() == found
    for iteration, status in (("2", 404), ("0", 422), ("x", 422)):
        refused = anns.get(f"/label/api/follow-ups?iteration={iteration}")
        assert refused.status_code == status
        assert refused.json()["error"]
    assert bens.get("/label/api/follow-ups?iteration=1").status_code == 404


def test_a_text_that_cannot_be_formatted_leaves_all_three_plain(app, db):
    cat = add_person(db, "Cat")
    follow_up(db, cat, [("b", None, "[" * 20_000)])
    found = TestClient(app, headers=bearer(db, cat)).get("/label/api/follow-ups").json()
    [pair] = found["pairs"]
    assert pair["formatted"] is False
    assert all(pair[name]["html"].startswith('<pre class="plain">') for name in ("a", "b", "new"))
