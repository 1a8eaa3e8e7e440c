"""A workspace that an older version made opens with nothing lost, and goes on where it stood.

`workspaces/README.md` says what the archive holds.  The figures below were counted when it was made:
from what was sent to the version that made it and from what that version printed.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest

import launch
from commands.studio import Studio
from pipeline.loop.workspace_config import load_settings
from storage.reports import LoopState
from tests.helpers.command_line import run

POLICY_PHASE = "policy"
"""What the phase and the stage that train the policy are called today."""

ARCHIVE = Path(__file__).parent / "workspaces" / "v0.1.tar.xz"
MADE_IN = "/srv/kitestring"
"""The folder that it was made in, which settings and jobs name."""

PASSWORDS = {"Rosa": "rosa keeps bees", "Ann": "ann paints fences", "Björn": "björn åker skidor"}
TOKEN_OF_CHLOE = "uedgP5kt4DU_e73MZtCGNMgxZDHHI4ksIqRrJxEmaj0"
PEOPLE = {
    "Ann": ("annotator", "person", False),
    "Björn": ("annotator", "person", False),
    "Chloé": ("annotator", "person", False),
    "Dora": ("annotator", "person", True),
    "Emil": ("annotator", "person", False),
    "Eve": ("annotator", "person", False),
    "Flo": ("annotator", "person", False),
    "Rosa": ("researcher", "person", False),
    "prefers-longer": ("annotator", "model", False),
}
"""Role, kind and whether the account is closed, by name."""
EVER_SAID = {"first": 17, "second": 16, "tie": 10, "both_bad": 4}
STANDS = {"first": 15, "second": 12, "tie": 10, "both_bad": 4}
BY_ANNOTATOR = {"Ann": 10, "Björn": 8, "Chloé": 10, "Eve": 4, "Flo": 4, "prefers-longer": 5}
# Of what the journal holds, as the backup's manifest counts it.
RECORDS = 252
# iteration, stage, status, rows of metrics, last step
RUNS = [
    (1, "sft", "succeeded", 12, 4),
    (1, "sampling", "succeeded", 2, 0),
    (1, "reward", "succeeded", 15, 3),
    (1, POLICY_PHASE, "succeeded", 153, 3),
    (1, "evaluate", "succeeded", 11, 0),
    (2, "sampling", "succeeded", 4, 0),
    (2, "reward", "succeeded", 19, 4),
    (2, POLICY_PHASE, "cancelled", 204, 4),
]
CANCELLED_AT = 4
SETTINGS = {
    "seed": 7,
    "evaluate.prompts": 4,
    "evaluate.temperature": 0.8,
    "evaluate.max_new_tokens": 12,
    "gate.labels": 4,
    "gate.kl_raise": 2.0,
    "labeling.labels": 12,
    "labeling.overlap": 0.25,
    "model.name": "/srv/kitestring/base",
    "optimize.method": "ppo",
    "plugins.allowed": ["pipeline.gold:longest"],
    "ppo.updates": 3,
    "ppo.rollouts": 4,
    "ppo.minibatch": 2,
    "ppo.epochs": 2,
    "ppo.lr": 1e-4,
    "ppo.kl_weight": 0.07,
    "ppo.target_kl": 0.5,
    "ppo.score_scaling": "running",
    "ppo.score_clip": 5.0,
    "ppo.max_new_tokens": 12,
    "ppo.max_prompt_tokens": 96,
    "ppo.checkpoint_every": 1,
    "reward.members": 2,
    "reward.lr": 1e-3,
    "reward.batch": 8,
    "sampling.temperatures": [1.0, 0.9],
    "sampling.top_p": 0.95,
    "sampling.max_new_tokens": 12,
    "sampling.candidates": 3,
    "sft.epochs": 2.0,
    "sft.lr": 1e-3,
    "sft.batch": 4,
    "shaping.weights": {"repetition": -0.5, "pipeline.gold:score": 0.25},
    "worker.device": "cpu",
    "worker.threads": 1,
    "worker.nice": 0,
}
"""All that its config.toml says."""
OVERRIDES = {
    1: {"ppo.kl_weight": "0.08", "optimize.method": "ppo"},
    2: {"ppo.updates": "60", "ppo.lr": "2e-4"},
}
"""What "Train" was given, by iteration."""

_NOT_IN_THE_JOURNAL = ("leases", "metrics", "last_metrics", "run_notes", "meta", "migrations")
_PROGRESS = {"progress", "message", "ingested_seq"}
_TIMEOUT = 240.0
"""Seconds that a stage may take."""


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A folder with workspace/, backup/, base/ and the exports, as they were made."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def old(unpacked: Path) -> Path:
    """The workspace in its new place, which its settings and jobs know.

    The path of a job's models is absolute, and a resume takes the job as it is.
    """
    workspace = unpacked / "workspace"
    for file in (workspace / "config.toml", *workspace.glob("runs/*/job.json")):
        file.write_text(file.read_text().replace(MADE_IN, str(unpacked)))
    return workspace


def told(workspace: Path, *command: str) -> Any:
    """The JSON that a command prints of a workspace."""
    return json.loads(run(*command, "--workspace", workspace, "--json"))


@contextmanager
def opened(workspace: Path) -> Iterator[Any]:
    """The workspace with its loop."""
    with closing(Studio(workspace, load_settings(workspace, [], []))) as studio:
        yield studio


def rows(workspace: Path, query: str) -> list[tuple[Any, ...]]:
    """Of a workspace that today's code has opened before and nobody has open now."""
    with duckdb.connect(str(workspace / "workspace.duckdb"), read_only=True) as connection:
        return connection.execute(query).fetchall()


