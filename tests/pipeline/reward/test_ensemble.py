"""Reward-model ensembles: the aggregation by hand, members of one network, and a job's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from pipeline.config.sections import Config
from pipeline.config.shaping import ShapingConfig
from pipeline.loop.stage_inputs import Preparation
from pipeline.models.hub import ModelUnavailable
from pipeline.models.text import ChatTokenizer
from pipeline.policy_methods.inputs import PolicyPrompt, job_reward
from pipeline.ppo.network import offload
from pipeline.reward import scoring
from pipeline.reward.ensemble import Ensemble, aggregate, spread
from pipeline.reward.network import from_language_model
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages import evaluate
from storage.engine.database import Database
from storage.records import Iteration, ModelVersion, as_messages
from storage.tables import models as versions
from tests.helpers.stage_inputs import (
    first_update,
    give,
    make_job,
    make_prompts,
    tiny_models_and_reward,
)
from tests.helpers.tiny import save_classifier

# Three members, two completions.  The first: mean 2, deviations −1, −1, 2, so a variance of
# (1 + 1 + 4) / 3 = 2 (and 3 over K − 1).  The second: all agree on 5.
SCORES = torch.tensor([[1.0, 5.0], [1.0, 5.0], [4.0, 5.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Those of the stages, and a second reward model with another head."""
    made = tiny_models_and_reward(tmp_path_factory.mktemp("models"))
    second = RewardModel.load(made["reward"])
    torch.manual_seed(1)
    torch.nn.init.normal_(second.network.score.weight)
    path = Path(made["reward"]).with_name("reward_2")
    second.network.save_pretrained(path)
    second.chat.tokenizer.save_pretrained(path)
    return made | {"reward_2": str(path)}


@pytest.mark.parametrize(
    ("how", "weight", "expected"),
    [
        ("mean", 9.0, [2.0, 5.0]),
        ("min", 9.0, [1.0, 5.0]),
        ("lower_bound", 1.0, [2 - 2**0.5, 5.0]),
        ("lower_bound", 0.5, [2 - 2**0.5 / 2, 5.0]),
        ("lower_bound", 0.0, [2.0, 5.0]),
    ],
)
def test_one_score_of_several_by_hand(how, weight, expected):
    assert aggregate(SCORES, how=how, weight=weight).tolist() == pytest.approx(expected)


def test_the_deviation_is_over_members_and_0_for_one():
    assert spread(SCORES).tolist() == pytest.approx([2**0.5, 0])
    assert spread(SCORES[:1]).tolist() == [0, 0]


class Fixed:
    """A scorer with scores made up beforehand."""

    def __init__(self, *scores: list[float]) -> None:
        self.scores = list(scores)

    @property
    def members(self) -> int:
        return len(self.scores)

    def member_scores(self, _: Sequence[Any], __: Sequence[str]) -> list[list[float]]:
        return self.scores


def test_members_of_all_scorers_count_alike_and_are_named():
    judges = Ensemble(
        [Fixed([1.0, 5.0], [1.0, 5.0]), Fixed([4.0, 5.0])], ShapingConfig(ensemble="min")
    )
    verdict = judges([[], []], ["", ""])
    assert (verdict.scores, verdict.own) == ([1, 5], [1, 5])
    first = Ensemble([Fixed([4.0, 5.0]), Fixed([1.0, 5.0], [1.0, 3.0])], ShapingConfig())
    assert first([[], []], ["", ""]).own == [4, 5]
    assert judges.figures == list(verdict.figures) == [
        "member_1", "member_2", "member_3", "ensemble_sd",
    ]  # fmt: skip
    assert verdict.figures["member_3"] == [4, 5]
    assert verdict.figures["ensemble_sd"] == pytest.approx([2**0.5, 0])


