"""Members of a reward model: networks of their own, saved, loaded, moved and put together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.models.hub import ModelUnavailable
from pipeline.models.text import ChatTokenizer
from pipeline.reward import members
from pipeline.reward.network import from_language_model
from pipeline.reward.scoring import RewardModel
from pipeline.reward.stopping import EarlyStop
from pipeline.reward.trainer import Training
from pipeline.runs.rundir import Report, RunDirectory
from pipeline.stages.reward import run
from tests.helpers.stage_inputs import give, make_job, make_judgments, make_prompts, tiny_models

ASKED, TEXTS = ["Say 1"] * 3, ["zzbzzzcz", "abcdefgh", "zz"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def stage(models: dict[str, str], path: Path, **settings: Any) -> tuple[RunDirectory, Any]:
    directory = RunDirectory.create(path, make_job("reward", models, **settings))
    give(directory, "judgments.parquet", make_judgments(96, ties=0.1))
    give(directory, "prompts.parquet", make_prompts(6))
    with Report(directory) as report:
        return directory, run(directory.job(), report, directory)


@pytest.fixture(scope="module")
def trained(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return stage(models, tmp_path_factory.mktemp("stage"), reward__members=3)[0]


def weighted(models: dict[str, str], *seeds: int) -> list[Any]:
    """Networks with a random head each, and ties of their own."""
    chat, found = ChatTokenizer.load(models["reference"]), []
    for seed in seeds:
        network = from_language_model(models["reference"], chat)
        torch.manual_seed(seed)
        for parameter in (*network.score.parameters(), *network.ties.parameters()):
            torch.nn.init.normal_(parameter)
        found.append(network)
    return found


def joined(models: dict[str, str], networks: list[Any]) -> RewardModel:
    chat = ChatTokenizer.load(models["reference"])
    return RewardModel(networks[0], chat, "cpu", peers=networks[1:])


def test_the_reward_is_the_mean_of_the_networks(models: dict[str, str]):
    networks = weighted(models, 1, 2, 3)
    together = joined(models, networks)
    alone = [joined(models, [network])(ASKED, TEXTS) for network in networks]
    assert together.members == 3
    for ours, own in zip(together.member_scores(ASKED, TEXTS), alone, strict=True):
        assert ours == pytest.approx(own, abs=1e-6)
    means = [sum(rewards) / 3 for rewards in zip(*alone, strict=True)]
    assert together(ASKED, TEXTS) == pytest.approx(means, abs=1e-6)


def test_each_member_is_shifted_by_its_own_and_the_level_by_their_mean(models: dict[str, str]):
    model = joined(models, weighted(models, 1, 2))
    before = model.member_scores(ASKED, TEXTS)
    levels = [network.ties.level.item() for network in model.networks]
    model.shift([1.0, 4.0])
    for was, now, by in zip(before, model.member_scores(ASKED, TEXTS), (1, 4), strict=True):
        assert now == pytest.approx([each + by for each in was], abs=1e-5)
    for was, network in zip(levels, model.networks, strict=True):
        assert network.ties.level.item() == pytest.approx(was + 2.5)
    model.rescale(2.0)
    for was, now, by in zip(before, model.member_scores(ASKED, TEXTS), (1, 4), strict=True):
        assert now == pytest.approx([2 * (each + by) for each in was], abs=1e-5)
    for was, network in zip(levels, model.networks, strict=True):
        assert network.ties.level.item() == pytest.approx(2 * (was + 2.5))


def test_saved_members_are_whole_reward_models_and_come_back(
    models: dict[str, str], tmp_path: Path
):
    model = joined(models, weighted(models, 1, 2, 3))
    model.save(tmp_path)
    loaded = RewardModel.load(tmp_path)
    before = model.member_scores(ASKED, TEXTS)
    for ours, own in zip(loaded.member_scores(ASKED, TEXTS), before, strict=True):
        assert ours == pytest.approx(own, abs=1e-5)
    second = RewardModel.load(tmp_path / "member-2")
    assert second.members == 1
    assert second(ASKED, TEXTS) == pytest.approx(before[1], abs=1e-5)
    shutil.rmtree(tmp_path / "member-3")
    with pytest.raises(ModelUnavailable, match="member-3"):
        RewardModel.load(tmp_path)


def test_the_stage_trains_networks_that_differ_and_agree_on_ties(trained: RunDirectory):
    model = RewardModel.load(trained.model)
    assert (model.members, len(model.networks)) == (3, 3)
    by_member = model.member_scores(ASKED, TEXTS)
    for n, rewards in enumerate(by_member):
        assert rewards[0] > rewards[1]  # what was planted
        others = [other for m, other in enumerate(by_member) if m != n]
        assert all(rewards != pytest.approx(other, abs=1e-3) for other in others)
    packed = [network.ties.packed().tolist() for network in model.networks]
    assert packed[0] == packed[1] == packed[2]
    events = [json.loads(line) for line in trained.events.read_text().splitlines()]
    doing = {e["message"].partition(":")[2] for e in events if e["kind"] == "progress"}
    for n in (1, 2, 3):
        assert any(f"network {n} of 3" in each for each in doing)
    done = [e["done"] / e["total"] for e in events if e["kind"] == "progress"]
    assert done == pytest.approx(sorted(done))


def test_ties_are_the_mean_of_what_the_networks_learned(models: dict[str, str]):
    networks = weighted(models, 1, 2)
    levels = [network.ties.level.item() for network in networks]
    members._share_ties(networks)
    assert [n.ties.level.item() for n in networks] == pytest.approx([sum(levels) / 2] * 2)


def test_what_was_kept_is_the_mean_of_the_networks_that_were_checked():
    kept = [
        EarlyStop(step=3, epoch=0.5, log_loss=1.0),
        None,
        EarlyStop(step=8, epoch=1.0, log_loss=0.4),
        EarlyStop(step=7, epoch=0.9, log_loss=0.4),
    ]
    found = members._mean(kept)
    assert found == EarlyStop(step=6, epoch=pytest.approx(0.8), log_loss=pytest.approx(0.6))
    assert members._mean([None, None]) is None


@pytest.mark.parametrize(
    ("settings", "large", "networks", "members_of_each"),
    [
        ({}, False, 3, 1),
        ({}, True, 1, 3),
        ({"ensemble": "heads"}, False, 1, 3),
        ({"ensemble": "networks"}, True, 3, 1),
        ({"members": 1}, True, 1, 1),
    ],
)
def test_large_models_have_heads_where_nothing_is_said(
    models: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    large: bool,
    networks: int,
    members_of_each: int,
    tmp_path: Path,
):
    monkeypatch.setattr(members, "is_large", lambda _: large)
    config = make_job("reward", models, reward__members=3).config.reward
    given = type(config)(**(vars(config) | settings))
    chat = ChatTokenizer.load(models["reference"])
    with Report(RunDirectory(tmp_path)) as report:
        training = Training(
            base=models["reference"], chat=chat, config=given, device=torch.device("cpu"),
            checkpoints=tmp_path, report=report,
        )  # fmt: skip
        first, count = members._first_network(training)
    assert (count, first.members) == (networks, members_of_each)
