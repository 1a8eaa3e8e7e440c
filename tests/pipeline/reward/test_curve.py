"""The reward model's report from end to end: its table, its learning curve, and who makes that."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.reward.data import split_by_prompt
from pipeline.reward.quality.held_out import COLUMNS
from pipeline.reward.report import curve_stage
from pipeline.reward.report.curve_stage import deal, require_enough
from pipeline.reward.report.learning_curve import (
    BLOCKS,
    FULL_MODEL,
    ORDERS,
    file_of,
    learning_curve,
)
from pipeline.reward.report.report import RewardReports, curve_job, format_report, make_curve
from pipeline.runs import process
from pipeline.runs.rundir import RunDirectory
from storage.records import HELD_OUT_FILE, RANDOM_STREAM, TrainedRewardModel, now
from storage.reports import Curve, RewardReport, from_json, to_json
from tests.helpers.reward_figures import quality, write_curve
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_judgments,
    make_prompts,
    rows_of,
    tiny_models,
)
from tests.helpers.worker_runs import until, work
from tests.pipeline.reward.test_ceiling import judged

FIRST, TIE = 0, 2
MIRRORED = {"first": "second", "second": "first", "tie": "tie", "both_bad": "both_bad"}


@dataclass(frozen=True)
class World:
    """A workspace with one reward model, made by the real stage."""

    workspace: Path
    source: RunDirectory
    found: TrainedRewardModel
    state: dict[str, Any]

    @property
    def reports(self) -> RewardReports:
        return RewardReports(self.workspace, lambda: [self.found], lambda: self.state["message"])


def two_judges(count: int) -> list[dict[str, Any]]:
    """Each pair judged by two people, who differ on every fifth.

    On a quarter of the prompts a reward model chose the pairs.
    """
    rows = []
    for n, row in enumerate(make_judgments(count // 2, prompts=24)):
        arm = "bald" if n % 24 % 4 == 3 else "reference" if n % 2 else "random"
        turned = {"outcome": MIRRORED[row["outcome"]]} if n % 5 == 0 else {}
        rows += [
            row
            | (turned if who == "a-2" else {})
            | {
                "judgment": f"j-{n}-{who}",
                "annotator": who,
                "arm": arm,
                "shown_swapped": n % 3 == 0,
            }
            for who in ("a-1", "a-2")
        ]
    return rows


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    workspace = tmp_path_factory.mktemp("workspace")
    models = tiny_models(tmp_path_factory.mktemp("models"))
    # Heads, since a curve of four networks takes four times as long.
    job = make_job(
        "reward",
        models,
        reward__epochs=2,
        reward__held_out_share=0.25,
        reward__ensemble="heads",
    )
    source = RunDirectory.create(workspace / "runs" / "run-1", job)
    give(source, "judgments.parquet", two_judges(192))
    give(source, "prompts.parquet", make_prompts(4))
    assert work(source) == 0, source.log_tail()
    summary = source.result() or {}
    found = TrainedRewardModel(model="reward-1", summary=summary, directory="runs/run-1")
    return World(workspace, source, found, {"message": ""})


# --- what the stage keeps ---------------------------------------------------------------------


def test_the_stage_keeps_each_held_out_judgment_and_measures_the_random_stream(world: World):
    rows = rows_of(world.source.outputs / HELD_OUT_FILE)
    assert list(pd.read_parquet(world.source.outputs / HELD_OUT_FILE).columns) == list(COLUMNS)
    arms = {row["arm"] for row in rows}
    assert arms == {"random", "reference"}  # prompts with chosen pairs alone are learned from
    assert len({row["prompt"] for row in rows}) == 6  # a quarter of all 24
    decisive = [row for row in rows if row["outcome"] in ("first", "second")]
    right = [row["outcome"] == ("first" if row["d"] > 0 else "second") for row in decisive]
    summary = world.found.summary
    measured = summary["quality"]
    assert summary["accuracy"] == measured["accuracy"]["win_rate"] == sum(right) / len(right)
    assert summary["log_loss"] == measured["log_loss"] < measured["coin_log_loss"]
    assert summary["ece"] == pytest.approx(measured["calibration"]["ece"])
    assert summary["held_out_pairs"] == measured["judgments"] == len(rows)
    for row in rows:
        tie = 1 - row["p_first"] - row["p_second"]
        assert 0 < tie < 1
        assert row["expected"] == pytest.approx(row["p_first"] + tie / 2)
        assert (row["d"] > 0) == (row["p_first"] > row["p_second"])
    # Of 96 pairs 72 are of the stream, a fifth of them tied, and on a fifth the two differ.
    assert 50 < measured["overlap"] < 66
    assert measured["ceiling"]["agreement"]["win_rate"] == pytest.approx(0.8, abs=0.06)
    assert measured["ceiling"]["expected"] > 0.6
    assert {row["group"] for row in measured["by_agreement"]} == {"unanimous", "split"}
    assert 0.5 < summary["accuracy"] < 1


def test_held_out_figures_of_pages_are_those_of_the_stage(world: World):
    """Pages are tested with figures by hand, which must have what the stage gives them."""

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shape(each) for key, each in value.items()}
        return [shape(value[0])] if isinstance(value, list) and value else None

    made = world.found.summary["quality"]
    assert shape(made) == shape(quality())


def test_prompts_are_held_out_where_the_random_stream_has_judged_them():
    pairs = [judged(FIRST, prompt=f"p{n}", arm="bald" if n % 2 else "random") for n in range(40)]
    train, held_out = split_by_prompt(pairs, held_out_share=0.25, seed=0)
    assert len(held_out) == 10  # a quarter of all prompts
    assert {pair.arm for pair in held_out} == {"random"}
    assert {pair.arm for pair in train} == {"bald", "random"}
    # Chosen pairs on a held-out prompt go with it, and more than there are cannot be held out.
    both = [*pairs, *(judged(FIRST, prompt=f"p{n}", arm="bald") for n in range(40))]
    train, held_out = split_by_prompt(both, held_out_share=0.75, seed=0)
    assert {pair.prompt for pair in held_out} == {f"p{n}" for n in range(0, 40, 2)}
    assert len(held_out) == 40
    alone = [pair for pair in pairs if pair.arm == "bald"]
    assert len(split_by_prompt(alone, held_out_share=0.25, seed=0)[1]) == 5
    assert {judged(FIRST, arm=arm).random_stream for arm in RANDOM_STREAM} == {True}
    assert not judged(FIRST, arm="uncertainty").random_stream


def test_where_all_pairs_were_chosen_nothing_is_measured_and_that_is_said(
    world: World, tmp_path: Path
):
    directory = RunDirectory.create(tmp_path, world.source.job())
    rows = [row | {"arm": "bald"} for row in make_judgments(48)]
    give(directory, "judgments.parquet", rows)
    give(directory, "prompts.parquet", make_prompts(4))
    assert work(directory) == 0, directory.log_tail()
    summary = directory.result()
    assert summary
    assert (summary["accuracy"], summary["held_out_pairs"]) == (None, 0)
    assert summary["quality"]["accuracy"] is None
    told = [json.loads(line) for line in directory.events.read_text().splitlines()]
    assert any("a reward model chose all judged pairs" in e.get("message", "") for e in told)


# --- the learning curve -----------------------------------------------------------------------


def test_prompts_are_dealt_into_four_blocks_with_preferences_in_each():
    pairs = [judged(FIRST if n < 8 else TIE, prompt=f"p{n}") for n in range(30)]
    block = deal(pairs, seed=0)
    assert sorted(block.values()) == sorted(n % BLOCKS for n in range(30))
    assert sorted(block[f"p{n}"] for n in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert block != deal(pairs, seed=1)
    assert block == deal(pairs[::-1], seed=0)


def test_too_few_labels_for_a_curve_is_one_sentence():
    pairs = [judged(FIRST, prompt=f"p{n % 8}") for n in range(40)]
    require_enough(pairs)
    with pytest.raises(
        ValueError, match=r"needs 40 judgments .* on 8 prompts, and there are 39 on 8"
    ):
        require_enough(pairs[:39])
    tied = [*pairs, *(judged(TIE, prompt="q") for _ in range(9))]
    with pytest.raises(ValueError, match="there are 44 on 7"):
        require_enough([pair for pair in tied if pair.prompt != "p0"])


def test_a_curve_measures_each_judgment_unseen_at_each_share(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory, job, fill = curve_job(world.workspace, "reward-1", world.found.directory)
    directory = RunDirectory.create(tmp_path / "curve", job)
    fill(directory.inputs)
    learned: list[set[str]] = []
    train = curve_stage.train_members

    def watched(training: Any, pairs: Any, **more: Any) -> Any:
        learned.append({pair.prompt for pair in pairs})
        return train(training, pairs, **more)

    monkeypatch.setattr(curve_stage, "train_members", watched)
    assert work(directory) == 0, directory.log_tail()
    assert directory.result()["models"] == 12
    held_out = {row["prompt"] for row in rows_of(world.source.outputs / HELD_OUT_FILE)}
    stream = {row["prompt"] for row in two_judges(192) if row["arm"] != "bald"}
    everything = {row["prompt"] for row in two_judges(192)}
    plan = [(order, blocks) for order in ORDERS for blocks in range(1, BLOCKS)]
    seen: dict[int, set[str]] = {1: set(), 2: set(), 3: set()}
    for (order, blocks), prompts in zip(plan, learned, strict=True):
        rows = rows_of(file_of(directory.outputs, order, blocks))
        assert {row["prompt"] for row in rows} == (stream - prompts)
        assert not prompts & held_out
        assert {row["share"] for row in rows} == {blocks / BLOCKS}
        # Eighteen prompts in four blocks: four or five each, and eight judgments per prompt.
        assert {row["labels"] for row in rows} == {192 * len(prompts) / 18}
        assert {row["right"] for row in rows} <= {0.0, 0.5, 1.0}
        seen[blocks] |= {row["prompt"] for row in rows}
    assert seen == dict.fromkeys((1, 2, 3), stream)
    assert all(learned[n] < learned[n + 1] for n in range(12) if n % 3 < 2)  # nested in an order
    assert learned[0] | learned[3] | learned[6] | learned[9] == everything - held_out
    found = learning_curve(directory.outputs)
    assert [p.labels for p in found.points] == [48, 96, 144, 192]
    assert found.points[-1].accuracy == world.found.summary["accuracy"]
    assert found.orders == 4

    # A study that was stopped trains only what is missing.
    missing = file_of(directory.outputs, ORDERS[1], 2)
    was = missing.read_bytes()
    missing.unlink()
    directory.clear_outcome()
    learned.clear()
    assert work(directory) == 0, directory.log_tail()
    assert len(learned) == 1
    assert missing.read_bytes() == was


def test_a_curve_learns_from_edits_as_the_stage_does_and_counts_judgments(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The label budget compares the curve's labels with judgments, which edits accompany."""
    shutil.copytree(world.source.path, tmp_path / "runs" / "run-1")
    source = RunDirectory(tmp_path / "runs" / "run-1")
    edits = [
        row | {"first": f"edit-{row['judgment']}", "first_text": "zzzz", "edited": True,
               "outcome": "first", "arm": "written"}
        for row in two_judges(192)[:50]
    ]  # fmt: skip
    give(source, "edits.parquet", edits)
    _, job, fill = curve_job(tmp_path, "reward-1", "runs/run-1")
    directory = RunDirectory.create(tmp_path / "curve", job)
    fill(directory.inputs)
    directory.outputs.mkdir(exist_ok=True)
    for order, blocks in [(order, n) for order in ORDERS for n in range(1, BLOCKS)][1:]:
        file_of(directory.outputs, order, blocks).touch()  # one model is enough here
    learned: list[Any] = []
    train = curve_stage.train_members

    def watched(training: Any, pairs: Any, **more: Any) -> Any:
        learned.extend(pairs)
        return train(training, pairs, **more)

    monkeypatch.setattr(curve_stage, "train_members", watched)
    assert work(directory) == 0, directory.log_tail()
    assert any(pair.edited for pair in learned)
    whole = rows_of(file_of(directory.outputs, FULL_MODEL, BLOCKS))
    assert {row["labels"] for row in whole} == {192}
    # Eight judgments of each of 18 training prompts, as without edits.
    prompts = {pair.prompt for pair in learned}
    rows = rows_of(file_of(directory.outputs, ORDERS[0], 1))
    assert {row["labels"] for row in rows} == {192 * len(prompts) / 18}
    assert not {row["judgment"] for row in rows} - {row["judgment"] for row in two_judges(192)}


