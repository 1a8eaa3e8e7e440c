"""Live conversations over HTTP: events, blindness, refusals, and what a closed tab leaves."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from labeler.annotate.live import TOO_LONG, TRAINING
from pipeline.config.sections import Config
from pipeline.loop import generation as of_loop
from pipeline.serving.client import Generation
from storage.engine.database import Database
from storage.generation_records import (
    CurrentModels,
    GenerationBusy,
    GenerationRefused,
    LiveSettings,
)
from storage.records import Annotator, Iteration, ModelVersion
from storage.tables import iterations, models
from tests.helpers.desk_world import (
    add_person,
    bearer,
    make_app,
    serving,
    session_cookie,
    workspace,
)
from tests.helpers.scripted_generation import Scripted


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Any, Scripted]]:
    with workspace(tmp_path_factory.mktemp("live")) as db:
        script = Scripted()
        yield db, make_app(db, generation=script), script


@pytest.fixture
def script(world: Any) -> Scripted:
    """The script of the module's app, as new."""
    found: Scripted = world[2]
    found.reset()
    return found


@pytest.fixture
def db(world: Any) -> Database:
    return world[0]


@pytest.fixture
def ada(db: Database) -> Annotator:
    return add_person(db, f"ada {uuid.uuid4()}")


@pytest.fixture
def http(world: Any, ada: Annotator) -> TestClient:
    return client_of(world, ada)


def client_of(world: Any, who: Annotator) -> TestClient:
    db, app, _ = world
    return TestClient(app, headers=bearer(db, who), raise_server_exceptions=False)


def send(http: Any, text: str = "How long?", conversation: str | None = None) -> list[Any]:
    reply = http.post("/label/api/live/turns", json={"text": text, "conversation": conversation})
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def judge(http: Any, pair: dict[str, Any], outcome: str = "a") -> None:
    body = {"id": str(uuid.uuid4()), "comparison": pair["id"], "outcome": outcome}
    assert http.post("/label/api/judgments", json=body).json()["saved"]


