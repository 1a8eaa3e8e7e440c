"""DPO, RLOO and the methods of the engine: what they learn on a tiny model, what they report, and that they can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.config import metric_definitions
from pipeline.config.policy import engine_settings
from pipeline.config.sections import CONFIGS, Config
from pipeline.loop.settings_view import overridden
from pipeline.models.likelihoods import response_logprobs
from pipeline.models.snapshots import Snapshots, snapshots_of
from pipeline.models.text import ChatTokenizer, Encoded, LengthLimits
from pipeline.policy_methods import dpo
from pipeline.ppo import PPOConfig
from pipeline.ppo.metrics import METRICS as PPO_METRICS
from pipeline.reward.data import read_pairs
from pipeline.runs import cancellation
from pipeline.runs.cancellation import Cancelled
from pipeline.runs.rundir import Job, Report, RunDirectory
from pipeline.worker.worker import stage_module
from storage.records import Iteration
from tests.helpers.stage_inputs import (
    give,
    make_job,
    make_judgments,
    make_prompts,
    rows_of,
    tiny_models_and_reward,
)
from tests.helpers.tiny import tiny_model, tiny_tokenizer

DPO = {
    "optimize__method": "dpo",
    "optimize__dpo_lr": 1e-3,
    "optimize__dpo_epochs": 4.0,
    "optimize__dpo_batch": 4,
    "reward__held_out_share": 0.2,
}
RLOO = {
    "optimize__method": "rloo",
    "ppo__updates": 6,
    "ppo__rollouts": 8,
    "ppo__minibatch": 8,
    "ppo__lr": 1e-3,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The policy starts from the reference."""
    made = tiny_models_and_reward(tmp_path_factory.mktemp("models"))
    return made | {"policy": made["reference"]}


def run(job: Job, report: Report, directory: RunDirectory) -> Any:
    return stage_module(job).run(job, report, directory)


def prepared(models: dict[str, str], path: Path, **settings: Any) -> tuple[Job, RunDirectory]:
    job = make_job("policy", models, **settings)
    directory = RunDirectory.create(path, job)
    give(directory, "prompts.parquet", make_prompts(8))
    give(directory, "judgments.parquet", make_judgments(40))
    counted = {"used": {"person": 40}, "left_out": {"model": 3}}
    (directory.inputs / "judged_by.json").write_text(json.dumps(counted))
    return job, directory


def ran(models: dict[str, str], path: Path, **settings: Any) -> tuple[dict[str, Any], RunDirectory]:
    job, directory = prepared(models, path, **settings)
    with Report(directory) as report:
        return run(job, report, directory), directory


def events(directory: RunDirectory, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, directory.events.read_text().splitlines())
    return [event for event in lines if event["kind"] == kind]


def test_the_log_probability_of_a_response_is_that_of_its_tokens():
    model = tiny_model()
    texts = [Encoded([5, 6, 7, 8], prompt_tokens=2), Encoded([9, 10, 11], prompt_tokens=1)]
    found = response_logprobs(model, texts, pad_id=0)
    for text, logprobs in zip(texts, found, strict=True):
        full = model(torch.tensor([text.ids])).logits[0].log_softmax(-1)
        expected = [
            full[place - 1, text.ids[place]].item()
            for place in range(text.prompt_tokens, len(text.ids))
        ]
        assert logprobs == pytest.approx(expected, abs=1e-5)


def test_dpo_takes_the_side_that_was_preferred_and_no_ties(tmp_path):
    rows = make_judgments(12, ties=0.0)
    rows[0]["outcome"], rows[1]["outcome"] = "tie", "both_bad"
    directory = RunDirectory.create(tmp_path, make_job("policy", {}))
    give(directory, "judgments.parquet", rows)
    chat = ChatTokenizer(tiny_tokenizer())
    path = directory.inputs / "judgments.parquet"
    found = dpo.preferences(read_pairs(path, chat, LengthLimits(limits={"reward.max_tokens": 100})))
    assert len(found) == 10
    for row, pair in zip(rows[2:], found, strict=True):
        won, lost = ("first", "second") if row["outcome"] == "first" else ("second", "first")
        for side, name in ((pair.chosen, won), (pair.rejected, lost)):
            assert chat.decode(side.ids[side.prompt_tokens :]) == row[f"{name}_text"]
            assert chat.tokenizer.decode(side.ids[: side.prompt_tokens]).endswith("<|assistant|>")


