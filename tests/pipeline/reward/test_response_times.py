"""Response times as evidence about the difference of rewards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.config.reward import RewardConfig
from pipeline.models.text import ChatTokenizer
from pipeline.reward.data import JudgedPair
from pipeline.reward.likelihood import BOTH_BAD, FIRST, SECOND
from pipeline.reward.network import from_language_model
from pipeline.reward.response_times import ResponseTimes, speedup, standardized, time_loss
from pipeline.reward.trainer import Training, train_network
from pipeline.runs.rundir import Report, RunDirectory
from tests.helpers.judged_pairs import pair
from tests.helpers.stage_inputs import make_job, tiny_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return tiny_models(tmp_path_factory.mktemp("models"))


def timed(times: list[int | None], **others: Any) -> list[JudgedPair]:
    return [pair(FIRST, milliseconds=ms, **others) for ms in times]


def test_the_speedup_by_hand():
    z = torch.tensor([0.0, 2.0, -2.0, 20.0], dtype=torch.float64, requires_grad=True)
    # tanh 1 = .761594, and tanh 10 is 1 up to 4e-9.
    found = speedup(z)
    assert found.tolist() == pytest.approx([0, -math.log(0.761594), -math.log(0.761594), math.log(10)], abs=1e-6)  # fmt: skip
    found.sum().backward()
    assert z.grad is not None
    assert z.grad[0] == 0
    assert z.grad[1] == pytest.approx(-float(z.grad[2]))
    assert z.grad[1] > 0


def test_the_speedup_is_that_of_a_simulated_diffusion():
    """Random walks between ±1 with drift z/2: the walk ends at +1 with log-odds z."""
    z, step = 3.0, 0.002
    coin = np.random.default_rng(0)
    times = {}
    for drift in (0.0, z / 2):
        at, took = np.zeros(3000), np.zeros(3000)
        going = np.ones(3000, dtype=bool)
        while going.any():
            moves = drift * step + math.sqrt(step) * coin.normal(size=int(going.sum()))
            at[going] += moves
            took[going] += step
            going &= np.abs(at) < 1
        times[drift] = took.mean()
        if drift:
            assert math.log((at > 0).mean() / (at < 0).mean()) == pytest.approx(z, abs=0.3)
    expected = float(speedup(torch.tensor(z)))
    assert math.log(times[0.0] / times[z / 2]) == pytest.approx(expected, abs=0.06)


def test_the_loss_by_hand():
    """t = −1 at z = 2: −1 − .1 + .5 · .272341 = −.963829, and (.963829² − 1)/2 = −.035517."""
    z, times = torch.tensor([2.0, 5.0]), torch.tensor([-1.0, math.nan])
    assert float(time_loss(z, times, torch.tensor([0.5, 0.1]))) == pytest.approx(-0.0177583, abs=1e-6)  # fmt: skip
    assert float(time_loss(z, times, torch.tensor([0.0, 0.0]))) == 0


def test_a_quick_judgment_pushes_rewards_apart_and_a_slow_one_together():
    for t, sign in ((-1.0, -1), (1.0, 1)):
        z = torch.tensor([1.0], requires_grad=True)
        time_loss(z, torch.tensor([t]), torch.tensor([0.5, 0.0])).backward()
        assert z.grad is not None
        assert math.copysign(1, z.grad.item()) == sign


def test_times_are_relative_to_the_annotators_own():
    """Log times ±1 around each annotator's mean; the variance is (10 · 1 + 5 · 1) / 15."""
    quick = timed([1000, round(1000 * math.e**2)] * 5, annotator="quick")
    slow = timed([30_000, round(30_000 * math.e**2)] * 5, annotator="slow")
    assert standardized([*quick, *slow]) == pytest.approx([-1, 1] * 10, abs=1e-3)


def test_times_are_relative_to_what_the_length_explains():
    lengths = [10 * 2 ** (n % 4) for n in range(24)]
    pairs = [
        pair(FIRST, first_ids=[5] * n, second_length=0, milliseconds=100 * n, annotator="a")
        for n in lengths
    ]
    assert standardized(pairs) == pytest.approx([0.0] * 24, abs=1e-6)


def test_what_says_nothing_has_no_time():
    usual = timed([1000, 3000] * 15)
    others = [
        pair(BOTH_BAD, milliseconds=1000),
        pair(SECOND, milliseconds=1000, edited=True),
        pair(SECOND),
        pair(SECOND, milliseconds=1000, annotator="only once"),
    ]
    found = standardized([*usual, *others])
    assert not any(map(math.isnan, found[:30]))
    assert all(map(math.isnan, found[30:]))
    assert all(map(math.isnan, standardized(usual[:19])))


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_the_share_is_learned(share: float):
    coin = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(2000, generator=coin)
    t = -share * speedup(z) + torch.randn(2000, generator=coin)
    learned = ResponseTimes()
    optimizer = torch.optim.Adam(learned.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        time_loss(z, t - t.mean(), learned()).backward()
        optimizer.step()
    assert learned()[0].item() == pytest.approx(share, abs=0.1)


def train(
    models: dict[str, str], pairs: list[JudgedPair], path: Path, **settings: Any
) -> tuple[Any, list[str]]:
    chat = ChatTokenizer.load(models["reference"])
    network = from_language_model(models["reference"], chat)
    directory = RunDirectory.create(path, make_job("reward", models))
    report = Report(directory)
    training = Training(
        base=models["reference"],
        chat=chat,
        config=RewardConfig(tie_model="rao_kupper", both_bad="tie", lr=1e-2, epochs=2, **settings),
        checkpoints=path / "checkpoint",
        report=report,
        device=torch.device("cpu"),
    )
    train_network(network, training, pairs)
    report.close()
    lines = directory.events.read_text().splitlines()
    return network, [line for line in lines if "response_times" in line]


def test_training_learns_from_times_and_does_not_keep_their_parameters(
    models: dict[str, str], tmp_path: Path
):
    pairs = [
        pair(FIRST, name=str(n), first_ids=[5, 6 + n % 3], second_ids=[9, 10], milliseconds=ms)
        for n, ms in enumerate([900, 4000] * 12)
    ]
    without, silent = train(models, pairs, tmp_path / "off")
    network, notes = train(models, pairs, tmp_path / "on", response_times=True)
    assert not silent
    assert len(notes) == 1
    assert "with a share of" in notes[0]
    assert not [name for name in network.state_dict() if name.startswith("times")]
    assert not torch.allclose(network.score.weight, without.score.weight)


def test_too_few_known_times_change_nothing_and_are_named(models: dict[str, str], tmp_path: Path):
    pairs = [
        pair(FIRST, name=str(n), first_ids=[5, 6], second_ids=[9, 10], milliseconds=1000 * n or None)
        for n in range(19)
    ]  # fmt: skip
    without, _ = train(models, pairs, tmp_path / "off")
    network, notes = train(models, pairs, tmp_path / "on", response_times=True)
    assert "at least 20 are needed" in notes[0]
    assert torch.equal(network.score.weight, without.score.weight)
