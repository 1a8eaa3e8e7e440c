"""The Rao-Kupper likelihood against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from pipeline.reward.likelihood import (
    FIRST,
    OUTCOME_CODES,
    SECOND,
    TIE,
    TieThreshold,
    log_probabilities,
    negative_log_likelihood,
    preference_logit,
)

LOG_3 = math.log(3)


def test_probabilities_by_hand():
    # d = log 3, θ = log 2: P(first) = σ(log 3/2) = 1.5/2.5 = .6,
    # P(second) = σ(−log 6) = 1/7, P(tie) = σ(log 6) − σ(log 3/2) = 6/7 − 3/5 = 9/35.
    d = torch.tensor([LOG_3], dtype=torch.float64)
    found = log_probabilities(d, math.log(2)).exp()
    assert_close(found, torch.tensor([[0.6, 1 / 7, 9 / 35]], dtype=torch.float64))


@pytest.mark.parametrize("theta", [1e-3, 0.3, 2.0, 12.0])
def test_probabilities_sum_to_one(theta: float):
    d = torch.linspace(-80, 80, 641, dtype=torch.float64)
    total = log_probabilities(d, theta).exp().sum(-1)
    assert (total - 1).abs().max() <= 1e-15


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outcome", [FIRST, SECOND, TIE])
def test_values_and_gradients_are_finite_at_eighty(dtype: torch.dtype, outcome: int):
    d = torch.tensor([-80.0, 80.0], dtype=dtype, requires_grad=True)
    theta = torch.tensor([0.5], dtype=dtype, requires_grad=True)
    outcomes = torch.tensor([outcome, outcome])
    loss = negative_log_likelihood(d, outcomes, theta=theta, tie_model="rao_kupper")
    loss.sum().backward()
    for value in (loss, d.grad, theta.grad):
        assert value is not None
        assert torch.isfinite(value).all()
    # A tie at d = 80 costs about 80 − θ − log(1 − e^−1): log σ(θ − d) ≈ θ − d.
    if outcome == TIE and dtype is torch.float64:
        expected = 80 - 0.5 - math.log(1 - math.exp(-1))
        assert_close(loss.detach(), torch.tensor([expected, expected], dtype=dtype))


def test_gradient_matches_finite_differences():
    torch.manual_seed(0)
    d = torch.randn(6, dtype=torch.float64, requires_grad=True)
    theta = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    outcomes = torch.tensor([0, 1, 2, 0, 1, 2])

    def loss(d: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return negative_log_likelihood(d, outcomes, theta=theta, tie_model="rao_kupper").sum()

    assert torch.autograd.gradcheck(loss, (d, theta))


def test_odds_of_a_decisive_judgment_are_not_those_of_plain_bradley_terry():
    # From the probabilities above: .6 / (1/7) = 4.2, where σ(d) would give odds of 3.
    d = torch.tensor([LOG_3], dtype=torch.float64)
    found = preference_logit(d, math.log(2))
    assert_close(found, torch.tensor([math.log(4.2)], dtype=torch.float64))


def test_theta_near_zero_is_bradley_terry():
    d = torch.tensor([LOG_3], dtype=torch.float64)
    found = log_probabilities(d, 1e-9).exp()
    assert_close(found[0, :2], torch.tensor([0.75, 0.25], dtype=torch.float64))


def test_half_and_drop_by_hand():
    # d = log 3: first costs −log ¾, second −log ¼, a tie under `half` their mean, −½ log 3/16.
    d = torch.full((3,), LOG_3, dtype=torch.float64)
    outcomes = torch.tensor([FIRST, SECOND, TIE])
    half = negative_log_likelihood(d, outcomes, theta=1.0, tie_model="half")
    expected = [-math.log(0.75), -math.log(0.25), -0.5 * math.log(3 / 16)]
    assert_close(half, torch.tensor(expected, dtype=torch.float64))
    drop = negative_log_likelihood(d[:2], outcomes[:2], theta=1.0, tie_model="drop")
    assert_close(drop, half[:2])


def test_drop_refuses_a_tie_rather_than_ignore_it():
    with pytest.raises(ValueError, match="leave ties out"):
        negative_log_likelihood(torch.zeros(1), torch.tensor([TIE]), theta=1.0, tie_model="drop")


def test_both_bad_counts_as_a_tie():
    assert OUTCOME_CODES == {"first": FIRST, "second": SECOND, "tie": TIE, "both_bad": TIE}


def test_threshold_starts_at_the_tie_rate():
    ties = TieThreshold()
    ties.start_at(0.25)
    # tanh(θ/2) = ¼ → θ = log((1 + ¼)/(1 − ¼)) = log 5/3.
    assert_close(ties().detach(), torch.tensor([math.log(5 / 3)]))
    assert_close(
        log_probabilities(torch.zeros(1), ties().detach()).exp(),
        torch.tensor([[0.375, 0.375, 0.25]]),
    )


def test_threshold_stays_sane_without_ties():
    ties = TieThreshold()
    ties.start_at(0.0)
    assert 0 < ties().item() < 0.05