def test_one_member_is_itself_and_no_ensemble():
    alone = Ensemble([Fixed([1.0, 5.0])], ShapingConfig())
    assert alone([[], []], ["", ""]).scores == [1, 5]
    assert alone([[], []], ["", ""]).figures == {}
    with pytest.raises(
        ValueError, match="'min' needs several members; train the reward model with"
    ):
        Ensemble([Fixed([1.0])], ShapingConfig(ensemble="min"))


def test_a_network_of_several_heads_is_scored_in_one_pass(models):
    """Heads a and b together say what networks with one of them each say."""
    chat = ChatTokenizer.load(models["reference"])
    single = []
    for seed in (1, 2):
        network = from_language_model(models["reference"], chat)
        torch.manual_seed(seed)
        torch.nn.init.normal_(network.score.weight)
        single.append(RewardModel(network, chat, "cpu"))
    network = from_language_model(models["reference"], chat, heads=2)
    for part in ("weight", "bias"):
        both = torch.cat([getattr(model.network.score, part) for model in single])
        getattr(network.heads, part).data = both.detach()
        getattr(network.score, part).data = both.detach().mean(0, keepdim=True)
    double = RewardModel(network, chat, "cpu")
    asked, texts = ["Say 1"] * 3, ["yes", "a much longer answer", ""]
    expected = [model(asked, texts) for model in single]
    assert double.members == 2
    for found, alone in zip(double.member_scores(asked, texts), expected, strict=True):
        assert found == pytest.approx(alone, abs=1e-5)
    means = [(a + b) / 2 for a, b in zip(*expected, strict=True)]
    assert double(asked, texts) == pytest.approx(means, abs=1e-5)


def test_ppo_is_paid_the_ensemble_and_logs_each_member(models, tmp_path):
    single = {key: path for key, path in models.items() if key != "reward_2"}
    alone = {
        key: first_update(single | {"reward": models[key]}, tmp_path / key)
        for key in ("reward", "reward_2")
    }
    both = first_update(
        models, tmp_path / "both", shaping__ensemble="lower_bound", shaping__ensemble_lambda=2.0
    )
    # The first update's responses are the same whatever the reward.
    assert both["reward/member_1"] == pytest.approx(alone["reward"]["reward/mean"])
    assert both["reward/member_2"] == pytest.approx(alone["reward_2"]["reward/mean"])
    mean = (both["reward/member_1"] + both["reward/member_2"]) / 2
    assert both["reward/ensemble_sd"] > 0.01
    assert both["reward/score"] == pytest.approx(mean - 2 * both["reward/ensemble_sd"])
    assert both["reward/mean"] == pytest.approx(both["reward/score"])  # figures pay nothing
    assert "reward/ensemble_sd" not in alone["reward"]


def test_evaluation_scores_as_ppo_was_paid(models, tmp_path):
    rewards, scores = {}, {}
    alone = {name: model for name, model in models.items() if name != "reward_2"}
    for how, given in (("min", models), ("mean", models), ("alone", alone)):
        job = make_job("evaluate", given, shaping__ensemble="min" if how == "min" else "mean")
        directory = RunDirectory.create(tmp_path / how, job)
        give(directory, "prompts.parquet", make_prompts(4))
        with Report(directory) as report:
            rewards[how] = evaluate.run(job, report, directory).policy.reward
        scores[how] = pd.read_parquet(directory.outputs / "scores.parquet")
    assert rewards["min"] < rewards["mean"] - 0.01
    # The gate is told what the iteration's own model says, whatever was paid.
    own = scores["alone"]["reward"].tolist()
    assert [scores[how]["own_reward"].tolist() for how in scores] == [pytest.approx(own)] * 3


def test_an_ordinary_reward_model_gives_the_rewards_that_transformers_gives(tmp_path):
    path = save_classifier(tmp_path / "published")
    model = RewardModel.load(path)
    theirs = AutoModelForSequenceClassification.from_pretrained(path)
    asked = [as_messages(f"Say {i}") for i in range(3)]
    said = ["yes", "a longer answer", "no"]
    with torch.no_grad():
        expected = [
            theirs(torch.tensor([model.chat.chat(*text).ids])).logits.item()
            for text in zip(asked, said, strict=True)
        ]
    assert model(asked, said) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.1
    assert model.members == 1


