"""A reward model trained again without some judgments: by the real stage, from the command and from the
loop, and what is refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commands.main import app
from pipeline.loop.retraining import plan_retraining, read_rule, write_inputs
from pipeline.loop.studies import Studies
from pipeline.reward.quality.figures import row_log_loss
from pipeline.runs.rundir import RunDirectory, write_atomically
from pipeline.runs.study_folder import EVALUATIONS, EVIDENCE, FACTS, StudyFolder
from pipeline.studies.retrain.files import (
    LEFT_OUT,
    ORIGINAL_SCORES,
    SCORES,
    TRAINED,
    read_facts,
)
from pipeline.studies.retrain.retrain import random_draw, retrain
from storage.browsing import studies as browsing
from storage.engine.database import Database
from storage.errors import Conflict
from storage.records import Judgment
from storage.tables import iterations, policy_judgments
from storage.tables.runs import runs
from tests.helpers.retrain_world import (
    BEGUN,
    COMPARED,
    NEW_RULES,
    OLD_RULES,
    PAIRS,
    fill_for_retraining,
)
from tests.helpers.stage_inputs import give, rows_of
from tests.helpers.study_world import looped, until
from tests.helpers.worker_runs import events, work

CARL = ["--without=Careless Carl"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("retrain") / "w"
    fill_for_retraining(place)
    return place


@pytest.fixture
def db(workspace: Path) -> Iterator[Database]:
    with Database.open(workspace) as opened:
        yield opened


def planned(db: Database, name: str, **rule: Any) -> StudyFolder:
    """A study whose inputs are written."""
    write_inputs(db, plan_retraining(db, read_rule(**rule), name=name))
    return StudyFolder(db.workspace, "retrain", name)


def retrained(
    workspace: Path, path: Path, left_out: list[str], evaluations: Path
) -> tuple[RunDirectory, RunDirectory]:
    """Run the stage in this process; also returns the run of the original."""
    source = RunDirectory(workspace / "runs" / "reward-run")
    job = replace(source.job(), stage="retrain", run="retrain", attempt=1, resume=False)
    original = {"original": str(workspace / "models" / "reward-1")}
    made = RunDirectory.create(path, replace(job, models=dict(job.models) | original))
    for name in ("judgments.parquet", "gold.parquet", "judged_by.json"):
        (made.inputs / name).write_bytes((source.inputs / name).read_bytes())
    give(made, LEFT_OUT, [{"judgment": each} for each in left_out] or [{"judgment": "none"}])
    (made.inputs / EVALUATIONS).write_bytes(evaluations.read_bytes())
    epochs = (source.result() or {})["kept"]["epoch"]
    write_atomically(made.inputs / TRAINED, json.dumps({"epochs": epochs}))
    assert work(made) == 0, made.log_tail()
    return made, source


# --- the stage ----------------------------------------------------------------------------------


def test_without_leaving_anything_out_the_model_is_the_original(db: Database, tmp_path: Path):
    folder = planned(db, "nothing", without=["Ada"])
    made, source = retrained(db.workspace, tmp_path / "run", [], folder.inputs / EVALUATIONS)
    before, after = (rows_of(each.outputs / "held_out.parquet") for each in (source, made))
    assert len(before) == 30  # a quarter of 20 prompts, with 6 judgments each
    for one, two in zip(before, after, strict=True):
        assert one["judgment"] == two["judgment"]
        for name in ("d", "p_first", "p_second"):
            assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5)
    # The log-loss of single judgments is that of the reward stage.
    result = source.result() or {}
    losses = [row_log_loss(row, result["tie_model"]) for row in before]
    assert sum(losses) / len(losses) == pytest.approx(result["log_loss"])
    # Centering moves all rewards by a constant, so their differences are the same.
    original, again = (rows_of(made.outputs / name) for name in (ORIGINAL_SCORES, SCORES))
    assert len(original) == 6
    for one, two in zip(original, again, strict=True):
        assert two["expected"] == pytest.approx(one["expected"], abs=1e-4)
    assert not made.model.exists()
    assert not made.checkpoint.exists()


def test_it_learns_from_the_rest_and_predicts_the_same_held_out_judgments(
    db: Database, tmp_path: Path
):
    folder = planned(db, "carl", without=["Careless Carl"])
    facts = read_facts(folder.inputs / FACTS)
    assert len([fact for fact in facts if fact.part]) == PAIRS
    assert len(facts) == PAIRS + COMPARED
    left_out = [fact.judgment for fact in facts if fact.left_out and fact.part]
    assert left_out == [f"j-{n:03}" for n in range(1, PAIRS, 3)]
    made, source = retrained(db.workspace, tmp_path / "run", left_out, folder.inputs / EVALUATIONS)
    learned = [fact for fact in facts if fact.part == "learned" and not fact.left_out]
    summary, original = made.result() or {}, source.result() or {}
    assert summary["learned"] == len(learned) < original["pairs"]
    ids = [
        {row["judgment"] for row in rows_of(each.outputs / "held_out.parquet")}
        for each in (source, made)
    ]
    assert ids[0] == ids[1] == {fact.judgment for fact in facts if fact.part == "held_out"}
    # 8 of the 24 judgments that decide when to stop are Carl's; 20 are needed.
    assert summary["set_aside"] == 16
    assert summary["kept"] is None
    assert summary["epochs"] == original["kept"]["epoch"]
    told = [each["message"] for each in events(made) if each.get("name") == "early_stopping"]
    assert told[-1].startswith("16 judgments are too few to decide when to stop (20 needed)")


def test_controls_leave_out_as_many_judgments_of_each_use(db: Database):
    facts = read_facts(planned(db, "carl", without=["Careless Carl"]).inputs / FACTS)
    first, second = random_draw(facts, seed=1), random_draw(facts, seed=2)
    assert first == random_draw(facts, seed=1) != second
    part = {fact.judgment: fact.part for fact in facts}
    for drawn in (first, second):
        assert len({*drawn}) == PAIRS // 3
        for use in ("learned", "set_aside", "held_out"):
            wanted = sum(fact.left_out for fact in facts if fact.part == use)
            assert sum(part[judgment] == use for judgment in drawn) == wanted


# --- the rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"only": ["person"]}, [n for n in range(PAIRS) if n % 3 != 2]),
        ({"guidelines": [OLD_RULES]}, [*range(PAIRS // 2)]),
        ({"before": "2026-03-02"}, [*range(12)]),  # the first was given at noon
        ({"before": "2026-03-02T00:00+02:00"}, [*range(10)]),
        ({"only": ["person"], "without": ["Ada"], "before": "2026-03-02"}, [1, 4, 7, 10]),
    ],
)
def test_criteria_combine(db: Database, rule: dict[str, Any], kept: list[int]):
    assert BEGUN.hour == 12
    facts = read_facts(planned(db, "rule-" + "-".join(rule), **rule).inputs / FACTS)
    remaining = [fact.judgment for fact in facts if fact.part and not fact.left_out]
    assert remaining == [f"j-{n:03}" for n in kept]


def test_a_date_is_in_utc_wherever_the_studio_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert read_rule(before="2026-03-02").before == datetime(2026, 3, 2, tzinfo=UTC)
        assert read_rule(before="2026-03-02T01:00+01:00").before == datetime(2026, 3, 2, tzinfo=UTC)
        # The page and the name of the study show the plan's time as UTC.
        ahead = read_rule(before="2026-03-02T01:00+02:00")
        assert ahead.plan["before"] == "2026-03-01T23:00:00+00:00"
        assert ahead.name == "before-2026-03-01T230000"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_started_study_keeps_its_inputs(workspace: Path, tmp_path: Path):
    with Database.open(shutil.copytree(workspace, tmp_path / "w")) as db:
        spec = plan_retraining(db, read_rule(without=["Ada"]), name="started")
        folder = StudyFolder(db.workspace, "retrain", "started")

        def inputs() -> dict[str, bytes]:
            return {path.name: path.read_bytes() for path in folder.inputs.iterdir()}

        write_inputs(db, replace(spec, plan=spec.plan | {"without": ["gold-1"]}))
        write_inputs(db, spec)  # the first plan was never started
        facts = read_facts(folder.inputs / FACTS)
        assert {fact.annotator for fact in facts if fact.left_out} == {"Ada"}
        folder.write_spec(spec)
        started = inputs()
        judge_more(db)
        write_inputs(db, replace(spec, plan=spec.plan | {"controls": 2}))
        assert inputs() == started
        other = replace(spec, name="later")
        write_inputs(db, other)
        later = StudyFolder(db.workspace, "retrain", "later").inputs
        assert (later / EVIDENCE).read_bytes() != started[EVIDENCE]


def test_inputs_that_another_command_planned_are_refused(workspace: Path, tmp_path: Path):
    with Database.open(shutil.copytree(workspace, tmp_path / "w")) as db:
        spec = plan_retraining(db, read_rule(without=["Ada"]), name="twice")
        write_inputs(db, spec)
        write_inputs(db, replace(spec, plan=spec.plan | {"without": ["gold-1"]}))
        with pytest.raises(
            ValueError, match=r"another command has planned another study in .*twice"
        ):
            retrain(db.workspace, spec, print)
        assert not list(StudyFolder(db.workspace, "retrain", "twice").path.glob("retrained"))


def judge_more(db: Database) -> None:
    """Ada judges a pair of a policy and SFT that another annotator has judged."""
    given = Judgment(
        id="j-later",
        comparison=f"c-{PAIRS + 1}",
        annotator="ada",
        outcome="first",
        shown_swapped=False,
    )
    db.write(lambda tx: tx.store(given))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "say which judgments to leave out"),
        (["--without=Eve"], "has no judgment by Eve; it has: Ada (40), Careless Carl (40), gold-1"),
        (["--only=robot"], "'robot' is no kind of annotator; kinds are person, simulated, model"),
        (["--only=model"], "has no judgment by a model; it has: person (80), simulated (40)"),
        (
            ["--guidelines=ff"],
            f"under the guidelines ff; it has: {OLD_RULES} (60), {NEW_RULES} (60)",
        ),
        (["--before=yesterday"], "'yesterday' is no date in ISO 8601, such as 2026-11-28"),
        (["--before=0001-01-01T00:00+02:00"], "is no date in ISO 8601"),
        (["--before=2026-01-01"], "nothing would remain: all 120 judgments"),
        (["--before=2027-01-01"], "so the model would be the same"),
        ([*CARL, "--iteration=2"], "iteration 2 has no reward model; iterations with one are: 1"),
        ([*CARL, "--name=../up"], "must be a plain folder name"),
    ],
)
def test_wrong_values_are_refused_with_a_sentence(
    workspace: Path, options: list[str], sentence: str
):
    found = CliRunner().invoke(app, ["reward", "retrain", f"--workspace={workspace}", *options])
    assert isinstance(found.exception, ValueError)
    assert sentence in str(found.exception)


# --- the study ----------------------------------------------------------------------------------


def the_loops(db: Database) -> list[object]:
    """Everything of the loop that the study must leave as it is."""
    return [
        runs.listing(db),
        iterations.listing(db),
        db.read("SELECT * FROM models"),
        db.read("SELECT * FROM snapshots"),
        db.read("SELECT count(*) FROM judgments"),
        sorted(path.name for path in (db.workspace / "models").iterdir()),
    ]


def test_the_command_reports_and_the_loop_follows_and_stays_as_it_is(workspace: Path):
    with Database.open(workspace) as db:
        before = the_loops(db)
    options = ["--name=typed", *CARL, "--json"]
    told = CliRunner().invoke(app, ["reward", "retrain", f"--workspace={workspace}", *options])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    plot = Path(report.pop("plot"))
    assert plot == workspace / "retrain" / "typed" / "retrain.svg"
    assert plot.read_text().count("<svg") == 1
    assert [each["name"] for each in report["counts"]["by_annotator"] if each["left_out"]] == [
        "Careless Carl"
    ]
    assert [each["judgments"] for each in report["held_out"]] == [20, 30, 10]
    # 24 of the 36 judgments prefer policy-1, and none of the 12 against it remains.
    (verdict,) = report["gate"]
    assert (verdict["before"], verdict["after"]) == ("provisional", "promoted")
    assert (verdict["shift"]["before"], verdict["shift"]["after"]) == (pytest.approx(2 / 3), 1)
    other = ["reward", "retrain", f"--workspace={workspace}", "--name=typed", "--without=Ada"]
    refused = CliRunner().invoke(app, other).exception
    assert "belongs to a study with other settings or models (without: " in str(refused)
    with Database.open(workspace) as db:
        loop = looped(db)
        loop.refresh()
        found = browsing.details(db, "retrain-typed")
        assert (found.report, found.planned, found.iteration) == (report, 1, 1)
        assert [(run.title, run.status) for run in found.runs] == [("retrained", "succeeded")]
        with pytest.raises(Conflict, match="The name typed is taken by a study with other values"):
            loop.studies.start("retrain", "typed", {"without": ["Ada"]})
        assert the_loops(db) == before
        loop.shut_down()


def test_a_reward_model_is_offered_without_a_policy_run(db: Database):
    loop = looped(db)
    offer = loop.studies.offer()
    assert offer.reason == "There is no policy run to repeat yet. Train once, then start a study."
    assert offer.retrain is not None
    assert (offer.retrain.model, offer.retrain.reason) == ("reward-1", None)
    counted = [(each.value, each.judgments) for each in offer.retrain.annotators]
    assert counted == [("Ada", 40), ("Careless Carl", 40), ("gold-1", 40)]
    assert offer.retrain.first == BEGUN
    loop.shut_down()


@pytest.mark.slow
def test_the_loop_cancels_and_continues_a_study_with_a_control(workspace: Path):
    with Database.open(workspace) as db:
        loop = looped(db)
        plan = {"without": ["Careless Carl"], "controls": 1}
        made = loop.studies.start("retrain", "both", plan)
        assert (made.id, made.repeats, made.iteration) == ("retrain-both", "reward-run", 1)
        with pytest.raises(Conflict, match="The study both is running"):
            loop.studies.start("retrain", "other", plan)
        loop.studies.cancel(made.id)
        until(db, loop, lambda each: each.status == "cancelled", id=made.id)
        loop.studies.resume(made.id)
        done = until(db, loop, lambda each: each.status != "running", id=made.id)
        assert (done.status, done.reason) == ("succeeded", None)
        found = browsing.details(db, made.id)
        titles = [("retrained", "succeeded"), ("control 1", "succeeded")]
        assert [(run.title, run.status) for run in found.runs] == titles
        loop.shut_down()
    assert found.report is not None
    assert len(found.report["held_out"][0]["accuracy"]["chance"]["controls"]) == 1
    # The command finds both models trained, and reports the same.
    options = ["--name=both", *CARL, "--control=1", "--json"]
    told = CliRunner().invoke(app, ["reward", "retrain", f"--workspace={workspace}", *options])
    assert told.exit_code == 0, told.output
    printed = json.loads(told.stdout)
    del printed["plot"]
    assert printed == found.report


def test_a_retrained_model_takes_no_settings(db: Database):
    loop = looped(db)
    assert isinstance(loop.studies, Studies)
    with pytest.raises(ValueError, match="with its own settings"):
        loop.studies.start("retrain", "s", {"without": ["Ada"]}, {"reward.lr": "1"})
    loop.shut_down()


def test_each_judgment_of_the_gate_has_its_id(db: Database):
    ids = [row.judgment for row in policy_judgments.judged(db)]
    assert ids == [f"j-{n:03}" for n in range(PAIRS, PAIRS + COMPARED)]
