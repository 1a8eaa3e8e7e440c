"""A stage that stopped is tried again: prepared anew with the current settings, or left as it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
from transformers import BertConfig, BertForSequenceClassification

from pipeline.config.sections import Config
from pipeline.loop.loop import Loop
from pipeline.runs import jobs
from pipeline.runs.rundir import Job, RunDirectory
from storage import worker_files
from storage.engine.database import Database
from storage.records import (
    Completion,
    Iteration,
    Metric,
    ModelVersion,
    Phase,
    Prompt,
    Run,
    RunNote,
)
from storage.tables import completions, iterations, models, prompts
from storage.tables.runs import run_settings, runs
from tests.helpers.policy_world import add_iteration, add_models, compare
from tests.helpers.tiny import save_classifier, save_tiny, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("dying_workers")


@pytest.fixture
def world(db: Database) -> Database:
    """Two trained policies; the first is judged in iteration 2, whose phase the tests set."""
    add_models(db, policies=2)
    add_iteration(db, 1)
    return db


@pytest.fixture
def loop(world: Database) -> Iterator[Loop]:
    made = Loop(world, Config().override({"labeling.labels": "40"}))
    yield made
    made.advance()
    made.shut_down()


def in_phase(db: Database, phase: str, **more: object) -> Iteration:
    made: dict = {"policy_produced": None, "reward_model": None} | more
    return add_iteration(db, 2, phase=phase, **made)


def stop(loop: Loop) -> Run:
    """Let the stage that is due begin and die."""
    for _ in range(2):
        loop.advance()
    return loop.stopped()


def directory(db: Database, run: Run) -> RunDirectory:
    return RunDirectory(db.workspace / run.directory)


def job(db: Database, run: Run) -> Job:
    return directory(db, run).job()


def newest(db: Database) -> Run:
    return runs.listing(db)[-1]


def rows(db: Database, run: Run, name: str = "prompts") -> int:
    return len(pd.read_parquet(directory(db, run).inputs / f"{name}.parquet"))


def reward_run(db: Database) -> Run:
    """The reward run of iteration 2, with the inputs that it was given."""
    made = Run(id="r", stage="reward", iteration=2, status="succeeded", directory="runs/r")
    inputs = db.workspace / made.directory / "inputs"
    inputs.mkdir(parents=True)
    for name in ("judgments.parquet", "judged_by.json", "snapshot.txt"):
        (inputs / name).write_text(f"{name} of the reward run")
    return runs.save(db, made)


# --- what a retry is given --------------------------------------------------------------------


def test_a_stage_that_failed_for_lack_of_disk_has_its_inputs_when_it_is_retried(
    loop: Loop, world: Database, monkeypatch: pytest.MonkeyPatch
):
    in_phase(world, "evaluating")
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 10**18)
    loop.advance()
    failed = loop.stopped()
    assert "GB are left; free some space and retry" in (failed.reason or "")
    assert not any(directory(world, failed).inputs.iterdir())
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 0)
    loop.retry(failed.id)
    assert rows(world, newest(world)) == 1


def test_settings_that_nothing_reads_any_more_are_refused(loop: Loop, world: Database):
    in_phase(world, "labeling")
    compare(world, "policy-1", "sft-1", ["first"] * 2)
    for name, value in (("sampling.top_p", "0.5"), ("labeling.overlap", "1"), ("gate.labels", "9")):
        with pytest.raises(
            ValueError, match=f"{name} is read when an iteration's pairs are sampled"
        ):
            loop.train({name: value})
    assert iterations.get(world, 2).phase == "labeling"
    loop.train({"gate.kl_raise": "2", "sampling.batch": "4"})
    failed = stop(loop)
    with pytest.raises(ValueError, match=r"sampling\.surplus is read when"):
        loop.retry(failed.id, {"sampling.surplus": "2"})
    loop.retry(failed.id, {"reward.epochs": "2"})


def test_only_the_operator_names_the_server_that_gets_prompts_and_key(loop: Loop, world: Database):
    in_phase(world, "sampling", policy_sampled="policy-1", labels_wanted=40)
    failed = stop(loop)
    elsewhere = {"sampling.backend": "url", "sampling.url": "http://elsewhere.example/v1"}
    with pytest.raises(ValueError, match=r"sampling\.url cannot be changed: only the operator"):
        loop.retry(failed.id, elsewhere)
    loop.retry(failed.id, elsewhere, by_operator=True)
    used = RunDirectory(world.workspace / newest(world).directory).job().config.sampling
    assert (used.backend, used.url) == ("url", "http://elsewhere.example/v1")


def test_sampling_that_is_retried_asks_for_the_labels_its_settings_want(
    loop: Loop, world: Database
):
    in_phase(world, "sampling", policy_sampled="policy-1", labels_wanted=40)
    failed = stop(loop)
    with pytest.raises(ValueError, match=r"model\.name is read when the SFT reference is created"):
        loop.retry(failed.id, {"model.name": "demo"})
    loop.retry(failed.id, {"labeling.labels": "11", "labeling.overlap": "0"})
    assert iterations.get(world, 2).labels_wanted == 11
    plan = pd.read_parquet(directory(world, newest(world)).inputs / "prompts.parquet")
    assert plan["pairs"].sum() == 14  # 1.3 · 11 = 14.3


def test_a_stage_that_could_not_be_prepared_is_retried_once_it_can(loop: Loop, world: Database):
    in_phase(world, "reward")
    loop.advance()
    failed = loop.stopped()
    assert failed.reason == "There are no labels yet."
    with pytest.raises(ValueError, match="There are no labels yet"):
        loop.retry(failed.id)
    compare(world, "policy-1", "sft-1", ["first", "second"])
    loop.retry(failed.id)
    assert rows(world, newest(world), "judgments") == 2


def test_a_retry_keeps_what_the_gate_has_raised(loop: Loop, world: Database):
    world.write(
        lambda tx: tx.execute(
            """UPDATE models SET summary = '{"kl_weight": 1.0}' WHERE id = 'policy-1'"""
        )
    )
    compare(world, "policy-1", "sft-1", ["second"] * 12)
    in_phase(world, "policy", verdict="blocked")
    failed = stop(loop)
    before = job(world, failed)
    loop.retry(failed.id, {"ppo.kl_weight": "0.01"})
    after = job(world, newest(world))
    # gate.kl_raise · the 1.0 that the blocked policy was trained with
    assert (before.config.ppo.kl_weight, after.config.ppo.kl_weight) == (3, 3)
    assert "ppo.kl_weight is 3 instead of 0.01" in after.notes["kl_raise"]
    assert (after.seed, after.attempt) == (before.seed, 2)
    assert newest(world).config["ppo"]["kl_weight"] == 3


def test_a_retry_takes_the_models_its_settings_name(loop: Loop, world: Database, tmp_path: Path):
    extra = save_classifier(tmp_path / "extra")
    in_phase(world, "policy", reward_model="reward-2")
    failed = stop(loop)
    assert job(world, failed).names["policy"] == "sft-1"
    loop.retry(
        failed.id,
        {
            "ppo.start_from": "previous",
            "shaping.extra_reward_models": f'["reward-1", "{extra}"]',
        },
        by_operator=True,
    )
    names = job(world, newest(world)).names
    assert (names["policy"], names["reward"], names["reward_2"], names["reward_3"]) == (
        "policy-1", "reward-2", "reward-1", str(extra),
    )  # fmt: skip


def test_a_misspelled_reward_model_is_refused_and_can_be_mended(loop: Loop, world: Database):
    in_phase(world, "policy", settings={"shaping.extra_reward_models": '["reward-7"]'})
    failed = stop(loop)
    assert job(world, failed).names["reward_2"] == "reward-7"
    with pytest.raises(
        ValueError, match="names 'reward-7', which is neither a reward model of this"
    ):
        loop.retry(failed.id)
    loop.retry(failed.id, {"shaping.extra_reward_models": '["reward-1"]'})
    assert job(world, newest(world)).names["reward_2"] == "reward-1"


def test_what_is_no_reward_model_is_refused_before_anything_is_trained(
    loop: Loop, world: Database, tmp_path: Path
):
    in_phase(world, "labeling")
    compare(world, "policy-1", "sft-1", ["first"] * 2)
    speaks, two = save_tiny(tmp_path / "speaks"), save_classifier(tmp_path / "two", labels=2)
    encodes, size = tmp_path / "encodes", {"hidden_size": 8, "intermediate_size": 8}
    shape = BertConfig(num_hidden_layers=1, num_attention_heads=1, num_labels=1, **size)
    BertForSequenceClassification(shape).save_pretrained(encodes)
    tiny_tokenizer().save_pretrained(encodes)
    for path, says in [
        (speaks, f"{speaks} is a LlamaForCausalLM, not a reward model"),
        (two, f"{two} outputs 2 numbers per text; a reward model outputs one"),
        (encodes, "is a BertForSequenceClassification without a layer called score"),
    ]:
        with pytest.raises(ValueError, match=says) as caught:
            loop.train({"shaping.extra_reward_models": f'["{path}"]'}, by_operator=True)
        assert "\n" not in str(caught.value)
    ordinary = save_classifier(tmp_path / "one")
    loop.train({"shaping.extra_reward_models": f'["{ordinary}"]'}, by_operator=True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("reward-9", r"'reward-9', which is neither a reward model of this workspace \(reward-1, reward-2\)"),
        ("policy-1", "'policy-1', which is neither a reward model of this workspace"),
        ("/no/such", "shaping.extra_reward_models: there is no model directory /no/such"),
    ],
)  # fmt: skip
def test_training_asks_for_its_reward_models_at_once(
    loop: Loop, world: Database, name: str, says: str
):
    in_phase(world, "labeling")
    compare(world, "policy-1", "sft-1", ["first"] * 2)
    with pytest.raises(ValueError, match=says):
        loop.train({"shaping.extra_reward_models": f'["{name}"]'}, by_operator=True)
    stayed = iterations.get(world, 2)
    assert (stayed.phase, stayed.settings) == ("labeling", {})
    loop.train({"shaping.extra_reward_models": '["reward-1"]'})


def test_a_retry_with_another_method_has_that_methods_inputs(loop: Loop, world: Database):
    reward_run(world)
    in_phase(world, "policy")
    failed = stop(loop)
    loop.retry(failed.id, {"optimize.method": "dpo"})
    inputs = directory(world, newest(world)).inputs
    assert (inputs / "judgments.parquet").read_text() == "judgments.parquet of the reward run"
    loop.advance()
    loop.retry(newest(world).id, {"optimize.method": "ppo"})
    inputs = directory(world, newest(world)).inputs
    assert [path.name for path in inputs.iterdir()] == ["prompts.parquet"]


def test_a_retry_reads_as_much_as_its_settings_say(loop: Loop, world: Database):
    prompts.add(world, [Prompt.make(f"Held out {n}?", role="held-out") for n in range(4)])
    in_phase(world, "evaluating")
    failed = stop(loop)
    assert rows(world, failed) == 5
    loop.retry(failed.id, {"evaluate.prompts": "2"})
    assert rows(world, newest(world)) == 2


def test_a_retry_learns_from_the_annotators_its_settings_name(loop: Loop, world: Database):
    compare(world, "policy-1", "sft-1", ["first"] * 2)
    compare(world, "policy-1", "sft-1", ["first"] * 3, annotator="robot")
    current = in_phase(world, "reward")
    failed = stop(loop)
    assert (rows(world, failed, "judgments"), worker_files.labels_in(world, current)) == (2, 2)
    loop.retry(failed.id, {"reward.learn_from": '["model"]'})
    assert (rows(world, newest(world), "judgments"), worker_files.labels_in(world, current)) == (
        3,
        3,
    )


def test_the_failed_attempt_is_kept_with_its_curves_settings_and_reason(
    loop: Loop, world: Database
):
    in_phase(world, "policy", reward_model="reward-1")
    failed = stop(loop)
    made = directory(world, failed)
    measured = Metric(run=failed.id, seq=1, step=1, name="kl/reference", value=42.0)
    flag = RunNote(run=failed.id, seq=2, step=1, kind="flag", name="kl_high", message="KL is 42")
    runs.ingest(world, replace(failed, ingested_seq=2), [measured], [flag])
    leave_a_checkpoint(world, failed)
    before = runs.get(world, failed.id)
    loop.retry(failed.id, {"ppo.kl_weight": "0.4"})
    retried = newest(world)
    assert (retried.id != failed.id, retried.attempt, retried.status) == (True, 2, "running")
    assert runs.get(world, failed.id) == before
    assert before.config["ppo"]["kl_weight"] == made.job().config.ppo.kl_weight == 0.05
    assert retried.config["ppo"]["kl_weight"] == 0.4
    assert runs.metrics(world, failed.id)["value"].tolist() == [42.0]
    assert [note.message for note in runs.notes(world, failed.id)] == ["KL is 42"]
    assert (made.inputs / "prompts.parquet").exists()
    assert not made.checkpoint.exists()
    (changed,) = run_settings.changed(runs.listing(world), retried)
    assert (changed.name, changed.before, changed.now) == ("ppo.kl_weight", 0.05, 0.4)
    assert runs.attempts(runs.listing(world), retried) == [before, retried]
    with pytest.raises(ValueError, match="no longer waits for"):
        loop.resume(failed.id)


def test_the_retry_is_the_newest_run_even_if_the_clock_was_set_back(loop: Loop, world: Database):
    in_phase(world, "evaluating")
    failed = stop(loop)
    runs.save(world, replace(failed, created_at=failed.created_at + timedelta(hours=1)))
    loop.retry(failed.id)
    found = runs.newest(world, 2, "evaluate")
    assert found is not None
    assert (found.attempt, runs.listing(world)[-1]) == (2, found)


def test_a_resumed_run_counts_the_seconds_of_each_attempt(loop: Loop, world: Database):
    in_phase(world, "policy", reward_model="reward-1")
    failed = stop(loop)
    leave_a_checkpoint(world, failed)
    first = failed.seconds
    assert first is not None
    assert 0 <= first < 60
    # The web process noticed the end only a day later: the last file written is what counts.
    begun = failed.created_at - timedelta(days=1)
    runs.save(world, replace(failed, created_at=begun, seconds=3600.0))
    loop.resume(failed.id)
    running = runs.get(world, failed.id)
    assert runs.working_seconds(world, running) is None
    assert running.started_at is not None
    loop.advance()
    ended = loop.stopped()
    assert ended.seconds is not None
    assert 3600 <= ended.seconds < 3660
    assert runs.working_seconds(world, ended) == ended.seconds


# --- what cannot be taken over ----------------------------------------------------------------


def test_outputs_that_cannot_be_taken_over_are_a_failure_to_retry(loop: Loop, world: Database):
    in_phase(world, "sampling", policy_sampled="policy-1")
    run = stop(loop)
    made = directory(world, run)
    columns = ["id", "prompt", "policy", "text", "tokens", "finish_reason", "temperature", "seed"]
    pd.DataFrame(columns=columns).to_parquet(made.outputs / "completions.parquet")
    pd.DataFrame(columns=["id"]).to_parquet(made.outputs / "comparisons.parquet")
    made.write_result({"comparisons": 0})
    runs.save(world, replace(run, status="succeeded", reason=None))
    assert loop.advance() == "sampling"
    failed = loop.stopped()
    assert (failed.id, failed.reason) == (run.id, "sampling produced no comparisons")
    assert (made.result(), made.failure()) == (None, failed.reason)
    loop.retry(run.id, {"sampling.temperatures": "[1.0, 0.5]"})
    assert job(world, newest(world)).config.sampling.temperatures == (1.0, 0.5)


def test_predictions_that_cannot_be_taken_over_leave_no_reward_model_behind(
    loop: Loop, world: Database
):
    in_phase(world, "reward", policy_sampled="policy-1")
    run = stop(loop)
    made = directory(world, run)
    assert made.job().names["proxy"] == "reward-1"
    made.model.mkdir()
    before = models.listing(world)
    wrong = {"comparison": "c1", "first": 2.0, "first_score": 1.0, "second_score": 0.0}
    pd.DataFrame([wrong]).to_parquet(made.outputs / "predictions.parquet")
    made.write_result({})
    runs.save(world, replace(run, status="succeeded", reason=None))
    assert loop.advance() == "reward"
    assert "the prediction for c1 must be" in (loop.stopped().reason or "")
    assert models.listing(world) == before
    assert made.model.exists()


def test_a_model_that_is_gone_is_a_failure_to_retry(loop: Loop, world: Database):
    in_phase(world, "policy", reward_model="reward-2")
    (world.workspace / "models" / "policy-2").rmdir()
    run = stop(loop)
    directory(world, run).write_result({})
    runs.save(world, replace(run, status="succeeded", reason=None))
    loop.advance()
    assert "model" in (loop.stopped().reason or "")
    loop.retry(run.id)


# --- what a refused retry leaves --------------------------------------------------------------


def leave_a_checkpoint(db: Database, run: Run, *, size: int = 0) -> Path:
    """A checkpoint of `size` bytes; none of them takes space."""
    folder = directory(db, run).checkpoint
    folder.mkdir()
    (folder / "state").touch()
    os.truncate(folder / "state", size)
    return folder


def refusals(db: Database, monkeypatch: pytest.MonkeyPatch, refused: str) -> dict[str, str]:
    """Make the retry of an evaluation impossible; the settings to ask for it with."""
    if refused == "disk":
        monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 10**18)
    if refused == "inputs":
        db.write(lambda tx: tx.execute("DELETE FROM prompts WHERE role = 'held-out'"))
    named = {"shaping.extra_reward_models": '["reward-7"]'} if refused == "models" else {}
    return {"ppo.lr": "0.5"} | named


@pytest.mark.parametrize("refused", ["disk", "inputs", "models"])
def test_a_refused_retry_loses_neither_checkpoint_nor_settings(
    loop: Loop, world: Database, monkeypatch: pytest.MonkeyPatch, refused: str
):
    in_phase(world, "evaluating")
    failed = stop(loop)
    checkpoint = leave_a_checkpoint(world, failed)
    with pytest.raises(ValueError, match=r"GB are left|no held-out prompts|neither a reward model"):
        loop.retry(failed.id, refusals(world, monkeypatch, refused))
    assert checkpoint.exists()
    assert iterations.get(world, 2).settings == {}
    assert loop.stopped() == failed
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", 0)
    loop.resume(failed.id)
    assert job(world, failed).resume


def test_what_a_retry_deletes_counts_as_free(
    loop: Loop, world: Database, monkeypatch: pytest.MonkeyPatch
):
    in_phase(world, "evaluating")
    failed = stop(loop)
    free = shutil.disk_usage(world.workspace).free
    leave_a_checkpoint(world, failed, size=2 * 10**11)
    monkeypatch.setattr(jobs, "FREE_BYTES_NEEDED", free + 10**11)
    with pytest.raises(ValueError, match="GB are left"):
        loop.resume(failed.id)
    loop.retry(failed.id)
    assert not directory(world, failed).checkpoint.exists()


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        ({"ppo.lr": "1e-5"}, "keeps its settings, except ppo.updates"),
        ({"ppo.updates": "200", "ppo.lr": "1e-5"}, "keeps its settings, except ppo.updates"),
        ({"ppo.updates": "99"}, "ppo.updates=99 is less than the 100"),
    ],
)
def test_a_resume_may_raise_the_updates_and_nothing_else(
    loop: Loop, world: Database, refused: dict[str, str], message: str
):
    in_phase(world, "policy", reward_model="reward-1")
    failed = stop(loop)
    leave_a_checkpoint(world, failed)
    before = job(world, failed)
    assert before.config.ppo.updates == 100
    with pytest.raises(ValueError, match=message):
        loop.resume(failed.id, refused)
    assert loop.stopped() == failed
    loop.resume(failed.id, {"ppo.updates": "150"})
    after = job(world, failed)
    expected = before.config.override({"ppo.updates": "150"})
    assert (after.resume, after.config) == (True, expected)
    assert runs.get(world, failed.id).config == expected.to_dict()


def test_only_a_ppo_stage_is_made_longer(loop: Loop, world: Database):
    in_phase(world, "evaluating")
    failed = stop(loop)
    leave_a_checkpoint(world, failed)
    with pytest.raises(ValueError, match=r"ppo\.updates of a PPO stage"):
        loop.resume(failed.id, {"ppo.updates": "150"})


def test_only_the_run_that_the_loop_waits_for_is_taken_up_again(loop: Loop, world: Database):
    in_phase(world, "evaluating")
    waited_for = stop(loop)
    stale: Any = {"stage": "sft", "iteration": 1, "status": "failed", "directory": "runs/old"}
    runs.save(world, Run(id="old", **stale))
    for act in (loop.resume, loop.retry):
        with pytest.raises(ValueError, match="the loop no longer waits for old"):
            act("old")
    loop.retry(waited_for.id)
    assert models.get(world, "sft-1").path == "demo"


# --- fine-tuning that failed ------------------------------------------------------------------


@pytest.fixture
def untuned(db: Database, tmp_path: Path) -> Loop:
    """A loop whose fine-tuning has failed."""
    asked = Prompt.make("How many is one?", role="train")
    prompts.add(db, [asked, Prompt.make("Two?", role="held-out")])
    answer = Completion(id="k", prompt=asked.id, policy="demonstrations", text="One.")
    completions.add(db, [answer])
    made = Loop(db, Config().override({"model.name": str(save_tiny(tmp_path / "base"))}))
    assert stop(made).stage == "sft"
    return made


def test_fine_tuning_that_was_given_up_blocks_nothing(untuned: Loop, db: Database):
    loop = Loop(db, Config().override({"sft.enabled": "false"}))
    for phase in get_args(Phase):
        models.add(db, ModelVersion(id="sft-1", role="sft", name="SFT", path="demo"))
        iterations.save(db, Iteration(number=1, phase=phase, labels_wanted=1))
        assert loop.blocked_by() is None
    untuned.shut_down()


def test_retrying_without_fine_tuning_takes_the_base_model(untuned: Loop, db: Database):
    untuned.retry(untuned.stopped().id, {"sft.enabled": "false"})
    untuned.advance()
    assert "(base)" in models.get(db, "sft-1").name
    assert untuned.blocked_by() is None
    untuned.advance()
    assert runs.listing(db)[-1].stage == "sampling"
    untuned.advance()
    untuned.shut_down()


def test_a_retry_of_fine_tuning_reads_the_base_model_that_its_settings_name(
    untuned: Loop, db: Database, tmp_path: Path
):
    other = save_tiny(tmp_path / "other")
    failed = untuned.stopped()
    untuned.retry(failed.id, {"model.name": str(other)}, by_operator=True)
    assert job(db, newest(db)).models["policy"] == str(other)
    assert len(pd.read_parquet(directory(db, newest(db)).inputs / "examples.parquet")) == 1
    untuned.advance()
    untuned.shut_down()


def test_nothing_is_trained_on_a_model_that_a_restore_did_not_bring(world: Database, loop: Loop):
    """The evaluation would look for it only after the training."""
    in_phase(world, "policy", reward_model="reward-1")
    failed = stop(loop)
    (world.workspace / "models" / "policy-1").rmdir()
    with pytest.raises(
        ValueError, match=r"models/policy-1 is missing from .*a backup does not contain models"
    ):
        loop.retry(failed.id)
    assert newest(world) == failed