def counts(workspace: Path, table: str, column: str) -> dict[str, int]:
    return dict(rows(workspace, f"SELECT {column}, count(*) FROM {table} GROUP BY ALL"))


def tables(workspace: Path) -> dict[str, list[str]]:
    """Every row of every table that the journal can make again."""
    names = [name for (name,) in rows(workspace, "SELECT table_name FROM duckdb_tables()")]
    found = {}
    for name in sorted(set(names) - {*_NOT_IN_THE_JOURNAL}):
        columns = [
            column
            for (column,) in rows(
                workspace, f"SELECT column_name FROM duckdb_columns() WHERE table_name = '{name}'"
            )
            if not (name == "runs" and column in _PROGRESS)
        ]
        found[name] = sorted(map(repr, rows(workspace, f"SELECT {', '.join(columns)} FROM {name}")))
    return found


def require_everything(workspace: Path) -> None:
    """Every count of what people did and of what the loop did with it."""
    assert counts(workspace, "judgments", "outcome") == EVER_SAID
    assert counts(workspace, "current_judgments", "outcome") == STANDS
    by_name = "current_judgments AS j JOIN annotators AS a ON a.id = j.annotator"
    assert counts(workspace, by_name, "a.name") == BY_ANNOTATOR
    assert counts(workspace, "open_skips", "'skip'") == {"skip": 2}
    assert counts(workspace, "open_flags", "comment") == {"Unreadable.": 2}
    assert rows(workspace, "SELECT count(*) FROM withdrawals") == [(6,)]
    said = "count(strength), count(*) FILTER (comment <> ''), count(replaces)"
    assert rows(workspace, f"SELECT {said} FROM judgments") == [(6, 4, 2)]
    arms = counts(workspace, "comparisons", "iteration || ' ' || arm")
    assert arms == {
        "0 imported": 4, "0 written": 3, "1 random": 12, "2 bald": 6, "2 random": 2, "2 reference": 4,
    }  # fmt: skip
    assert counts(workspace, "tokens", "kind") == {"api": 1, "invite": 5, "session": 6}
    listed = "SELECT iteration, stage, status FROM runs ORDER BY created_at"
    assert rows(workspace, listed) == [each[:3] for each in RUNS]
    found = rows(workspace, "SELECT number, phase, verdict, settings FROM iterations ORDER BY 1")
    assert [row[:3] for row in found] == [(1, "done", None), (2, POLICY_PHASE, "promoted")]
    assert {row[0]: json.loads(row[3]) for row in found} == OVERRIDES
    trained = "SELECT id, parent, reward_model FROM models WHERE role <> 'external' ORDER BY id"
    assert rows(workspace, trained) == [
        ("policy-1", "sft-1", "reward-1"),
        ("reward-1", "sft-1", None),
        ("reward-2", "sft-1", None),
        ("sft-1", None, None),
    ]
    assert rows(workspace, "SELECT iteration, judgments FROM snapshots ORDER BY 1") == [
        (1, 22),
        (2, 36),
    ]