# --- reports ----------------------------------------------------------------------------------


def test_a_report_has_figures_verdict_and_no_curve_yet(world: World):
    found = world.reports.report()
    assert (found.models, found.model) == (("reward-1",), "reward-1")
    assert found.quality
    assert to_json(found.quality) == world.found.summary["quality"]
    assert found.verdict
    assert found.verdict.verdict in format_report(found)
    assert found.curve
    assert found.curve.state == "none"
    # 3 trainings on a quarter, a half and three quarters in each of 4 orders: 4 · 1.5.
    assert found.curve_seconds == 6 * world.found.summary["seconds"] > 0
    assert "no learning curve yet: --curve computes one" in format_report(found)
    assert "\n  ? the benefit of more labels is not known" in format_report(found)
    assert from_json(RewardReport, json.loads(json.dumps(to_json(found)))) == found
    with pytest.raises(ValueError, match="no reward model reward-7; there are: reward-1"):
        world.reports.report("reward-7")


def test_a_report_for_people(tmp_path: Path):
    write_curve(tmp_path / "reward_curves" / "r.r" / "outputs")
    made = [TrainedRewardModel(model="r", summary={"quality": quality()}, directory="runs/r")]
    text = format_report(RewardReports(tmp_path, lambda: made, str).report())
    lines = text.splitlines()
    assert lines[0] == "r: enough for PPO"
    assert "  + 90 held-out preferences on 60 prompts are enough" in lines
    assert "log-loss 0.842 nats per judgment; chance at the tie rate: 0.987" in lines
    assert ["people", "disagree", "50%", "(20%", "to", "80%)", "6"] in [x.split() for x in lines]
    assert ["94%", "100%", "(66%", "to", "100%)", "9"] in [x.split() for x in lines]
    assert any(line.startswith("300 (75%)") for line in lines)
    weak = made[0].summary["quality"]
    weak["decisive"] = 10
    assert "\n  - 10 held-out preferences" in format_report(
        RewardReports(tmp_path, lambda: made, str).report()
    )


