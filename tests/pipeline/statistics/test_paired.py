"""Shifts between two measurements of the same judgments: by hand, and how often they cover."""

import math

import numpy as np
import pytest

from pipeline.statistics.paired import chance_interval, mean_shift, share_shift, subset_shift

T_2, T_3 = 4.302652729911275, 3.182446305284263
"""97.5% points of Student's t at 2 and 3 degrees of freedom, from a table."""


def test_a_shift_of_means_by_hand():
    # Differences 1, 3, −1 on prompts a, a, b: mean 1; residuals by prompt a 2, b −2; squares 8.
    found = mean_shift([0, 0, 1], [1, 3, 0], ["a", "a", "b"])
    assert (found.before, found.after, found.shift) == (pytest.approx(1 / 3), 4 / 3, 1)
    half = 12.706204736174698 * math.sqrt(2 / 1 * 8 / 9)
    assert (found.low, found.high) == (pytest.approx(1 - half), pytest.approx(1 + half))
    assert (found.units, found.prompts) == (3, 2)
    assert not found.clear


def test_shares_that_never_differ_have_an_interval():
    # Bonett and Price for n = 4 without discordant pairs: p₁₂ = p₂₁ = 1/6, variance (2/6)/6, times
    # the 6/5 of the clustered estimator.
    found = share_shift([1, 0, 1, 1], [1, 0, 1, 1], ["a", "b", "c", "d"])
    half = T_3 * math.sqrt(2 / 6 / 6 * 6 / 5)
    assert found.shift == 0
    assert (found.low, found.high) == (pytest.approx(-half), pytest.approx(half))


def test_one_prompt_has_no_interval():
    for shift in (mean_shift, share_shift):
        found = shift([0, 1], [1, 1], ["a", "a"])
        assert (found.shift, found.low, found.high, found.clear) == (0.5, None, None, False)


def test_the_mean_of_a_subset_by_hand():
    # Outcomes 1, 1, 0, 0 on four prompts; without the first: 1/2 → 1/3, a shift of −1/6.
    found = subset_shift([1, 1, 0, 0], [False, True, True, True], ["a", "b", "c", "d"])
    assert found is not None
    assert (found.before, found.after) == (0.5, pytest.approx(1 / 3))
    # Influences: a −1/8; b 2/9 − 1/8; c and d −1/9 + 1/8.
    influences = [-1 / 8, 2 / 9 - 1 / 8, 1 / 8 - 1 / 9, 1 / 8 - 1 / 9]
    half = T_3 * math.sqrt(4 / 3 * sum(each**2 for each in influences))
    assert found.low == pytest.approx(-1 / 6 - half)
    assert found.high == pytest.approx(-1 / 6 + half)
    whole = subset_shift([1, 0], [True, True], ["a", "b"])
    assert whole is not None
    assert (whole.shift, whole.low, whole.high) == (0, 0, 0)
    assert subset_shift([1, 0], [False, False], ["a", "b"]) is None


def test_a_difference_of_shares_is_at_most_one():
    # −1, −1 and the two that are added: the mean is −1/2, s = 1 and t₁ = 12.7, so −0.5 ± 6.4.
    found = share_shift([1, 1], [0, 0], ["a", "b"])
    assert (found.shift, found.low, found.high) == (-1, -1, 1)


def test_chance_by_hand():
    # 1, 2, 3: mean 2, s = 1, so 2 ± t₂ √(4/3).
    half = T_2 * math.sqrt(4 / 3)
    assert chance_interval([1, 2, 3]) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert chance_interval([1.0]) is None
    # Equal shifts: s is one of 50 judgments, so 0.1 ± t₂ √(4/3) / 50.
    low, high = chance_interval([0.1, 0.1, 0.1], least=1 / 50) or (0, 0)
    assert (high - low) / 2 == pytest.approx(half / 50)


def test_values_must_be_paired():
    for wrong in (([], [], []), ([1], [1, 0], ["a"]), ([1], [1], ["a", "b"])):
        with pytest.raises(ValueError, match="as many values before"):
            mean_shift(*wrong)


def test_intervals_cover_the_truth():
    """Two judgments on each of 40 prompts; the second model corrects 10% and spoils 5%, of a half each."""
    coin = np.random.default_rng(0)
    hit, subset_hit, rounds = 0, 0, 1000
    for _ in range(rounds):
        hard = np.repeat(coin.random(40), 2)
        before = coin.random(80) < 0.2 + 0.6 * hard
        after = coin.random(80) < np.where(before, 0.95, 0.1)
        found = share_shift(before, after, [*np.repeat(range(40), 2)])
        assert found.low is not None
        assert found.high is not None
        hit += found.low <= 0.1 / 2 - 0.05 / 2 <= found.high
        kept = coin.random(80) < 0.7
        left = subset_shift(before, kept, [*np.repeat(range(40), 2)])
        assert left is not None
        assert left.low is not None
        assert left.high is not None
        subset_hit += left.low <= 0 <= left.high  # what is left out at random shifts nothing
    # 95% with a standard error of 0.7 points.
    assert 0.93 < hit / rounds < 0.985
    assert 0.93 < subset_hit / rounds < 0.97