# --- what is in it ----------------------------------------------------------------------------


def test_the_status_of_an_old_workspace_is_as_it_was(old: Path):
    found = told(old, "status")
    assert (found["judgments"], found["comparisons"], found["annotators"]) == (41, 31, 6)
    assert found["judgments_by_kind"] == {"model": 5, "person": 36}
    assert found["prompts"] == {"train": 17, "held-out": 7, "audit": 3, "sft": 8}
    assert found["agreement"]["items"] == 9
    assert found["agreement"]["percent"] == pytest.approx(5 / 9)
    expected = {
        "number": 2, "phase": POLICY_PHASE, "method": "PPO", "labels_wanted": 12, "labels": 14,
        "labels_by_arm": {"bald": 7, "random": 2, "reference": 5}, "verdict": "promoted",
    }  # fmt: skip
    assert found["iteration"] == expected
    assert found["policy"] == {"id": "policy-1", "name": "policy-1", "role": "policy"}
    assert found["reward_model"]["id"] == "reward-2"
    assert [(r["iteration"], r["stage"], r["status"]) for r in found["runs"]] == [
        each[:3] for each in RUNS if each[0] == 2
    ]
    stopped = found["runs"][-1]
    assert (stopped["attempt"], stopped["reason"]) == (1, "cancelled by the researcher")
    assert stopped["message"].startswith(f"update {CANCELLED_AT} of 60")
    assert found["trouble"].startswith("the PPO stage stopped: cancelled by the researcher.")
    assert f"`python launch.py resume --workspace {old}`" in found["trouble"]


def test_every_record_of_an_old_workspace_is_there(old: Path):
    run("status", "--workspace", old)
    require_everything(old)
    reported = """
        SELECT r.iteration, r.stage, r.status, count(*), max(m.step)
        FROM runs AS r JOIN metrics AS m ON m.run = r.id GROUP BY ALL ORDER BY min(r.created_at)
    """
    assert rows(old, reported) == RUNS


def test_people_sign_in_with_their_old_passwords_and_go_on_labeling(old: Path):
    with server(old) as url:
        # Beside a server it compares journal and database.  Asked before anybody signs in: that adds
        # a session each, and the server itself has added whom its sign-in link lets in, and an event:
        # the verdict on policy-1.
        verified = told(old, "rebuild")
        assert verified == {"same": True, "records": RECORDS + 2, "differences": []}
        listed = told(old, "users", "list")
        people_now = {p["name"]: (p["role"], p["kind"], p["disabled"]) for p in listed}
        assert people_now == PEOPLE | {"owner": ("researcher", "person", False)}
        assert sign_in(url, "Ann", "another password") is None
        people = {name: sign_in(url, name, password) for name, password in PASSWORDS.items()}
        assert {name for name, client in people.items() if client is None} == set()
        rosa, bjoern = people["Rosa"], people["Björn"]
        assert rosa is not None
        assert bjoern is not None
        assert rosa.get("/research/").status_code == 200
        assert "helps" in bjoern.get("/label/api/guidelines").text
        (pair,) = bjoern.get("/label/api/next", params={"n": 1}).json()["pairs"]
        judgment = {"id": str(uuid.uuid4()), "comparison": pair["id"], "outcome": "a"}
        assert bjoern.post("/label/api/judgments", json=judgment).json()["saved"]
        script = {"Authorization": f"Bearer {TOKEN_OF_CHLOE}"}
        answer = httpx.get(f"{url}/label/api/progress", headers=script)
        assert answer.json()["annotator"]["name"] == "Chloé"
        for client in filter(None, people.values()):
            client.close()
    assert told(old, "status")["judgments"] == 42


def test_the_lineage_of_an_old_policy_is_as_it_was(old: Path):
    found = told(old, "lineage", "policy-1")
    shape = (found["id"], found["role"], found["iteration"], found["method"])
    assert shape == ("policy-1", "policy", 1, "ppo")
    assert (found["completions"], found["comparisons"], found["judgments"]) == (24, 12, 18)
    assert found["parent"]["id"] == "sft-1"
    rewarded = found["reward_model"]
    assert (rewarded["id"], rewarded["parent"]["id"]) == ("reward-1", "sft-1")
    learned = rewarded["snapshot"]
    assert (learned["hash"], learned["judgments"]) == ("s-1-5736bd524a2d51aa", 22)
    assert learned["annotators"] == 5
    judged = {each["policy"]["name"]: each["judgments"] for each in learned["judged"]}
    assert judged == {"SFT": 11, "imported": 8, "x": 3, "y": 3}
    assert "policy-1 (policy by PPO, iteration 1)" in run("lineage", "policy-1", "--workspace", old)