def test_an_older_reward_model_says_why_it_has_no_report(tmp_path: Path):
    made = [TrainedRewardModel(model="reward-1", summary={"accuracy": 0.7}, directory=None)]
    reports = RewardReports(tmp_path, lambda: made, str)
    found = reports.report()
    assert (found.quality, found.verdict) == (None, None)
    assert "trained before held-out judgments were stored" in format_report(found)
    with pytest.raises(ValueError, match="reward-1 cannot be trained again on fewer labels"):
        reports.start_curve("reward-1")


def test_figures_are_worked_out_again_when_a_model_is_done(world: World, tmp_path: Path):
    made = [world.found]
    reports = RewardReports(tmp_path, lambda: made, str)
    assert curve_of(reports).orders == 0
    outputs = tmp_path / "reward_curves" / "reward-1.run-1" / "outputs"
    write_curve(outputs, orders=1)
    assert curve_of(reports).orders == 1
    write_curve(outputs)
    found = reports.report()
    assert found.curve
    assert found.curve.orders == 4
    assert found.verdict
    assert found.curve
    assert found.curve.forecast
    assert found.verdict.checks[-1].says == found.curve.forecast.says
    # After a restore another run made a model of that name: nothing is known of it.
    made[0] = replace(world.found, directory="runs/run-9")
    assert curve_of(reports).orders == 0


