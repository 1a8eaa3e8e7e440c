"""`runs` and `cancel` on the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from pipeline.config.sections import Config
from pipeline.runs.rundir import Job, RunDirectory
from storage.engine.database import Database
from storage.errors import NotFound
from storage.records import Metric, Run
from storage.tables.runs import runs
from tests.helpers.command_line import told
from tests.helpers.tiny import save_tiny

EARLIER = Run(
    id="run-a", stage="policy", iteration=1, status="failed", directory="runs/run-a", reason="KL",
    config={"ppo": {"kl_weight": 0.0}}, progress=0.25,
)  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model")
    place = tmp_path / "place"
    CliRunner().invoke(app, ["init", "--workspace", str(place), "--model", str(tmp_path / "model")])
    with Database.open(place) as db:
        runs.save(db, EARLIER)
        later = {"id": "run-b", "iteration": 2, "config": {"ppo": {"kl_weight": 0.1}}}
        runs.save(db, replace(EARLIER, **later, directory="runs/run-b"))
    return place


def test_runs_are_listed_with_what_changed(workspace: Path) -> None:
    first, second = told("runs", "--workspace", workspace, "--json")
    assert (first["id"], first["method"], first["status"]) == ("run-a", "PPO", "failed")
    assert (first["changed"], second["changed"]) == ({}, {"ppo.kl_weight": 0.1})
    assert [
        r["id"] for r in told("runs", "--iteration", "2", "--workspace", workspace, "--json")
    ] == ["run-b"]
    with Database.open(workspace) as db:
        tiny = Metric(run="run-b", seq=1, step=1, name="kl/reference", value=-2.562e-07)
        runs.ingest(db, replace(EARLIER, id="run-b", iteration=2, ingested_seq=1), [tiny], [])
    shown = told("runs", "--workspace", workspace)
    assert "ppo.kl_weight=0.1" in shown
    assert "25%" in shown
    head, *_, last = (line.split() for line in shown.splitlines())
    assert last[head.index("KL")] == "0"
    assert "e-07" not in shown


def test_one_run_is_shown_with_its_settings(workspace: Path) -> None:
    found = told("runs", "run-b", "--workspace", workspace, "--json")
    assert (found["reason"], found["compared with"]) == ("KL", "run-a")
    assert found["changed"] == [{"name": "ppo.kl_weight", "before": 0.0, "now": 0.1}]
    assert found["settings"] == {"ppo.kl_weight": 0.1}


def test_runs_are_compared_step_by_step(workspace: Path) -> None:
    with Database.open(workspace) as db:
        told_by = [
            Metric(run="run-a", seq=i, step=i, name="reward/mean", value=i / 4) for i in (1, 2)
        ]
        runs.ingest(db, replace(EARLIER, ingested_seq=2), told_by, [])
    both = ("--compare", "run-b", "--compare", "run-a")
    found = told("runs", *both, "--workspace", workspace, "--json")
    assert [run["run"] for run in found["runs"]] == ["run-b", "run-a"]
    assert found["runs"][1]["curves"] == {"reward/mean": {"steps": [1, 2], "values": [0.25, 0.5]}}
    rows = told("runs", *both, "--workspace", workspace).splitlines()
    assert [row.split() for row in rows] == [
        ["run", "step", "reward/mean"], ["run-a", "1", "0.25"], ["run-a", "2", "0.5"],
    ]  # fmt: skip


WORKER = """
import sys, time
from pathlib import Path
from pipeline.runs.rundir import RunDirectory
held = RunDirectory(Path(sys.argv[1])).hold_lock()
print("working", flush=True)
time.sleep(600)
"""


def test_the_running_stage_is_cancelled(workspace: Path) -> None:
    directory = workspace / "runs" / "run-c"
    RunDirectory.create(directory, Job(run="run-c", stage="policy", iteration=3, config=Config()))
    with Database.open(workspace) as db:
        runs.save(
            db,
            replace(EARLIER, id="run-c", iteration=3, status="running", directory="runs/run-c"),
        )
    command = [sys.executable, "-c", WORKER, str(directory)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as worker,
        ExitStack() as stack,
    ):
        stack.callback(worker.kill)  # if it was not asked to stop
        assert worker.stdout
        assert worker.stdout.readline() == b"working\n"
        (directory / "pid").write_text(str(worker.pid))
        answer = told("cancel", "--workspace", workspace)
        assert answer == "the PPO stage stops after its current step (run-c)\n"
        assert worker.wait(timeout=30) == -signal.SIGTERM
    found = told("status", "--workspace", workspace, "--json")
    assert "cancelled by the researcher" in told("runs", "run-c", "--workspace", workspace)
    assert found["iteration"] is None
    with pytest.raises(ValueError, match="no stage is running; there is nothing to cancel"):
        told("cancel", "--workspace", workspace)


@pytest.mark.parametrize(
    "words",
    [
        ("cancel",), ("status",), ("runs",), ("resume",), ("retry",), ("label-more",), ("gate",),
        ("export",), ("iterate",), ("import", "--prompts", "prompts.jsonl"), ("users", "add", "Ann"),
        ("judgments", "list"), ("flags", "list"), ("lineage",), ("settings", "--changed"), ("backup", "copy"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_mistyped_workspace_is_refused_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hi?"}\n')
    with pytest.raises(NotFound, match=r"^\S*wrkspace is not a workspace; create one with `python"):
        told(*words, "--workspace", "wrkspace")
    assert not (tmp_path / "wrkspace").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("cancel",), "no stage is running; there is nothing to cancel"),
        (("runs", "run-z"), "there is no run 'run-z'"),
        (
            ("runs", "run-a", "--iteration", "1"),
            "give a run, filters such as --iteration, or --compare",
        ),
        (("runs", "--compare", "run-z"), "there is no run 'run-z'"),
    ],
)
def test_what_is_not_there_is_told(workspace: Path, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises((ValueError, LookupError), match=sentence):
        CliRunner().invoke(app, [*words, "--workspace", str(workspace)], catch_exceptions=False)


@pytest.mark.parametrize("command", [("compare",), ("sweep", "--kl-weight", "0,0.1")])
def test_a_study_refuses_settings_that_its_runs_do_not_read(
    command: tuple[str, ...], workspace: Path
) -> None:
    """Settings of workers are accepted: they do not change the result."""
    for setting, said in (
        ("sampling.top_p=0.5", "sampling.top_p is read when an iteration's pairs are sampled"),
        ("reward.lr=9", "reward.lr is read when the reward model is trained"),
        ("worker.threads=1", "no PPO run"),
    ):
        given = [*command, "--workspace", str(workspace), "--set", setting]
        assert said in str(CliRunner().invoke(app, given).exception)