def texts_of(events: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What a page shows at the end of the stream, by side."""
    shown = {"a": "", "b": ""}
    for event in events:
        if event["event"] == "text":
            shown[event["side"]] += event["text"]
        if event["event"] == "again":
            shown[event["side"]] = ""
    return shown


def stored(db: Database, ada: Annotator) -> int:
    sql = "SELECT count(*) AS n FROM comparisons AS c JOIN leases AS l ON l.comparison = c.id WHERE c.arm = 'live' AND l.annotator = $who"
    return db.read(sql, who=ada.id)[0]["n"]


def test_two_replies_stream_and_end_as_a_pair_on_the_same_sides(
    http: TestClient, script: Scripted
) -> None:
    for _ in range(6):
        script.texts = ["Eight minutes.", "Ask a cook, please."]
        first, *events, last = send(http)
        assert first["event"] == "turn"
        assert first["turn"] == 1
        assert [m["text"] for m in first["messages"]] == ["How long?"]
        assert texts_of(events) == {side: last["pair"][side]["text"] for side in "ab"}
        assert {event["side"] for event in events if event["event"] == "end"} == {"a", "b"}
        assert last["event"] == "pair"
        assert not last["last"]
        judge(http, last["pair"])


def test_nothing_names_the_models(http: TestClient, script: Scripted) -> None:
    script.texts = ["One.", "Two."]
    events = send(http)
    state = http.get("/label/api/live").text
    for name in ("policy-1", "sft-1", "reference", "temperature", "seed"):
        assert name not in json.dumps(events)
        assert name not in state


def test_the_policy_and_the_reference_get_the_same_settings(
    http: TestClient, script: Scripted, db: Database
) -> None:
    script.texts = ["One.", "Two."]
    pair = send(http)[-1]["pair"]
    assert {request.model for request in script.asked} == {"policy-1", "sft-1"}
    assert {request.temperature for request in script.asked} == {1.0}
    rows = db.read(
        "SELECT k.policy, k.text, k.seed FROM comparisons AS c "
        "JOIN completions AS k ON k.id IN (c.first, c.second) WHERE c.id = $id",
        id=pair["id"],
    )
    assert {(r["policy"], r["text"].strip(), r["seed"]) for r in rows} == {
        (request.model, text, request.seed)
        for request, text in zip(script.asked, ("One.", "Two."), strict=True)
    }


def test_two_replies_of_the_policy_have_their_own_temperatures(
    http: TestClient, script: Scripted
) -> None:
    script.live = replace(script.live, replies="policy")
    script.texts = ["One.", "Two."]
    send(http)
    assert [request.model for request in script.asked] == ["policy-1", "policy-1"]
    assert {request.temperature for request in script.asked} == {1.0, 0.5}
    assert script.asked[0].seed != script.asked[1].seed


def test_a_conversation_goes_on_with_the_chosen_reply_and_ends(
    http: TestClient, script: Scripted
) -> None:
    script.texts = [f"Reply {n}." for n in range(6)]
    conversation = None
    for turn in (1, 2, 3):
        first, *_, last = send(http, f"Question {turn}?", conversation)
        assert first["turn"] == turn
        assert len(first["messages"]) == 2 * turn - 1
        assert last["last"] == (turn == 3)
        judge(http, last["pair"], "b")
        conversation = first["conversation"]
        chosen = last["pair"]["b"]["text"]
        state = http.get("/label/api/live").json()["conversation"]
        assert state["messages"][-1] == {
            "role": "assistant", "text": chosen, "html": last["pair"]["b"]["html"],
        }  # fmt: skip
    assert "reached its last turn" in state["over"]
    body = {"text": "More?", "conversation": conversation}
    refused = http.post("/label/api/live/turns", json=body)
    assert refused.status_code == 409
    assert refused.json()["error"] == state["over"]


def test_a_reloaded_page_gets_the_turn_that_waits_for_a_judgment(
    http: TestClient, script: Scripted
) -> None:
    assert http.get("/label/api/live").json()["conversation"] is None
    script.texts = ["One.", "Two."]
    first, *_, last = send(http)
    state = http.get("/label/api/live").json()
    assert (state["enabled"], state["reason"], state["turns"]) == (True, None, 3)
    assert state["conversation"]["id"] == first["conversation"]
    assert state["conversation"]["pair"] == last["pair"]
    assert state["conversation"]["over"] is None
    again = http.post(
        "/label/api/live/turns", json={"text": "?", "conversation": first["conversation"]}
    )
    assert again.status_code == 409
    assert "Judge the last turn first" in again.json()["error"]


def test_equal_replies_are_sampled_again(http: TestClient, script: Scripted) -> None:
    script.texts = ["Same.", "Same.", "Same. ", "Other."]
    events = send(http)
    assert [event["event"] for event in events].count("again") == 2
    pair = events[-1]["pair"]
    assert {pair[side]["text"].strip() for side in "ab"} == {"Same.", "Other."}
    assert texts_of(events) == {side: pair[side]["text"] for side in "ab"}


def test_replies_that_stay_equal_are_shown(http: TestClient, script: Scripted) -> None:
    script.texts = ["Same."] * 4
    assert send(http)[-1]["event"] == "pair"
    assert script.texts == []


def test_neither_the_start_nor_sampling_again_tells_which_model_is_on_a_side(
    http: TestClient, script: Scripted
) -> None:
    """20 turns: if the order followed the model, one of each set would be missing."""
    started, again = set(), set()
    for _ in range(20):
        script.asked.clear()
        script.texts = ["Same.", "Same.", "Other."]
        events = send(http)
        started.add(script.asked[0].model)
        again.add(script.asked[2].model)
        judge(http, events[-1]["pair"])
    assert started == again == {"policy-1", "sft-1"}


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (GenerationRefused("It stopped."), "It stopped."),
        (GenerationBusy("Wait."), "Wait."),
        (ValueError("Too long for policy-1."), TOO_LONG),
    ],
)
def test_a_reply_that_fails_ends_the_other_and_stores_nothing(
    http: TestClient,
    script: Scripted,
    db: Database,
    ada: Annotator,
    error: Exception,
    sentence: str,
) -> None:
    script.texts = ["a " * 10_000, error]
    *_, last = send(http)
    assert last == {"event": "error", "error": sentence}
    assert script.open == 0
    assert stored(db, ada) == 0
    script.texts = ["One.", "Two."]
    assert send(http)[-1]["event"] == "pair"


def test_training_refuses_turns_and_the_page_learns_why(http: TestClient, script: Scripted) -> None:
    script.stage = "PPO"
    assert http.get("/label/api/live").json()["reason"] == TRAINING
    for path, body in (("turns", {"text": "Hi"}), ("prepare", None)):
        refused = http.post(f"/label/api/live/{path}", json=body)
        assert refused.status_code == 409
        assert refused.json()["error"] == TRAINING
    assert script.asked == []


def test_a_stage_that_starts_during_a_turn_is_told_in_a_sentence_that_the_page_translates(
    http: TestClient, script: Scripted
) -> None:
    refused = GenerationRefused("The PPO stage uses the device.")
    script.texts, script.stage_then = ["fine", refused], "PPO"
    assert send(http)[-1] == {"event": "error", "error": TRAINING}
    script.reset()
    script.texts, script.stage_then = ["fine", GenerationBusy("Try again.")], "PPO"
    assert send(http)[-1] == {"event": "error", "error": "Try again."}


def test_before_there_is_a_model_the_page_says_so(http: TestClient, script: Scripted) -> None:
    script.models = CurrentModels()
    assert "no model yet" in http.get("/label/api/live").json()["reason"]
    assert http.post("/label/api/live/turns", json={"text": "Hi"}).status_code == 409


def test_preparing_loads_each_model_once(http: TestClient, script: Scripted) -> None:
    assert http.post("/label/api/live/prepare").json() == {"ready": True}
    assert [request.model for request in script.asked] == ["policy-1", "sft-1"]
    script.asked.clear()
    script.live = replace(script.live, replies="policy")
    http.post("/label/api/live/prepare")
    assert [request.model for request in script.asked] == ["policy-1"]


def test_off_means_off(http: TestClient, script: Scripted) -> None:
    script.live = LiveSettings()
    assert http.get("/label/api/live").json()["enabled"] is False
    refused = http.post("/label/api/live/turns", json={"text": "Hi"})
    assert refused.status_code == 409
    assert "off in this project" in refused.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text": " "}, 422),
        ({"text": "a\0b"}, 422),
        ({"text": "x" * 20_001}, 422),
        ({"text": "a", "model": "sft-1"}, 422),
        ({"text": "a", "conversation": "v-unknown"}, 404),
        ({}, 422),
    ],
)
def test_a_bad_message_is_refused_before_anything_is_sampled(
    http: TestClient, script: Scripted, body: dict[str, Any], status: int
) -> None:
    assert http.post("/label/api/live/turns", json=body).status_code == status
    assert script.asked == []


def test_another_persons_conversation_is_unknown(
    world: Any, http: TestClient, script: Scripted, db: Database
) -> None:
    script.texts = ["One.", "Two."]
    first, *_, last = send(http)
    ben = client_of(world, add_person(db, f"ben {uuid.uuid4()}"))
    body = {"text": "Hi", "conversation": first["conversation"]}
    assert ben.post("/label/api/live/turns", json=body).status_code == 404
    act = {"id": str(uuid.uuid4()), "comparison": last["pair"]["id"], "outcome": "a"}
    assert ben.post("/label/api/judgments", json=act).status_code == 409


def test_a_browser_of_another_site_cannot_write(world: Any, ada: Annotator) -> None:
    db, app, _ = world
    page = TestClient(app, headers=session_cookie(app, db, ada))
    for path in ("turns", "prepare"):
        refused = page.post(
            f"/label/api/live/{path}", json={"text": "Hi"}, headers={"origin": "https://evil.test"}
        )
        assert refused.status_code == 403


# -- with the real service ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Database, Generation]]:
    """The server on a port, with the demo's model behind the real service."""
    folder = tmp_path_factory.mktemp("studio")
    with workspace(folder / "w") as db:
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        iterations.save(db, Iteration(number=1, phase="labeling", policy_sampled="sft-1"))
        settings = {
            "live.replies": "policy",
            "sampling.max_new_tokens": "300",
            # The end-of-text is one token of 3,072: replies go on until they are cut off.
            "sampling.temperatures": "[50.0, 50.0]",
            "sampling.top_p": "1.0",
            "worker.device": "cpu",
            "worker.threads": "1",
        }
        made = Generation(
            Config().override(settings),
            folder / "generation.log",
            paths=lambda: of_loop.model_paths(db),
            current=lambda: of_loop.current_models(db),
            running=lambda: of_loop.running_stage(db),
        )
        try:
            with serving(make_app(db, generation=made)) as server:
                yield server.url, db, made
        finally:
            made.shut_down()


def decoding(made: Generation) -> int:
    (service,) = made._services.values()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.socket))) as client:
        return client.get("http://service/health").json()["replies"]