def test_dpo_raises_the_margin_and_says_what_it_left_out(models, tmp_path):
    summary, directory = ran(models, tmp_path, **DPO)
    reported = events(directory, "metrics")
    assert reported[0]["values"]["dpo/margin"] == pytest.approx(0, abs=0.05)
    # The first figure is of a policy that equals the reference; β is .1, the margin in nats.
    assert summary.margin > 3
    assert summary.held_out_margin > 1
    assert summary.accuracy > 0.8
    assert summary.ties_left_out + summary.pairs + summary.held_out_pairs == 40
    assert summary.ties_left_out > 0
    assert summary.method == "dpo"
    assert summary.judged_by == {"used": {"person": 40}, "left_out": {"model": 3}}
    warned = {e["name"]: e["message"] for e in events(directory, "note") if e["note"] == "warning"}
    assert warned["ties"].startswith(f"{summary.ties_left_out} of 40 judgments are ties")
    assert warned["judged_by"] == (
        "learned from judgments by person 40; left out: model 3 (reward.learn_from)"
    )
    assert len(rows_of(directory.outputs / "samples.parquet")) == 4


def test_dpo_does_not_learn_from_what_the_audit_model_has_for_itself(models, tmp_path):
    rows = make_judgments(40)  # two of each of the first sixteen of 24 prompts
    found = []
    for audited in (0, 5):
        job, directory = prepared(models, tmp_path / str(audited), **DPO)
        asked = {row["prompt"] for row in rows[:audited]}
        roles = ("audit" if row["prompt"] in asked else "train" for row in rows)
        judged = [row | {"prompt_role": role} for row, role in zip(rows, roles, strict=True)]
        give(directory, "judgments.parquet", judged)
        with Report(directory) as report:
            found.append(run(job, report, directory))
    parts = ("pairs", "held_out_pairs", "apart_preferences", "ties_left_out")
    assert [sum(getattr(summary, part) for part in parts) for summary in found] == [40, 40]
    none, some = found
    assert none.apart_preferences == 0
    # Of the ten on audited prompts those on held-out ones measure, as they did.
    assert some.held_out_pairs == none.held_out_pairs
    assert some.pairs == none.pairs - some.apart_preferences
    assert some.apart_preferences > 0


def test_dpo_is_measured_on_pairs_that_no_reward_model_chose(models, tmp_path):
    job, directory = prepared(models, tmp_path, **DPO)
    rows = make_judgments(48, ties=0.0)  # two on each of 24 prompts, the second one chosen
    arms = ["random"] * 24 + ["bald"] * 24
    give(directory, "judgments.parquet", [r | {"arm": a} for r, a in zip(rows, arms, strict=True)])
    with Report(directory) as report:
        summary = run(job, report, directory)
    # A fifth of 24 prompts is 5: of ten judgments half measure, and none of the ten is learned.
    assert summary.held_out_pairs == 5
    assert summary.pairs + summary.apart_preferences == 38


def test_the_margin_of_the_reference_is_zero(models):
    chat = ChatTokenizer.load(models["reference"])
    pair = dpo.Preference(chat.chat("Say 1", "zzz"), chat.chat("Say 1", "abc"))
    model = tiny_model(seed=1)
    assert dpo.margins(model, model, [pair], pad_id=chat.pad_id) == [0.0]
    other = tiny_model(seed=2)
    (there,), (back,) = (
        dpo.margins(a, b, [pair], pad_id=chat.pad_id) for a, b in ((model, other), (other, model))
    )
    assert there == pytest.approx(-back)
    assert abs(there) > 1e-3


