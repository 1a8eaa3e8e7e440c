"""Pairs through the browser: who may send them, how much, and what is answered."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from labeler import uploads
from labeler.security import access
from storage.importing.files import filetypes
from storage.labeling import queue
from storage.records import now
from tests.helpers.desk_world import add_person, make_app, session_cookie, workspace

ORIGIN = {"origin": "http://testserver"}
PAIR = {"prompt": "Name a fruit", "response_a": "Pear", "response_b": "Apple"}
URL = "/research/upload/pairs"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with workspace(tmp_path_factory.mktemp("uploads"), []) as db:
        yield db, make_app(db)


@pytest.fixture(scope="module")
def researcher(world):
    return client_of(world, "Rosa", "researcher")


def client_of(world, name, role):
    db, app = world
    who = add_person(db, f"{name} {role}", role)
    return TestClient(app, headers={**session_cookie(app, db, who), **ORIGIN})


def lines(*rows):
    return "\n".join(json.dumps(row) for row in rows).encode()


def stored(db):
    return db.read("SELECT count(*) AS n FROM comparisons")[0]["n"]


def left_over(world):
    return list((world[0].workspace / "uploads").iterdir())


def test_a_file_becomes_pairs_in_the_queue_and_is_gone_afterwards(world, researcher):
    db, _ = world
    before = stored(db)
    rows = [{**PAIR, "prompt": f"Upload {n}?", "model_a": "m"} for n in range(3)]

    answer = researcher.post(URL, params={"name": "my pairs.jsonl"}, content=lines(*rows))

    assert answer.status_code == 200
    assert answer.json()["added"]["comparisons"] == 3
    assert stored(db) == before + 3
    assert queue.progress(db, "anybody", since=now()).remaining == stored(db)
    assert [row["source"] for row in db.read("SELECT DISTINCT source FROM prompts")] == [
        "my_pairs.jsonl"
    ]
    again = researcher.post(URL, params={"name": "my pairs.jsonl"}, content=lines(*rows)).json()
    assert (again["added"]["comparisons"], again["known"]) == (0, 3)
    assert not left_over(world)


def test_bad_rows_are_told_by_number_and_nothing_is_stored(world, researcher):
    db, _ = world
    before = stored(db)
    rows = [{**PAIR, "prompt": "good"}, {**PAIR, "response_b": "Pear"}, {"prompt": "x"}]
    more = [{**PAIR, "response_a": n} for n in range(30)]

    answer = researcher.post(URL, params={"name": "x.jsonl"}, content=lines(*rows, *more))

    assert answer.status_code == 422
    told = answer.json()
    assert told["bad"] == 32
    assert [row["line"] for row in told["rows"]] == list(range(2, 22))
    assert "are the same" in told["rows"][0]["reason"]
    assert "response_a is missing" in told["rows"][1]["reason"]
    assert stored(db) == before

    kept = researcher.post(
        URL, params={"name": "x.jsonl", "skip_bad": True}, content=lines(*rows, *more)
    ).json()
    assert (kept["added"]["comparisons"], kept["skipped_in_all"]) == (1, 32)
    assert len(kept["skipped"]) == 20
    assert not left_over(world)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("pairs.exe", b"x", "must end in one of"),
        ("..", b"x", "must end in one of"),
        ("pairs.parquet", b"x", "is not a parquet file"),
        ("pairs.jsonl", b"", "has no rows"),
        ("pairs.csv", b"\0\0", "binary file"),
        ("pairs.csv", b"prompt,response_a\nx,y\n", "no row has a column response_b"),
    ],
)
def test_what_is_no_file_of_pairs_is_refused_in_a_sentence(world, researcher, name, content, says):
    answer = researcher.post(URL, params={"name": name}, content=content)

    assert answer.status_code == 422
    body = answer.json()
    assert says in body["error"] + "".join(row["reason"] for row in body.get("rows", []))
    assert not left_over(world)


def test_a_name_cannot_lead_out_of_the_folder(world, researcher, tmp_path):
    name = f"../../{tmp_path.name}/out.jsonl"

    assert researcher.post(URL, params={"name": name}, content=lines(PAIR)).status_code == 200
    assert not list(tmp_path.iterdir())
    assert not left_over(world)


def test_only_researchers_of_this_site_may_send_any(world, researcher):
    db, app = world
    before = stored(db)
    rows, query = lines({**PAIR, "prompt": "from elsewhere"}), {"name": "x.jsonl"}

    annotator = client_of(world, "somebody", "annotator")
    assert annotator.post(URL, params=query, content=rows).status_code == 403
    assert TestClient(app, headers=ORIGIN).post(URL, params=query, content=rows).status_code == 401
    elsewhere = {"origin": "http://evil.example"}
    answer = researcher.post(URL, params=query, content=rows, headers=elsewhere)
    assert answer.status_code == 403
    assert researcher.get(URL, params=query).status_code in (403, 405)
    assert stored(db) == before


def test_the_size_is_bounded_with_and_without_a_length(world, researcher, monkeypatch):
    row = lines({**PAIR, "prompt": "large " * 200_000})
    assert len(row) > access.MAX_BODY_BYTES
    told = researcher.post(URL, params={"name": "x.jsonl"}, content=row)
    assert (
        "the limit for a judgment" in told.json()["rows"][0]["reason"]
    )  # it came through to the import

    assert access.MAX_UPLOAD_BYTES > access.MAX_BODY_BYTES
    monkeypatch.setattr(access, "MAX_UPLOAD_BYTES", 1_500)
    many = b"x" * 1_000
    for content in (many * 2, iter([many, many])):
        answer = researcher.post(URL, params={"name": "x.jsonl"}, content=content)
        assert answer.status_code == 413
        assert answer.json()["error"].startswith("The file is larger than 0.0015 MB, the limit for")
    assert not left_over(world)


ROWS = {
    "x.jsonl": b"\n".join([json.dumps(PAIR).encode()] * 5),
    "x.json": json.dumps([PAIR] * 5).encode(),
    "x.csv": b"prompt,response_a,response_b\n" + b"a,b,c\n" * 5,
    "bad.jsonl": b"x\n" * 5,
    "bad.csv": b"prompt,response_a,response_b\n" + b"a,b\n" * 5,
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lists.jsonl", b'{"a": [' + b"[]," * 600_000 + b"0]}"),
        ("array.json", b"[" + b'{"":0},' * 600_000 + b"0]"),
        ("cells.csv", b"," * 1_000_001),
    ],
)
def test_a_file_that_becomes_far_larger_in_memory_is_refused(researcher, name, content):
    """Each of its empty lists, objects and cells takes a hundred bytes or so."""
    answer = researcher.post(URL, params={"name": name}, content=content)
    assert answer.status_code == 422
    assert "commas and brackets" in answer.json()["error"]
    assert "launch.py import" in answer.json()["error"]


def test_a_row_of_many_columns_is_looked_through_once():
    """A search of all names for each name took hours of a file of 32 MB."""
    names = [str(n) for n in range(3_000)]
    asked = 0

    class Name(str):
        def __eq__(self, other):
            nonlocal asked
            asked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    found = filetypes._columns([(Name(name), 1) for name in [*names, names[-1]]])
    assert isinstance(found, filetypes.DuplicateKeys)
    assert found.twice == "2999"
    assert asked < 10 * len(names)


@pytest.mark.parametrize("name", ROWS)
def test_a_file_of_more_rows_than_the_web_process_takes_is_refused(
    world, researcher, monkeypatch, name
):
    db, _ = world
    before = stored(db)
    monkeypatch.setattr(uploads, "MAX_ROWS", 4)

    answer = researcher.post(URL, params={"name": name, "skip_bad": True}, content=ROWS[name])

    assert answer.status_code == 422
    assert "has more than 4 rows" in answer.json()["error"]
    assert "launch.py import" in answer.json()["error"]
    assert stored(db) == before