def test_a_closed_tab_cancels_both_replies(studio: tuple[str, Database, Generation]) -> None:
    url, db, made = studio
    ada = add_person(db, "Ada of the closed tab")
    with httpx.Client(base_url=url, headers=bearer(db, ada), timeout=120) as http:
        assert http.post("/label/api/live/prepare").json() == {"ready": True}
        body = {"text": "How do I boil an egg?"}
        begun: list[dict[str, Any]] = []
        with http.stream("POST", "/label/api/live/turns", json=body) as reply:
            for line in reply.iter_lines():
                begun.append(json.loads(line))
                if {"a", "b"} <= {event.get("side") for event in begun}:
                    assert decoding(made) == 2
                    break  # closes the connection
    give_up = time.monotonic() + 5
    while decoding(made) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert decoding(made) == 0
    assert made._replies.total() == 0
    assert stored(db, ada) == 0


def test_a_model_of_the_workspace_replies_and_the_turn_is_judged(
    studio: tuple[str, Database, Generation],
) -> None:
    url, db, _ = studio
    ada = add_person(db, "Ada of the whole turn")
    with httpx.Client(base_url=url, headers=bearer(db, ada), timeout=120) as http:
        *events, last = send(http, "How do I boil an egg?")
        assert last["event"] == "pair"
        assert texts_of(events) == {side: last["pair"][side]["text"] for side in "ab"}
        assert len([event for event in events if event["event"] == "text"]) > 20
        judge(http, last["pair"])
    rows = db.read(
        "SELECT k.policy, k.tokens, k.finish_reason FROM comparisons AS c "
        "JOIN completions AS k ON k.id IN (c.first, c.second) WHERE c.id = $id",
        id=last["pair"]["id"],
    )
    assert {row["policy"] for row in rows} == {"sft-1"}
    assert all(0 < row["tokens"] <= 300 for row in rows)
