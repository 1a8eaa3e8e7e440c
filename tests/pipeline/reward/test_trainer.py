"""The reward model's trainer: the loss of a batch, who learns at which rate, and who says when to stop."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.reward import RewardConfig
from pipeline.models.text import ChatTokenizer
from pipeline.reward import trainer as reward_trainer
from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import BOTH_BAD, FIRST, SECOND, TIE, Likelihood
from pipeline.reward.likelihood_parameters import Ties
from pipeline.reward.network import RewardOutput, from_language_model
from pipeline.reward.trainer import RewardTrainer, Training, train_network
from pipeline.runs.rundir import Report, RunDirectory
from tests.helpers.judged_pairs import pair
from tests.helpers.stage_inputs import tiny_models

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def batch(outcomes: list[int], **others: torch.Tensor) -> dict[str, Any]:
    """As the collator makes it, but for the texts, which the stand-ins for a network do not read."""
    n = len(outcomes)
    usual = {
        "input_ids": None, "attention_mask": None, "annotators": None,
        "side": torch.ones(n), "outcomes": torch.tensor(outcomes),
        "strength": torch.zeros(n, dtype=torch.long), "longer": torch.zeros(n), "offset": torch.zeros(n),
    }  # fmt: skip
    return usual | others


def loss_of(outputs: RewardOutput, inputs: Any, likelihood: Likelihood, **settings: Any) -> Any:
    trainer: Any = RewardTrainer.__new__(RewardTrainer)
    trainer.likelihood, trainer.judgments = likelihood, 10
    trainer.settings = RewardConfig(**settings)
    return trainer.compute_loss(lambda **_: outputs, inputs)


def trained(
    models: dict[str, str],
    pairs: list[JudgedPair],
    path: Path,
    *,
    outside: Any = (),
    **settings: Any,
) -> Any:
    """A network that started from the reference, trained on `pairs`."""
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat)
    config = RewardConfig(**settings)
    with Report(RunDirectory(path)) as report:
        training = Training(
            base=models["reference"], chat=chat, config=config, checkpoints=path / "c",
            report=report, device=CPU,
        )  # fmt: skip
        train_network(network, training, pairs, stopping=outside)
    return network


def test_the_loss_of_a_batch_by_hand():
    """Two judgments, annotators, a penalty, a length penalty, and two heads, of ten judgments in all."""
    log3 = math.log(3)
    # The reward gives both pairs d = log 3; so does head 1, and head 2 gives them 0.
    heads = torch.tensor([[log3, 0.0], [log3, 0.0], [0.0, 0.0], [0.0, 0.0]], requires_grad=True)
    slope = torch.tensor([1.0, -1.0], requires_grad=True)
    outputs = RewardOutput(
        logits=torch.tensor([[log3], [log3], [0.0], [0.0]]), heads=heads, ties=Ties().packed(),
        slope=slope, bias=torch.tensor([0.0, log3]), penalty=torch.tensor(3.0),
    )  # fmt: skip
    inputs = batch(
        [FIRST, FIRST], side=torch.tensor([1.0, -1.0]), longer=torch.tensor([2.0, 2.0]),
        weights=torch.tensor([[1.0, 2.0], [3.0, 0.0]]),
    )  # fmt: skip
    found = loss_of(
        outputs, inputs, Likelihood(tie_model="half", both_bad="tie"), length_penalty_weight=0.5
    )
    # z: log 3 for the first judgment and −log 3 − log 3 = −log 9 for the second, whose
    # probabilities are 3/4 and 1/10.  Differences of reward and of length are in proportion: a
    # squared correlation of 1.
    losses = (-math.log(3 / 4) - math.log(1 / 10)) / 2
    assert found.item() == pytest.approx(losses + 3 / 10 + 0.5, rel=1e-6)
    # The heads add nothing to the value.  Of the first texts' gradients, each a quarter of weight ·
    # −(1 − P) · slope, P is 3/4 and 1/2 for the first judgment, 1/10 and 1/4 for the second.
    found.backward()
    assert heads.grad is not None
    assert heads.grad[:2].flatten().tolist() == pytest.approx(
        [-1 / 4 / 4, -2 * 1 / 2 / 4, 3 * 9 / 10 / 4, 0.0]
    )
    # What the annotators learn comes from the reward: −(1 − P) · d / 2, and nothing of the heads.
    assert slope.grad is not None
    assert slope.grad.tolist() == pytest.approx([-log3 / 4 / 2, -log3 * 9 / 10 / 2])


def gradients(
    models: dict[str, str],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    at_once: int,
    **settings: Any,
) -> tuple[torch.Tensor, float]:
    """The first step's over all weights, and its loss, of six pairs in parts of `at_once`."""
    found: list[torch.Tensor] = []

    class Watched(RewardTrainer):
        def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
            made = super().create_optimizer(model)
            weights = [p for group in made.param_groups for p in group["params"]]
            made.register_step_pre_hook(
                lambda *_: found.append(torch.cat([p.grad.flatten() for p in weights]))
            )
            return made

    monkeypatch.setattr(reward_trainer, "RewardTrainer", Watched)
    monkeypatch.setattr("pipeline.models.hf_trainer.divide_batch", lambda *_, **__: at_once)
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat)
    torch.manual_seed(0)
    torch.nn.init.normal_(network.score.weight)
    pairs = [
        pair(n % 2, prompt=f"p{n}", first_ids=[5] * (n + 2), second_ids=[9 + n] * 4,
             first_length=n + 1, second_length=3)
        for n in range(6)
    ]  # fmt: skip
    config = RewardConfig(batch=6, epochs=1, **settings)
    with Report(RunDirectory(path / "run")) as report:
        training = Training(
            base=models["reference"], chat=chat, config=config, checkpoints=path / "c",
            report=report, device=CPU,
        )  # fmt: skip
        train_network(network, training, pairs)
    assert len(found) == 1
    events = map(json.loads, (path / "run" / "events.jsonl").read_text().splitlines())
    losses = [
        event["values"]["train/loss"] for event in events if "train/loss" in event.get("values", {})
    ]
    return found[0], losses[0]


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_length_penalty_is_the_whole_batchs_however_it_is_cut(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
):
    whole, cut, without = (
        gradients(models, tmp_path / name, monkeypatch, at_once=n, length_penalty_weight=weight)
        for name, n, weight in (("whole", 6, 5.0), ("cut", at_once, 5.0), ("without", 6, 0.0))
    )
    assert torch.allclose(cut[0], whole[0], atol=1e-5)
    assert cut[1] == pytest.approx(whole[1], rel=1e-4)
    assert not torch.allclose(without[0], whole[0], atol=1e-2)


