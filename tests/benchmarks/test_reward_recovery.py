"""What the likelihoods and the annotator model recover, and Bradley-Terry against choix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.recovery import World, comparable, fit, outliers, simulate
from pipeline.reward.annotators import BIAS_SD, SLOPE_SD, AnnotatorJudgments
from pipeline.reward.likelihood import FIRST, Likelihood

# github.com/lucasmaystre/choix, tests/data/testcase-pairwise-*.json (MIT): (winner, loser) pairs and
# the maximum-likelihood estimates.
CHOIX = [
    ([(0, 1), (1, 2), (2, 0)], [0.0, 0.0, 0.0]),
    ([(0, 1), (0, 1), (1, 2), (2, 0)], [0.419617624, -0.419617624, 0.0]),
]


@pytest.mark.parametrize(("won", "expected"), CHOIX)
@pytest.mark.parametrize("tie_model", ["drop", "half"])
def test_bradley_terry_on_a_table_of_items_is_choixs(won, expected, tie_model):
    winners, losers = (torch.tensor(side) for side in zip(*won, strict=True))
    count = len(won)
    judged = AnnotatorJudgments(
        d=torch.zeros(count, dtype=torch.float64), side=torch.ones(count, dtype=torch.float64),
        annotator=torch.zeros(count, dtype=torch.long), outcomes=torch.full((count,), FIRST),
        strength=torch.zeros(count, dtype=torch.long), level=torch.zeros(count),
    )  # fmt: skip
    one = torch.ones(1, dtype=torch.float64)
    world = World(
        rewards=torch.zeros(3), theta=0.0, slopes=one, biases=one, first=winners, second=losers,
        judged=judged,
    )  # fmt: skip
    found = fit(world, Likelihood(tie_model=tie_model, both_bad="tie"), annotators=False)
    assert found.rewards.tolist() == pytest.approx(expected, abs=1e-6)


def test_what_was_drawn_from_the_priors_is_found():
    held = []
    for seed in (1, 2):
        coin = np.random.default_rng(seed)
        slopes, biases = 1 + coin.normal(0, SLOPE_SD, 12), coin.normal(0, BIAS_SD, 12)
        world = simulate(coin, slopes=slopes, biases=biases, each=150, items=15)
        found = fit(world, Likelihood(tie_model="rao_kupper", both_bad="tie"))
        fitted = found.annotators
        assert abs(found.theta - world.theta) < 3 * found.theta_sd
        assert np.corrcoef(found.rewards, world.rewards)[0, 1] > 0.97
        truth = comparable(world.slopes)
        held += ((1 + fitted.delta - truth).abs() <= 2 * fitted.delta_sd).tolist()
        held += ((fitted.bias - world.biases).abs() <= 2 * fitted.bias_sd).tolist()
        # Not by being vague: the intervals are well inside the priors.
        assert fitted.delta_sd.max() < 0.6 * SLOPE_SD
        assert fitted.bias_sd.max() < 0.7 * BIAS_SD
    assert sum(held) / len(held) >= 0.85  # of 48; the benchmark asks 90% of 1,600


def test_outliers_get_the_right_sign_and_ranking():
    found = outliers(1, 20, 150, 20)
    assert found["inverted below 0"] == 1
    assert found["spam within .5 of 0"] == 1
    assert found["AUC"] >= 0.95
