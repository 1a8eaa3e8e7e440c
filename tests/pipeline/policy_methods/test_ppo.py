"""The PPO stage: shaping beside the reward model, and what it reports."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.loop.remedies import suggested
from pipeline.models.loading import load_causal_lm
from pipeline.models.text import ChatTokenizer
from pipeline.ppo import TrainingDiverged
from pipeline.ppo.checkpoint import list_checkpoints, load_checkpoint
from pipeline.ppo.learner import Learner
from pipeline.ppo.network.model import weights_hash
from pipeline.ppo.settings import toml
from pipeline.reward.network import load_network
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import policy as ppo_stage
from storage import worker_files
from storage.engine.database import Database
from storage.records import Prompt
from storage.tables import prompts
from tests.helpers.stage_inputs import (
    first_update,
    give,
    make_job,
    make_prompts,
    tiny_models_and_reward,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models_and_reward(tmp_path_factory.mktemp("models"))


def test_components_are_logged_apart_and_summed_by_weight(models, tmp_path):
    weights = {"length": -3.0, "format": 0.5}
    shaped = first_update(
        models, tmp_path / "a", shaping__weights=weights, shaping__reward_weight=2.0
    )
    assert shaped["reward/mean"] == pytest.approx(
        2 * shaped["reward/score"] - 3 * shaped["reward/length"] + 0.5 * shaped["reward/format"]
    )
    assert shaped["reward/length"] > 0
    plain = first_update(models, tmp_path / "b")
    assert plain["reward/score"] == shaped["reward/score"] == pytest.approx(plain["reward/mean"])


def test_a_floor_raises_low_scores(models, tmp_path):
    plain = first_update(models, tmp_path / "a")
    floor = plain["reward/mean"]
    floored = first_update(models, tmp_path / "b", shaping__floor=floor)
    assert floored["reward/min"] == pytest.approx(floor)
    assert floored["reward/max"] == plain["reward/max"]


def test_an_unknown_component_is_refused_before_anything_is_sampled(models, tmp_path):
    with pytest.raises(ValueError, match="no shaping component 'repetitions'"):
        first_update(models, tmp_path / "a", shaping__weights={"repetitions": -1.0})


def category_counts(models: dict[str, str], path: Path, *, without: str = "") -> dict[str, int]:
    """Returns that each category's mean is of, after every prompt was answered once."""
    job = make_job("policy", models, ppo__updates=2, ppo__rollouts=4, ppo__baseline="category_mean")
    directory = RunDirectory.create(path / "run", job)
    categories = ["sums"] * 5 + ["poems"] * 2 + [""]
    made = [Prompt.make(f"Say {i}", role="train", category=c) for i, c in enumerate(categories)]
    with Database.open(path / "workspace") as db:
        prompts.add(db, made)
        worker_files.write_prompts_input(db, directory.inputs, role="train")
    if without:
        file = directory.inputs / "prompts.parquet"
        pd.read_parquet(file).drop(columns=without).to_parquet(file, index=False)
    with Report(directory) as report:
        ppo_stage.run(job, report, directory)
    last = load_checkpoint(list_checkpoints(directory.checkpoint / "checkpoints")[-1])
    return {name: count for name, (count, _) in last["category_means"].items()}


def test_returns_are_compared_with_those_of_the_prompts_own_category(models, tmp_path):
    assert category_counts(models, tmp_path) == {"sums": 5, "poems": 2, "": 1}


def test_inputs_that_name_no_categories_are_of_one(models, tmp_path):
    assert category_counts(models, tmp_path, without="category") == {"": 8}


def test_a_resume_that_passed_over_a_damaged_checkpoint_says_so_on_the_page(models, tmp_path):
    job = make_job("policy", models, ppo__updates=2)
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "prompts.parquet", make_prompts(8))
    with Report(directory) as report:
        ppo_stage.run(job, report, directory)
    newest = list_checkpoints(directory.checkpoint / "checkpoints")[-1]
    (newest / "state.pt").write_bytes(b"torn")
    again = replace(job, attempt=2, resume=True)
    with Report(directory, attempt=2) as report:
        ppo_stage.run(again, report, directory)
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    assert [e["step"] for e in events if e["kind"] == "metrics"] == [1, 2]
    (note,) = [e for e in events if e["kind"] == "note" and e["name"] == "damaged_checkpoint"]
    assert (note["note"], note["step"]) == ("warning", 1)
    assert note["payload"] == {"damaged": "step-000002", "used": "step-000001"}
    assert "step-000002" in directory.log.read_text()