@pytest.mark.parametrize(
    ("name", "options", "many"),
    [
        ("preferences.jsonl", ["--format", "trl"], 24),
        ("raw.jsonl", ["--format", "raw", "--ties", "keep", "--history"], 47),
    ],
)
def test_an_old_workspace_exports_what_it_exported(
    unpacked: Path, old: Path, name: str, options: list[str], many: int
):
    out = unpacked / "today" / name
    out.parent.mkdir()
    run("export", *options, "--out", out, "--workspace", old)
    text = out.read_text()
    for later in (
        "guidelines",
        "expected",
        "explanation",
        "repeats",
        "conversation",
        "turn",
    ):  # came later
        text = text.replace(f'"{later}": null, ', "")
    text = text.replace(
        '"ruling": null, "ruling_reason": null, "excluded": false, "exclusion_reason": null, ', ""
    )
    for later in ("reasons", "safety", "marks"):
        text = text.replace(f'"{later}": {{"a": null, "b": null}}, ', "")
    text = re.sub(r'"edit": "", "flags": \[.*?\], (?="milliseconds")', "", text)
    assert text == (unpacked / name).read_text()
    assert len(out.read_text().splitlines()) == many


def test_the_reports_on_an_old_workspace_can_be_read(old: Path):
    gate = told(old, "gate")
    (standing,) = gate["policies"]
    assert (standing["policy"], standing["verdict"]) == ("policy-1", "promoted")
    ruling = standing["ruling"]
    assert (ruling["ruling"], ruling["reason"], ruling["researcher"]) == (
        "promote",
        "Read by hand.",
        "Rosa",
    )
    won = standing["win_rate"]
    assert (won["win_rate"], won["comparisons"], won["prompts"]) == (pytest.approx(0.7), 5, 3)
    assert standing["alarm"]["predicted"] == pytest.approx(0.5, abs=1e-4)
    assert gate["last_promoted"] == "policy-1"

    reward = told(old, "reward", "report")
    assert (reward["model"], reward["models"]) == ("reward-2", ["reward-2", "reward-1"])
    assert reward["verdict"]["verdict"] == "keep labeling"
    quality = reward["quality"]
    assert (quality["judgments"], quality["decisive"], quality["prompts"]) == (2, 1, 1)
    assert quality["log_loss"] == pytest.approx(1.1069, abs=1e-4)


def test_the_runs_of_an_old_iteration_can_be_read(old: Path):
    with opened(old) as studio:
        found = studio.call("iteration", number=1)
        answers = studio.call("evaluation.completions", iteration=1)
    assert found["seconds"].keys() == {"sft", "sampling", "reward", POLICY_PHASE, "evaluate"}
    assert (found["policy_produced"], found["reward_model"]) == ("policy-1", "reward-1")
    assert found["evaluation"]["policy"]
    assert Counter(answer["policy"] for answer in answers) == {"policy-1": 4, "sft-1": 4}


def test_no_setting_of_an_old_workspace_is_lost(unpacked: Path, old: Path):
    written = tomllib.loads((unpacked / "backup" / "config.toml").read_text())
    assert dict(flat(written)) == SETTINGS  # the list here is whole
    read = dict(flat(load_settings(old, [], []).to_dict()))
    here = SETTINGS | {"model.name": f"{unpacked}/base"}
    assert {name: read[name] for name in here} == here
    # Of what "Train" was given for the iteration too.
    with opened(old) as studio:
        of_now = {each.name: each.value for each in studio.loop.settings()}
    assert (of_now["ppo.updates"], of_now["ppo.lr"], of_now["ppo.kl_weight"]) == (60, 2e-4, 0.07)


def flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """``section.name`` and value of each setting of a TOML file."""
    for section, value in settings.items():
        if isinstance(value, dict):
            yield from ((f"{section}.{name}", each) for name, each in value.items())
        else:
            yield section, value


