"""Live conversations from the first message to the next reward model: of two people at once, and of
simulated annotators, who also practice, answer gold pairs and edit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest

from commands.simulate import stop_workers
from commands.studio import Remote, server_for
from pipeline.config.sections import CONFIGS
from pipeline.demo.corpus import shipped_prompts
from pipeline.simulation.preference import score
from storage.engine.database import Database
from storage.lineage.tree import lineage
from storage.records import LIVE, RANDOM_STREAM
from storage.reports import LoopState, from_json
from storage.tables import models, policy_judgments

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TURNS = 5
QUESTIONS = ("How do I boil an egg?", "For how long?", "And then?", "Can I keep it?", "Thank you!")


def wait_for(remote: Remote, phase: str, number: int) -> None:
    """Advance the loop until an iteration is in a phase, or past it."""
    while True:
        state = from_json(LoopState, remote.call("advance"))
        assert state.blocked is None, state.blocked
        assert state.trouble is None, state.trouble
        if (state.iteration, state.phase) == (number, phase) or (state.iteration or 0) > number:
            return
        time.sleep(0.5)


def client(remote: Remote, name: str) -> httpx.Client:
    token = remote.call("users.add", name=name, role="annotator", token=True)["token"]
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=remote.url, headers=headers, timeout=300)


def judge(http: httpx.Client, pair: dict[str, Any], outcome: str) -> None:
    body = {"id": str(uuid.uuid4()), "comparison": pair["id"], "outcome": outcome}
    reply = http.post("/label/api/judgments", json=body)
    assert reply.status_code == 200, reply.text


def label(http: httpx.Client, count: int) -> None:
    """Judge so many pairs of the queue: the shorter response is better."""
    for _ in range(count):
        [pair] = http.get("/label/api/next", params={"n": 1}).json()["pairs"]
        judge(http, pair, "a" if len(pair["a"]["text"]) <= len(pair["b"]["text"]) else "b")


def talk(http: httpx.Client) -> list[str]:
    """A conversation of five turns; returns the ids of its comparisons."""
    assert http.post("/label/api/live/prepare").json() == {"ready": True}
    made: list[str] = []
    conversation = None
    for number, question in enumerate(QUESTIONS, 1):
        body = {"text": question, "conversation": conversation}
        reply = http.post("/label/api/live/turns", json=body)
        assert reply.status_code == 200, reply.text
        events = [json.loads(line) for line in reply.text.splitlines()]
        assert events[-1]["event"] == "pair", events[-1]
        assert events[-1]["last"] == (number == TURNS)
        assert len(events[0]["messages"]) == 2 * number - 1
        conversation, pair = events[0]["conversation"], events[-1]["pair"]
        judge(http, pair, "b" if number % 2 else "a")
        made.append(pair["id"])
    return made


def test_two_people_talk_and_the_next_reward_model_learns_from_it(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    sets = [
        "live.replies=reference",
        f"live.turns={TURNS}",
        "labeling.labels=24",
        "seed=1",
        "worker.nice=0",
    ]
    with server_for(workspace, [CONFIGS / "tiny.toml"], sets) as remote:
        wait_for(remote, "labeling", 1)
        with client(remote, "Ann") as ann, client(remote, "Bob") as bob:
            label(ann, 24)
            remote.call("train", overrides={})
            wait_for(remote, "labeling", 2)
            # From here on the policy is a trained model, and the other reply is SFT's.
            with ThreadPoolExecutor(2) as people:
                made = [id for talked in people.map(talk, (ann, bob)) for id in talked]
            label(ann, 12)
            remote.call("train", overrides={})
            wait_for(remote, "done", 2)
    stop_workers(workspace)  # the loop has already started the third iteration
    assert len(set(made)) == 2 * TURNS
    with Database.open(workspace) as db:
        _check_records(db, made)
        _check_statistics(db, made)


def _check_records(db: Database, made: list[str]) -> None:
    rows = {
        row["id"]: row
        for row in db.read(
            "SELECT c.*, f.policy AS one, s.policy AS other, j.annotator, j.id AS judgment "
            "FROM comparisons AS c JOIN completions AS f ON f.id = c.first "
            "JOIN completions AS s ON s.id = c.second "
            "JOIN current_judgments AS j ON j.comparison = c.id WHERE c.arm = $arm",
            arm=LIVE,
        )
    }
    assert set(rows) == set(made)
    assert {row["iteration"] for row in rows.values()} == {2}
    [sampled] = db.read("SELECT policy_sampled AS policy FROM iterations WHERE number = 2")
    policies = {sampled["policy"], "sft-1"}
    assert all({row["one"], row["other"]} == policies for row in rows.values())
    conversations = {row["conversation"] for row in rows.values()}
    assert len(conversations) == 2
    for one in conversations:
        own = [row for row in rows.values() if row["conversation"] == one]
        assert sorted(row["turn"] for row in own) == [1, 2, 3, 4, 5]
        assert len({row["annotator"] for row in own}) == 1
    # Learned from: the snapshot of the second reward model has every judgment.
    learned = db.read(
        "SELECT m.judgment FROM snapshot_judgments AS m WHERE m.snapshot = $hash",
        hash=models.get(db, "reward-2").snapshot,
    )
    assert {row["judgment"] for row in rows.values()} <= {row["judgment"] for row in learned}
    found = lineage(db, "policy-2")
    assert found.reward_model is not None
    assert found.reward_model.snapshot is not None
    assert found.reward_model.snapshot.judgments == len(learned)
    assert sampled["policy"] in {each.policy.id for each in found.reward_model.snapshot.judged}


def _check_statistics(db: Database, made: list[str]) -> None:
    judged = policy_judgments.judged(db)
    assert judged, "the queue has pairs of two policies"
    assert not {each.comparison for each in judged} & set(made)
    predicted = {row["comparison"] for row in db.read("SELECT comparison FROM predictions")}
    assert not predicted & set(made)
    reward = models.get(db, "reward-2").run
    [run] = db.read("SELECT directory FROM runs WHERE id = $run", run=reward)
    measured = pd.read_parquet(db.workspace / run["directory"] / "outputs" / "held_out.parquet")
    stream = measured[measured["arm"].isin(RANDOM_STREAM)]
    assert models.get(db, "reward-2").summary["quality"]["judgments"] == len(stream)


def launch(*words: str | Path) -> str:
    command = [sys.executable, "launch.py", *map(str, words)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def known_pairs(folder: Path, name: str, start: int, count: int) -> Path:
    """A file of pairs of the demo: a topic's true answer against its false claim."""
    path = folder / f"{name}.jsonl"
    asked = [each for each in shipped_prompts() if each.role == "train"][start : start + count]
    rows = [
        {"prompt": each.text, "response_a": each.topic.wrong, "response_b": each.topic.answer,
         "answer": "b", "explanation": "A is false."}
        for each in asked
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_simulated_annotators_practice_talk_answer_gold_pairs_and_edit(tmp_path: Path) -> None:
    place = tmp_path / "w"
    launch("init", "--workspace", place, "--config", CONFIGS / "tiny.toml")
    for kind, start, count in (("gold", 0, 12), ("practice", 100, 6)):
        launch(
            "import", f"--{kind}", known_pairs(tmp_path, kind, start, count), "--workspace", place
        )
    options = (
        "--labels",
        "24",
        "--annotators",
        "3",
        "--bad",
        "0.34",
        "--live",
        "0.25",
        "--edits",
        "1",
    )
    sets = ("live.replies=reference", "labeling.practice=true", "labeling.gold_first=20")
    found = launch(
        "simulate", "--workspace", place, "--tiny", "--json", *options,
        *(word for setting in sets for word in ("--set", setting)),
    )  # fmt: skip
    stop_workers(place)
    report = json.loads(found)
    [iteration] = report["iterations"]
    assert iteration["labels_by_arm"]["live"] == 6
    assert sum(iteration["labels_by_arm"].values()) == 24
    checked = report["checks"]["annotators"]
    assert [row["profile"] for row in checked].count("careful") == 2
    assert {row["practice"] for row in checked} <= {"passed", "below the mark"}
    assert sum(row["gold"] for row in checked) >= 3
    with Database.open(place) as db:
        rows = db.read(
            "SELECT j.edit, a.kind, c.arm, p.messages ->> '$[#-1].content' AS asked, "
            "CASE j.outcome WHEN 'first' THEN f.text ELSE s.text END AS preferred "
            "FROM current_judgments AS j JOIN annotators AS a ON a.id = j.annotator "
            "JOIN comparisons AS c ON c.id = j.comparison JOIN prompts AS p ON p.id = c.prompt "
            "JOIN completions AS f ON f.id = c.first JOIN completions AS s ON s.id = c.second"
        )
        reward = models.get(db, "reward-1").summary["quality"]["judgments"]
    assert {row["kind"] for row in rows} == {"simulated"}
    edited = [row for row in rows if row["edit"]]
    assert len(edited) == iteration["edits"] >= 3
    for row in edited:
        assert score(row["asked"], row["edit"]) > score(row["asked"], row["preferred"])
    assert reward <= sum(row["arm"] in RANDOM_STREAM for row in rows)