def test_a_curve_is_started_watched_stopped_and_gone_on_with(world: World):
    """The worker is real; its training is cut short by the request to stop."""
    reports, state = world.reports, world.state
    state["message"] = "ppo 12%"
    with pytest.raises(ValueError, match=r"A stage is running \(ppo 12%\)"):
        reports.start_curve("reward-1")
    state["message"] = ""
    with pytest.raises(ValueError, match="No learning curve is being computed"):
        reports.cancel_curve("reward-1")
    reports.start_curve("reward-1")
    assert curve_of(reports).state == "running"
    with pytest.raises(ValueError, match="already being computed"):
        reports.start_curve("reward-1")
    with pytest.raises(ValueError, match="the studio or another command already computes"):
        make_curve(world.workspace, reports.report(), print)
    other = world.reports  # as after a restart of the server
    until(lambda: re.search(r"model \d+ of 12", curve_of(other).message))
    other.cancel_curve("reward-1")
    assert curve_of(other).state in ("cancelling", "stopped")
    until(lambda: curve_of(other).state == "stopped")
    other.shut_down()

    # In a terminal it goes on from there.
    told: list[str] = []
    make_curve(world.workspace, reports.report(), told.append)
    assert "model 12 of 12" in told[-1]
    found = curve_of(reports)
    assert (found.state, found.progress, found.orders) == ("done", 1.0, 4)
    make_curve(world.workspace, reports.report(), told.append)
    assert told[-1] == "done before"