def test_how_bad_both_are_is_read_from_the_middle_of_the_two_rewards():
    """P(both bad | tie) = σ((κ − m) c), here with κ = 0, c = 1 and m = (2 + 1) / 2: its odds are e^−m."""
    outputs = RewardOutput(logits=torch.tensor([[2.0], [1.0]]), ties=Ties().packed())
    bad, tie = (
        loss_of(
            outputs, batch([outcome]), Likelihood(tie_model="rao_kupper", both_bad="absolute")
        ).item()
        for outcome in (BOTH_BAD, TIE)
    )
    assert bad - tie == pytest.approx(1.5, rel=1e-5)


def test_the_heads_learn_without_moving_the_reward(models: dict[str, str]):
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat, heads=3)
    for head in (network.score, network.heads):
        torch.nn.init.normal_(head.weight)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    network.train()
    output = network(ids, torch.ones_like(ids))
    assert (output.logits.shape, output.heads.shape) == ((2, 1), (2, 3))
    output.heads.square().sum().backward()
    moved = {name for name, p in network.named_parameters() if p.grad is not None}
    assert moved == {"heads.weight", "heads.bias"}
    network.eval()
    members = network(ids, torch.ones_like(ids)).logits
    # The mean of the members is the reward, and they differ as the heads do.
    assert torch.allclose(members.mean(1), output.logits.squeeze(1), atol=1e-5)
    assert torch.allclose(members.diff(dim=1), output.heads.diff(dim=1), atol=1e-5)


def test_the_threshold_has_a_learning_rate_of_its_own(models: dict[str, str], tmp_path: Path):
    pairs = [pair(o, prompt=f"p{i}") for i, o in enumerate([FIRST, SECOND] * 2)]
    moved = [
        trained(models, pairs, tmp_path / str(rate), lr=1e-9, theta_lr=rate, batch=4, epochs=3)
        for rate in (1e-9, 0.5)
    ]
    # Nothing ties, so θ starts at the least tie rate there is, tanh(θ/2) = .02, and wants less.
    assert moved[0].ties().item() == pytest.approx(2 * math.atanh(0.02), abs=1e-6)
    assert moved[1].ties().item() < 0.8 * moved[0].ties().item()


def test_annotators_have_a_learning_rate_of_their_own(models: dict[str, str], tmp_path: Path):
    """One of the two always presses left, which an untrained reward can only take for a leaning."""
    people = ["left", "fair"] * 4
    pairs = [
        pair(FIRST if who == "left" else n // 2 % 2, prompt=f"p{n}", annotator=who)
        for n, who in enumerate(people)
    ]
    still, moved = (
        trained(models, pairs, tmp_path / str(rate), lr=1e-9, annotator_lr=rate, batch=8, epochs=3)
        for rate in (1e-9, 0.1)
    )
    assert still.annotators.ids == moved.annotators.ids == ["fair", "left"]
    assert still.annotators.bias.tolist() == pytest.approx([0, 0], abs=1e-6)
    fair, left = moved.annotators.bias.tolist()
    assert abs(fair) < 0.02
    assert left > 0.1


def test_judgments_of_one_prompt_have_one_say_in_when_to_stop(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    class Recorded(reward_trainer.EarlyStopping):
        def __init__(self, network: Any, measure: Any, groups: Any, **settings: Any) -> None:
            asked.append(list(groups))
            super().__init__(network, measure, groups, **settings)

    monkeypatch.setattr(reward_trainer, "EarlyStopping", Recorded)
    learned = [pair(FIRST, prompt="p"), pair(SECOND, prompt="q")]
    outside = [pair(FIRST, prompt=p, name=f"j-{n}") for n, p in enumerate(["r", "r", "s"])]
    trained(models, learned, tmp_path, outside=outside, batch=2, epochs=1)
    assert asked == [["r", "r", "s"]]
