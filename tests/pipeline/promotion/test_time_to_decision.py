"""The forecast of the sequential test, against hand-worked cases and against simulated futures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.promotion.time_to_decision import (
    HORIZON,
    LabelsToDecision,
    Tally,
    leads,
    time_to_decision,
)
from pipeline.statistics.sequential_test import LOG_E_THRESHOLD, log_e, log_wealth, sequential_test

ONE_WIN_SHORT = Tally(wins=11)
"""Eleven wins: mean(1.55¹¹, 1.4¹¹, 1.275¹¹, 1.175¹¹, 1.1¹¹, 1.05¹¹, …)/12 is 15.8, and 23.3 with a
twelfth."""


def test_the_least_lead_decides_exactly_the_tests_that_log_e_decides():
    needed = leads(60)
    for n in range(1, 61):
        for wins in range(n + 1):
            x = np.array([1.0] * wins + [0.0] * (n - wins))
            decides = log_e(log_wealth(x))[-1] > LOG_E_THRESHOLD
            assert (abs(2 * wins - n) >= needed[n]) == decides, (wins, n)


def test_one_win_from_the_limit_the_next_judgment_decides_unless_it_is_no_win():
    """Next win: (2 + 11) of (2 + 1 + 2 + 11).  After a tie, a win has (2 + 11)/17; after a loss, eleven
    wins of twelve and one more win are a lead of 11 in 13, which is too little (12 of 12 decide, and
    later leads are no smaller)."""
    assert sequential_test([1.0] * 11, range(11)).decision == "go on"
    assert sequential_test([1.0] * 12, range(12)).decision == "better"
    found = time_to_decision(ONE_WIN_SHORT)
    assert found.within(0) == 0
    assert found.within(1) == pytest.approx(13 / 16)
    assert found.within(2) == pytest.approx(13 / 16 + 1 / 16 * 13 / 17)
    assert found.quantile(0.5) == 1
    assert found.interval[0] == 1


def test_losses_count_as_wins_do():
    wins, losses = time_to_decision(Tally(3, 4, 9)), time_to_decision(Tally(9, 4, 3))
    np.testing.assert_allclose(wins.by, losses.by)


def test_before_the_first_judgment_twelve_in_a_row_are_the_soonest_decision():
    """Wins from the prior alone: Π (2 + k)/(5 + k) over k = 0 … 11 is 2·3·4/(14·15·16), and losses
    the same."""
    found = time_to_decision(Tally())
    assert found.within(11) == 0
    assert found.within(12) == pytest.approx(2 * 2 * 3 * 4 / (14 * 15 * 16))


def test_the_forecast_is_what_simulated_futures_do():
    """20,000 futures: chances from the posterior, then outcomes, then the test as the gate reads it."""
    tally, runs, prompts = Tally(8, 3, 2), 20_000, 60
    generator = np.random.default_rng(5)
    chances = generator.dirichlet((10.0, 4.0, 4.0), size=runs)
    drawn = generator.random((runs, prompts))
    outcomes = np.where(
        drawn < chances[:, :1], 1.0, np.where(drawn < chances[:, :2].sum(1, keepdims=True), 0.5, 0)
    )
    start = log_wealth(np.array([1.0] * 8 + [0.5] * 3 + [0.0] * 2))[-1]
    wealth = np.broadcast_to(start, (runs, 12)).copy()
    decided = np.zeros(runs, dtype=bool)
    found = time_to_decision(tally)
    for n in range(prompts):
        wealth += log_wealth(outcomes[:, n : n + 1])[:, 0]
        decided |= log_e(wealth) > LOG_E_THRESHOLD
        if n + 1 in (10, 30, 60):
            share = decided.mean()
            error = math.sqrt(share * (1 - share) / runs)
            assert abs(found.within(n + 1) - share) < 4 * error, n


def test_an_even_policy_has_no_upper_end():
    low, high = time_to_decision(Tally(30, 10, 30)).interval
    assert low is not None
    assert high is None
    assert time_to_decision(Tally(30, 10, 30)).within(10**6) < 0.95


def test_the_same_counts_are_computed_once():
    assert time_to_decision(Tally(5, 1, 4)) is time_to_decision(Tally(5, 1, 4))


def test_in_labels_the_judgment_on_the_gate_comes_at_a_random_place():
    """One of two labels is on the gate: it is the first with probability ½."""
    found = LabelsToDecision(time_to_decision(ONE_WIN_SHORT), labels=2, prompts=1)
    assert found.within(0) == 0
    assert found.within(1) == pytest.approx(13 / 32)
    assert found.within(2) == found.within(9) == pytest.approx(13 / 16)
    assert found.quantile(0.5) == 2
    assert found.quantile(0.9) is None  # the queue has no more
    assert found.interval == (1, None)


def test_without_a_pair_on_the_gate_no_label_decides():
    found = LabelsToDecision(time_to_decision(ONE_WIN_SHORT), labels=30, prompts=0)
    assert found.within(30) == 0
    assert found.interval == (None, None)


def test_a_queue_longer_than_the_horizon_is_read_to_the_horizon():
    forecast = time_to_decision(Tally(30, 10, 30))
    found = LabelsToDecision(forecast, labels=5000, prompts=2000)
    assert found.within(5000) == pytest.approx(forecast.within(HORIZON))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Tally(-1, 0, 0), "must not be negative"),
        (lambda: Tally.of([1.0, 0.3]), "an outcome must be 0"),
        (
            lambda: LabelsToDecision(time_to_decision(Tally()), labels=3, prompts=4),
            "prompts=4 must be between 0 and labels=3",
        ),
    ],
)
def test_impossible_counts_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
