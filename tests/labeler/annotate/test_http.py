"""What the routes under /label/api promise: statuses, reasons, and 200 only after the commit."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import threading
import uuid

import pytest
from gradio.queueing import Queue
from starlette.testclient import TestClient

from labeler.annotate.routes import NOT_STORED
from labeler.annotate.session import NEEDS_RATIONALE, NEEDS_SAFETY, NEEDS_STRENGTH
from storage.engine import lookup
from storage.labeling import judgments, queue
from storage.records import Judgment
from storage.tables import settings
from tests.helpers.desk_world import (
    ADMIN_TOKEN,
    add_person,
    bearer,
    make_app,
    session_cookie,
    workspace,
)

ORIGIN = {"origin": "http://testserver"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """One app for the module: building it takes seconds."""
    texts = [(f"Question {i}?", f"first {i}", f"second {i}") for i in range(61)]
    with workspace(tmp_path_factory.mktemp("http"), texts) as db:
        yield db, make_app(db)


@pytest.fixture
def db(world):
    return world[0]


@pytest.fixture
def client(world):
    """A script of a new annotator."""
    db, app = world
    who = add_person(db, f"annotator {uuid.uuid4()}")
    return TestClient(app, headers=bearer(db, who), raise_server_exceptions=False)


def take(client, n=1):
    return client.get("/label/api/next", params={"n": n}).json()["pairs"]


def body(pair, outcome="a", **more):
    return {"id": str(uuid.uuid4()), "comparison": pair["id"], "outcome": outcome, **more}


def count(db, **where):
    return db.read("SELECT count(*) AS n FROM judgments WHERE id = $id", **where)[0]["n"]


def test_a_pair_goes_out_and_its_judgment_comes_in(client, db):
    [pair] = take(client)
    sent = body(
        pair,
        strength=3,
        criteria={"truthful": "b"},
        comment="Ünïcode ✓",
        milliseconds=9,
        guidelines="0123456789abcdef",
    )

    answer = client.post("/label/api/judgments", json=sent)

    assert answer.status_code == 200
    assert answer.json() == {"id": sent["id"], "saved": True}
    kept = lookup.by_key(db, Judgment, sent["id"])
    assert (kept.strength, kept.comment, kept.milliseconds) == (3, "Ünïcode ✓", 9)
    assert kept.guidelines == "0123456789abcdef"


def test_the_same_uuid_again_is_200_and_nothing_new(client, db):
    sent = body(take(client)[0])
    answers = [client.post("/label/api/judgments", json=sent) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert count(db, id=sent["id"]) == 1


def test_the_answer_waits_for_the_commit(client, db, monkeypatch):
    sent = body(take(client)[0])
    reached, go_on = threading.Event(), threading.Event()
    real = os.fsync

    def slow(file):
        reached.set()
        assert go_on.wait(20)
        real(file)

    monkeypatch.setattr(os, "fsync", slow)
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(client.post("/label/api/judgments", json=sent))
    )
    thread.start()
    assert reached.wait(20)
    thread.join(0.3)
    assert answers == []  # on its way to the disk, so not yet answered
    assert count(db, id=sent["id"]) == 0
    go_on.set()
    thread.join(20)
    assert answers[0].status_code == 200
    assert count(db, id=sent["id"]) == 1


def test_a_full_disk_is_503_and_the_label_can_be_sent_again(client, db, monkeypatch):
    sent = body(take(client)[0])

    def full(_file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        refused = client.post("/label/api/judgments", json=sent)
    assert refused.status_code == 503
    assert refused.json()["error"]
    assert refused.headers["retry-after"]
    assert count(db, id=sent["id"]) == 0

    assert client.post("/label/api/judgments", json=sent).status_code == 200
    assert count(db, id=sent["id"]) == 1


def test_a_503_names_no_file_to_annotators_but_in_the_log_and_to_researchers(
    world, client, db, caplog, monkeypatch
):
    monkeypatch.setattr(
        logging.getLogger("labeler.annotate.routes"), "filters", []
    )  # says it once a minute
    researcher = bearer(db, add_person(db, f"rhea {uuid.uuid4()}", role="researcher"))
    rhea = TestClient(world[1], headers=researcher, raise_server_exceptions=False)
    theirs = take(rhea)[0]
    pair = take(client)[0]
    moved = db.journal.path.with_suffix(".moved")
    db.journal.path.rename(moved)
    acts = {"judgments": body(pair)} | {
        path: {"id": str(uuid.uuid4()), "comparison": pair["id"]} for path in ("skip", "flag")
    }
    for path, act in acts.items():
        answer = client.post(f"/label/api/{path}", json=act)
        assert answer.status_code == 503
        assert answer.json() == {"error": NOT_STORED}
        assert str(db.workspace) not in answer.text
    assert "/" not in NOT_STORED
    whole = f"{db.journal.path} is gone"
    assert whole in rhea.post("/label/api/judgments", json=body(theirs)).json()["error"]
    assert whole in caplog.text
    assert whole in (db.health.trouble or "")  # the researcher's page and `status` show it
    moved.rename(db.journal.path)
    assert client.post("/label/api/judgments", json=acts["judgments"]).status_code == 200


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"outcome": "first"}, "outcome"),
        ({"outcome": None}, "outcome"),
        ({"id": "not-a-uuid"}, "id"),
        ({"id": None}, "id"),
        ({"comparison": ""}, "comparison"),
        ({"comparison": 7}, "comparison"),
        ({"strength": 4}, "strength"),
        (
            {"strength": True},
            "strength: must be 1 (slightly), 2 (clearly) or 3 (much), not true or false.",
        ),
        ({"strength": 2, "outcome": "tie"}, "strength"),
        ({"criteria": {"funny": "a"}}, "criteria"),
        ({"criteria": {"clear": "first"}}, "criteria"),
        ({"comment": "x" * 5001}, "comment"),
        ({"comment": "a\u0000b"}, "comment"),
        ({"guidelines": "the newest"}, "guidelines"),
        ({"milliseconds": "12"}, "milliseconds"),
        ({"milliseconds": True}, "milliseconds"),
        ({"milliseconds": -1}, "milliseconds"),
        ({"milliseconds": 10**12}, "milliseconds"),
        ({"shown_swapped": True}, "shown_swapped"),
        ({"comment": "a\0b"}, "comment: contains a NUL character, which exports cannot store."),
        ({"criteria": {"x": "a"}}, "criteria.x: Input should be 'helpful'"),
    ],
)
def test_malformed_is_422_with_a_reason_that_names_the_field(client, change, named):
    sent = {**body(take(client)[0]), **change}

    answer = client.post("/label/api/judgments", json=sent)

    assert answer.status_code == 422
    assert named in answer.json()["error"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [(raw, "The request body must be a JSON object") for raw in (b"", b"[]", b'"x"', b"null")]
    + [
        (raw, "The request body is not JSON.")
        for raw in (b"{", b"\xff\xfe", b'{"a": "\xff"}', b"[" * 50_000)
    ],
)
def test_what_is_no_json_object_is_422(client, raw, says):
    answer = client.post(
        "/label/api/judgments", content=raw, headers={"content-type": "application/json"}
    )

    assert answer.status_code == 422
    assert answer.json()["error"].startswith(says)


def test_a_body_that_grows_too_large_unannounced_is_413(client):
    answer = client.post(
        "/label/api/judgments",
        content=(b" " * 100_000 for _ in range(15)),
        headers={"content-type": "application/json"},
    )

    assert (answer.status_code, answer.json()) == (413, {"error": "The request is too large."})


def test_own_judgments_are_listed_and_read_by_their_annotator_only(client, world):
    db, app = world
    other = TestClient(app, headers=bearer(db, add_person(db, f"other {uuid.uuid4()}")))
    first, second = take(client, 2)
    sent = body(
        first,
        "a",
        strength=2,
        criteria={"clear": "b"},
        reasons={"b": ["wrong"]},
        safety={"a": "safe", "b": "unsafe"},
        marks={"b": [{"reason": "wrong", "quote": first["b"]["text"][:3], "start": 0, "end": 3}]},
        comment="so",
        edit="improved",
        milliseconds=7,
        guidelines="0" * 16,
    )
    for act in (sent, body(second, "tie")):
        assert client.post("/label/api/judgments", json=act).status_code == 200

    listed = client.get("/label/api/judgments").json()
    assert [each["outcome"] for each in listed["judgments"]] == ["tie", "a"]
    fields = {"id", "outcome", "strength", "edited", "live", "created_at", "prompt"}
    assert set(listed["judgments"][0]) == fields
    assert [each["edited"] for each in listed["judgments"]] == [False, True]
    assert listed["more"] is False
    found = {"search": first["prompt"][0]["text"].upper()}
    assert [
        each["id"] for each in client.get("/label/api/judgments", params=found).json()["judgments"]
    ] == [sent["id"]]
    past = client.get("/label/api/judgments", params={"before": listed["judgments"][0]["id"]})
    assert [each["id"] for each in past.json()["judgments"]] == [sent["id"]]

    given = client.get(f"/label/api/judgments/{sent['id']}").json()
    assert given["pair"] == first  # the same texts on the same sides, and nothing about models
    (mark,) = given["judgment"]["marks"].pop("b")
    assert {name: mark[name] for name in sent["marks"]["b"][0]} == sent["marks"].pop("b")[0]
    assert {**given["judgment"], "created_at": None} == {**sent, "created_at": None}

    assert other.get("/label/api/judgments").json() == {"judgments": [], "more": False}
    for path in (sent["id"], str(uuid.uuid4()), "x"):
        assert other.get(f"/label/api/judgments/{path}").status_code == 404
    assert other.get("/label/api/judgments", params={"before": sent["id"]}).status_code == 404


def test_a_search_is_short_and_plain(client):
    for search in ("x" * 201, "a\0b"):
        assert client.get("/label/api/judgments", params={"search": search}).status_code == 422
    for search in ("x" * 200, "'; DROP TABLE judgments; --", "%", "\\", "\U0001f642"):
        assert client.get("/label/api/judgments", params={"search": search}).status_code == 200


def test_a_required_strength_is_required_of_new_preferences_only(client, db):
    first, second = take(client, 2)
    before = body(first)
    assert client.post("/label/api/judgments", json=before).status_code == 200
    settings.choose_judgment_form(db, settings.JudgmentForm(strength="required"))
    try:
        refused = client.post("/label/api/judgments", json=body(second, "b"))
        assert (refused.status_code, refused.json()) == (422, {"error": NEEDS_STRENGTH})
        assert client.post("/label/api/judgments", json=before).status_code == 200  # sent again
        for sent in (body(second, "b", strength=1), body(second, "tie"), body(second, "both_bad")):
            assert client.post("/label/api/judgments", json=sent).status_code == 200
        assert client.get("/label/api/progress").json()["form"]["strength"] == "required"
    finally:
        settings.choose_judgment_form(db, settings.JudgmentForm())
    assert client.post("/label/api/judgments", json=body(second, "b")).status_code == 200


def test_a_required_label_or_rationale_is_required_of_people_and_every_outcome(client, world, db):
    (pair,) = take(client, 1)
    simulated = add_person(db, f"sim {uuid.uuid4()}", kind="simulated")
    machine = TestClient(world[1], headers=bearer(db, simulated))
    safety, form = {"a": "safe", "b": "unsafe"}, settings.JudgmentForm
    for chosen, sentence in (
        (form(safety="required"), NEEDS_SAFETY),
        (form(rationale="required"), NEEDS_RATIONALE),
    ):
        settings.choose_judgment_form(db, chosen)
        try:
            for outcome in ("a", "tie", "both_bad"):
                sent = body(pair, outcome, safety={"a": "safe"}, comment="  ")
                refused = client.post("/label/api/judgments", json=sent)
                assert (refused.status_code, refused.json()) == (422, {"error": sentence})
            sent = body(pair, "tie", safety=safety, comment="equal")
            assert client.post("/label/api/judgments", json=sent).status_code == 200
            sent = body(take(machine, 1)[0], "a")
            assert machine.post("/label/api/judgments", json=sent).status_code == 200
        finally:
            settings.choose_judgment_form(db, settings.JudgmentForm())


def test_tags_and_labels_are_stored_by_side_and_come_back(client):
    (pair,) = take(client, 1)
    given = {"reasons": {"a": ["too long", "wrong"]}, "safety": {"a": "unsafe", "b": "safe"}}
    sent = body(pair, "b", **given)
    assert client.post("/label/api/judgments", json=sent).status_code == 200
    found = client.get(f"/label/api/judgments/{sent['id']}").json()["judgment"]
    assert {name: found[name] for name in given} == given
    assert client.post("/label/api/judgments", json=sent).status_code == 200
    for other in ({"reasons": {"b": ["wrong"]}}, {"safety": {"a": "safe", "b": "safe"}}):
        assert client.post("/label/api/judgments", json=sent | other).status_code == 409


@pytest.mark.parametrize(
    "wrong",
    [
        {"reasons": {"c": ["x"]}},
        {"reasons": {"a": ["x", "x"]}},
        {"reasons": {"a": [" "]}},
        {"reasons": {"a": ["x" * 61]}},
        {"reasons": {"a": [f"{i}" for i in range(21)]}},
        {"reasons": {"a": ["line\nbreak"]}},
        {"safety": {"a": "harmless"}},
        {"safety": {"tie": "safe"}},
    ],
)
def test_a_tag_or_label_that_is_none_is_refused(client, wrong):
    (pair,) = take(client, 1)
    assert client.post("/label/api/judgments", json=body(pair, "a", **wrong)).status_code == 422


def test_a_pair_never_leased_is_409_and_an_unknown_one_404(client, world):
    db, app = world
    other = TestClient(app, headers=bearer(db, add_person(db, f"other {uuid.uuid4()}")))
    sent = body(take(other)[0])

    for path in ("judgments", "skip", "flag"):
        act = sent if path == "judgments" else {k: sent[k] for k in ("id", "comparison")}
        assert client.post(f"/label/api/{path}", json=act).status_code == 409
    assert client.post("/label/api/judgments", json=body({"id": "c-none"})).status_code == 404


def test_an_undo_answers_with_the_judgment_as_it_was_given(client):
    (pair,) = take(client, 1)
    details = {"strength": 2, "criteria": {"clear": "b"}, "safety": {"a": "safe"}, "comment": "Why"}
    said = body(pair, "a", edit="A better text.", **details)
    assert client.post("/label/api/judgments", json=said).status_code == 200
    shown = client.get(f"/label/api/judgments/{said['id']}").json()["judgment"]

    undo = {"id": str(uuid.uuid4())}
    for _ in range(2):
        undone = client.post("/label/api/undo", json=undo).json()["undone"]
        assert undone["judgment"] == shown
    assert (shown["outcome"], shown["edit"]) == ("a", "A better text.")
    assert details.items() <= shown.items()
    client.post("/label/api/release", json={"comparisons": [pair["id"]]})  # others need pairs too


def test_skip_flag_and_undo(client):
    first, second = take(client, 2)
    skipped = {"id": str(uuid.uuid4()), "comparison": first["id"]}
    flagged = {"id": str(uuid.uuid4()), "comparison": second["id"], "comment": "private data"}
    assert client.post("/label/api/skip", json=skipped).json() == {
        "id": skipped["id"],
        "saved": True,
    }
    assert client.post("/label/api/flag", json=flagged).status_code == 200

    undo = {"id": str(uuid.uuid4()), "replaces": skipped["id"]}
    for _ in range(2):
        answer = client.post("/label/api/undo", json=undo)
        assert answer.status_code == 200
        assert answer.json()["undone"] == {
            "id": skipped["id"], "kind": "skip", "pair": first, "judgment": None,
        }  # fmt: skip
    latest = client.post("/label/api/undo", json={"id": str(uuid.uuid4())}).json()["undone"]
    assert (latest["kind"], latest["pair"]) == ("flag", second)
    nothing = client.post("/label/api/undo", json={"id": str(uuid.uuid4())})
    assert nothing.status_code == 404
    assert "undo" in nothing.json()["error"]


def test_a_flag_too_many_is_refused_with_a_sentence_and_the_pair_stays(client, monkeypatch):
    """The page keeps what is refused with 4xx, and shows its sentence."""
    monkeypatch.setattr(judgments, "MAX_FLAGS", 1)
    pairs = take(client, 2)
    sent = [{"id": str(uuid.uuid4()), "comparison": pair["id"]} for pair in pairs]
    assert client.post("/label/api/flag", json=sent[0]).status_code == 200
    refused = client.post("/label/api/flag", json=sent[1])
    assert refused.status_code == 409
    assert "1 of your flags are not cleared yet" in refused.json()["error"]
    assert client.post("/label/api/flag", json=sent[0]).status_code == 200  # sent again
    assert take(client, 1) == pairs[1:]
    # An undo of the flag makes room, and the act that was kept is taken.
    client.post("/label/api/undo", json={"id": str(uuid.uuid4()), "replaces": sent[0]["id"]})
    assert client.post("/label/api/flag", json=sent[1]).status_code == 200


def test_next_bounds_and_holding(client):
    assert client.get("/label/api/next", params={"n": 0}).status_code == 422
    assert client.get("/label/api/next", params={"n": "many"}).status_code == 422
    held = [pair["id"] for pair in take(client, 2)]
    more = client.get("/label/api/next", params={"n": 2, "holding": ",".join(held)}).json()
    assert (more["waiting_for"], more["with_others"]) == (None, None)
    assert not {pair["id"] for pair in more["pairs"]} & set(held)


def test_released_pairs_go_to_others_and_their_judgment_is_still_taken(client, world):
    db, app = world
    ids = [pair["id"] for pair in take(client, 6)]
    released = client.post("/label/api/release", json={"comparisons": [*ids[4:], "c-none"]})
    assert released.json() == {"released": 2}
    other = TestClient(app, headers=bearer(db, add_person(db, f"other {uuid.uuid4()}")))
    others: list[str] = []
    for _ in range(6):
        asked = {"n": queue.AT_ONCE, "holding": ",".join(others)}
        answer = other.get("/label/api/next", params=asked).json()
        others += [pair["id"] for pair in answer["pairs"]]
    assert set(others) & set(ids) == set(ids[4:])
    assert client.post("/label/api/judgments", json=body({"id": ids[4]})).status_code == 200
    given_back = other.post("/label/api/release", json={"comparisons": others})
    assert given_back.json() == {"released": len(others)}
    for bad in ({}, {"comparisons": ["x" * 201]}, {"comparisons": ["c"] * 65}):
        assert client.post("/label/api/release", json=bad).status_code == 422


def test_progress_names_the_person(client):
    answer = client.get("/label/api/progress").json()

    assert answer["annotator"]["role"] == "annotator"
    assert (answer["judged"], answer["today"], answer["iteration"]) == (0, 0, 1)


@pytest.mark.parametrize("path", ["progress", "figures"])
def test_an_offset_is_whole_minutes_of_some_place(client, path):
    for offset in ("0", "-840", "840", "345"):
        assert client.get(f"/label/api/{path}", params={"offset": offset}).status_code == 200
    for offset in ("-841", "841", "5.5", "east", "", "1e2", "٣" * 4, "9" * 5000):
        assert client.get(f"/label/api/{path}", params={"offset": offset}).status_code == 422


def test_a_page_of_somebody_else_saves_nothing(world):
    db, app = world
    ann = add_person(db, f"Ann {uuid.uuid4()}")
    client = TestClient(app, headers={**session_cookie(app, db, ann), **ORIGIN})
    sent = body(take(client)[0])

    stale = client.post(
        "/label/api/judgments", json=sent, headers={"x-kitestring-annotator": "who-else"}
    )
    assert stale.status_code == 403
    assert "signed in" in stale.json()["error"]
    assert count(db, id=sent["id"]) == 0
    own = client.post("/label/api/judgments", json=sent, headers={"x-kitestring-annotator": ann.id})
    assert own.status_code == 200


def test_too_large_a_body_is_refused(client):
    pair = take(client)[0]

    for comment in ("x" * 2_000_000, "x" * 100_000):
        sent = body(pair, comment=comment)
        assert client.post("/label/api/judgments", json=sent).status_code == 413
    longest = body(pair, comment="\U0001f642" * 5_000)  # as JSON, twelve bytes each
    assert client.post("/label/api/judgments", json=longest).status_code == 200


@pytest.mark.parametrize("inside", [False, True])
def test_many_unknown_fields_are_one_short_sentence(client, inside):
    """A sentence for each took seconds of the server, in which nobody else was answered."""
    names = {f"{number:x}": 0 for number in range(9_000)}
    sent = body(take(client)[0])
    sent = {**sent, "criteria": names} if inside else {**sent, **names}

    answer = client.post("/label/api/judgments", json=sent)

    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error.startswith("criteria: has 9,000 fields" if inside else "The body: has 9,0")
    assert len(error) < 100


def test_the_command_line_gets_results_and_sentences(world):
    _, app = world
    client = TestClient(app)
    admin = {"authorization": f"Bearer {ADMIN_TOKEN}"}

    echo = {"command": "echo", "arguments": {"x": 1}}
    answer = client.post("/admin/api/call", json=echo, headers=admin)
    assert answer.json() == {"result": {"command": "echo", "x": 1}}
    refused = client.post("/admin/api/call", json={"command": "refuse"}, headers=admin)
    assert (refused.status_code, refused.json()) == (400, {"error": "That cannot be done."})
    full = client.post("/admin/api/call", json={"command": "full"}, headers=admin)
    assert (full.status_code, full.json()) == (503, {"error": "/w/journal.jsonl is gone"})
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": ADMIN_TOKEN}):
        assert client.post("/admin/api/call", json=echo, headers=headers).status_code == 401
    foreign = {**admin, "origin": "https://evil.example"}
    assert client.post("/admin/api/call", json=echo, headers=foreign).status_code == 403


def test_an_idle_page_does_not_spin(world):
    """Gradio's queue looks for work 1,000 times a second unless told otherwise."""
    mounted = [getattr(route, "app", None) for route in world[1].routes]
    queues = [app.blocks._queue for app in mounted if hasattr(app, "blocks")]
    assert len(queues) == 2
    for waiting in queues:
        assert 1 / waiting.sleep_when_free + 1 / waiting.progress_update_sleep_when_free <= 30
    # Names that Gradio no longer knew would be set and never read.
    source = inspect.getsource(Queue)
    for name in ("sleep_when_free", "progress_update_sleep_when_free"):
        assert f"asyncio.sleep(self.{name})" in source
