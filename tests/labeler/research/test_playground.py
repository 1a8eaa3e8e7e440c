"""The playground over HTTP: events, measures, limits, refusals, and the pairs that it sends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from labeler.research.models.playground import session
from storage.engine.database import Database
from storage.generation_records import (
    GenerationBusy,
    GenerationRefused,
    MeasuredToken,
    MeasureRequest,
    ReplyMeasures,
)
from storage.records import Message, ModelVersion, Prompt
from storage.tables import models, prompts
from tests.helpers.desk_world import add_person, bearer, make_app, serving, workspace
from tests.helpers.scripted_generation import Scripted

PLACE = "/research/api/playground"
MEASURES = ReplyMeasures(
    reward=1.5, audit=-0.5, tokens=(MeasuredToken(text="A", logprob=-1.0, reference_logprob=-2.0, kl=0.25),)
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Any, Scripted]]:
    with workspace(tmp_path_factory.mktemp("playground")) as db:
        db.write(
            lambda tx: tx.store(
                ModelVersion(id="gone", role="policy", name="gone", path="models/gone")
            )
        )
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        models.add(db, ModelVersion(id="reward-1", role="reward", name="R", path="demo"))
        for n in (1, 2, 3):
            made = ModelVersion(
                id=f"policy-{n}", role="policy", name="P", path="demo", iteration=n,
                summary={"method": "ppo"},
            )  # fmt: skip
            models.add(db, made)
        prompts.add(db, [Prompt.make("Kept apart?", role="held-out")])
        script = Scripted()
        yield db, make_app(db, generation=script), script


@pytest.fixture
def script(world: Any) -> Scripted:
    found: Scripted = world[2]
    found.reset()
    found.measures = MEASURES
    return found


@pytest.fixture
def http(world: Any, request: pytest.FixtureRequest) -> TestClient:
    db, app, _ = world
    who = add_person(db, f"researcher of {request.node.name}", "researcher")
    return TestClient(app, headers=bearer(db, who), raise_server_exceptions=False)


def ask(http: Any, *chosen: str, prompt: str = "How long?", **more: Any) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": prompt}]
    body = {"messages": messages, "models": list(chosen or ("policy-3",))} | more
    reply = http.post(f"{PLACE}/replies", json=body)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def refused(http: Any, **body: Any) -> tuple[int, str]:
    given = {"messages": [{"role": "user", "content": "Hi"}], "models": ["policy-3"]} | body
    reply = http.post(
        f"{PLACE}/replies", content=json.dumps(given), headers={"content-type": "application/json"}
    )
    return reply.status_code, reply.json()["error"]


def of(events: list[dict[str, Any]], kind: str, model: str = "policy-3") -> list[dict[str, Any]]:
    return [each for each in events if each["event"] == kind and each.get("model") == model]


def test_the_page_learns_which_models_there_are(http: TestClient, script: Scripted) -> None:
    found = http.get(PLACE).json()
    named = [each["id"] for each in found["models"]]
    assert [id for id in named if id != "policy-secret"] == [
        "sft-1", "policy-1", "policy-2", "policy-3",
    ]  # fmt: skip
    assert "gone" not in named  # a backup does not have its files
    assert found["chosen"] == ["sft-1", "policy-2", "policy-3"]
    assert found["models"][-1] == {
        "id": "policy-3", "role": "policy", "iteration": 3, "method": "ppo",
    }  # fmt: skip
    assert (found["reward"], found["reference"], found["reason"]) == ("reward-1", "sft-1", None)
    script.stage = "reward"
    assert http.get(PLACE).json()["reason"] == "The reward stage uses the device."


def test_replies_stream_with_their_ends_and_measures(http: TestClient, script: Scripted) -> None:
    script.texts = ["One and more.", "Two.", "Three."]
    events = ask(
        http, "sft-1", "policy-2", "policy-3", temperature=0.7, top_p=0.9, max_tokens=9, seed=4
    )
    assert events[0] == {"event": "asked", "seed": 4, "reward": "reward-1", "reference": "sft-1"}
    for model, text in zip(
        ("sft-1", "policy-2", "policy-3"), ("One and more.", "Two.", "Three."), strict=True
    ):
        assert "".join(each["text"] for each in of(events, "text", model)).strip() == text
        [end], [measures] = of(events, "end", model), of(events, "measures", model)
        assert (end["finish_reason"], end["tokens"]) == ("stop", len(text))
        assert (measures["reward"], measures["audit"]) == (1.5, -0.5)
        assert measures["tokens"] == [
            {"text": "A", "logprob": -1.0, "reference_logprob": -2.0, "kl": 0.25}
        ]
        kinds = [each["event"] for each in events if each.get("model") == model]
        assert kinds == ["text"] * (len(kinds) - 2) + ["end", "measures"]
    for request in script.asked:  # the same random numbers for all
        assert (request.temperature, request.top_p, request.max_tokens, request.seed) == (
            0.7,
            0.9,
            9,
            4,
        )
    assert len(script.measured) == 3
    assert MeasureRequest(
        model="sft-1", messages=(Message("user", "How long?"),), ids=tuple(b"One and more."),
        temperature=0.7, reference="sft-1", reward="reward-1",
    ) in script.measured  # fmt: skip


def test_a_conversation_with_a_system_message_reaches_the_models(
    http: TestClient, script: Scripted
) -> None:
    script.texts = ["One."]
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Why?"}]  # fmt: skip
    ask(http, messages=talk)
    assert [(m.role, m.content) for m in script.asked[0].messages] == [
        (turn["role"], turn["content"]) for turn in talk
    ]


def test_without_a_seed_each_time_another_one(http: TestClient, script: Scripted) -> None:
    script.texts = ["One.", "Two."]
    one, two = (ask(http)[0]["seed"] for _ in range(2))
    assert one != two
    assert [request.seed for request in script.asked] == [one, two]


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (3, 2)])
def test_no_more_replies_at_once_than_a_person_may_have(
    http: TestClient, script: Scripted, at_once: int, most: int
) -> None:
    script.at_once = at_once
    script.texts = ["One and two and three.", "Four and five and six."]
    events = ask(http, "policy-2", "policy-3")
    assert script.most_open == most
    assert of(events, "end", "policy-2")
    assert of(events, "end", "policy-3")


@pytest.mark.parametrize("error", [GenerationRefused("It stopped."), GenerationBusy("Wait.")])
def test_one_model_fails_and_the_others_go_on(
    http: TestClient, script: Scripted, error: Exception
) -> None:
    script.texts = [error, "Two."]
    events = ask(http, "policy-2", "policy-3")
    assert of(events, "error", "policy-2") == [
        {"event": "error", "model": "policy-2", "error": str(error)}
    ]
    assert not of(events, "end", "policy-2")
    assert of(events, "measures")


def test_a_reply_stays_if_it_cannot_be_measured(http: TestClient, script: Scripted) -> None:
    script.texts = ["One."]
    script.measures = GenerationRefused("No rewards here.")
    [measures] = of(ask(http), "measures")
    assert measures["no_tokens"] == "No rewards here."
    assert measures["reward"] is None
    assert measures["tokens"] == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"models": []}, "models"),
        ({"models": ["a", "b", "c", "d", "e"]}, "models"),
        ({"models": ["policy-3", "policy-3"]}, "different models"),
        ({"messages": [{"role": "user", "content": " "}]}, "not blank"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "user turn"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, "role"),
        ({"messages": [{"role": "user", "content": "a\0"}]}, "NUL"),
        ({"messages": [{"role": "user", "content": "a\ud800"}]}, "unicode"),
        ({"messages": [{"role": "user", "content": "x" * 20_001}]}, "20000"),
        ({"temperature": -0.1}, "temperature must be 0 to 5"),
        ({"temperature": "nan"}, "temperature must be 0 to 5"),
        ({"top_p": 0}, "top_p must be"),
        ({"max_tokens": 5_000}, "max_tokens must be 1 to 4096"),
        ({"seed": -1}, "seed must be"),
        ({"more": 1}, "more"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    http: TestClient, script: Scripted, body: dict[str, Any], words: str
) -> None:
    status, error = refused(http, **body)
    assert status == 422, error
    assert any(word in error for word in words.split("|")), error
    assert script.asked == []


def test_an_unknown_model_and_a_running_stage_are_refused(
    http: TestClient, script: Scripted
) -> None:
    assert refused(http, models=["reward-1"])[0] == 404
    assert refused(http, models=["gone"])[0] == 404
    script.stage = "PPO"
    assert refused(http) == (409, "The PPO stage uses the device.")
    assert http.post(f"{PLACE}/prepare", json={"models": ["policy-3"]}).status_code == 409
    script.stage = None
    assert http.post(f"{PLACE}/prepare", json={"models": ["policy-3"]}).json() == {"ready": True}
    assert [request.model for request in script.asked] == ["policy-3"]


def test_a_reader_who_leaves_cancels_all_replies(world: Any, script: Scripted) -> None:
    db, app, _ = world
    headers = bearer(db, add_person(db, "leaver", "researcher"))
    script.texts, script.pause = ["One more."] * 2, asyncio.Event()
    body = {"messages": [{"role": "user", "content": "Hi"}], "models": ["policy-2", "policy-3"]}
    with serving(app) as server:
        client = httpx.Client(base_url=server.url, headers=headers, timeout=30)
        with client.stream("POST", f"{PLACE}/replies", json=body) as reply:
            lines = reply.iter_lines()
            while script.open < 2:
                next(lines)
        give_up = time.monotonic() + 10
        while script.open:
            assert time.monotonic() < give_up
            time.sleep(0.01)


# -- pairs for the annotators --------------------------------------------------------------------


def two_replies(http: Any, script: Scripted, prompt: str) -> list[str]:
    script.texts = ["One.", "Two."]
    return [
        each["id"]
        for each in ask(http, "policy-2", "policy-3", prompt=prompt)
        if each["event"] == "end"
    ]


def test_two_replies_become_a_pair_in_the_queue(
    world: Any, http: TestClient, script: Scripted
) -> None:
    db, app, _ = world
    ids = two_replies(http, script, "Sent?")
    sent = http.post(f"{PLACE}/pairs", json={"replies": ids}).json()
    assert (sent["new"], sent["learned_from"]) == (True, True)
    assert http.post(f"{PLACE}/pairs", json={"replies": ids}).json() == sent | {"new": False}
    [row] = db.read("SELECT first, second, arm FROM comparisons WHERE id = $id", id=sent["id"])
    assert ({row["first"], row["second"]}, row["arm"]) == (set(ids), "probe")
    annotator = TestClient(app, headers=bearer(db, add_person(db, "Labeler of probes")))
    shown: dict[str, Any] = {}
    for _ in range(3):
        got = annotator.get("/label/api/next", params={"n": 16, "holding": [*shown]})
        shown |= {pair["id"]: pair for pair in got.json()["pairs"]}
        assert "policy" not in got.text
        assert "probe" not in got.text
    pair = shown[sent["id"]]
    assert {pair["a"]["text"].strip(), pair["b"]["text"].strip()} == {"One.", "Two."}
    assert {len(each["id"]) for each in shown.values()} == {18}
    assert {(*each,) for each in shown.values()} == {(*pair,)}


def test_a_pair_on_a_held_out_prompt_is_sent_and_not_learned_from(
    http: TestClient, script: Scripted
) -> None:
    ids = two_replies(http, script, "Kept apart?")
    sent = http.post(f"{PLACE}/pairs", json={"replies": ids}).json()
    assert (sent["new"], sent["learned_from"]) == (True, False)


def test_a_pair_that_cannot_be_sent(http: TestClient, script: Scripted) -> None:
    one, two = two_replies(http, script, "First?"), two_replies(http, script, "Second?")

    def send(*replies: str) -> tuple[int, str]:
        reply = http.post(f"{PLACE}/pairs", json={"replies": replies})
        return reply.status_code, reply.json()["error"]

    assert send(one[0], two[1]) == (409, session.MIXED)
    assert send(one[0], one[0])[0] == 422
    assert send(one[0], "r-0") == (404, session.FORGOTTEN.format(id="r-0"))
    script.texts = ["Same.", "Same."]
    same = [each["id"] for each in ask(http, "policy-2", "policy-3") if each["event"] == "end"]
    assert send(*same)[0] == 422


def test_old_replies_are_forgotten(http: TestClient, script: Scripted, monkeypatch: Any) -> None:
    monkeypatch.setattr(session, "KEPT", 2)
    ids = two_replies(http, script, "Old?")
    script.texts = ["Three."]
    ask(http)
    reply = http.post(f"{PLACE}/pairs", json={"replies": ids})
    assert reply.status_code == 404


def test_without_a_service_the_page_says_so(tmp_path: Any) -> None:
    with workspace(tmp_path) as db:
        app = make_app(db)
        http = TestClient(app, headers=bearer(db, add_person(db, "Ada", "researcher")))
        assert http.get(PLACE).json()["reason"] == session.NO_SERVICE
        assert refused(http, models=["policy-secret"]) == (409, session.NO_SERVICE)