def test_a_classifier_of_two_labels_is_no_reward_model(tmp_path):
    path = save_classifier(tmp_path / "two", labels=2)
    with pytest.raises(ModelUnavailable, match="outputs 2 numbers per text"):
        RewardModel.load(path)


def test_a_job_names_the_extra_models_by_id_directory_or_hub(tmp_path):
    extra = '["reward-1", "some-org/reward-model"]'
    config = Config().override({"shaping.extra_reward_models": extra})
    with Database.open(tmp_path / "workspace") as db:
        for id, role in (("sft-1", "sft"), ("reward-1", "reward"), ("reward-2", "reward")):
            (db.workspace / "models" / id).mkdir(parents=True)
            versions.add(
                db, ModelVersion(id=id, role=role, name=id, path=f"models/{id}", iteration=1)
            )  # type: ignore[arg-type]
        current = Iteration(number=1, phase="policy", labels_wanted=1, reward_model="reward-2")
        prepared = Preparation(db, current, config)
        job = prepared.job("policy")
        folder = (db.workspace / "models").resolve()
        assert job.reward_models() == [
            str(folder / "reward-2"), str(folder / "reward-1"), "some-org/reward-model",
        ]  # fmt: skip
        assert job.names["reward_2"] == "reward-1"
        # They choose pairs as well, as further members; the reward stage makes its own.
        assert prepared.job("sampling").models["reward_2"] == job.models["reward_2"]
        assert prepared.job("reward").models.get("reward_2") is None


# --- models that only score -------------------------------------------------------------------

ASKED = [as_messages("tea or coffee"), as_messages("a trip to the sea")]
GIVEN = ["tea is warm", "take a towel"]


def in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The precision of a GPU; on a CPU it is fp32."""
    monkeypatch.setattr(scoring, "resolve_precision", lambda *_: "bf16")


def test_a_frozen_model_gives_the_same_rewards_with_half_the_memory(models, monkeypatch):
    in_bf16(monkeypatch)
    model = RewardModel.load(models["reward_2"])
    torch.nn.init.normal_(model.network.base_model.norm.weight, mean=1.0, std=0.1)
    rewards = model.member_scores(ASKED, GIVEN)
    model.freeze()
    assert model.member_scores(ASKED, GIVEN) == rewards
    kept = {name: p.dtype for name, p in model.network.named_parameters()}
    layers = {name for name in kept if name.endswith("_proj.weight")}
    assert layers
    assert {kept[name] for name in layers} == {torch.bfloat16}
    assert {kept[name] for name in kept.keys() - layers} == {torch.float32}


def test_a_model_in_fp32_keeps_its_weights(models):
    model = RewardModel.load(models["reward"])
    model.freeze()
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}


@pytest.mark.parametrize("where", ["none", "frozen"])
def test_a_job_offloads_its_reward_models_if_asked(models, monkeypatch, where):
    """The copies stand for those on a GPU."""
    copied: list[torch.Tensor] = []
    monkeypatch.setattr(
        offload, "_on_device", lambda data, _: (copied.append(data), data.clone())[1]
    )
    job = make_job("policy", models, ppo__offload=where)
    prompts = [PolicyPrompt(str(n), messages, []) for n, messages in enumerate(ASKED)]
    reward, _ = job_reward(job, prompts, device=torch.device("cpu"))
    usual = RewardModel.load(models["reward"])
    second = RewardModel.load(models["reward_2"])
    both = zip(usual(ASKED, GIVEN), second(ASKED, GIVEN), strict=True)
    assert reward([0, 1], GIVEN)["score"] == pytest.approx([fmean(x) for x in both])
    weights = [
        w for each in (usual, second) for w in (*each.network.parameters(), *each.network.buffers())
    ]
    assert len(copied) == (len(weights) if where == "frozen" else 0)