def test_a_run_that_diverges_ends_with_a_flag_that_outweighs_those_before(
    models, tmp_path, monkeypatch
):
    job = make_job("policy", models, ppo__updates=3)
    directory = RunDirectory.create(tmp_path / "run", job)
    give(directory, "prompts.parquet", make_prompts(8))
    step = Learner._step

    def broken(learner: Learner, tally: Any) -> None:
        step(learner, tally)
        torch.nn.utils.vector_to_parameters(
            torch.full((sum(p.numel() for p in learner.parameters),), torch.nan), learner.parameters
        )

    monkeypatch.setattr(Learner, "_step", broken)
    with Report(directory) as report, pytest.raises(TrainingDiverged):
        ppo_stage.run(job, report, directory)
    events = [json.loads(line) for line in directory.events.read_text().splitlines()]
    flag = [e for e in events if e["kind"] == "note"][-1]
    assert (flag["note"], flag["name"], flag["payload"]["level"]) == ("flag", "diverged", "stop")
    assert suggested("diverged", ran=job.config, now=job.config) == {
        "ppo.lr": toml(job.config.ppo.lr / 2)
    }


def notes(path: Path) -> dict[str, str]:
    events = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return {e["name"]: e["message"] for e in events if e["kind"] == "note"}


def last_state(path: Path) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(path / "checkpoint" / "checkpoints")[-1])


def loaded(models: dict[str, str], path: Path, monkeypatch: Any, **settings: Any) -> list[str]:
    """The language models that the stage loaded, in a run of one update."""
    found: list[str] = []
    load = load_causal_lm

    def watched(name: str, **options: Any) -> Any:
        found.append(name)
        return load(name, **options)

    monkeypatch.setattr(ppo_stage, "load_causal_lm", watched)
    figures = first_update(models, path, **settings)
    assert figures["reference/changed"] == 0
    return found


def test_adapters_on_the_sft_model_need_no_second_model(models, tmp_path, monkeypatch):
    sft = models["reference"]
    from_sft = models | {"policy": sft}
    one = loaded(from_sft, tmp_path / "a", monkeypatch, ppo__lora_rank=4, ppo__lr=1e-2)
    assert one == [sft]
    apart = shutil.copytree(sft, tmp_path / "sft")  # the same weights in another place
    two = loaded(
        from_sft | {"reference": str(apart)}, tmp_path / "b", monkeypatch,
        ppo__lora_rank=4, ppo__lr=1e-2,
    )  # fmt: skip
    assert two == [sft, str(apart)]
    saved = [weights_hash(load_causal_lm(str(tmp_path / run / "model"))) for run in "ab"]
    assert saved[0] == saved[1] != weights_hash(load_causal_lm(sft))


def test_what_starts_elsewhere_or_trains_whole_keeps_its_reference(models, tmp_path, monkeypatch):
    both = [models["policy"], models["reference"]]
    previous = {"ppo__lora_rank": 4, "ppo__start_from": "previous"}
    assert loaded(models, tmp_path / "a", monkeypatch, **previous) == both
    sft = models["reference"]
    assert loaded(models | {"policy": sft}, tmp_path / "b", monkeypatch) == [sft, sft]


STILL = {"ppo__critic": "separate", "ppo__lr": 1e-12}
"""Steps too small to see: what was trained is what it started from."""


def assert_starts_from(state: dict[str, Any], trunk: Any, head: Any) -> None:
    critic = {
        name.removeprefix("critic."): weight
        for name, weight in state["model"].items()
        if name.startswith("critic.")
    }
    expected = trunk.state_dict()
    assert critic.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(critic[name], weight, atol=1e-8, rtol=0)
    torch.testing.assert_close(state["model"]["value_head.weight"], head, atol=1e-8, rtol=0)


@pytest.mark.parametrize("networks", [1, 2])
def test_a_separate_critic_starts_from_the_reward_model(models, tmp_path, networks):
    chat = ChatTokenizer.load(models["reference"])
    members = [load_network(models["reward"]) for _ in range(networks)]
    for number, member in enumerate(members):
        torch.manual_seed(number)
        torch.nn.init.normal_(member.score.weight)
    RewardModel(members[0], chat, "cpu", peers=members[1:]).save(tmp_path / "reward")
    first_update(models | {"reward": str(tmp_path / "reward")}, tmp_path / "run", **STILL)
    assert_starts_from(
        last_state(tmp_path / "run"), members[0].base_model, members[0].score.weight.detach()
    )
    assert "critic" not in notes(tmp_path / "run")


def test_a_reward_model_of_another_tokenizer_is_no_critic(models, tmp_path):
    reward = Path(shutil.copytree(models["reward"], tmp_path / "reward"))
    tokenizer = json.loads((reward / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (reward / "tokenizer.json").write_text(json.dumps(tokenizer))
    first_update(models | {"reward": str(reward)}, tmp_path / "run", **STILL)
    assert "its tokenizer is not the policy's" in notes(tmp_path / "run")["critic"]
    policy = load_causal_lm(models["policy"]).base_model
    assert_starts_from(last_state(tmp_path / "run"), policy, torch.zeros(1, 32))
