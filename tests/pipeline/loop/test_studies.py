"""Studies under the loop's supervision, with real processes on tiny models."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.main import app
from pipeline.loop.generation import running_stage
from pipeline.loop.loop import Loop
from pipeline.loop.studies import Studies, checked_plan
from pipeline.runs.repeat import newest_ppo_run
from pipeline.runs.rundir import RunDirectory
from pipeline.runs.study_folder import StudyFolder, conducting, planned
from pipeline.studies.sweep import curve_of, summary
from storage.browsing import studies as browsing
from storage.browsing.runs import compare, summaries
from storage.engine.database import Database
from storage.errors import Conflict
from storage.records import ModelVersion, Run
from storage.reports import InvalidSettings, to_json
from storage.status import status
from storage.tables import audit, iterations, models
from storage.tables.runs import events, runs, studies
from tests.helpers.study_world import fill_for_studies, looped, until

SWEEP = {"kl_weight": [0.0, 0.5], "kl_budget": 5}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    fill_for_studies(tmp_path / "w", ppo__updates=6)
    with Database.open(tmp_path / "w") as opened:
        yield opened


@pytest.fixture
def loop(db: Database) -> Iterator[Loop]:
    made = looped(db)
    yield made
    for study in studies.listing(db):
        if study.status == "running":
            made.studies.cancel(study.id)
            until(db, made, lambda each: each.status != "running", id=study.id)
    made.shut_down()


def the_loops(db: Database) -> dict[str, object]:
    """Everything of the loop that a study must leave as it is."""
    return {
        "runs": runs.listing(db),
        "newest": [runs.newest(db, n, "policy") for n in (2, 3)],
        "iterations": iterations.listing(db),
        "status": replace(status(db), trouble=None),
        "summaries": summaries(db),
        "repeated": newest_ppo_run(db.workspace).path,
        "events": events.listing(db),
        "snapshots": db.read("SELECT * FROM snapshots"),
        "models": db.read("SELECT * FROM models"),
    }


def test_a_sweep_is_followed_to_its_end_and_changes_nothing_of_the_loop(db: Database, loop: Loop):
    before = the_loops(db)
    offer = loop.studies.offer()
    assert (offer.run, offer.method, offer.iteration, offer.reason) == ("policy", "PPO", 2, None)
    made = loop.studies.start("sweep", "first", SWEEP, {"ppo.lr": "1e-3"})
    assert (made.id, made.status, made.repeats) == ("sweep-first", "running", "policy")

    # The machine has one training slot.
    assert loop.can_train() == ("The study first is running. Wait until it ends, or cancel it.")
    assert running_stage(db) == "study first"
    with pytest.raises(Conflict, match="The study first is running"):
        loop.studies.start("sweep", "second", SWEEP)
    seen = until(db, loop, lambda each: "(2 of 2)" in each.message, id=made.id)
    assert seen.message.startswith("β = 0.5 (2 of 2): ")
    assert 0.5 <= seen.progress < 1
    assert loop.state().message.startswith("study first ")
    done = until(db, loop, lambda each: each.status != "running", id=made.id)
    assert (done.status, done.reason, done.progress) == ("succeeded", None, 1.0)
    assert loop.can_train() != "The study first is running. Wait until it ends, or cancel it."

    found = browsing.details(db, made.id)
    assert [(run.title, run.status) for run in found.runs] == [
        ("β = 0", "succeeded"), ("β = 0.5", "succeeded"),
    ]  # fmt: skip
    assert found.runs[0].changed["ppo.lr"] == 1e-3
    assert found.runs[1].changed["ppo.kl_weight"] == 0.5
    # The same numbers as those of the command, from the run directories.
    folder = db.workspace / "sweeps" / "first"
    curves = [curve_of(RunDirectory(folder / f"kl_weight={kl:g}"), kl) for kl in SWEEP["kl_weight"]]
    assert found.report == to_json(summary(curves, 5))
    assert browsing.plot(db, made.id).read_text().count("<svg") == 1
    # Their events are those of the files.
    both = compare(db, [run.id for run in found.runs])
    assert [each.curves["reward/mean"].values for each in both.runs] == [
        each.reward for each in curves
    ]
    assert [run.reward for run in found.runs] == [each.reward[-1] for each in curves]
    assert [run.kl for run in found.runs] == [each.kl[-1] for each in curves]
    assert the_loops(db) == before
    # A second start with the same values repeats nothing.
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    loop.studies.start("sweep", "first", SWEEP, {"ppo.lr": "0.001"})
    until(db, loop, lambda each: each.status == "succeeded", id=made.id)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")} == written
    with pytest.raises(Conflict, match="The name first is taken by a study with other values"):
        loop.studies.start("sweep", "first", SWEEP | {"kl_weight": [0.1]}, {"ppo.lr": "1e-3"})


@pytest.mark.slow
def test_a_cancelled_study_is_continued_after_a_restart_of_the_server(db: Database, loop: Loop):
    many = {"kl_weight": [0.0, 0.5]}
    made = loop.studies.start("sweep", "s", many, {"ppo.updates": "60"})
    until(db, loop, lambda each: "update" in each.message, id=made.id)
    loop.studies.cancel(made.id)
    ended = until(db, loop, lambda each: each.status != "running", id=made.id)
    assert ended.status == "cancelled"
    (run,) = studies.runs_of(db, made.id)
    assert run.status == "cancelled"
    assert RunDirectory(db.workspace / run.directory).has_checkpoint()
    with pytest.raises(Conflict, match="The study s is not running"):
        loop.studies.cancel(made.id)
    stopped_at = run.ingested_seq

    loop.studies.resume(made.id)
    until(db, loop, lambda each: "update" in each.message, id=made.id)
    loop.shut_down()
    again = looped(db)  # a new server: it has no child processes, and finds the study by its lock
    done = until(db, again, lambda each: each.status != "running", id=made.id)
    assert done.status == "succeeded"
    first, second = studies.runs_of(db, made.id)
    assert (first.attempt, second.attempt) == (2, 1)
    assert first.ingested_seq > stopped_at
    (curve,) = compare(db, [first.id]).runs
    assert curve.curves["reward/mean"].steps == [*range(1, 61)]  # no update twice, none missing


@pytest.mark.slow
def test_a_study_whose_process_was_killed_is_followed_and_continued(db: Database, loop: Loop):
    made = loop.studies.start("sweep", "k", SWEEP, {"ppo.updates": "40"})
    until(db, loop, lambda each: "update" in each.message, id=made.id)
    folder = StudyFolder(db.workspace, "sweep", "k")
    os.kill(int((folder.path / "pid").read_text()), signal.SIGKILL)
    # Its worker lives on, and the machine is not free.
    loop.refresh()
    assert studies.get(db, made.id).status == "running"
    with (
        pytest.raises(ValueError, match="the study k is running"),
        conducting(db.workspace, planned(db.workspace, "sweep", "other", SWEEP, {})),
    ):
        pass
    ended = until(db, loop, lambda each: each.status != "running", id=made.id)
    assert (ended.status, ended.reason) == (
        "failed", "its process was killed or crashed; continue the study",
    )  # fmt: skip
    (first,) = studies.runs_of(db, made.id)
    assert first.status == "succeeded"
    loop.studies.resume(made.id)
    done = until(db, loop, lambda each: each.status != "running", id=made.id)
    assert done.status == "succeeded"
    assert [run.attempt for run in studies.runs_of(db, made.id)] == [1, 1]


def test_a_study_of_the_command_appears_and_a_restore_loses_only_files(db: Database):
    workspace = db.workspace
    db.close()
    found = CliRunner().invoke(
        app, ["sweep", f"--workspace={workspace}", "--kl-weight=0.2", "--name=typed", "--json"]
    )
    assert found.exit_code == 0, found.output
    listed = CliRunner().invoke(app, ["studies", f"--workspace={workspace}"]).stdout
    assert listed.startswith(
        "sweep-typed  succeeded, 1 of 1 runs finished  (repeats policy)\n  β = 0.2 "
    )
    shown = json.loads(
        CliRunner()
        .invoke(app, ["studies", "sweep-typed", f"--workspace={workspace}", "--json"])
        .stdout
    )
    told = json.loads(found.stdout)
    assert shown["plot"] == told.pop("plot")
    assert shown["report"] == told
    with Database.open(workspace) as db:
        loop = looped(db)
        (study,) = studies.listing(db)
        assert study.created_by == ""
        # As after a restore: the record of a running study, and no folder.
        lost = replace(study, id="sweep-lost", name="lost", status="running")
        studies.save(db, lost)
        loop.refresh()
        assert studies.get(db, "sweep-lost").status == "failed"
        with pytest.raises(
            Conflict, match="cannot be continued: its folder is not in this workspace"
        ):
            loop.studies.resume("sweep-lost")
        loop.shut_down()


@pytest.mark.slow
def test_a_comparison_has_a_run_for_each_method(db: Database, loop: Loop):
    plan = {"methods": ["ppo", "best_of_n"], "kl": 0.01, "snapshots": 1}
    made = loop.studies.start("compare", "m", plan)
    assert made.plan["gold"] is None
    until(db, loop, lambda each: each.message.startswith("PPO (2 of 3): "), id=made.id)
    done = until(db, loop, lambda each: each.status != "running", id=made.id)
    assert (done.status, done.progress) == ("succeeded", 1.0)
    found = browsing.details(db, made.id)
    assert [(run.title, run.method, run.status) for run in found.runs] == [
        ("SFT", "SFT", "succeeded"), ("PPO", "PPO", "succeeded"),
        ("best-of-N", "best-of-N", "succeeded"),
    ]  # fmt: skip
    assert found.report == json.loads((db.workspace / "compare" / "m" / "compare.json").read_text())
    assert [row["method"] for row in found.report["methods"]] == ["sft", "ppo", "best_of_n"]
    sft, ppo, _ = found.runs
    (curves,) = compare(db, [ppo.id]).runs
    assert len(curves.curves["reward/mean"].steps) == 6
    assert (sft.reward, sft.kl) == (None, None)
    assert len(runs.listing(db)) == 3


def test_closing_the_terminal_cancels_the_study(db: Database, loop: Loop):
    spec = planned(db.workspace, "sweep", "s", checked_plan("sweep", SWEEP), {})
    with pytest.raises(SystemExit), conducting(db.workspace, spec):
        os.kill(os.getpid(), signal.SIGHUP)
    loop.refresh()
    assert studies.get(db, "sweep-s").status == "cancelled"


def test_what_cannot_start_says_why_in_a_sentence(db: Database, loop: Loop, tmp_path: Path):
    with pytest.raises(ValueError, match="a sweep has between 1 and 20 values of β"):
        loop.studies.start("sweep", "s", {"kl_weight": []})
    with pytest.raises(ValueError, match="β = -1 is not between 0"):
        checked_plan("sweep", {"kl_weight": [-1.0]})
    with pytest.raises(ValueError, match="choose methods to compare"):
        checked_plan("compare", {"methods": ["kto"]})
    with pytest.raises(ValueError, match="must be a plain folder name"):
        loop.studies.start("sweep", "../../evil", SWEEP)
    with pytest.raises(InvalidSettings):
        loop.studies.start("sweep", "s", SWEEP, {"ppo.lr": "x"})
    with pytest.raises(InvalidSettings):  # the policy stage does not read it
        loop.studies.start("sweep", "s", SWEEP, {"plugins.allowed": "os:system"})
    with pytest.raises(ValueError, match="which would run as code on this machine"):
        loop.studies.start("sweep", "s", SWEEP, {"shaping.weights": '{"os:system"=1}'})
    with pytest.raises(ValueError, match="researchers may name files in"):
        loop.studies.start("sweep", "s", SWEEP, {"shaping.references": "/etc/passwd"})
    assert not (db.workspace / "sweeps").exists()
    assert audit.listing(db) == []

    current = iterations.latest(db)
    assert current is not None
    iterations.save(db, replace(current, phase="reward"))
    refused = "Already training: reward model. Start the study when the iteration waits for labels."
    assert loop.studies.offer().reason == refused
    with pytest.raises(Conflict, match="Already training: reward model"):
        loop.studies.start("sweep", "s", SWEEP)
    # A stopped stage leaves the machine free, until somebody resumes or retries it.
    runs.save(db, Run(id="r3", stage="reward", iteration=3, status="failed", directory="runs/r3"))
    assert loop.studies.offer().reason is None

    with Database.open(tmp_path / "empty") as fresh:
        assert looped(fresh).studies.offer().reason == (
            "There is no policy run to repeat yet. Train once, then start a study."
        )


def test_all_kinds_of_studies_are_refused_for_one_reason(db: Database):
    models.add(
        db,
        ModelVersion(id="reward-1", role="reward", name="r", path="m", iteration=2, run="reward"),
    )
    reasons = iter(["sampling", "labeling"])  # a stage can end while the offer is made
    made = Studies(
        db, lock=threading.RLock(), busy=lambda: next(reasons), permitted=lambda *_: None
    )
    offer = made.offer()
    assert offer.retrain is not None
    assert (offer.reason, offer.retrain.reason) == ("sampling", "sampling")


def test_a_stopped_stage_is_not_continued_while_a_study_runs(db: Database, loop: Loop):
    current = iterations.latest(db)
    assert current is not None
    iterations.save(db, replace(current, phase="reward"))
    runs.save(
        db,
        Run(
            id="stopped", stage="reward", iteration=3, status="failed", directory="runs/stopped",
            reason="out of memory",
        ),
    )  # fmt: skip
    spec = planned(db.workspace, "sweep", "s", checked_plan("sweep", SWEEP), {})
    with conducting(db.workspace, spec):
        for act in (loop.resume, loop.retry):
            with pytest.raises(ValueError, match="The study s is running"):
                act("stopped")
    assert [run.id for run in runs.listing(db) if run.iteration == 3] == ["stopped"]


def test_a_running_stage_and_a_study_wait_for_each_other(db: Database, loop: Loop):
    workspace = db.workspace
    stage = RunDirectory(workspace / "runs" / "policy")
    spec = planned(workspace, "sweep", "s", checked_plan("sweep", SWEEP), {})
    with (
        stage.hold_lock(),
        pytest.raises(ValueError, match=r"a stage is running \(policy\); start the study when"),
        conducting(workspace, spec),
    ):
        pass
    current = iterations.latest(db)
    assert current is not None
    iterations.save(db, replace(current, phase="reward"))
    with conducting(workspace, spec):
        assert loop.advance() == "reward"
        assert runs.newest(db, 3, "reward") is None
        with pytest.raises(ValueError, match="The study s is running"), loop._machine():
            pass
        with pytest.raises(RuntimeError, match=r"another command is running in .*/s; .* --name"):
            conducting(workspace, spec).__enter__()
    assert StudyFolder(workspace, "sweep", "s").result() is not None
    loop.advance()
    assert runs.newest(db, 3, "reward") is not None  # due, and now it may start