# --- the ways back ----------------------------------------------------------------------------


def test_a_backup_of_an_old_workspace_is_restored(unpacked: Path, old: Path):
    place = unpacked / "restored"
    assert "is as it was" in run("restore", unpacked / "backup", "--workspace", place)
    status = told(place, "status")
    require_everything(place)
    assert (place / "config.toml").read_bytes() == (unpacked / "backup/config.toml").read_bytes()
    original = told(old, "status")
    # There are no run directories in a backup, so nothing can be resumed.
    assert status | {"trouble": None} == original | {"trouble": None}
    assert tables(place) == tables(old)


def test_an_old_journal_makes_the_same_tables(old: Path):
    run("status", "--workspace", old)
    before = tables(old)
    (old / "workspace.duckdb").unlink()
    report = told(old, "rebuild")
    assert sum(report["records"].values()) == RECORDS
    require_everything(old)
    assert tables(old) == before


# --- the loop goes on -------------------------------------------------------------------------


def test_a_training_that_an_old_version_began_is_resumed(old: Path):
    run("status", "--workspace", old)
    reported = f"""
        SELECT step, value FROM metrics AS m JOIN runs AS r ON r.id = m.run
        WHERE r.iteration = 2 AND m.name = 'reward/mean' AND r.stage = '{POLICY_PHASE}'
        ORDER BY step
    """
    before = rows(old, reported)
    assert [step for step, _ in before] == [*range(1, CANCELLED_AT + 1)]
    with opened(old) as studio:
        studio.call("resume")
        assert after(studio, POLICY_PHASE).phase == "evaluating"
        resumed = told_of_policy_run(studio)
    assert (resumed["status"], resumed["attempt"]) == ("succeeded", 2)
    after_it = rows(old, reported)
    assert [step for step, _ in after_it] == [*range(1, 61)]
    assert after_it[:CANCELLED_AT] == before
    assert f"resuming after update {CANCELLED_AT}" in log_of(old, resumed["id"])
    made = "SELECT parent, reward_model FROM models WHERE id = 'policy-2'"
    assert rows(old, made) == [("sft-1", "reward-2")]
    assert (old / "models" / "policy-2" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_training_that_an_old_version_began_is_tried_again_and_the_loop_goes_round(old: Path):
    run("retry", "--set", "ppo.updates=2", "--workspace", old)
    found = told(old, "status")
    assert (found["iteration"]["number"], found["iteration"]["phase"]) == (3, "labeling")
    assert (found["policy"]["id"], found["trouble"]) == ("policy-2", None)
    listed = (
        "SELECT status, attempt FROM runs "
        f"WHERE iteration = 2 AND stage = '{POLICY_PHASE}' ORDER BY attempt"
    )
    assert rows(old, listed) == [("cancelled", 1), ("succeeded", 2)]
    settings = rows(old, "SELECT settings FROM iterations WHERE number = 2")
    assert json.loads(settings[0][0]) == OVERRIDES[2] | {"ppo.updates": "2"}


def told_of_policy_run(studio: Any) -> dict[str, Any]:
    (found,) = (r for r in studio.call("status")["runs"] if r["stage"] == POLICY_PHASE)
    return found


def log_of(workspace: Path, name: str) -> str:
    return (workspace / "runs" / name / "log.txt").read_text()


def after(studio: Studio, phase: str) -> LoopState:
    """Where the loop stands once it has left a phase."""
    deadline = time.monotonic() + _TIMEOUT
    while (state := studio.advance()).phase == phase:
        assert state.blocked is None, state
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    return state


# --- a server ---------------------------------------------------------------------------------


@contextmanager
def server(workspace: Path) -> Iterator[str]:
    """The address of a server that has the workspace open."""
    command = [sys.executable, launch.__file__, "serve", "--workspace", str(workspace)]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        assert any("Kitestring is open" in line for line in process.stdout)
        yield json.loads((workspace / "server.json").read_text())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        process.wait(timeout=60)


def sign_in(url: str, name: str, password: str) -> httpx.Client | None:
    """A browser in which somebody has signed in; None where they may not."""
    client = httpx.Client(base_url=url, headers={"origin": url}, timeout=30)
    if client.post("/sign-in", data={"name": name, "password": password}).status_code == 303:
        return client
    client.close()
    return None