def test_every_metric_is_defined_and_every_step_reported_once(models, tmp_path):
    _, directory = ran(models, tmp_path, **DPO)
    reported = events(directory, "metrics")
    named = {name for event in reported for name in event["values"]}
    assert named - {"reward/score"} <= PPO_METRICS.keys() | metric_definitions.METRICS.keys()
    steps = [event["step"] for event in reported if "train/loss" in event["values"]]
    assert steps == list(range(1, len(steps) + 1))
    done = events(directory, "progress")[-1]
    assert done["done"] == done["total"] == steps[-1]
    assert any(event["note"] == "sample" for event in events(directory, "note"))


def test_a_cancelled_run_resumes_as_if_nothing_had_happened(models, tmp_path, monkeypatch):
    _, whole = ran(models, tmp_path / "whole", **DPO)

    job, directory = prepared(models, tmp_path / "parts", **DPO)
    monkeypatch.setattr(cancellation, "_requested", False)
    emit = Report.metrics

    def cancel_at_three(report: Report, step: int, values: Any) -> None:
        emit(report, step, values)
        if step == 3:
            cancellation.request_cancel()

    with monkeypatch.context() as patched, Report(directory) as report:
        patched.setattr(Report, "metrics", cancel_at_three)
        with pytest.raises(Cancelled):
            run(job, report, directory)
    assert not directory.model.exists()
    monkeypatch.setattr(cancellation, "_requested", False)
    again = Job(**{**vars(job), "attempt": 2, "resume": True})
    with Report(directory, attempt=2) as report:
        run(again, report, directory)

    ours, theirs = (load_file(d.model / "model.safetensors") for d in (directory, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    def told(folder: RunDirectory) -> list[tuple[int, dict[str, float]]]:
        return [(e["step"], e["values"]) for e in events(folder, "metrics")]

    assert told(directory) == told(whole)
    assert "resuming from checkpoint-4" in directory.log.read_text()


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_a_group_method_is_the_engine_with_groups(models, tmp_path, method):
    """The stage reports under its method's name, and with groups of four."""
    chosen = {"optimize__method": method, "ppo__updates": 2, "ppo__rollouts": 8, "ppo__lr": 1e-3}
    summary, directory = ran(models, tmp_path, **chosen, ppo__minibatch=4)
    assert (summary.method, summary.updates, summary.kl_weight) == (method, 2, 0.05)
    told = [event["values"] for event in events(directory, "metrics")]
    assert {values["value/loss"] for values in told} == {0.0}
    assert all(values["reward/group_std"] > 0 for values in told)
    ours, theirs = (
        load_file(f"{place}/model.safetensors") for place in (directory.model, models["policy"])
    )
    assert any(not torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_method_determines_its_settings_of_the_engine():
    ppo = PPOConfig(rollouts=32, loss_mean="constant")
    assert engine_settings("ppo", ppo) == ppo
    grpo = engine_settings("grpo", ppo)
    assert (grpo.baseline, grpo.group_scaling, grpo.whiten_advantages) == (
        "group_mean",
        "std",
        False,
    )
    assert (grpo.loss_mean, grpo.rollouts, grpo.group_size) == ("constant", 32, 4)
    rloo = engine_settings("rloo", ppo)
    assert (rloo.baseline, rloo.group_scaling, rloo.whiten_advantages) == (
        "leave_one_out",
        "none",
        False,
    )
    assert (rloo.loss_mean, rloo.ratio_level, rloo.group_size) == ("constant", "token", 4)
    plus = engine_settings("reinforce++", ppo)
    assert (plus.baseline, plus.whiten_advantages, plus.group_size) == ("return_to_go", True, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimize.method": "grpo", "ppo.baseline": "leave_one_out"},
            'ppo.baseline="leave_one_out" contradicts optimize.method=grpo, which sets it to '
            '"group_mean"; leave it out, or set optimize.method=ppo',
        ),
        (
            {"optimize.method": "reinforce++", "ppo.whiten_advantages": False},
            "ppo.whiten_advantages=false contradicts optimize.method=reinforce++",
        ),
        (
            {"optimize.method": "grpo", "ppo.kl_estimator": "full"},
            "ppo.group_scaling='std' weights",
        ),
        ({"optimize.method": "grpo", "ppo.critic": "separate"}, "trains no values"),
        (
            {"optimize.method": "rloo", "ppo.baseline": "group_mean"},
            'ppo.baseline="group_mean" contradicts optimize.method=rloo',
        ),
        (
            {"optimize.method": "grpo", "ppo.samples_per_prompt": 5},
            "ppo.samples_per_prompt=5 must divide ppo.rollouts=64",
        ),
    ],
)
def test_settings_that_contradict_the_method_are_refused(settings, message):
    with pytest.raises(ValueError) as refusal:
        Config().override(settings)
    assert message in str(refusal.value)


@pytest.mark.parametrize("method", ["ppo", "grpo", "rloo", "reinforce++", "dpo", "best-of-n"])
def test_every_method_works_with_the_demos_two_processes(method):
    demo = Config.load([CONFIGS / "demo.toml"])
    assert demo.worker.processes == 2
    assert demo.override({"optimize.method": method}).optimize.method == method


@pytest.mark.parametrize("method", ["ppo", "rloo", "dpo"])
def test_snapshots_are_policies_along_the_way(models, tmp_path, method):
    chosen = {"ppo": {"ppo__updates": 6}, "rloo": RLOO, "dpo": DPO}[method]
    _, directory = ran(models, tmp_path, optimize__snapshots=2, **chosen)
    kept = snapshots_of(directory)
    assert len(kept) == 2
    if method != "dpo":
        assert [step for step, _ in kept] == [2, 4]
    weights = [load_file(path / "model.safetensors") for _, path in kept]
    weights.append(load_file(directory.model / "model.safetensors"))
    name = "model.layers.0.mlp.up_proj.weight"
    assert len({tuple(w[name].flatten().tolist()) for w in weights}) == 3
    assert (
        ChatTokenizer.load(str(kept[0][1])).stop_ids
        == ChatTokenizer.load(models["policy"]).stop_ids
    )


def test_snapshots_are_spread_evenly_and_whole(tmp_path):
    directory = RunDirectory(tmp_path)
    snapshots = Snapshots(directory, count=3, total=10)

    def save(path: Path) -> None:
        (path / "weights").write_text("x")

    for step in range(1, 11):
        snapshots.keep(step, save)
    assert [step for step, _ in snapshots_of(directory)] == [2, 5, 8]  # 2.5, 5, 7.5, to even
    with pytest.raises(OSError, match="full"):
        snapshots.keep(5, lambda _: (_ for _ in ()).throw(OSError("full")))
    assert [step for step, _ in snapshots_of(directory)] == [2, 5, 8]


OLD_RLOO = "[optimize]\nrloo_lr = 2e-4\nrloo_generations = 8\nsnapshots = 2\n"


def test_settings_of_the_trainer_that_ran_rloo_are_left_out_of_an_old_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(OLD_RLOO)
    config = Config.load([file], {"optimize.method": "rloo"})
    assert (config.optimize.snapshots, config.ppo.lr) == (2, PPOConfig().lr)
    old = config.to_dict()
    old["optimize"] |= {"rloo_updates": 30, "rloo_beta": 0.05}
    assert Config.from_dict(old) == config


def test_an_old_file_that_chooses_rloo_says_what_is_read_instead(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(OLD_RLOO + 'method = "rloo"\n')
    with pytest.raises(ValueError) as refusal:
        Config.load([file])
    assert (
        "config.toml sets optimize.rloo_lr, optimize.rloo_generations for rloo, which runs in PPO's "
        "engine now; set ppo.lr, ppo.samples_per_prompt instead, and remove them"
    ) in str(refusal.value)
    with pytest.raises(
        ValueError, match=r"optimize\.rloo_beta is no longer a setting: .* ppo\.kl_weight"
    ):
        Config().override({"optimize.rloo_beta": "0.1"})


def test_an_iteration_that_was_started_with_such_a_setting_goes_on():
    started = Iteration(number=1, settings={"optimize.rloo_lr": "1e-3", "ppo.lr": "1e-5"})
    iteration, config = overridden(Config(), started, {"ppo.updates": "7"}, due="policy")
    assert (config.ppo.lr, config.ppo.updates) == (1e-5, 7)
    assert iteration.settings == {"ppo.lr": "1e-5", "ppo.updates": "7"}