def curve_of(reports: RewardReports) -> Curve:
    found = reports.report().curve
    assert found
    return found


def test_a_curve_made_in_a_terminal_is_stopped_there(world: World, tmp_path: Path):
    reports = RewardReports(tmp_path, lambda: [world.found], str)
    directory = RunDirectory.create(
        tmp_path / "reward_curves" / "reward-1.run-1", world.source.job()
    )
    with directory.hold_lock():
        assert curve_of(reports).state == "running"
        with pytest.raises(ValueError, match=r"in a terminal computes .*; stop it there"):
            reports.cancel_curve("reward-1")
        assert directory.cancel_requested_at() is None
    directory.write_error("the GPU ran out of memory")
    found = curve_of(reports)
    assert (found.state, found.reason) == ("failed", "the GPU ran out of memory")
    directory.write_error("cancelled")
    assert curve_of(reports).state == "stopped"
    # A request to stop hides no failure, and explains a silent end.
    directory.request_cancel(now())
    directory.write_error("the disk is full")
    assert curve_of(reports).reason == "the disk is full"
    (directory.path / "error.json").unlink()
    assert curve_of(reports).state == "stopped"


def test_a_worker_that_does_not_stop_is_killed(world: World, tmp_path: Path, monkeypatch: Any):
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(process, "CANCEL_GRACE", 0.0)
    monkeypatch.setattr(process, "_STEPS_ALLOWED", 0)
    monkeypatch.setattr(process.os, "killpg", lambda *sent: killed.append(sent))
    reports = RewardReports(tmp_path, lambda: [world.found], str)
    directory = RunDirectory.create(
        tmp_path / "reward_curves" / "reward-1.run-1", world.source.job()
    )
    with directory.hold_lock():
        (directory.path / "pid").write_text("12345")
        reports.cancel_curve("reward-1")
        assert killed == [(12345, 15)]
        assert curve_of(reports).state == "cancelling"
        assert killed == [(12345, 15), (12345, 9)]
